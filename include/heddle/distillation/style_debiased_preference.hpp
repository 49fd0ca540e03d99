// Preference loss that does not punish right answers and does not reward a style (SD-DPO).
//
// Pair i: a chosen and a rejected answer, their sequence log-probabilities under the policy and under the reference.
//
//   m_i = beta [(log pi(c) - log pi_0(c)) - (log pi(r) - log pi_0(r))]
//   L_i = -w_i log sigmoid(o_i m_i)                        dL_i / dm_i = -w_i o_i (1 - sigmoid(o_i m_i))
//
//   factual_orientation    o_i = -1, which swaps the two, where the rejected answer's factuality f in [0, 1] exceeds a threshold; else +1
//   style_balance          weights w with sum of w_i o_i phi_i = 0, phi_i the style difference (length, wording) of the original chosen and rejected answer:
//                          the preference then says nothing about style
//       scalar phi         kept pairs 1, inverted pairs sum over kept phi / sum over inverted phi, clipped to [0, max_weight]; without inverted pairs, or if
//                          their sum is 0, all weights are 1. What is left of the sum is reported
//       vector phi         min |sum of w_i o_i phi_i|^2 + ridge |w - 1|^2 over w >= 0: projected gradient with momentum, until no weight moves by more than 1e-12
//                          times the largest or 100,000 steps are done (reported)
//   preference_loss        values L_i, their sum, and gradients with respect to log pi(c) and log pi(r). No orientation, no weights: DPO (2305.18290)
//
// An infinite or NaN log-probability is an error that names the pair; so are beta <= 0, negative weights, orientations other than 1 and -1, sizes.
// Arithmetic in double, sums over pairs in order. Cost: O(N); vector balance O(N q) per step, 8 N bytes twice.
// Source: SD-DPO, formalised from its abstract.
//
//     factual_orientation(factuality, 0.5, orientation);
//     const auto balance = style_balance(length_difference, orientation, weights);           // balance.residual
//     const double loss = preference_loss(pairs, gradients, {.orientation = orientation, .weights = weights});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/distillation/detail/sequences.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace heddle::distillation {

/// Sequence log-probabilities, [pairs] each.
struct preference_pairs {
  std::span<const double> chosen, reference_chosen, rejected, reference_rejected;
};

struct preference_gradients {
  std::span<double> chosen{}, rejected{};          ///< [pairs]; empty: not wanted
  std::span<double> values{};
};

struct preference_options {
  double beta = 0.1;
  std::span<const std::int8_t> orientation{};      ///< 1 or -1; empty: all 1
  std::span<const double> weights{};               ///< >= 0; empty: all 1
};

struct style_balance_result {
  double residual = 0;                             ///< |sum of w_i o_i phi_i|
  bool clipped = false;                            ///< the scalar weight of inverted pairs was outside [0, max_weight]
  std::int64_t steps = 0;                          ///< of the projected gradient
  bool converged = true;
};

struct style_balance_options {
  double max_weight = 10;                          ///< scalar phi
  double ridge = 1e-2;                             ///< vector phi, > 0
};

