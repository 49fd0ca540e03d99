// Advantages of sampled tokens that are bounded and fade as the student approaches the teacher.
//
//   r = ln t_x - ln s_x
//   sign       A = sign(r)
//   tanh       A = tanh(r / (2 kappa))                            kappa = 1: (t_x - s_x) / (t_x + s_x)
//   coupling   A = sign(r) (1 - e^-|r|)                           (t_x - s_x) / max(t_x, s_x), the default
//   optionally times TV(s, t) of the row
//   loss -sg(A) ln s_x, gradient A (s - e_x) / temperature
//
// |A| <= 1; A is odd and increasing in r; |A| <= |r| for coupling, |r| / 2 for tanh with kappa = 1. In expectation over x ~ s, sign-only training descends
// 2 TV(s, t), and E[max(-A_coupling, 0)] = TV(s, t): the share of proposals that a maximal coupling would refuse.
// t_x = 0 gives A = -1. s_x = 0 is no sample: the functions throw, a row of the functional gets status proposal_outside_support.
//
// bounded_advantage           one token
// bounded_advantages          spans of log-probabilities (and of TV values if given) -> spans of advantages
// bounded_policy_gradient     the loss as a row functional of student and teacher; errors as in sampled_token.hpp, kappa <= 0
// Cost: O(N); as a functional one pass over the vocabulary for the gradient, one more with TV. Double throughout.
// Source: TV-OPD (total variation regulated on-policy distillation).
//
//     const auto result = loss(student, teacher, bounded_policy_gradient{.tokens = sampled}, gradient);
#pragma once
#include <heddle/distillation/sampled_token.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

enum class advantage_shape : std::uint8_t { sign, tanh, coupling };

namespace detail::inline HEDDLE_ISA {

inline double bounded_advantage_of(double log_student, double log_teacher, advantage_shape shape, double kappa) {
  const double ratio = log_teacher - log_student, size = ratio < 0 ? -ratio : ratio, direction = ratio < 0 ? -1 : ratio > 0 ? 1 : 0;
  if (shape == advantage_shape::sign || size == math::infinity) return direction;
  const double x = shape == advantage_shape::tanh ? size / kappa : size;
  const double refused = x < 1e-3 ? x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4))) : 1 - math::exp(-x);   // 1 - e^-x
  return direction * (shape == advantage_shape::tanh ? refused / (2 - refused) : refused);
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline double bounded_advantage(double log_student, double log_teacher, advantage_shape shape = advantage_shape::coupling, double kappa = 1) {
  require(log_student > -math::infinity && log_student < math::infinity, "bounded_advantage: argument 'log_student' is ", log_student, "; expected a finite number, the log-probability of a sampled token");
  require(log_teacher < math::infinity, "bounded_advantage: argument 'log_teacher' is ", log_teacher, "; expected a number or -infinity");
  require(kappa > 0 && kappa < math::infinity, "bounded_advantage: argument 'kappa' is ", kappa, "; expected a positive number");
  return detail::bounded_advantage_of(log_student, log_teacher, shape, kappa);
}

inline void bounded_advantages(std::span<const double> log_student, std::span<const double> log_teacher, std::span<double> out, advantage_shape shape = advantage_shape::coupling, double kappa = 1,
                               std::span<const double> total_variation = {}) {
  const char* const name = "bounded_advantages";
  require(log_teacher.size() == log_student.size(), name, ": argument 'log_teacher' has ", log_teacher.size(), " entries; expected one per token, ", log_student.size());
  require(out.size() == log_student.size(), name, ": argument 'out' has ", out.size(), " entries; expected one per token, ", log_student.size());
  require(total_variation.empty() || total_variation.size() == log_student.size(), name, ": argument 'total_variation' has ", total_variation.size(), " entries; expected none or one per token, ", log_student.size());
  require(kappa > 0 && kappa < math::infinity, name, ": argument 'kappa' is ", kappa, "; expected a positive number");
  for (std::size_t i = 0; i < log_student.size(); ++i) {
    require(log_student[i] > -math::infinity && log_student[i] < math::infinity, name, ": argument 'log_student': entry ", i, " is ", log_student[i], "; expected a finite number, the log-probability of a sampled token");
    require(log_teacher[i] < math::infinity, name, ": argument 'log_teacher': entry ", i, " is ", log_teacher[i], "; expected a number or -infinity");
    require(total_variation.empty() || (total_variation[i] >= 0 && total_variation[i] <= 1), name, ": argument 'total_variation': entry ", i, " is ", total_variation.empty() ? 0. : total_variation[i], "; expected 0 to 1");
  }
  for (std::size_t i = 0; i < log_student.size(); ++i) out[i] = detail::bounded_advantage_of(log_student[i], log_teacher[i], shape, kappa) * (total_variation.empty() ? 1 : total_variation[i]);
}

}  // namespace HEDDLE_ISA

struct bounded_policy_gradient {
  std::span<const std::int32_t> tokens;
  advantage_shape shape = advantage_shape::coupling;
  double kappa = 1;
  bool scale_by_total_variation = false;

  void check(const call_shape& call) const {
    check_tokens("bounded_policy_gradient", "tokens", tokens, call);
    require(kappa > 0 && kappa < math::infinity, "bounded_policy_gradient: option 'kappa' is ", kappa, "; expected a positive number");
  }
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const std::int64_t x = tokens.data()[row.index()];
    const double log_s = s.log_prob(x);
    if (log_s == -math::infinity) row.reject(status::proposal_outside_support);
    const double a = detail::bounded_advantage_of(log_s, t.log_prob(x), shape, kappa) * (scale_by_total_variation ? row.tv(s, t) : 1);
    return outcome{-a * log_s, detail::towards(s, x, a)};
  }
};

}  // namespace heddle::distillation
