// Losses of one sampled token x per row. Row functionals: nll and policy_gradient of the student alone, the others of student and teacher.
//
//   nll                     -ln s_x                                   gradient s - e_x
//   sampled_kl              with r = ln t_x - ln s_x, back-propagated through r:
//                             k1 = -r, k2 = r^2 / 2, k3 = e^r - 1 - r (r at most 20 in all three terms; beyond, the gradient is 0)
//   policy_gradient_kl      -sg(r) ln s_x                             gradient -r (e_x - s)
//   policy_gradient         -A ln s_x for given advantages A          gradient -A (e_x - s)
// (gradients times 1 / temperature). Over x ~ s: E[k1] = E[k3] = KL(s || t) on a common support; policy_gradient_kl and k2 have the expected gradient of KL(s || t), k3 that
// of KL(t || s), and k1 has expected gradient 0: it is a measurement, not a loss.
// Off-policy reuse multiplies a row by the constant min(cap, s_x / s_x^old) when old log-probabilities are given.
// A token without mass in the student (nll, all), or where r is not finite: status infinite_divergence. Errors: ids outside [0, V) in a supervised row, sizes.
// Cost: one scan of the rows, one pass for the gradient. Source of k1, k2, k3: Schulman, Approximating KL Divergence (2020).
//
//     loss(student, teacher, policy_gradient_kl{.tokens = sampled}, grad);
#pragma once
#include <heddle/distillation/per_row.hpp>

namespace heddle::distillation {

enum class estimator : std::uint8_t { k1, k2, k3 };

/// Rows that were sampled from an older student.
struct off_policy {
  std::span<const double> old_log_probs{};   ///< ln s_x^old per row; empty: on policy, factor 1
  double cap = 1;
};

namespace detail::inline HEDDLE_ISA {

inline void check_reuse(const char* function, const off_policy& reuse, const call_shape& shape) {
  require(reuse.old_log_probs.empty() || static_cast<std::int64_t>(reuse.old_log_probs.size()) == shape.rows, function, ": option 'old_log_probs' has ", reuse.old_log_probs.size(), " entries; expected none or one per row, ", shape.rows);
  if (!reuse.old_log_probs.empty())
    for (std::int64_t r = 0; r < shape.rows; ++r)
      if (!shape.masked(r)) require(reuse.old_log_probs.data()[r] < math::infinity, function, ": option 'old_log_probs': entry ", r, " is ", reuse.old_log_probs.data()[r], "; expected the logarithm of a probability");
  require(reuse.cap > 0, function, ": option 'cap' is ", reuse.cap, "; expected a positive number");
}
inline double reuse_factor(const off_policy& reuse, std::int64_t row, double log_prob) {
  if (reuse.old_log_probs.empty()) return 1;
  const double ratio = math::exp(log_prob - reuse.old_log_probs.data()[row]);
  return ratio < reuse.cap ? ratio : reuse.cap;
}
/// A sampled token without mass, or a ratio that is not finite, has no loss.
template <class Row>
void require_finite(Row& row, double x) {
  if (!(x - x == 0)) row.reject(heddle::status::infinite_divergence);
}
/// c (s - e_x)
template <class S>
auto towards(S s, std::int64_t x, double c) {
  return gradient{[=](auto v) { return c * s(v).p; }, at(x, -c)};
}

}  // namespace detail::inline HEDDLE_ISA

struct nll {
  std::span<const std::int32_t> tokens;
  void check(const call_shape& shape) const { check_tokens("nll", "tokens", tokens, shape); }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    const std::int64_t x = tokens.data()[row.index()];
    return outcome{-s.log_prob(x), detail::towards(s, x, 1)};
  }
};

struct sampled_kl {
  std::span<const std::int32_t> tokens;
  distillation::estimator estimator = distillation::estimator::k2;
  off_policy reuse{};
  void check(const call_shape& shape) const { check_tokens("sampled_kl", "tokens", tokens, shape), detail::check_reuse("sampled_kl", reuse, shape); }

  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const std::int64_t x = tokens.data()[row.index()];
    const double r = t.log_prob(x) - s.log_prob(x), capped = r < 20 ? r : 20, grown = math::exp(capped) - 1;
    detail::require_finite(row, r);
    double value = -r, slope = -1;   // slope: d value / d r
    if (estimator == estimator::k2) value = 0.5 * r * r, slope = r;
    if (estimator == estimator::k3) value = grown - capped, slope = r < 20 ? grown : 0;
    return detail::reuse_factor(reuse, row.index(), s.log_prob(x)) * outcome{value, detail::towards(s, x, slope)};
  }
};

struct policy_gradient_kl {
  std::span<const std::int32_t> tokens;
  off_policy reuse{};
  void check(const call_shape& shape) const { check_tokens("policy_gradient_kl", "tokens", tokens, shape), detail::check_reuse("policy_gradient_kl", reuse, shape); }

  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const std::int64_t x = tokens.data()[row.index()];
    const double r = t.log_prob(x) - s.log_prob(x);
    detail::require_finite(row, r);
    return detail::reuse_factor(reuse, row.index(), s.log_prob(x)) * outcome{-r * s.log_prob(x), detail::towards(s, x, r)};
  }
};

struct policy_gradient {
  std::span<const std::int32_t> tokens;
  std::span<const double> advantages;
  off_policy reuse{};
  void check(const call_shape& shape) const {
    check_tokens("policy_gradient", "tokens", tokens, shape), detail::check_reuse("policy_gradient", reuse, shape);
    require(static_cast<std::int64_t>(advantages.size()) == shape.rows, "policy_gradient: argument 'advantages' has ", advantages.size(), " entries; expected one per row, ", shape.rows);
    for (std::int64_t r = 0; r < shape.rows; ++r)
      if (!shape.masked(r)) require(advantages.data()[r] - advantages.data()[r] == 0, "policy_gradient: argument 'advantages': entry ", r, " is ", advantages.data()[r], "; expected a finite number");
  }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    const std::int64_t x = tokens.data()[row.index()];
    const double a = advantages.data()[row.index()];
    detail::require_finite(row, s.log_prob(x));
    return detail::reuse_factor(reuse, row.index(), s.log_prob(x)) * outcome{-a * s.log_prob(x), detail::towards(s, x, a)};
  }
};

}  // namespace heddle::distillation
