// The engine against float64 arithmetic on a small random model, and the laws that decoding relies on: rows do not depend on their company.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "llama/small_engine.hpp"

namespace {

using namespace llama;
using namespace llama::testing;

std::vector<float> copy(heddle::tensor_view<const float, 2> logits) { return {logits.data(), logits.data() + logits.size()}; }
bool same_bits(const std::vector<float>& a, std::size_t a_row, const std::vector<float>& b, std::size_t b_row) {
  return std::memcmp(&a[a_row * 259], &b[b_row * 259], 259 * sizeof(float)) == 0;
}

TEST(Model, EqualsFloat64) {
  const auto tokens = some_tokens(90);
  small_engine e;
  const auto logits = copy(e.net.append(tokens));
  const auto expected = reference_model(e.file).logits(tokens);
  double largest = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (std::size_t v = 0; v < 259; ++v) {
      largest = std::max(largest, std::abs(expected[t][v]));
      ASSERT_NEAR(logits[t * 259 + v], expected[t][v], 2e-5) << "token " << t << ", logit " << v;
    }
  EXPECT_GT(largest, 0.1);  // the model computes something
}

TEST(Model, APromptInPiecesLeavesTheSameCacheAndLogits) {
  const auto tokens = some_tokens(300);
  small_engine whole("f16", linear::precision::int24), pieces("f16", linear::precision::int24, 3);
  const auto expected = copy(whole.net.append(tokens));
  std::size_t at = 0;
  for (const std::size_t n : {1, 1, 62, 1, 100, 17, 118}) {
    const auto logits = copy(pieces.net.append(std::span(tokens).subspan(at, n)));
    for (std::size_t i = 0; i < n; ++i) ASSERT_TRUE(same_bits(logits, i, expected, at + i)) << "token " << at + i;
    at += n;
  }
  ASSERT_EQ(at, tokens.size());
  EXPECT_TRUE(whole.cache->equals(*pieces.cache));
  pieces.cache->truncate(0);
  pieces.net.prefill(tokens);
  EXPECT_TRUE(whole.cache->equals(*pieces.cache));
}

// Nodes of a draft tree have the logits that decoding their path gives, and the cache of the kept path is that of decoding.
TEST(Model, ABranchEqualsDecodingIt) {
  for (const std::size_t context : {14, 63, 250}) {
    const auto prompt = some_tokens(context);
    const std::vector<token> nodes{7, 20, 21, 22, 23, 24, 25};
    const std::vector<std::int32_t> parents{-1, 0, 0, 1, 2, 4, 4}, depths{0, 1, 1, 2, 2, 3, 3};
    const std::vector<std::int32_t> path{2, 4, 6};
    for (const char* const codec : {"f32", "bf16", "fp8", "int8"}) {
      small_engine tree(codec, linear::precision::int8, 2), chain(codec, linear::precision::int8);
      tree.net.prefill(prompt);
      chain.net.prefill(prompt);
      const auto scored = copy(tree.net.score({nodes, parents, depths}));
      tree.net.keep(path);
      const auto root = copy(chain.net.append(std::span(nodes).first(1)));
      EXPECT_TRUE(same_bits(scored, 0, root, 0)) << codec << ", context " << context;
      for (const std::int32_t node : path) {
        const auto logits = copy(chain.net.append(std::span(nodes).subspan(static_cast<std::size_t>(node), 1)));
        EXPECT_TRUE(same_bits(scored, static_cast<std::size_t>(node), logits, 0)) << codec << ", context " << context << ", node " << node;
      }
      EXPECT_TRUE(tree.cache->equals(*chain.cache)) << codec << ", context " << context;
    }
  }
}

// What a batch scores, sequence by sequence, and keeps is what each would have alone. A pass that is not kept leaves nothing.
TEST(Model, SequencesOfABatchAreStrangers) {
  const std::vector<std::vector<token>> prompts{some_tokens(70, 1), some_tokens(5, 2), some_tokens(63, 3), some_tokens(20, 4)};
  const std::vector<token> nodes{7, 20, 21, 22, 23};
  const std::vector<std::int32_t> branches{-1, 0, 0, 2, 2}, chain{-1, 0, 1, 2, 3}, branch_depths{0, 1, 1, 2, 2}, chain_depths{0, 1, 2, 3, 4};
  const std::vector<heddle::token_tree> trees{{nodes, branches, branch_depths}, {nodes, chain, chain_depths}, {}, {std::span(nodes).first(1), std::span(chain).first(1), std::span(chain_depths).first(1)}};
  const std::vector<std::vector<std::int32_t>> paths{{2, 4}, {1, 2}, {}, {}};
  for (const char* const codec : {"f16", "int8"}) {
    small_engine together(codec, linear::precision::int8, 2, 4);
    for (int s = 0; s < 4; ++s) together.net.prefill(prompts[static_cast<std::size_t>(s)], s);
    together.net.score(std::vector<heddle::token_tree>(4, trees[1]));  // given up
    const auto logits = copy(together.net.score(trees));
    std::size_t row = 0;
    for (int s = 0; s < 4; ++s) {
      const auto& tree = trees[static_cast<std::size_t>(s)];
      const auto& path = paths[static_cast<std::size_t>(s)];
      small_engine alone(codec, linear::precision::int8);
      alone.net.prefill(prompts[static_cast<std::size_t>(s)]);
      if (!tree.tokens.empty()) {
        together.net.keep(s, path);
        const auto own = copy(alone.net.score(tree));
        for (std::size_t u = 0; u < tree.tokens.size(); ++u) EXPECT_TRUE(same_bits(own, u, logits, row++)) << "sequence " << s << ", node " << u;
        alone.net.keep(path);
        const auto here = together.net.last_hidden(s), there = alone.net.last_hidden();
        EXPECT_TRUE(std::equal(here.begin(), here.end(), there.begin(), there.end()));
        EXPECT_FALSE(here.empty());
      }
      EXPECT_TRUE(together.cache->equals(s, *alone.cache, 0)) << codec << ", sequence " << s;
    }
    EXPECT_EQ(row, 11u);
  }
}

TEST(Model, HiddenStatesAreThoseTheLogitsComeFrom) {
  const auto tokens = some_tokens(280);
  small_engine e("f16", linear::precision::int16), prefilled("f16", linear::precision::int16);
  const std::size_t width = e.config.hidden_size;
  std::vector<float> hidden(tokens.size() * width), logits(tokens.size() * 259), row(width);
  const tensor_view<float, 2> rows{hidden.data(), extents{280, static_cast<std::int64_t>(width)}};
  prefilled.net.prefill(tokens, rows);
  const auto expected = copy(e.net.append(tokens));
  EXPECT_EQ(copy(e.net.hidden()), hidden);
  EXPECT_TRUE(e.cache->equals(*prefilled.cache));
  for (const auto* net : {&e.net, &prefilled.net})
    EXPECT_TRUE(std::equal(hidden.end() - static_cast<std::ptrdiff_t>(width), hidden.end(), net->last_hidden().begin(), net->last_hidden().end()));
  e.net.unembed(rows, {logits.data(), extents{280, 259}});
  EXPECT_EQ(logits, expected);
  for (std::int64_t v : {0, 17, 258}) {  // the unembedding of this model is f16: its products are exact
    e.net.unembedding_rows(v, {row.data(), extents{1, static_cast<std::int64_t>(width)}});
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += double{row[i]} * double{hidden[(279 * width) + i]};
    EXPECT_NEAR(sum, expected[279 * 259 + static_cast<std::size_t>(v)], 1e-4);
  }
  prefilled.net.prefill(some_tokens(3));
  EXPECT_TRUE(prefilled.net.last_hidden().empty());
}

// With all layers it is the model; with fewer the cache is read all the same, and never changed.
TEST(Model, LowerLayersDraftOnTheSameCache) {
  small_engine e("int8", linear::precision::int8), other("int8", linear::precision::int8);
  const auto prompt = some_tokens(66);
  e.net.prefill(prompt), other.net.prefill(prompt);
  const std::vector<token> nodes{7, 20, 21, 22};
  const std::vector<std::int32_t> parents{-1, 0, 0, 1}, depths{0, 1, 1, 2};
  const std::vector<std::int32_t> every{0, 1, 2, 3}, two{0, 3};
  const auto all = copy(e.net.score_with(2, {nodes, parents, depths}, every));
  const auto half = copy(e.net.score_with(1, {nodes, parents, depths}, every));
  const auto some = copy(e.net.score_with(1, {nodes, parents, depths}, two));
  EXPECT_TRUE(same_bits(some, 0, half, 0) && same_bits(some, 1, half, 3));
  EXPECT_THROW(e.net.score_with(3, {nodes, parents, depths}, every), heddle::error);
  const auto again = copy(e.net.score({nodes, parents, depths}));
  EXPECT_EQ(all, again);
  EXPECT_NE(half, again);
  e.net.keep(std::vector<std::int32_t>{1, 3});
  other.net.append(std::vector<token>{7, 20, 22});
  EXPECT_TRUE(e.cache->equals(*other.cache));
}

TEST(Model, RunningOutOfCacheChangesNothing) {
  small_engine e;
  const auto tokens = some_tokens(448);
  e.net.prefill(std::span(tokens).first(440));
  EXPECT_THROW(e.net.append(std::span(tokens).last(20)), heddle::error);
  EXPECT_EQ(e.cache->length(), 440);
  small_engine other;
  other.net.prefill(std::span(tokens).first(440));
  EXPECT_TRUE(e.cache->equals(*other.cache));
}

}  // namespace
