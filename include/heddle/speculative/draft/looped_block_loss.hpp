// Training a looped block drafter (looped_block.hpp): one loss over both passes, the second given the labels of a random prefix.
//
//   l ~ U{1 .. K - 1};   L = mean over blocks of  sum_{i <= l} v_i CE(m_i, y_i) + sum_{i > l} v_{i-l} CE(r_i(. | y_{<= l}), y_i),   v_i = exp(-(i - 1) / gamma)
// Slots count from where their pass begins, so the second pass has its own first slot.
//
// first, second: logits [blocks * K, V] of the two passes; labels: one per row; prefixes: l of every block, 1 .. K (K: no second pass). Rows of the first pass
// behind l and of the second up to l are not read; their gradients are 0. mask: rows that are no slots (labels that are missing), from options.
// prefix_length draws l by a key. Errors: sizes, prefixes, labels outside the vocabulary. No blocks: 0.
// Bad rows, determinism, accumulator: distillation/loss.hpp. Cost: one walk of each row that counts. Source: D-Loop, after the abstract.
//
//     const auto loss = heddle::losses::looped_block_loss(first, second, labels, prefixes, {.block = 16, .gamma = 7}, d_first, d_second);
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/sampled_token.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

struct looped_block_loss_options {
  std::int64_t block = 0;                   ///< K
  double gamma = math::infinity;            ///< of v
  std::span<const std::uint8_t> mask{};     ///< one per row, 0: no slot; empty: all are
  executor_ref executor{};
};

inline namespace HEDDLE_ISA {

struct looped_block_result {
  double value = 0;
  distillation::loss_result first, second;
};

/// U{1 .. K - 1}; 1 for K = 1.
inline std::int32_t prefix_length(const random_key& key, std::int32_t block) {
  require(block >= 1, "losses::prefix_length: argument 'block' is ", block, "; expected at least 1 slot");
  return block == 1 ? 1 : 1 + static_cast<std::int32_t>(uniform(key) * (block - 1));
}

template <class First, class Second, class GradientOfFirst, class GradientOfSecond>
looped_block_result looped_block_loss(const First& first, const Second& second, std::span<const std::int32_t> labels, std::span<const std::int32_t> prefixes, const looped_block_loss_options& options, const GradientOfFirst& d_first, const GradientOfSecond& d_second) {
  const char* const function = "losses::looped_block_loss";
  require(options.block >= 1, function, ": option 'block' is ", options.block, "; expected at least 1 slot");
  require(options.gamma > 0., function, ": option 'gamma' is ", options.gamma, "; expected a positive number, or infinity (no decay)");
  const std::size_t block = static_cast<std::size_t>(options.block), rows = prefixes.size() * block;
  require(labels.size() == rows, function, ": argument 'labels' has ", labels.size(), " entries; expected one per slot of ", prefixes.size(), " blocks, ", rows);
  require(options.mask.empty() || options.mask.size() == rows, function, ": option 'mask' has ", options.mask.size(), " entries; expected none or one per row, ", rows);
  aligned_vector<double> weights(rows);
  aligned_vector<std::uint8_t> in_first(rows), in_second(rows);
  for (std::size_t b = 0; b < prefixes.size(); ++b) {
    require(prefixes[b] >= 1 && prefixes[b] <= options.block, function, ": argument 'prefixes': entry ", b, " is ", prefixes[b], "; expected 1 to ", options.block);
    const auto prefix = static_cast<std::size_t>(prefixes[b]);
    for (std::size_t i = 0; i < block; ++i) {
      const std::size_t row = b * block + i;
      const bool counts = options.mask.empty() || options.mask[row] != 0;
      in_first[row] = counts && i < prefix, in_second[row] = counts && i >= prefix;
      weights[row] = math::exp(-static_cast<double>(i < prefix ? i : i - prefix) / options.gamma);
    }
  }
  const auto pass = [&](const auto& logits, const aligned_vector<std::uint8_t>& mask, const auto& gradient) {
    return distillation::loss(logits, distillation::nll{labels}, gradient,
                              {.mask = mask, .weights = weights, .reduction = distillation::reduction::count, .count = static_cast<double>(prefixes.size()), .executor = options.executor});
  };
  looped_block_result result{0, pass(first, in_first, d_first), pass(second, in_second, d_second)};
  result.value = result.first.value + result.second.value;
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
