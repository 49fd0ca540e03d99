#include <heddle/speculative/draft/taps.hpp>

#include "speculative/draft/toy_block.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace toy;
using ids = std::vector<std::int32_t>;

rows random_logits(std::mt19937& random, std::size_t slots, std::size_t vocabulary) {
  rows u(slots, std::vector<float>(vocabulary));
  for (auto& row : u)
    for (float& z : row) z = std::normal_distribution<float>(0.f, 1.5f)(random);
  return u;
}

ids path_of(const auto& tree, std::int32_t node) {
  ids path;
  for (; node > 0; node = tree.parents[static_cast<std::size_t>(node)]) path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(node)]);
  return path;
}

// An estimate that depends on the token before, as a table.
struct table_acceptance {
  unsigned seed;
  void operator()(std::int32_t slot, std::int32_t previous, const slot_ranking& slots, std::span<double> a) const {
    for (std::size_t r = 0; r < a.size(); ++r) a[r] = value(slot, previous, slots.tokens_of(slot)[r]) / static_cast<double>(a.size());
  }
  double value(std::int32_t slot, std::int32_t previous, std::int32_t token) const {
    std::seed_seq key{seed, static_cast<unsigned>(slot), static_cast<unsigned>(previous), static_cast<unsigned>(token)};
    std::mt19937 random(key);
    return std::uniform_real_distribution<double>(0, 1)(random);
  }
};

TEST(Taps, NoPrefixClosedSetHasALargerSumOfReaches) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 30; ++trial) {
    const matrix_of logits(random_logits(random, 3, 3));
    slot_ranker ranker;
    const auto slots = ranker.rank(logits.view(), 3);
    const table_acceptance acceptance{static_cast<unsigned>(trial)};
    const auto reach = [&](const ids& path) {
      double r = 1;
      for (std::size_t i = 0; i < path.size(); ++i) r *= acceptance.value(static_cast<std::int32_t>(i), i ? path[i - 1] : 7, path[i]) / 3;
      return r;
    };
    std::vector<double> best(10, 0.);
    const std::function<void(std::vector<ids>, std::size_t, double)> search = [&](std::vector<ids> open, std::size_t taken, double sum) {
      for (std::size_t n = taken; n < best.size(); ++n) best[n] = std::max(best[n], sum);
      if (taken == 5) return;
      while (!open.empty()) {
        const ids next = open.back();
        open.pop_back();
        auto inner = open;
        for (std::int32_t v = 0; v < 3 && next.size() < 3; ++v) inner.push_back(next), inner.back().push_back(v);
        search(inner, taken + 1, sum + reach(next));
      }
    };
    search({{0}, {1}, {2}}, 0, 0.);
    best_first_tree tree;
    double previous = 0;
    for (std::int32_t n = 0; n <= 5; ++n) {
      const auto drafts = tree.build(7, slots, n, acceptance);
      ASSERT_EQ(drafts.tokens.size(), static_cast<std::size_t>(n) + 1);
      check("test", drafts, 8);
      ASSERT_NEAR(tree.expected_accepted(), best[static_cast<std::size_t>(n)], 1e-12);
      ASSERT_GE(tree.expected_accepted(), previous);
      previous = tree.expected_accepted();
      for (std::size_t u = 1; u < drafts.tokens.size(); ++u) ASSERT_NEAR(tree.reaches()[u], reach(path_of(drafts, static_cast<std::int32_t>(u))), 1e-15);
    }
  }
}

// Nine nodes, by taking all the reaches in order: the best n of them are prefix-closed, and no sum of n is larger.
TEST(Taps, IsTheSortedListOfReaches) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 50; ++trial) {
    const matrix_of logits(random_logits(random, 4, 4));
    slot_ranker ranker;
    const auto slots = ranker.rank(logits.view(), 4);
    const table_acceptance acceptance{static_cast<unsigned>(trial)};
    std::vector<double> all;
    const std::function<void(std::int32_t, std::int32_t, double)> visit = [&](std::int32_t slot, std::int32_t before, double r) {
      for (std::int32_t v = 0; slot < 4 && v < 4; ++v) all.push_back(r * acceptance.value(slot, before, v) / 4), visit(slot + 1, v, all.back());
    };
    visit(0, 9, 1.);
    std::sort(all.rbegin(), all.rend());
    best_first_tree tree;
    for (const std::int32_t n : {1, 9, 60}) {
      tree.build(9, slots, n, acceptance);
      for (std::int32_t u = 1; u <= n; ++u) ASSERT_NEAR(tree.reaches()[static_cast<std::size_t>(u)], all[static_cast<std::size_t>(u) - 1], 1e-15);
    }
  }
}

