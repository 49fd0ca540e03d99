// The loss of a block drafter, in its three factors (DScout):
//
//   L = sum_{a,i} I_{a,i} W_{a,i} l_{a,i} / sum I W        a: blocks, i = 1 .. K: slots; rows of the logits are [blocks * K]
//   I  inclusion     the mask `included`: inclusion.hpp
//   W  weighting     slot_weights.hpp, constants; decay with I = 1 is the loss of DFlash
//   l  prediction    a row functional: nll{labels} (CE), forward_kl (KL(p || q)), total_variation, label_and_distance, or your own
//
// block_loss(drafter, prediction, grad, options)            predictions that read the drafter alone
// block_loss(drafter, target, prediction, grad, options)    those that compare with the target's rows
// block_loss_over(prediction, grad, options, rows...)
//
// Weights that read acceptances take them from options.acceptances, or from the prediction where it has them: a = q(y) of nll, a = 1 - TV of total_variation.
// acceptances(prediction, options, rows...) computes them for others. A row that cannot be read (NaN, empty) is no slot for such weights.
// label_and_distance  label l1 of DSpark: 0.1 CE + 0.9 ||q - p||_1
// confidence_loss     sum I W BCE(sigma(x), a) / sum I W and its gradient (sigma(x) - a) I W / sum I W in the logits x of a confidence head; a is a constant
//
// sum I W = 0: loss 0, gradient 0. Errors: block, sizes, what prediction and weights check. Bad rows, determinism, accumulator: distillation/loss.hpp.
// Cost: one walk O(N V) for values, one for the gradient of the rows that are included. Source: DScout (weights: DFlash, DSpark, D-PACE), after abstracts.
//
//     const losses::block_options options{.block = 8, .included = included, .weights = {.gamma = 4}};
//     const auto result = losses::block_loss(drafter_logits, distillation::nll{labels}, gradient, options);
#pragma once
#include <heddle/distillation/divergence.hpp>
#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/sampled_token.hpp>
#include <heddle/speculative/losses/inclusion.hpp>
#include <heddle/speculative/losses/slot_weights.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

struct block_options {
  std::int64_t block = 0;                       ///< K, slots of a block
  std::span<const std::uint8_t> included{};     ///< I; rows that are not included are not read; empty: all are
  slot_weighting weights{};
  std::span<const double> acceptances{};        ///< one per row, for weights that read them; empty: from the prediction
  double temperature = 1;                       ///< of all rows but those with their own: with_temperature(target, tau)
  heddle::on_bad_row on_bad_row = heddle::on_bad_row::report;
  executor_ref executor{};
};

/// 0.1 CE + 0.9 ||q - p||_1
struct label_and_distance {
  std::span<const std::int32_t> labels;
  double label = 0.1, distance = 0.9;
  void check(const distillation::call_shape& shape) const { distillation::check_tokens("losses::label_and_distance", "labels", labels, shape); }
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    return label * distillation::nll{labels}(row, s) + 2. * distance * distillation::total_variation{}(row, s, t);
  }
};

