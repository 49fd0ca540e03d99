// Training up to the first failure (AUF): labels behind the first token that the drafter gets wrong never help acceptance, so they are left out.
//
//   f_a = the first valid slot with argmax z_{a,i} != y_{a,i} (K if there is none), ties of the argmax to the lowest id
//   L = sum I v CE / sum I v,   I_{a,i} = valid, i <= f_a: the failure itself is trained.   v: slot_weights.hpp
// It is block_loss with this I. Support and cross-entropies come from one forward walk; dL/dz = 0 behind f_a.
// A head with two branches: the support is that of the branch that drafts, and masks both cross-entropies: give result.support to block_loss of the other.
//
// Invalid slots neither end nor extend a support, nor do rows that cannot be read; a label without mass is a failure. All correct: the whole block.
// Nothing valid: 0 and no gradient. Errors: as block_loss.hpp. Cost: O(N V), and one gradient walk over the support. Source: AUF, after the abstract.
//
//     const auto result = losses::auf_loss(drafter_logits, labels, gradient, {.block = 8, .included = valid});
//     const auto base = losses::block_loss(base_logits, distillation::nll{labels}, base_gradient, {.block = 8, .included = result.support});
#pragma once
#include <heddle/speculative/losses/block_loss.hpp>

namespace heddle::losses {

/// nll that notes on the way whether the label is the most likely token.
struct judged_nll {
  std::span<const std::int32_t> tokens;
  std::span<std::uint8_t> correct;   ///< one per row
  void check(const distillation::call_shape& shape) const { distillation::check_tokens("losses::auf_loss", "labels", tokens, shape); }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    correct[static_cast<std::size_t>(row.index())] = row.argmax(s) == tokens[static_cast<std::size_t>(row.index())];
    return distillation::nll{tokens}(row, s);
  }
};

inline namespace HEDDLE_ISA {

struct auf_result : block_result {
  aligned_vector<std::uint8_t> support;   ///< I
};

/// options.included: the valid slots.
template <class Drafter, class Gradient>
auf_result auf_loss(const Drafter& drafter, std::span<const std::int32_t> labels, const Gradient& gradient, const block_options& options) {
  check_weighting("losses::auf_loss", options.weights);
  const auto blocks = blocks_of("losses::auf_loss", static_cast<std::int64_t>(labels.size()), options.block);
  aligned_vector<std::uint8_t> correct(static_cast<std::size_t>(blocks * options.block), std::uint8_t{1});
  const auto rows = distillation::per_row(judged_nll{labels, correct}, {.temperature = options.temperature, .mask = options.included, .on_bad_row = options.on_bad_row, .executor = options.executor}, drafter);
  auf_result result;
  result.support.assign(correct.size(), std::uint8_t{1});
  if (!options.included.empty()) result.support.assign(options.included.begin(), options.included.end());
  until_failure(result.support, options.block, correct);
  static_cast<block_result&>(result) = reduce_blocks(distillation::nll{labels}, rows, result.support, gradient, options);
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