TEST(Taps, MarginalsAsAcceptanceGiveDDTree) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    const matrix_of logits(random_logits(random, 5, 20));
    slot_ranker ranker;
    const auto slots = ranker.rank(logits.view(), 20);
    ddtree marginal;
    best_first_tree tree;
    const auto a = marginal.build(3, slots, 40);
    const auto b = tree.build(3, slots, 40, marginal_acceptance{});
    ASSERT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()));
    ASSERT_TRUE(std::equal(a.parents.begin(), a.parents.end(), b.parents.begin(), b.parents.end()));
    ASSERT_NEAR(marginal.expected_accepted(), tree.expected_accepted(), 1e-12);
  }
}

TEST(Taps, SiblingsShareAtMostOne) {
  std::mt19937 random(4);
  std::vector<double> theta(3 * acceptance_features);
  for (double& x : theta) x = std::normal_distribution<double>(0, 1)(random);
  const acceptance_weights weights(3, theta);
  const matrix_of logits(random_logits(random, 3, 30));
  slot_ranker ranker;
  const auto slots = ranker.rank(logits.view(), 12, 1., true);
  const auto pair = [](std::int32_t a, std::int32_t b) { return 0.1 * (a - b); };
  path_acceptance acceptance(weights, pair);
  acceptance.begin(slots);
  for (std::int32_t slot = 0; slot < 3; ++slot)
    for (const std::int32_t before : {0, 5, 29}) {
      std::vector<double> a(12);
      acceptance(slot, before, slots, a);
      double sum = 0, uncapped = 0;
      for (std::size_t r = 0; r < a.size(); ++r) {   // the formula again, from the probabilities
        const auto s = static_cast<std::size_t>(slot);
        const std::int32_t token = slots.tokens_of(slot)[r];
        const double lp = slots.log_probs_of(slot)[r];
        const double* t = &theta[s * acceptance_features];
        uncapped += 1 / (1 + std::exp(-(t[0] + t[1] * lp + t[2] * static_cast<double>(r) + t[3] * slots.entropies[s] + t[4] * (lp - slots.log_probs_of(slot)[0]) + t[5] * (token == before) + t[6] * pair(before, token))));
        sum += a[r];
      }
      EXPECT_NEAR(sum, std::min(1., uncapped), 1e-12);
    }
}

// m_1 = (.6, .4), m_2 = (.5, .5), and the truth alternates: after a comes b, after b comes a. DDTree takes {a, b} and expects 1.0; what was learnt from
// events is that a repeated token is never accepted, {a, ab}, 1.2.
TEST(Taps, Golden) {
  fixed_block block{matrix_of(logits_of({{.6, .4}, {.5, .5}}))};
  slot_ranker ranker;
  const auto slots = ranker.rank(block.logits.view(), 2, 1., true);
  const auto truth = [](const ids& path) { return path == ids{0} || path == ids{0, 1} ? .6 : path == ids{1} || path == ids{1, 0} ? .4 : 0.; };   // P(accepted)
  std::vector<acceptance_event> events;
  std::mt19937 random(5);
  for (int i = 0; i < 4000; ++i) {
    const std::int32_t first = std::uniform_real_distribution<double>(0, 1)(random) < .6 ? 0 : 1;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      acceptance_event e{.slot = 0, .accepted = slots.tokens_of(0)[static_cast<std::size_t>(rank)] == first};
      features_of(slots, 0, rank, -1, no_pair_feature{}, e.features);
      events.push_back(e);
      e = {.slot = 1, .accepted = slots.tokens_of(1)[static_cast<std::size_t>(rank)] != first};
      features_of(slots, 1, rank, first, no_pair_feature{}, e.features);
      events.push_back(e);
    }
  }
  const acceptance_weights weights = fit_acceptance(events, 2);
  const ids context = {-1 + 9};
  const auto expected = [&](const auto& tree) {
    double sum = 0;
    for (std::int32_t u = 1; u < static_cast<std::int32_t>(tree.tokens.size()); ++u) sum += truth(path_of(tree, u));
    return sum;
  };
  ddtree_drafter by_marginals{block, {.num_slots = 2}};
  taps_drafter by_paths{block, weights, {.num_slots = 2}};
  const auto wide = by_marginals.propose(context, 2);
  EXPECT_EQ(path_of(wide, 1), ids{0});
  EXPECT_EQ(path_of(wide, 2), ids{1});
  EXPECT_NEAR(expected(wide), 1.0, 1e-12);
  const auto deep = by_paths.propose(context, 2);
  EXPECT_EQ(path_of(deep, 1), ids{0});
  EXPECT_EQ(path_of(deep, 2), (ids{0, 1}));
  EXPECT_NEAR(expected(deep), 1.2, 1e-12);
  EXPECT_NEAR(by_paths.tree().expected_accepted(), 1.2, 0.05);
}

