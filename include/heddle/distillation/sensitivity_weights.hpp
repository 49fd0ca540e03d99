// Weights for positions whose teacher prediction changes when a modality is corrupted or removed.
//
//   a = D(clean, removed),  b = D(clean, corrupted),   D: total variation, or Jensen-Shannon divergence / ln 2; both lie in [0, 1]
//   e = max(a, b)  or  1 - (1 - a)(1 - b)
//   w = 1 + kappa e, divided by its mean over the valid rows if normalised
//
// Rows [N, V]: the same teacher's logits under three contexts that do not show the answer. 1 <= w <= 1 + kappa before normalisation, and within
// [1 / (1 + kappa), 1 + kappa] after it: no position loses its supervision. Equal contexts give w = 1. w grows with a and b.
// Masked rows, and rows with NaN, +infinity or no support (which get the status), are not valid: weight 0, and no part of the mean.
// Errors: kappa < 0, sizes. Cost: two or three passes over three rows.
// Source: OP-CAD (on-policy clean-audio distillation). Which corruption is shown at which stage of a curriculum is the caller's choice.
//
//     std::vector<double> weights(rows);
//     sensitivity_weights(clean, corrupted, removed, weights, {.kappa = 2});
#pragma once
#include <heddle/distillation/divergence.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

enum class sensitivity_distance : std::uint8_t { total_variation, jensen_shannon };
enum class sensitivity_union : std::uint8_t { maximum, noisy_or };

struct sensitivity_options {
  double kappa = 1;
  sensitivity_distance distance = sensitivity_distance::total_variation;
  sensitivity_union combine = sensitivity_union::maximum;
  bool normalise = true;
};

/// Row functional of clean, corrupted and removed rows for `measure`: the terms a and b.
struct context_sensitivity {
  sensitivity_distance distance = sensitivity_distance::total_variation;
  template <class Row, class C, class X, class R>
  auto operator()(Row& row, C clean, X corrupted, R removed) const {
    return terms(between(row, clean, removed), between(row, clean, corrupted));
  }

 private:
  template <class Row, class P, class Q>
  double between(Row& row, P p, Q q) const {
    const double d = distance == sensitivity_distance::total_variation ? row.tv(p, q) : generalized_jsd{.beta = 0.5}(row, p, q).value * 1.4426950408889634;
    return d < 0 ? 0 : d > 1 ? 1 : d;
  }
};

inline namespace HEDDLE_ISA {

inline double sensitivity_weight(double removed, double corrupted, double kappa, sensitivity_union combine = sensitivity_union::maximum) {
  const double either = combine == sensitivity_union::maximum ? (removed > corrupted ? removed : corrupted) : 1 - (1 - removed) * (1 - corrupted);
  return 1 + kappa * either;
}

template <class Clean, class Corrupted, class Removed>
aligned_vector<heddle::status> sensitivity_weights(const Clean& clean, const Corrupted& corrupted, const Removed& removed, std::span<double> weights, const sensitivity_options& options = {}, const row_options& rows = {}) {
  require(options.kappa >= 0 && options.kappa < math::infinity, "sensitivity_weights: option 'kappa' is ", options.kappa, "; expected a finite number, 0 or more");
  const auto n = static_cast<std::int64_t>(weights.size());
  aligned_vector<double> shifts(2 * weights.size());
  auto statuses = measure(context_sensitivity{options.distance}, rows, tensor_view{shifts.data(), extents{n, std::int64_t{2}}}, clean, corrupted, removed);
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const bool valid = statuses[i] == status::ok && (rows.mask.empty() || rows.mask[i] != 0);
    weights[i] = valid ? sensitivity_weight(shifts[2 * i], shifts[2 * i + 1], options.kappa, options.combine) : 0;
    sum += weights[i], count += valid;
  }
  if (options.normalise && count > 0)
    for (double& w : weights) w /= sum / count;
  return statuses;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
