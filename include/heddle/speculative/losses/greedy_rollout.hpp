// Labels from short greedy rollouts of the target: full supervision of block drafters on corpora that the target did not write.
//
// ALR   from every anchor a the target continues greedily: y*_k = argmax p(. | x_{<=a}, y*_{<k}); the label of slot k = 1 .. K is p(. | x_{<=a}, y*_{<k}), kept as
//       its top tokens (top_k_labels.hpp). Slots are alive until and including the first stop token. `depth` R: only R tokens are rolled out, slots k <= R + 1 alive.
//       Where the corpus itself is the greedy path, these are the labels that it gives.
// IRA   of m drawn anchors the first ceil(m / 2) run rollouts (primaries); the others (secondaries) are blocks inside of them: the i-th lies in the i-th primary,
//       anchored at y*_j with j ~ U{2 .. K - 1}; the label of its slot k is the primary's of slot j + k, none behind K. Half the target passes for as many blocks,
//       K - j supervised slots in the mean of (K - 1) / 2; features of a secondary are those of the rollout.
//
// greedy_rollouts(step, anchors, options)   step(k, last) -> logits [anchors, V] of p(. | x_{<=a}, y*_{<k}), k = 1 ..; last: the tokens y*_{k-1}, for which the model
//                                           has to advance (-1: that rollout has ended, its row is not read); empty for k = 1
// plan_blocks(m, slots, key)                the blocks of IRA; the i-th offset is of the random number with index i of purpose::dropout
// block_labels(rollouts, blocks, gamma)     labels and weights v_k = exp(-(k - 1) / gamma) of the blocks; weight 0 where there is no label
//
// Errors: fewer than 2 anchors or 3 slots for IRA, no slots, what step's logits make note_top_k say.
// Cost: min(K, R + 1) batched steps of the target, whatever the number of anchors; they end early when all rollouts have.
// Source: public reference code of ALR and IRA.
//
//     const auto rollouts = losses::greedy_rollouts(step, anchors, {.slots = 15, .stop_tokens = stop});
//     const auto labels = losses::block_labels(rollouts, losses::plan_blocks(2 * anchors, 15, {.seed = 7}), 2.);
//     const auto result = losses::labels_loss(drafter_logits, labels.token_rows(), labels.log_prob_rows(), labels.weights, gradient);
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/speculative/losses/top_k_labels.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

struct rollout_options {
  std::int64_t slots = 0;                         ///< K
  std::int64_t depth = -1;                        ///< R, tokens to roll out; -1: as many as there are slots
  std::int64_t top = 8;                           ///< tokens of a label
  std::span<const std::int32_t> stop_tokens{};
};

/// A block of IRA: it starts behind y*_offset of a rollout; 0: at its anchor (a primary).
struct planned_block {
  std::int32_t rollout, offset;
};