inline namespace HEDDLE_ISA {

struct block_result : distillation::loss_result {
  aligned_vector<double> weights;   ///< I W of the rows
};

inline double acceptance_of(const distillation::nll&, double value) { return math::exp(-value); }
inline double acceptance_of(const distillation::total_variation&, double value) { return value < 1. ? 1. - value : 0.; }
template <class Prediction>
concept predicts_acceptance = requires(const Prediction& p) { acceptance_of(p, 0.); };

/// One per row; 0 for rows that are masked or cannot be read.
template <predicts_acceptance Prediction, class... Rows>
aligned_vector<double> acceptances(const Prediction& prediction, const distillation::row_options& options, const Rows&... rows) {
  const auto evaluated = distillation::per_row(prediction, options, rows...);
  aligned_vector<double> a(evaluated.values().size());
  for (std::size_t r = 0; r < a.size(); ++r) {
    const status s = evaluated.status()[r];
    if (!evaluated.masked(static_cast<std::int64_t>(r)) && (s == status::ok || s == status::infinite_divergence)) a[r] = acceptance_of(prediction, evaluated.values()[r]);
  }
  return a;
}

/// W of every row of evaluated predictions, 0 where it is not included.
template <class Prediction, class Evaluated>
aligned_vector<double> block_weights(const Prediction& prediction, const Evaluated& rows, std::span<const std::uint8_t> included, const block_options& options) {
  const auto n = static_cast<std::size_t>(rows.size()), block = static_cast<std::size_t>(options.block);
  require(options.acceptances.empty() || options.acceptances.size() == n, "losses::block_loss: option 'acceptances' has ", options.acceptances.size(), " entries; expected none or one per row, ", n);
  const bool reads_acceptances = options.weights.kind != weighting::decay;
  if constexpr (!predicts_acceptance<Prediction>)
    require(!reads_acceptances || !options.acceptances.empty(), "losses::block_loss: option 'acceptances' is empty; expected one per row, because this prediction has none");
  aligned_vector<double> a(n), weights(n);
  aligned_vector<std::uint8_t> is_slot(n);
  for (std::size_t r = 0; r < n; ++r) {
    const status s = rows.status()[r];
    is_slot[r] = (included.empty() || included[r] != 0) && (!reads_acceptances || s == status::ok || s == status::infinite_divergence);
    if (!options.acceptances.empty()) a[r] = options.acceptances[r];
    else if constexpr (predicts_acceptance<Prediction>) a[r] = reads_acceptances && is_slot[r] ? acceptance_of(prediction, rows.values()[r]) : 0.;
  }
  for (std::size_t first = 0; first < n; first += block)
    slot_weights(options.weights, {a.data() + first, block}, {is_slot.data() + first, block}, {weights.data() + first, block});
  return weights;
}

/// The loss of rows that have been evaluated, restricted to `included`.
template <class Prediction, class Evaluated, class Gradient>
block_result reduce_blocks(const Prediction& prediction, const Evaluated& rows, std::span<const std::uint8_t> included, const Gradient& gradient, const block_options& options) {
  const aligned_vector<double> weights = block_weights(prediction, rows, included, options);
  const distillation::loss_options reduced{.mask = included, .weights = weights, .reduction = distillation::reduction::weighted_mean};
  if constexpr (matrix<Gradient>) return {distillation::reduce(rows, reduced, gradient), weights};
  else return {distillation::reduce(rows, reduced), weights};
}

template <class Prediction, class Gradient, class Drafter, class... Targets>
block_result block_loss_over(const Prediction& prediction, const Gradient& gradient, const block_options& options, const Drafter& drafter, const Targets&... targets) {
  check_weighting("losses::block_loss", options.weights);
  require(options.block >= 1, "losses::block_loss: option 'block' is ", options.block, "; expected at least 1 slot");
  const distillation::row_options own{.temperature = options.temperature, .mask = options.included, .on_bad_row = options.on_bad_row, .executor = options.executor};
  const auto rows = distillation::per_row(prediction, own, drafter, targets...);
  blocks_of("losses::block_loss", rows.size(), options.block);
  return reduce_blocks(prediction, rows, options.included, gradient, options);
}
template <class Drafter, class Prediction, class Gradient>
block_result block_loss(const Drafter& drafter, const Prediction& prediction, const Gradient& gradient, const block_options& options) {
  return block_loss_over(prediction, gradient, options, drafter);
}
template <class Drafter, class Target, class Prediction, class Gradient>
  requires(!distillation::detail::row_argument<Prediction>)
block_result block_loss(const Drafter& drafter, const Target& target, const Prediction& prediction, const Gradient& gradient, const block_options& options) {
  return block_loss_over(prediction, gradient, options, drafter, target);
}

/// weights: I W of the rows; gradient [rows] may be empty.
inline double confidence_loss(std::span<const double> logits, std::span<const double> acceptances, std::span<const double> weights, std::span<double> gradient) {
  const char* const function = "losses::confidence_loss";
  require(acceptances.size() == logits.size(), function, ": argument 'acceptances' has ", acceptances.size(), " entries; expected ", logits.size());
  require(weights.size() == logits.size(), function, ": argument 'weights' has ", weights.size(), " entries; expected ", logits.size());
  require(gradient.empty() || gradient.size() == logits.size(), function, ": argument 'gradient' has ", gradient.size(), " entries; expected none or ", logits.size());
  double total = 0, sum = 0;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    require(weights[r] >= 0. && weights[r] < math::infinity, function, ": argument 'weights': entry ", r, " is ", weights[r], "; expected a finite number, 0 or more");
    if (weights[r] == 0.) continue;
    const double x = logits[r], a = acceptances[r];
    require(x - x == 0., function, ": argument 'logits': entry ", r, " is ", x, "; expected a finite number");
    require(a >= 0. && a <= 1., function, ": argument 'acceptances': entry ", r, " is ", a, "; expected 0 to 1");
    total += weights[r];
    sum += weights[r] * ((x > 0 ? x : 0.) - a * x + math::log(1. + math::exp(x > 0 ? -x : x)));
  }
  for (std::size_t r = 0; r < gradient.size(); ++r) gradient[r] = weights[r] == 0. ? 0. : weights[r] / total * (1. / (1. + math::exp(-logits[r])) - acceptances[r]);
  return total > 0. ? sum / total : 0.;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
