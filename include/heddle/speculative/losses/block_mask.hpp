// Attention of block drafters in training: many blocks in one pass over one text (DFlash).
//
// Keys are the n context tokens, then the A * B rows of the blocks. Row b of the block with anchor a (the index of its first token in the text) sees
// the context tokens < a and all B rows of its own block, in both directions, and nothing else. So a block computes what it would compute alone.
//
// block_mask          bits for attend's select(words, {.block_size = 1}): words [A * B, ceil((n + A B) / 64)], all of them written
// block_positions     positions of the rows: a + b
// Errors: sizes, anchors outside [0, n]. Cost: O(A B (n + A B) / 64).
//
//     losses::block_mask(anchors, 16, context, words);
//     heddle::attend(q, heddle::dense(k, v) | heddle::select(words, {.block_size = 1}), out, lse);
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses::inline HEDDLE_ISA {

/// Sets bits first .. first + count - 1 of a row of words.
inline void set_bits(const tensor_view<std::uint64_t, 2>& words, std::int64_t row, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = first; i < first + count;) {
    const std::int64_t in_word = i % 64, rest = first + count - i, n = rest < 64 - in_word ? rest : 64 - in_word;
    const std::uint64_t ones = n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
    words(row, i / 64) |= ones << in_word;
    i += n;
  }
}

inline void block_mask(std::span<const std::int32_t> anchors, std::int64_t block, std::int64_t context, const tensor_view<std::uint64_t, 2>& words) {
  require(block >= 1, "losses::block_mask: argument 'block' is ", block, "; expected at least 1 row");
  require(context >= 0, "losses::block_mask: argument 'context' is ", context, "; expected 0 or more");
  const std::int64_t rows = static_cast<std::int64_t>(anchors.size()) * block;
  require_shape("losses::block_mask", "words", words, extents{rows, (context + rows + 63) / 64});
  for (std::size_t a = 0; a < anchors.size(); ++a) require(anchors[a] >= 0 && anchors[a] <= context, "losses::block_mask: argument 'anchors': entry ", a, " is ", anchors[a], "; expected 0 to ", context);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t w = 0; w < words.extent(1); ++w) words(r, w) = 0;
    set_bits(words, r, 0, anchors[static_cast<std::size_t>(r / block)]);
    set_bits(words, r, context + r / block * block, block);
  }
}

inline void block_positions(std::span<const std::int32_t> anchors, std::span<std::int32_t> positions) {
  require(anchors.empty() ? positions.empty() : positions.size() % anchors.size() == 0, "losses::block_positions: argument 'positions' has ", positions.size(), " entries; expected the same number for each of ", anchors.size(), " blocks");
  const std::size_t block = anchors.empty() ? 1 : positions.size() / anchors.size();
  for (std::size_t r = 0; r < positions.size(); ++r) positions[r] = anchors[r / block] + static_cast<std::int32_t>(r % block);
}

}  // namespace heddle::losses::inline HEDDLE_ISA
