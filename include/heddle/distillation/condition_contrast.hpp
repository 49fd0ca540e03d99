// A target that favours the tokens which a condition makes likely.
//
//   d = ln t_with - ln t_without,   c = clip(d, -bound, bound) or bound tanh(d / bound),   q ~ t_with e^(gamma c)
//   loss = D_base(s, t_with) + weight * D(q, s)           D: KL(q || s) (default) or KL(s || q)
//
// Named rows: student; the teacher with the whole question; the same teacher, same prefix, with a condition of the question masked. Both teacher rows
// are constants. |ln q - ln t_with| <= 2 gamma bound; gamma = 0 or equal teacher rows give q = t_with. t_without = 0 < t_with: c = bound; t_with = 0:
// q = 0. Errors: bound <= 0, gamma < 0, weight < 0. Statuses and the rest: per_row.hpp.
// condition_contrast_target is the transform alone, for any divergence: targeted{forward_kl{}, condition_contrast_target{}}.
// Cost: four passes over three rows.
// Source: CCE-OPD (condition-contrastive extrapolated on-policy distillation).
//
//     const auto rows = per_row(condition_contrast<>{.target = {.gamma = 1}, .weight = 0.5}, student, teacher, teacher_masked);
#pragma once
#include <heddle/distillation/divergence.hpp>

#include <cstdint>

namespace heddle::distillation {

enum class contrast_bound : std::uint8_t { clip, tanh };

struct condition_contrast_target {
  double gamma = 1;
  double bound = 5;
  contrast_bound kind = contrast_bound::clip;

  void check(const call_shape&) const {
    require(gamma >= 0 && gamma < math::infinity, "condition_contrast: option 'gamma' is ", gamma, "; expected a finite number, 0 or more");
    require(bound > 0 && bound < math::infinity, "condition_contrast: option 'bound' is ", bound, "; expected a positive number");
  }
  template <class Row, class S, class T, class W>
  auto operator()(Row& row, S, T with, W without) const {
    return row.normalise([=, *this](auto v) {
      const auto ratio = log_ratio(with(v), without(v));
      return with(v).log + gamma * (kind == contrast_bound::clip ? clamp(ratio, -bound, bound) : bound * tanh(ratio / bound));
    });
  }
};

template <class Base = reverse_kl, class Divergence = forward_kl>
struct condition_contrast {
  condition_contrast_target target{};
  double weight = 1;
  Base base{};
  Divergence divergence{};

  void check(const call_shape& shape) const {
    target.check(shape);
    require(weight >= 0 && weight < math::infinity, "condition_contrast: option 'weight' is ", weight, "; expected a finite number, 0 or more");
    if constexpr (requires { base.check(shape); }) base.check(shape);
    if constexpr (requires { divergence.check(shape); }) divergence.check(shape);
  }
  template <class Row, class S, class T, class W>
  auto operator()(Row& row, S s, T with, W without) const {
    return base(row, s, with) + weight * divergence(row, s, target(row, s, with, without));
  }
};

}  // namespace heddle::distillation
