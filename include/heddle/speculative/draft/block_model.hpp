// Block drafters: one forward pass predicts K slots at once. The interface that samplers and trees over them use.
//
//   m.predict(context, slots) -> block_prediction     base logits U [K, V] and hidden states h [K, d] for the K <= slots tokens after context.back();
//                                                     valid until the next call
//   m.keep(path)                                      optional: the drafts in `path` (their depths 1 .. path.size() of a chain or path of a tree) are now
//                                                     context, cached rows of other slots are to be forgotten
//
// What such a model computes. Context features are hidden states of m layers of the target, c = RMSNorm(W_c [h^{l_1}; ..; h^{l_m}]) in [n, d], given to every
// layer of the drafter as further keys and values, K = [W_K c; W_K h], with rotary positions that are absolute, so that rows of the context can be
// cached. Rows of the block see the context and each other in both directions. Embedding and output head are the target's.
//   dflash   the anchor and B - 1 mask tokens; slot i is predicted at mask i: K = B - 1
//   dspark   the anchor and B - 1 mask tokens; slot 1 is predicted at the anchor: K = B
// Source: DFlash; DSpark, Domino and DFlash V2 change the head (causal_head.hpp).
//
//     const auto layers = heddle::context_layers(36, 5);              // 1, 9, 17, 25, 33
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct block_prediction {
  tensor_view<const float, 2> logits{};   ///< [K, V]
  tensor_view<const float, 2> hidden{};   ///< [K, d]; may be absent if the head does not read it
};

template <class M>
concept block_model = requires(M& m, std::span<const std::int32_t> context, std::int32_t slots) {
  { m.predict(context, slots) } -> std::convertible_to<block_prediction>;
};

enum class block_layout : std::uint8_t { dflash, dspark };

/// Rows of the block and the first row that predicts a slot, for K slots.
struct block_rows {
  std::int32_t width = 0;
  std::int32_t first_predicting = 0;
};
constexpr block_rows rows_for(block_layout layout, std::int32_t slots) { return layout == block_layout::dflash ? block_rows{slots + 1, 1} : block_rows{slots, 0}; }

inline namespace HEDDLE_ISA {

/// The target's layers whose hidden states are context features: round(1 + j (N - 4) / (m - 1)) for j = 0 .. m - 1; the middle one for m = 1.
inline aligned_vector<std::int32_t> context_layers(std::int32_t num_layers, std::int32_t count) {
  require(num_layers >= 4, "context_layers: argument 'num_layers' is ", num_layers, "; expected at least 4");
  require(count >= 1 && count <= num_layers, "context_layers: argument 'count' is ", count, "; expected 1 to num_layers, ", num_layers);
  if (count == 1) return {num_layers / 2};
  aligned_vector<std::int32_t> layers;
  for (std::int32_t j = 0; j < count; ++j) layers.push_back(1 + (2 * j * (num_layers - 4) + count - 1) / (2 * (count - 1)));   // halves round up
  return layers;
}

/// The tokens of the block: the anchor, then masks.
inline aligned_vector<std::int32_t> block_tokens(block_layout layout, std::int32_t slots, std::int32_t anchor, std::int32_t mask) {
  require(slots >= 1, "block_tokens: argument 'slots' is ", slots, "; expected 1 or more");
  aligned_vector<std::int32_t> tokens(static_cast<std::size_t>(rows_for(layout, slots).width), mask);
  tokens[0] = anchor;
  return tokens;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
