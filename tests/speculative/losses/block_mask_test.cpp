#include <heddle/speculative/losses/block_mask.hpp>

#include <heddle/attention/attend.hpp>

#include "attention/fixture.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace {

using namespace heddle;
using attention_test::result;
using attention_test::run;
using attention_test::same_bits;
using attention_test::values;

// A block in the pass of many is the block alone behind its part of the text: a key that is hidden leaves no trace.
TEST(BlockMask, EveryBlockIsAlone) {
  const std::int64_t context = 70, block = 5, dim = 8;
  const std::vector<std::int32_t> anchors = {3, 70, 0, 64};
  const auto rows = static_cast<std::int64_t>(anchors.size()) * block;
  const values<float> q(rows, 2, dim, 1);
  values<float> k(context + rows, 1, dim, 2), v(context + rows, 1, dim, 3);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(rows * 2), ~std::uint64_t{0});
  const tensor_view<std::uint64_t, 2> bits{words.data(), extents{rows, std::int64_t{2}}};
  losses::block_mask(anchors, block, context, bits);
  const result all = run(q, dense(k.view(), v.view()) | select(bits, {.block_size = 1}), dim);
  for (std::size_t a = 0; a < anchors.size(); ++a) {
    const auto first = static_cast<std::int64_t>(a) * block;
    const auto alone = [&](const values<float>& x) {
      values<float> own = x.rows(0, anchors[a] + block);
      std::copy_n(x.data.begin() + (context + first) * dim, block * dim, own.data.begin() + anchors[a] * dim);
      return own;
    };
    const values<float> own_k = alone(k), own_v = alone(v);
    const result one = run(q.rows(first, block), dense(own_k.view(), own_v.view()), dim);
    for (std::size_t i = 0; i < one.out.data.size(); ++i) EXPECT_NEAR(all.rows(first, block).out.data[i], one.out.data[i], 1e-6);
  }
  for (std::int64_t r = context; r < context + block; ++r)   // another block never shows
    for (std::int64_t c = 0; c < dim; ++c) k.at(r, 0, c) = v.at(r, 0, c) = attention_test::quiet_nan;
  EXPECT_TRUE(same_bits(run(q, dense(k.view(), v.view()) | select(bits, {.block_size = 1}), dim).rows(block, rows - block), all.rows(block, rows - block)));
}

TEST(BlockMask, PositionsAndErrors) {
  std::vector<std::int32_t> positions(6);
  losses::block_positions(std::vector<std::int32_t>{4, 9}, positions);
  EXPECT_EQ(positions, (std::vector<std::int32_t>{4, 5, 6, 9, 10, 11}));
  std::vector<std::uint64_t> words(8);
  const auto message = [&](std::int32_t anchor, std::int64_t block, std::int64_t rows) {
    return message_of([&] { losses::block_mask(std::vector<std::int32_t>{anchor}, block, 9, tensor_view<std::uint64_t, 2>{words.data(), extents{rows, std::int64_t{1}}}); });
  };
  EXPECT_EQ(message(10, 2, 2), "losses::block_mask: argument 'anchors': entry 0 is 10; expected 0 to 9");
  EXPECT_EQ(message(1, 0, 2), "losses::block_mask: argument 'block' is 0; expected at least 1 row");
  EXPECT_EQ(message(1, 2, 3), "losses::block_mask: argument 'words': extent 0 is 3; expected 2");
}

}  // namespace
