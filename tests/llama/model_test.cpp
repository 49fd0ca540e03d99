// The engine against float64 arithmetic on a small random model, and the laws that decoding relies on: rows do not depend on their company.
#include "llama/model.hpp"

#include <gtest/gtest.h>
#include <heddle/core/thread_team.hpp>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "llama/gguf_builder.hpp"
#include "llama/reference_model.hpp"

namespace {

using namespace llama;
using namespace llama::testing;

// A model from memory: there is no file to give pages back to.
struct small_engine {
  std::string bytes = random_model(11);
  gguf file{as_bytes(bytes), "small"};
  model_config config{file};
  heddle::thread_team team;
  std::unique_ptr<kv_cache> cache;
  model net;

  explicit small_engine(const char* codec = "f32", linear::precision activations = linear::precision::f32, std::size_t threads = 1)
      : team(threads),
        cache(make_cache(
            codec, {static_cast<int>(config.num_layers), static_cast<int>(config.num_kv_heads), static_cast<int>(config.head_dim), 400})),
        net([](auto) {}, config, model_weights(file, config), activations, *cache, team) {}
};

std::vector<token> some_tokens(std::size_t count, unsigned seed = 5) {
  std::mt19937 random(seed);
  std::vector<token> out(count);
  for (token& id : out) id = static_cast<token>(random() % 259);
  return out;
}

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
