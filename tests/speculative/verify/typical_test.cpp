#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/typical.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
const sampling::chain plain{};

struct scored {
  ids tokens = {0}, parents = {-1};
  std::vector<float> logits;
  explicit scored(std::vector<double> root) { push(root); }
  void push(const std::vector<double>& p) {
    for (double x : p) logits.push_back(x > 0 ? static_cast<float>(std::log(x)) : -std::numeric_limits<float>::infinity());
  }
  void add(std::int32_t parent, std::int32_t token, const std::vector<double>& next) { tokens.push_back(token), parents.push_back(parent), push(next); }
  ids path(const verify::typical& rule) const {
    const auto v = static_cast<std::int64_t>(logits.size() / tokens.size());
    verify_workspace memory(v);
    const auto result = rule(draft_tree<draft_law::unpredictable>{tokens, parents}, tensor_view<const float, 2>{logits.data(), extents{static_cast<std::int64_t>(tokens.size()), v}}, plain, {}, memory, 1);
    EXPECT_EQ(result.status, status::ok);
    EXPECT_EQ(result.tokens.size(), result.path.size() + 1);
    return {result.path.begin(), result.path.end()};
  }
};

TEST(Typical, ThresholdsFollowTheEntropy) {
  EXPECT_DOUBLE_EQ(verify::typical_threshold(.09, .3, 0), .09);
  EXPECT_NEAR(verify::typical_threshold(.09, .3, std::log(10.)), .03, 1e-12);
  const std::vector<double> certain = {.95, .05, 0, 0}, flat = {.25, .25, .25, .25};   // entropies .199 and 1.386: thresholds .09 and .075
  for (const auto& [p, token, accepted] : {std::tuple{certain, 0, true}, {certain, 1, false}, {certain, 2, false}, {flat, 3, true}}) {
    scored s(p);
    s.add(0, token, flat);
    EXPECT_EQ(s.path({}).size(), accepted ? 1u : 0u);
    EXPECT_EQ(s.path({.epsilon = .04, .delta = 1}).size(), p[static_cast<std::size_t>(token)] > .04 ? 1u : 0u);
  }
  scored s({.5, .5});
  s.add(0, 1, {.5, .5});
  EXPECT_EQ(s.path({.epsilon = .5, .delta = 100}).size(), 0u) << "equal to the threshold is not above it";
}

TEST(Typical, TheLongestPathThenTheMostProbableThenTheFirst) {
  const std::vector<double> flat = {.25, .25, .25, .25}, skewed = {.4, .3, .2, .1};
  scored s(skewed);
  s.add(0, 0, flat), s.add(0, 1, flat), s.add(0, 1, skewed);   // nodes 1, 2, 3
  EXPECT_EQ(s.path({}), ids({1}));
  s.add(3, 1, flat), s.add(2, 2, flat);                        // nodes 4 (.3 * .3), 5 (.3 * .25)
  EXPECT_EQ(s.path({}), ids({3, 4}));
  s.add(3, 1, flat);                                           // as probable as node 4, later
  EXPECT_EQ(s.path({}), ids({3, 4}));
  s.add(5, 3, flat);                                           // deeper
  EXPECT_EQ(s.path({}), ids({2, 5, 7}));
}

// Temperature 0: greedy verification, on trees.
TEST(Typical, IsGreedyAtTemperatureZero) {
  std::mt19937 random(5);
  const sampling::chain policy{sampling::temperature(0.f)};
  for (int trial = 0; trial < 500; ++trial) {
    const std::int64_t vocabulary = 2 + static_cast<std::int64_t>(random() % 4);
    const auto size = static_cast<std::size_t>(vocabulary);
    ids tokens{0}, parents{-1};
    for (std::size_t u = 1; u < 12; ++u) {
      const auto parent = static_cast<std::int32_t>(random() % u), token = static_cast<std::int32_t>(random() % size);
      bool taken = false;
      for (std::size_t other = 1; other < tokens.size(); ++other) taken |= parents[other] == parent && tokens[other] == token;
      if (parent < static_cast<std::int32_t>(tokens.size()) && !taken) tokens.push_back(token), parents.push_back(parent);
    }
    std::vector<float> logits(tokens.size() * size);
    for (float& z : logits) z = std::normal_distribution<float>()(random);
    const tensor_view<const float, 2> rows{logits.data(), extents{static_cast<std::int64_t>(tokens.size()), vocabulary}};
    const draft_tree<draft_law::deterministic> tree{tokens, parents};
    verify_workspace memory(vocabulary), other(vocabulary);
    const auto a = verify::typical{}(tree, rows, policy, {}, memory, 1), b = verify::greedy{}(tree, rows, policy, {}, other, 1);
    ASSERT_EQ(ids(a.tokens.begin(), a.tokens.end()), ids(b.tokens.begin(), b.tokens.end()));
    ASSERT_EQ(ids(a.path.begin(), a.path.end()), ids(b.path.begin(), b.path.end()));
  }
}

TEST(Typical, ParametersHaveARange) {
  scored s({.5, .5});
  EXPECT_THROW(s.path({.epsilon = 0}), error);
  EXPECT_THROW(s.path({.epsilon = 1.5}), error);
  EXPECT_THROW(s.path({.delta = 0}), error);
  EXPECT_THROW(s.path({.delta = std::numeric_limits<double>::infinity()}), error);
  EXPECT_TRUE(s.path({}).empty());
}

}  // namespace
