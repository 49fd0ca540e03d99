// A verifier's policy gradient, amplified along the shift that a teacher made from its reference.
//
//   u = clip(ln t - ln t_ref, -limit, limit),   d = s (u - sum s u)                   the shift as a direction of the student's logits
//   g = -A (e_x - s) / temperature                                                    the verifier's gradient of a row
//   g' = g + kappa P g,   P = d d^T / (||d||^2 + epsilon)                             gated: only where <-g, d> > 0, the teacher supports the update
//   scalar form: A' = A (1 + kappa clip(sign(A) u_x, 0, limit) / limit)               for trainers that take one advantage per token
//
// The stationary points stay those of the verifier: g' = 0 exactly where g = 0, <g', g> >= ||g||^2, ||g|| <= ||g'|| <= (1 + kappa) ||g||, and what is orthogonal
// to d is unchanged. A row with A = 0 gives 0 whatever the teacher says; t = t_ref gives g' = g. Ungated, g' is linear in g.
// Mass on one side only: u = limit or -limit; on neither: 0.
//
// reverse_distillation         row functional of student, teacher, reference: value -A ln s_x, gradient g'
// amplify                      transforms any gradient [N, V] in place (of PPO, of a loss of your own): rows are read and written once, O(V) each
// reverse_distilled_advantage  the scalar form
// Errors: kappa < 0, epsilon < 0, limit <= 0, ids, sizes, an advantage that is not finite. Masked and bad rows of `amplify` are set to zero.
// Cost: two passes over three rows for d, one for the gradient.
// Source: OPRD (on-policy reverse distillation).
//
//     const auto rows = per_row(reverse_distillation{.tokens = sampled, .advantages = advantages, .along = {.kappa = 2}}, student, teacher, reference);
#pragma once
#include <heddle/distillation/per_row.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

struct policy_shift {
  double kappa = 1;
  double limit = 10;
  double epsilon = 1e-12;
  bool gated = true;

  void check(const call_shape& = {}) const {
    require(kappa >= 0 && kappa < math::infinity, "reverse_distillation: option 'kappa' is ", kappa, "; expected a finite number, 0 or more");
    require(limit > 0 && limit < math::infinity, "reverse_distillation: option 'limit' is ", limit, "; expected a positive number");
    require(epsilon >= 0 && epsilon < math::infinity, "reverse_distillation: option 'epsilon' is ", epsilon, "; expected a finite number, 0 or more");
  }
  /// d as a formula.
  template <class Row, class S, class T, class R>
  auto direction(Row& row, S s, T teacher, R reference) const {
    const auto shift = [=, limit = limit](auto v) { return clamp(log_ratio(teacher(v), reference(v)), -limit, limit); };
    const double mean = row.sum([=](auto v) { return s(v).p * shift(v); });
    return [=](auto v) { return s(v).p * (shift(v) - mean); };
  }
  /// The factor of d in g' from <g, d> and ||d||^2.
  double factor(double along, double square) const { return (gated && !(along < 0)) || !(square > 0) ? 0 : kappa * along / (square + epsilon); }
};

struct reverse_distillation {
  std::span<const std::int32_t> tokens;
  std::span<const double> advantages;
  policy_shift along{};

  void check(const call_shape& shape) const {
    check_tokens("reverse_distillation", "tokens", tokens, shape);
    along.check();
    require(static_cast<std::int64_t>(advantages.size()) == shape.rows, "reverse_distillation: argument 'advantages' has ", advantages.size(), " entries; expected one per row, ", shape.rows);
    for (std::int64_t r = 0; r < shape.rows; ++r)
      if (!shape.masked(r)) require(advantages.data()[r] - advantages.data()[r] == 0, "reverse_distillation: argument 'advantages': entry ", r, " is ", advantages.data()[r], "; expected a finite number");
  }
  template <class Row, class S, class T, class R>
  auto operator()(Row& row, S s, T teacher, R reference) const {
    const std::int64_t x = tokens.data()[row.index()];
    const double a = advantages.data()[row.index()];
    const auto d = along.direction(row, s, teacher, reference);
    const auto [square, mean] = row.sum([=](auto v) { return terms(d(v) * d(v), d(v) * s(v).p); });
    const double c = along.factor(a * (mean - static_cast<double>(d(row.at(x)))), square);   // <g, d> with g = a (s - e_x)
    return outcome{-a * s.log_prob(x), gradient{[=](auto v) { return a * s(v).p + c * d(v); }, at(x, -a)}};
  }
};

namespace detail {

/// The gradient is the fourth named row; only its raw numbers are used.
struct amplified_gradient {
  policy_shift along;
  void check(const call_shape&) const { along.check(); }
  template <class Row, class S, class T, class R, class G>
  auto operator()(Row& row, S s, T teacher, R reference, G g) const {
    const auto d = along.direction(row, s, teacher, reference);
    const auto [square, along_d] = row.sum([=](auto v) { return terms(d(v) * d(v), d(v) * g.logit(v)); });
    const double c = along.factor(along_d, square), temperature = s.temperature();   // the engine divides gradients by it
    return outcome{0., gradient{[=](auto v) { return temperature * (g.logit(v) + c * d(v)); }}};
  }
};

}  // namespace detail

inline namespace HEDDLE_ISA {

/// `gradient` with respect to the student's logits, amplified in place. Returns the statuses.
template <class Student, class Teacher, class Reference, matrix Gradient>
aligned_vector<heddle::status> amplify(const Student& student, const Teacher& teacher, const Reference& reference, const Gradient& gradient, const policy_shift& along = {}, const row_options& options = {}) {
  const auto rows = per_row(detail::amplified_gradient{along}, options, student, teacher, reference, gradient);
  const aligned_vector<double> ones(static_cast<std::size_t>(rows.size()), 1.);
  rows.backward({ones.data(), ones.size()}, gradient);
  return {rows.status().begin(), rows.status().end()};
}

inline double reverse_distilled_advantage(double advantage, double log_teacher, double log_reference, const policy_shift& along = {}) {
  along.check();
  require(advantage - advantage == 0, "reverse_distilled_advantage: argument 'advantage' is ", advantage, "; expected a finite number");
  require(log_teacher < math::infinity && log_reference < math::infinity, "reverse_distilled_advantage: arguments 'log_teacher' and 'log_reference' are ", log_teacher, " and ", log_reference, "; expected numbers or -infinity");
  const double shift = log_teacher == log_reference ? 0 : log_teacher - log_reference, support = advantage < 0 ? -shift : shift;
  const double kept = support < 0 || advantage == 0 ? 0 : support < along.limit ? support : along.limit;
  return advantage * (1 + along.kappa * kept / along.limit);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
