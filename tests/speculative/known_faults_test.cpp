// Reported faults of speculative decoding that no other test of this room names.
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;

// Known fault 52: two logits that differ in float and are equal as bfloat16. One row at a time or four at once, the lowest id wins.
TEST(KnownFaults, LogitsThatRoundingMadeEqualHaveOneWinner) {
  constexpr std::int64_t vocabulary = 40;
  const std::int32_t low[] = {3, 17, 15, 0}, high[] = {30, 39, 16, 33};   // the later one is larger before rounding
  std::vector<bfloat16> logits(4 * vocabulary, bfloat16(1.f));
  for (std::size_t row = 0; row < 4; ++row) {
    logits[row * vocabulary + static_cast<std::size_t>(low[row])] = bfloat16(10.01f);
    logits[row * vocabulary + static_cast<std::size_t>(high[row])] = bfloat16(10.02f);
  }
  const tensor_view<const bfloat16, 2> rows{logits.data(), extents{4, vocabulary}};
  const sampling::chain greedy{sampling::temperature(0.f)};
  verify_workspace memory(vocabulary);
  const ids tokens{5, low[0], low[1], low[2]}, parents{-1, 0, 1, 2}, context{5};
  const draft_tree<draft_law::deterministic> drafts{tokens, parents};
  const auto all_at_once = verify::greedy{}(drafts, rows, greedy, context, memory);
  EXPECT_EQ(ids(all_at_once.tokens.begin(), all_at_once.tokens.end()), ids(low, low + 4));
  EXPECT_EQ(verify::token{}(drafts, rows, greedy, context, memory).accepted, 3);
  sampling::row_workspace row(vocabulary);
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(sampling::sample_row(rows[i], greedy, {}, {}, row).token, low[i]);
  const ids wrong{5, high[0]}, chain{-1, 0};
  const auto rejected = verify::greedy{}(draft_tree<draft_law::deterministic>{wrong, chain}, rows, greedy, context, memory);
  EXPECT_EQ(rejected.accepted, 0);
  EXPECT_EQ(rejected.tokens.front(), low[0]);
}

// Known fault 48 and its kind: children that their own law excludes, after all that it allows are used up.
TEST(KnownFaults, DraftsBeyondTheSupportOfTheirLaw) {
  constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
  const float q[] = {1.f, 0.f, 0.f};
  const ids tokens{0, 0, 1}, parents{-1, 0, 0}, row_of{0, -1, -1}, context{0};
  const float logits[3][3] = {{minus_infinity, 1.f, 2.f}, {0.f, 0.f, 0.f}, {0.f, 0.f, 0.f}};   // the first child is impossible
  const tensor_view<const float, 2> rows{&logits[0][0], extents{3, 3}};
  const sampling::chain policy{sampling::temperature(1.f)};
  verify_workspace memory(3);
  int counts[3] = {};
  const auto decide = [&]<draft_law Law>() {
    draft_tree<Law> tree{tokens, parents};
    tree.laws = {.row_of = row_of, .dense = {q, extents{1, 3}}};
    EXPECT_THROW((verify::token{}(tree, rows, policy, context, memory)), heddle::error);
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      const auto v = verify::token{.seed = seed, .mode = verify::strictness::lenient}(tree, rows, policy, context, memory);
      ASSERT_EQ(v.accepted, 0);
      ASSERT_GT(v.tokens.front(), 0) << "token 0 is impossible";
      ++counts[v.tokens.front()];
    }
  };
  decide.operator()<draft_law::independent>();
  decide.operator()<draft_law::without_replacement>();
  EXPECT_NEAR(counts[1] / 4000., 1 / (1 + std::exp(1.)), 0.03) << "what is emitted follows the target";
}

}  // namespace
