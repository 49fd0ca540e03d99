// Match verification alone: it is the plain sampler, and how often it accepts.
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;

// Random trees and rows: the walk is sampling one token after the other and looking for it among the children.
TEST(Match, TreesAreWalkedAsThePlainSamplerWould) {
  std::mt19937 random(3);
  const auto below = [&](std::size_t n) { return static_cast<std::int32_t>(random() % n); };
  for (int trial = 0; trial < 3000; ++trial) {
    const std::int64_t vocabulary = 2 + below(9);
    const auto size = static_cast<std::size_t>(vocabulary);
    ids tokens{below(size)}, parents{-1};
    for (int tries = below(14); tries > 0; --tries) {
      const std::int32_t parent = below(tokens.size()), token = below(size);
      bool taken = false;
      for (std::size_t u = 1; u < tokens.size(); ++u) taken |= parents[u] == parent && tokens[u] == token;
      if (!taken) tokens.push_back(token), parents.push_back(parent);
    }
    const auto nodes = static_cast<std::int64_t>(tokens.size());
    std::vector<float> logits(tokens.size() * size);
    for (float& z : logits) z = random() % 6 ? std::normal_distribution<float>(0.f, 2.f)(random) : -std::numeric_limits<float>::infinity();
    for (std::size_t u = 0; u < tokens.size(); ++u) logits[u * size + random() % size] = 1.f;
    const tensor_view<const float, 2> rows{logits.data(), extents{nodes, vocabulary}};
    const sampling::chain policy{sampling::parameters{.temperature = random() % 4 ? .8f : 0.f, .top_p = random() % 2 ? 1.f : .8f, .repetition_penalty = random() % 2 ? 1.f : 1.3f}};
    const auto how = random() % 2 ? sampling::draw::gumbel : sampling::draw::inverse_cdf;
    ids text(random() % 5, 0);
    text.push_back(tokens[0]);
    const ids context = text;
    verify_workspace memory(vocabulary);
    const std::uint64_t seed = random();
    const auto v = verify::match{.seed = seed, .request = 2, .draw = how}(draft_tree<draft_law::deterministic>{tokens, parents}, rows, policy, context, memory);

    sampling::row_workspace row(vocabulary);
    ids emitted, path;
    for (std::int32_t node = 0; node >= 0;) {
      const std::int32_t y = sampling::sample_row(rows[node], policy, {text, {}}, {.seed = seed, .request = 2, .position = static_cast<std::uint32_t>(text.size())}, row, how).token;
      emitted.push_back(y), text.push_back(y);
      std::int32_t next = -1;
      for (std::size_t u = 1; u < tokens.size(); ++u)
        if (parents[u] == node && tokens[u] == y) next = static_cast<std::int32_t>(u);
      if (next >= 0) path.push_back(next);
      node = next;
    }
    ASSERT_EQ(ids(v.tokens.begin(), v.tokens.end()), emitted);
    ASSERT_EQ(ids(v.path.begin(), v.path.end()), path);
    ASSERT_EQ(v.accepted, static_cast<std::int32_t>(path.size()));
  }
}

// p = (.6, .3, .1), q = (.2, .3, .5). A drafter with noise of its own: sum p q = .26; with the target's noise: sum_v 1 / sum_u max(p_u / p_v, q_u / q_v)
// = .514286; token rejection: 1 - TV = .6. Drafts of a fixed set of children: the sum of their probabilities.
TEST(Match, AcceptanceOfTheThreeCouplings) {
  const float p[] = {std::log(.6f), std::log(.3f), std::log(.1f)}, q[] = {std::log(.2f), std::log(.3f), std::log(.5f)}, law[] = {.2f, .3f, .5f};
  const sampling::chain policy{sampling::temperature(1.f)};
  const ids context{0}, parents{-1, 0}, pair_parents{-1, 0, 0}, pair{0, 1, 2}, row_of{0, -1};
  sampling::row_workspace row(3);
  verify_workspace memory(3);
  std::vector<float> logits;
  for (int node = 0; node < 3; ++node) logits.insert(logits.end(), p, p + 3);
  const tensor_view<const float, 2> rows{logits.data(), extents{2, 3}}, three_rows{logits.data(), extents{3, 3}};
  const tensor_view<const float, 1> proposal{q, extents{3}};
  constexpr int n = 200000;
  int independent = 0, shared = 0, rejection = 0, both = 0;
  for (std::uint64_t seed = 0; seed < n; ++seed) {
    const verify::match rule{.seed = seed};
    const auto drafted = [&](std::uint64_t noise) { return ids{0, sampling::sample_row(proposal, policy, {}, {.seed = noise, .position = 1}, row).token}; };
    const ids own = drafted(seed + n), same = drafted(seed);
    independent += rule(draft_tree<draft_law::independent>{own, parents}, rows, policy, context, memory).accepted;
    shared += rule(draft_tree<draft_law::unpredictable>{same, parents}, rows, policy, context, memory).accepted;
    both += rule(draft_tree<draft_law::deterministic>{pair, pair_parents}, three_rows, policy, context, memory).accepted;
    draft_tree<draft_law::independent> tree{own, parents};
    tree.laws = {.row_of = row_of, .dense = {law, extents{1, 3}}};
    rejection += verify::token{.seed = seed}(tree, rows, policy, context, memory).accepted;
  }
  constexpr double tolerance = 0.0056;   // five standard deviations at one half
  EXPECT_NEAR(independent / double{n}, .26, tolerance);
  EXPECT_NEAR(shared / double{n}, .514286, tolerance);
  EXPECT_NEAR(rejection / double{n}, .6, tolerance);
  EXPECT_NEAR(both / double{n}, .4, tolerance);
}

TEST(Match, GreedyRefusesATemperature) {
  const float logits[] = {0.f, 1.f};
  const ids root{1}, parents{-1}, context{1};
  verify_workspace memory(2);
  const draft_tree<draft_law::deterministic> tree{root, parents};
  const tensor_view<const float, 2> rows{logits, extents{1, 2}};
  EXPECT_EQ(verify::greedy{}(tree, rows, sampling::chain{sampling::temperature(0.f)}, context, memory).tokens.front(), 1);
  EXPECT_THROW((verify::greedy{}(tree, rows, sampling::chain{sampling::temperature(1e-9f)}, context, memory)), heddle::error);
}

}  // namespace