inline namespace HEDDLE_ISA {

/// Returns how many pairs are swapped.
inline std::int64_t factual_orientation(std::span<const double> rejected_factuality, double threshold, std::span<std::int8_t> orientation) {
  require(orientation.size() == rejected_factuality.size(), "factual_orientation: argument 'orientation' has ", orientation.size(), " pairs; expected ", rejected_factuality.size());
  require(threshold == threshold, "factual_orientation: argument 'threshold' is NaN; expected a number");
  for (std::size_t i = 0; i < orientation.size(); ++i)
    require(rejected_factuality[i] >= 0. && rejected_factuality[i] <= 1., "factual_orientation: argument 'rejected_factuality' is ", rejected_factuality[i], " for pair ", i, "; expected 0 to 1");
  std::int64_t swapped = 0;
  for (std::size_t i = 0; i < orientation.size(); ++i) {
    orientation[i] = rejected_factuality[i] > threshold ? std::int8_t{-1} : std::int8_t{1};
    swapped += orientation[i] < 0;
  }
  return swapped;
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

inline void check_orientation(const char* function, std::span<const std::int8_t> orientation, std::size_t pairs) {
  require(orientation.size() == pairs, function, ": 'orientation' has ", orientation.size(), " pairs; expected ", pairs);
  for (std::size_t i = 0; i < pairs; ++i) require(orientation[i] == 1 || orientation[i] == -1, function, ": 'orientation' is ", orientation[i], " for pair ", i, "; expected 1 or -1");
}

/// ln(1 + e^-m), accurate on both sides.
inline double softplus_of_negative(double m) {
  const double e = math::exp(-std::fabs(m));
  return (m < 0. ? -m : 0.) + std::log1p(e);
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// Scalar style difference.
inline style_balance_result style_balance(std::span<const double> style, std::span<const std::int8_t> orientation, std::span<double> weights, const style_balance_options& options = {}) {
  detail::check_orientation("style_balance", orientation, style.size());
  require(weights.size() == style.size(), "style_balance: argument 'weights' has ", weights.size(), " pairs; expected ", style.size());
  require(options.max_weight >= 0., "style_balance: option 'max_weight' is ", options.max_weight, "; expected 0 or more");
  double kept = 0, inverted = 0;
  for (std::size_t i = 0; i < style.size(); ++i) {
    require(detail::finite(style[i]), "style_balance: argument 'style' is ", style[i], " for pair ", i, "; expected a finite number");
    (orientation[i] > 0 ? kept : inverted) += style[i];
  }
  const double wanted = inverted != 0. ? kept / inverted : 1., weight = inverted != 0. ? std::clamp(wanted, 0., options.max_weight) : 1.;
  for (std::size_t i = 0; i < style.size(); ++i) weights[i] = orientation[i] > 0 ? 1. : weight;
  return {.residual = std::fabs(kept - weight * inverted), .clipped = weight != wanted};
}

/// Vector style difference [pairs, q].
template <tensor_of<2> Style>
  requires host_tensor<Style>
style_balance_result style_balance(const Style& style, std::span<const std::int8_t> orientation, std::span<double> weights, const style_balance_options& options = {}) {
  const auto phi = view_of(style);
  const std::int64_t pairs = phi.extent(0), q = phi.extent(1);
  detail::check_orientation("style_balance", orientation, detail::index(pairs));
  require(static_cast<std::int64_t>(weights.size()) == pairs, "style_balance: argument 'weights' has ", weights.size(), " pairs; expected ", pairs);
  require(detail::finite(options.ridge) && options.ridge > 0., "style_balance: option 'ridge' is ", options.ridge, "; expected a positive number");
  for (std::int64_t i = 0; i < pairs; ++i)
    for (std::int64_t k = 0; k < q; ++k) require(detail::finite(static_cast<double>(phi(i, k))), "style_balance: argument 'style' is not finite for pair ", i, "; expected finite numbers");
  const auto signed_style = [&](std::int64_t i, std::int64_t k) { return orientation[detail::index(i)] * static_cast<double>(phi(i, k)); };

  // The largest eigenvalue of sum phi phi^T is at most the largest sum of a row's absolute values: the step 1 / (largest + ridge) is safe.
  double largest = 0;
  aligned_vector<double> gram(detail::index(q * q)), sum(detail::index(q)), before(detail::index(pairs), 1.), ahead(detail::index(pairs), 1.);
  for (std::int64_t i = 0; i < pairs; ++i)
    for (std::int64_t a = 0; a < q; ++a)
      for (std::int64_t b = 0; b < q; ++b) gram[detail::index(a * q + b)] += signed_style(i, a) * signed_style(i, b);
  for (std::int64_t a = 0; a < q; ++a) {
    double row = 0;
    for (std::int64_t b = 0; b < q; ++b) row += std::fabs(gram[detail::index(a * q + b)]);
    largest = std::max(largest, row);
  }
  const auto imbalance = [&](std::span<const double> w) {
    for (std::int64_t k = 0; k < q; ++k) {
      double s = 0;
      for (std::int64_t i = 0; i < pairs; ++i) s = math::fma(w[detail::index(i)], signed_style(i, k), s);
      sum[detail::index(k)] = s;
    }
  };
  const double step = 1. / (largest + options.ridge), root = std::sqrt(options.ridge * step), momentum = (1. - root) / (1. + root);
  style_balance_result result{.converged = false};
  std::fill(weights.begin(), weights.end(), 1.);
  constexpr std::int64_t most_steps = 100'000;
  while (!result.converged && result.steps < most_steps) {
    imbalance(ahead);
    double moved = 0, size = 1;
    for (std::int64_t i = 0; i < pairs; ++i) {
      double gradient = options.ridge * (ahead[detail::index(i)] - 1.);
      for (std::int64_t k = 0; k < q; ++k) gradient = math::fma(sum[detail::index(k)], signed_style(i, k), gradient);
      const double w = std::max(0., ahead[detail::index(i)] - step * gradient);
      moved = std::max({moved, std::fabs(w - before[detail::index(i)]), std::fabs(w - ahead[detail::index(i)])}), size = std::max(size, w);
      ahead[detail::index(i)] = w + momentum * (w - before[detail::index(i)]);
      before[detail::index(i)] = w;
    }
    ++result.steps;
    result.converged = moved <= 1e-12 * size;
  }
  std::copy(before.begin(), before.end(), weights.begin());
  imbalance(before);
  for (const double s : sum) result.residual = math::fma(s, s, result.residual);
  result.residual = std::sqrt(result.residual);
  return result;
}

/// The sum of w_i L_i. Gradients are those of this sum.
inline double preference_loss(const preference_pairs& pairs, const preference_gradients& gradients, const preference_options& options = {}) {
  const std::size_t n = pairs.chosen.size();
  const auto sized = [n](const char* argument, std::size_t size) { require(size == n, "preference_loss: '", argument, "' has ", size, " pairs; expected ", n); };
  sized("reference_chosen", pairs.reference_chosen.size()), sized("rejected", pairs.rejected.size()), sized("reference_rejected", pairs.reference_rejected.size());
  for (const auto out : {gradients.chosen, gradients.rejected, gradients.values})
    if (!out.empty()) sized("gradients", out.size());
  require(detail::finite(options.beta) && options.beta > 0., "preference_loss: option 'beta' is ", options.beta, "; expected a positive number");
  if (!options.orientation.empty()) detail::check_orientation("preference_loss", options.orientation, n);
  if (!options.weights.empty()) sized("weights", options.weights.size());
  for (std::size_t i = 0; i < n; ++i) {
    for (const double x : {pairs.chosen[i], pairs.reference_chosen[i], pairs.rejected[i], pairs.reference_rejected[i]})
      require(detail::finite(x), "preference_loss: a log-probability of pair ", i, " is ", x, "; expected a finite number");
    require(options.weights.empty() || (detail::finite(options.weights[i]) && options.weights[i] >= 0.), "preference_loss: option 'weights' is ", options.weights.empty() ? 0. : options.weights[i], " for pair ", i, "; expected 0 or more");
  }
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double o = options.orientation.empty() ? 1. : options.orientation[i], w = options.weights.empty() ? 1. : options.weights[i];
    const double m = options.beta * ((pairs.chosen[i] - pairs.reference_chosen[i]) - (pairs.rejected[i] - pairs.reference_rejected[i]));
    const double value = w * detail::softplus_of_negative(o * m), slope = -w * o * options.beta / (1. + math::exp(o * m));
    if (!gradients.values.empty()) gradients.values[i] = value;
    if (!gradients.chosen.empty()) gradients.chosen[i] = slope;
    if (!gradients.rejected.empty()) gradients.rejected[i] = -slope;
    total += value;
  }
  return total;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