TEST(Taps, FitIsTheMaximumOfThePenalisedLikelihood) {
  std::mt19937 random(6);
  std::vector<acceptance_event> events;
  for (int i = 0; i < 2000; ++i) {
    acceptance_event e{.slot = static_cast<std::int32_t>(random() % 2)};
    e.features[0] = 1;
    for (std::size_t k = 1; k < acceptance_features; ++k) e.features[k] = std::normal_distribution<double>(0, 1)(random);
    e.accepted = std::uniform_real_distribution<double>(0, 1)(random) < 1 / (1 + std::exp(-(0.5 - e.features[1] + 2 * e.features[3] * (e.slot + 1))));
    events.push_back(e);
  }
  const double ridge = 0.3;
  const acceptance_weights fitted = fit_acceptance(events, 3, ridge);
  for (std::int32_t slot = 0; slot < 3; ++slot)   // the third has no events of its own: those of all slots
    for (std::size_t k = 0; k < acceptance_features; ++k) {
      double gradient = -ridge * fitted.of(slot)[k];
      for (const auto& e : events)
        if (slot == 2 || e.slot == slot) {
          double s = 0;
          for (std::size_t j = 0; j < acceptance_features; ++j) s += fitted.of(slot)[j] * e.features[j];
          gradient += ((e.accepted ? 1. : 0.) - 1 / (1 + std::exp(-s))) * e.features[k];
        }
      EXPECT_NEAR(gradient, 0, 1e-7);
    }
  EXPECT_NEAR(fitted.of(0)[3], 2, 0.5);
  EXPECT_NEAR(fitted.of(1)[3], 4, 0.8);

  for (auto& e : events) e.accepted = e.features[1] > 0;   // can be separated: finite all the same
  for (const double x : fit_acceptance(events, 2, 1e-3).of(0)) EXPECT_LT(std::abs(x), 1e4);
  EXPECT_EQ(fit_acceptance({}, 1).of(0)[0], 0);
}

TEST(Taps, StopsByCostAndByReach) {
  const matrix_of logits(logits_of({{.6, .3, .1}, {.9, .1, 0.}}));
  slot_ranker ranker;
  const auto slots = ranker.rank(logits.view(), 3);
  best_first_tree tree;
  EXPECT_EQ(tree.build(7, slots, 100, marginal_acceptance{}).tokens.size() - 1, 3u + 6u);   // probability 0 never enters
  EXPECT_EQ(tree.build(7, slots, 100, marginal_acceptance{}, {}, .29).tokens.size() - 1, 3u);   // .6, .54, .3
  std::vector<double> verify;
  for (int n = 0; n <= 20; ++n) verify.push_back(1 + .3 * n);
  // theta: 1, 1.6/1.3, 2.14/1.6, 2.44/1.9, ..
  EXPECT_EQ(tree.build(7, slots, 20, marginal_acceptance{}, {0., verify}).tokens.size() - 1, 2u);
  EXPECT_EQ(tree.build(7, slots, 0, marginal_acceptance{}).tokens.size(), 1u);
}

TEST(Taps, BadInput) {
  const matrix_of logits(logits_of({{.6, .3, .1}, {.9, .1, 0.}}));
  slot_ranker ranker;
  const auto slots = ranker.rank(logits.view(), 3, 1., true);
  best_first_tree tree;
  const auto bad = [](std::int32_t, std::int32_t, const slot_ranking&, std::span<double> a) { a[1] = NAN; };
  EXPECT_NE(message_of([&] { tree.build(7, slots, 3, bad); }).find("NaN"), std::string::npos);
  EXPECT_THROW(tree.build(7, slots, -1, marginal_acceptance{}), error);
  const std::vector<double> theta(acceptance_features), nan(acceptance_features, NAN);
  EXPECT_THROW(acceptance_weights(2, theta), error);
  EXPECT_THROW(acceptance_weights(1, nan), error);
  const acceptance_weights one(1, theta);
  EXPECT_THROW(tree.build(7, slots, 9, path_acceptance(one)), error);   // two slots
  const std::vector<double> two(2 * acceptance_features);
  const acceptance_weights enough(2, two);
  EXPECT_NE(message_of([&] { tree.build(7, slot_ranker{}.rank(logits.view(), 3), 9, path_acceptance(enough)); }).find("entropies"), std::string::npos);
  fixed_block block{logits};
  EXPECT_THROW((taps_drafter{block, one, {.num_slots = 2}}), error);
  std::vector<acceptance_event> events(1);
  events[0].slot = 4;
  EXPECT_THROW(fit_acceptance(events, 2), error);
  events[0] = {.features = {NAN}};
  EXPECT_THROW(fit_acceptance(events, 2), error);
  EXPECT_THROW(fit_acceptance({}, 2, 0.), error);
}

}  // namespace