inline namespace HEDDLE_ISA {

/// Labels of blocks of `slots` slots: rows [blocks * slots].
struct labelled_blocks {
  std::int64_t slots = 0, top = 0;
  aligned_vector<std::int32_t> tokens;            ///< [rows, top]
  aligned_vector<float> log_probs;                ///< [rows, top]
  aligned_vector<double> weights;                 ///< [rows], 0: no label

  std::int64_t rows() const { return static_cast<std::int64_t>(weights.size()); }
  tensor_view<const std::int32_t, 2> token_rows() const { return {tokens.data(), extents{rows(), top}}; }
  tensor_view<const float, 2> log_prob_rows() const { return {log_probs.data(), extents{rows(), top}}; }
};

/// Rows [anchors * slots]; weights are 1 where a slot is alive.
struct rollout_labels : labelled_blocks {
  aligned_vector<std::int32_t> greedy;            ///< y*, [rows]; -1 where a slot is not alive
};

template <class Step>
rollout_labels greedy_rollouts(Step&& step, std::int64_t anchors, const rollout_options& options) {
  const char* const function = "losses::greedy_rollouts";
  require(anchors >= 0, function, ": argument 'anchors' is ", anchors, "; expected 0 or more");
  require(options.slots >= 1, function, ": option 'slots' is ", options.slots, "; expected at least 1");
  require(options.depth >= -1, function, ": option 'depth' is ", options.depth, "; expected 0 or more, or -1 (all slots)");
  require(options.top >= 1, function, ": option 'top' is ", options.top, "; expected at least 1");
  const std::int64_t slots = options.slots, top = options.top, rows = anchors * slots, steps = options.depth >= 0 && options.depth < slots ? options.depth + 1 : slots;
  const auto count = static_cast<std::size_t>(anchors), all = static_cast<std::size_t>(rows);
  rollout_labels out;
  out.slots = slots, out.top = top;
  out.greedy.assign(all, -1), out.weights.assign(all, 0.), out.tokens.assign(all * static_cast<std::size_t>(top), 0), out.log_probs.assign(all * static_cast<std::size_t>(top), 0.f);
  aligned_vector<std::uint8_t> alive(count, std::uint8_t{1});
  aligned_vector<std::int32_t> last(count, -1);
  for (std::int64_t k = 0; k < steps && std::find(alive.begin(), alive.end(), 1) != alive.end(); ++k) {
    const auto logits = step(k + 1, k == 0 ? std::span<const std::int32_t>{} : std::span<const std::int32_t>{last});
    require(view_of(logits).extent(0) == anchors, function, ": argument 'step' gives ", view_of(logits).extent(0), " rows of logits; expected one per anchor, ", anchors);
    note_top_k(logits, alive, tensor_view<std::int32_t, 2>{out.tokens.data() + k * top, extents{anchors, top}, extents{slots * top, std::int64_t{1}}}, tensor_view<float, 2>{out.log_probs.data() + k * top, extents{anchors, top}, extents{slots * top, std::int64_t{1}}}, last);
    for (std::size_t a = 0; a < count; ++a) {
      if (!alive[a]) continue;
      const std::size_t row = a * static_cast<std::size_t>(slots) + static_cast<std::size_t>(k);
      out.greedy[row] = last[a], out.weights[row] = 1;
      if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), last[a]) != options.stop_tokens.end()) alive[a] = 0, last[a] = -1;
    }
  }
  return out;
}

inline aligned_vector<planned_block> plan_blocks(std::int64_t blocks, std::int64_t slots, random_key key) {
  require(blocks >= 2, "losses::plan_blocks: argument 'blocks' is ", blocks, "; expected at least 2 valid anchors");
  require(slots >= 3, "losses::plan_blocks: argument 'slots' is ", slots, "; expected at least 3");
  key.purpose = purpose::dropout;
  const std::int64_t primaries = (blocks + 1) / 2;
  aligned_vector<planned_block> plan;
  for (std::int64_t i = 0; i < primaries; ++i) plan.push_back({static_cast<std::int32_t>(i), 0});
  for (std::int64_t i = 0; i < blocks - primaries; ++i) {
    key.index = static_cast<std::uint32_t>(i);
    plan.push_back({static_cast<std::int32_t>(i), 2 + static_cast<std::int32_t>(uniform(key) * static_cast<double>(slots - 2))});
  }
  return plan;
}

inline labelled_blocks block_labels(const rollout_labels& rollouts, std::span<const planned_block> blocks, double gamma = 2) {
  require(gamma > 0., "losses::block_labels: argument 'gamma' is ", gamma, "; expected a positive number");
  const std::int64_t slots = rollouts.slots, anchors = slots > 0 ? rollouts.rows() / slots : 0;
  for (const planned_block& b : blocks)
    require(b.rollout >= 0 && b.rollout < anchors && b.offset >= 0, "losses::block_labels: argument 'blocks' has rollout ", b.rollout, ", offset ", b.offset, "; expected rollouts 0 to ", anchors - 1, " and offsets of 0 or more");
  labelled_blocks out;
  out.slots = slots, out.top = rollouts.top;
  const auto rows = blocks.size() * static_cast<std::size_t>(slots), top = static_cast<std::size_t>(rollouts.top);
  out.tokens.assign(rows * top, 0), out.log_probs.assign(rows * top, 0.f), out.weights.assign(rows, 0.);
  std::size_t row = 0;
  for (const planned_block& b : blocks)
    for (std::int64_t k = 0; k < slots; ++k, ++row) {
      if (b.offset + k >= slots) continue;
      const auto from = static_cast<std::size_t>(b.rollout * slots + b.offset + k);
      out.weights[row] = rollouts.weights[from] * math::exp(-static_cast<double>(k) / gamma);
      std::copy_n(rollouts.tokens.begin() + static_cast<std::ptrdiff_t>(from * top), top, out.tokens.begin() + static_cast<std::ptrdiff_t>(row * top));
      std::copy_n(rollouts.log_probs.begin() + static_cast<std::ptrdiff_t>(from * top), top, out.log_probs.begin() + static_cast<std::ptrdiff_t>(row * top));
    }
  return out;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
