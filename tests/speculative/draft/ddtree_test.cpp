#include <heddle/speculative/draft/ddtree.hpp>
#include <heddle/speculative/draft/eagle_tree.hpp>

#include "speculative/draft/toy_block.hpp"
#include "support/errors.hpp"
#include "support/reference/softmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace toy;
using ids = std::vector<std::int32_t>;
rows random_logits(std::mt19937& random, std::size_t slots, std::size_t vocabulary, float spread = 2.f) {
  rows u(slots, std::vector<float>(vocabulary));
  std::normal_distribution<float> normal(0.f, spread);
  for (auto& row : u)
    for (float& z : row) z = normal(random);
  return u;
}

TEST(SlotRanking, IsTheSortedSoftmaxOfEachRow) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t vocabulary = trial < 40 ? 1 + random() % 700 : 20000 + random() % 3000;
    rows u = random_logits(random, 3, vocabulary);
    for (auto& row : u) {
      for (float& z : row) z = random() % 3 ? std::round(z * 2) / 2 : z;   // ties
      if (vocabulary > 5)
        for (std::size_t i = random() % vocabulary; i-- > 0 && trial % 3 == 0;) row[i] = -INFINITY;
      row[vocabulary - 1] = 0.f;
    }
    const auto width = static_cast<std::int32_t>(trial % 7 == 0 ? vocabulary + 3 : 1 + random() % 200);
    const double temperature = trial % 2 ? 1. : 0.3 + 0.01 * trial;
    slot_ranker ranker;
    const matrix_of logits(u);
    const slot_ranking best = ranker.rank(logits.view(), width, temperature, true);
    ASSERT_EQ(best.num_slots(), 3);
    for (std::int32_t slot = 0; slot < 3; ++slot) {
      const auto& row = u[static_cast<std::size_t>(slot)];
      ids order;
      for (std::size_t v = 0; v < vocabulary; ++v)
        if (row[v] > -INFINITY) order.push_back(static_cast<std::int32_t>(v));
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)]; });
      order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(width)));
      ASSERT_EQ(ids(best.tokens_of(slot).begin(), best.tokens_of(slot).end()), order);
      const auto p = reference::softmax(row, temperature);
      double entropy = 0;
      for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
      for (std::size_t i = 0; i < order.size(); ++i) ASSERT_NEAR(best.log_probs_of(slot)[i], std::log(p[static_cast<std::size_t>(order[i])]), 1.1e-4);
      ASSERT_NEAR(best.entropies[static_cast<std::size_t>(slot)], entropy, 5e-4);
    }
  }
}

// The stated bound where nothing averages out: rows with one weight only, at every fraction of an octave, far from 0 and at low temperatures.
TEST(SlotRanking, LogProbabilitiesAreWithinTheStatedBound) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1.f, 1.f);
  slot_ranker ranker;
  double worst = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const double temperature = std::pow(10., -4. + trial % 6);
    const auto far = static_cast<float>(trial % 3 * 50.);
    rows u(1, std::vector<float>(3000));
    const float same = far + uniform(random), top = same + static_cast<float>(temperature * trial / 50.);
    for (float& z : u[0]) z = trial % 4 ? same : same - static_cast<float>(temperature * 30) * std::abs(uniform(random));
    u[0][random() % 3000] = top;
    const matrix_of logits(u);
    const slot_ranking best = ranker.rank(logits.view(), 2, temperature, true);
    double sum = 0, moment = 0;
    for (const float z : u[0]) {
      const double x = (double{z} - double{top}) / temperature;
      sum += std::exp(x), moment += x * std::exp(x);
    }
    for (std::size_t i = 0; i < 2; ++i) worst = std::max(worst, std::abs(best.log_probs_of(0)[i] - std::min(0., (double{u[0][static_cast<std::size_t>(best.tokens_of(0)[i])]} - double{top}) / temperature - std::log(sum))));
    ASSERT_NEAR(best.entropies[0], std::log(sum) - moment / sum, 5e-4) << trial;
  }
  EXPECT_LE(worst, 1.1e-4);
  EXPECT_GE(worst, 5e-5);   // the rows above do reach it
}

TEST(SlotRanking, NarrowAndStridedRowsAreRankedAsTheirFloats) {
  std::mt19937 random(2);
  const rows u = random_logits(random, 2, 301);
  std::vector<bfloat16> narrow;
  std::vector<float> widened, columns(2 * 301);
  for (const auto& row : u)
    for (const float z : row) narrow.push_back(bfloat16(z)), widened.push_back(static_cast<float>(narrow.back()));
  for (std::size_t i = 0; i < 301; ++i) columns[2 * i] = widened[i], columns[2 * i + 1] = widened[301 + i];
  slot_ranker a, b, c;
  const auto x = a.rank(tensor_view<const float, 2>{widened.data(), extents{2, 301}}, 40);
  const auto y = b.rank(tensor_view<const bfloat16, 2>{narrow.data(), extents{2, 301}}, 40);
  const auto z = c.rank(tensor_view<const float, 2>{columns.data(), extents{2, 301}, extents{1, 2}}, 40);
  EXPECT_TRUE(std::equal(x.tokens.begin(), x.tokens.end(), y.tokens.begin()) && std::equal(x.tokens.begin(), x.tokens.end(), z.tokens.begin()));
  EXPECT_TRUE(std::equal(x.log_probs.begin(), x.log_probs.end(), y.log_probs.begin()) && std::equal(x.log_probs.begin(), x.log_probs.end(), z.log_probs.begin()));
}

TEST(SlotRanking, BadRowsAreNamed) {
  slot_ranker ranker;
  const auto rank = [&](float z, std::size_t at) {
    rows u(3, std::vector<float>(300, 1.f));
    u[2][at] = z;
    if (z == -INFINITY) u[2].assign(300, z);
    const matrix_of logits(u);
    return message_of([&] { ranker.rank(logits.view(), 4); });
  };
  for (const std::size_t at : {0u, 77u, 299u}) {
    EXPECT_EQ(rank(NAN, at), "slot_ranker: argument 'logits': row 2: nan_logit");
    EXPECT_EQ(rank(INFINITY, at), "slot_ranker: argument 'logits': row 2: inf_logit");
    EXPECT_EQ(rank(-INFINITY, at), "slot_ranker: argument 'logits': row 2: empty_support");
  }
  const matrix_of logits(rows(1, std::vector<float>(3, 1.f)));
  EXPECT_THROW(ranker.rank(logits.view(), 0), error);
  for (const double t : {0., -1., double{NAN}}) EXPECT_THROW(ranker.rank(logits.view(), 2, t), error);
}

// Every prefix of ranks with its score, in the order of the definition.
struct prefix {
  std::vector<std::size_t> ranks;
  double log_score;
};
std::vector<prefix> all_prefixes(const slot_ranking& slots) {
  std::vector<prefix> all;
  const auto extend = [&](const auto& self, const prefix& p) -> void {
    if (p.ranks.size() == static_cast<std::size_t>(slots.num_slots())) return;
    const auto slot = static_cast<std::int32_t>(p.ranks.size());
    for (std::size_t r = 0; r < slots.log_probs_of(slot).size(); ++r) {
      prefix next{p.ranks, p.log_score + slots.log_probs_of(slot)[r]};
      next.ranks.push_back(r);
      all.push_back(next);
      self(self, next);
    }
  };
  extend(extend, {{}, 0.});
  std::sort(all.begin(), all.end(), [](const prefix& a, const prefix& b) { return a.log_score != b.log_score ? a.log_score > b.log_score : a.ranks < b.ranks; });
  return all;
}

TEST(DDTree, EmitsTheBestPrefixesInOrderTiesByRanks) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    rows u = random_logits(random, 1 + random() % 4, 1 + random() % 5, 1.f);
    if (trial % 3 == 0)
      for (auto& row : u) row.assign(row.size(), 0.f);   // all equal
    if (trial % 3 == 1)
      for (auto& row : u)
        for (float& z : row) z = z > 0 ? 0.f : -INFINITY;
    for (auto& row : u) row[0] = 0.f;
    const matrix_of logits(u);
    slot_ranker ranker;
    const auto slots = ranker.rank(logits.view(), 5);
    const auto expected = all_prefixes(slots);
    ddtree builder;
    const auto budget = static_cast<std::int32_t>(random() % 60);
    const auto tree = builder.build(9, slots, budget);
    ASSERT_EQ(tree.tokens.size() - 1, std::min<std::size_t>(static_cast<std::size_t>(budget), expected.size()));
    check("test", draft_tree<draft_law::deterministic>{tree.tokens, tree.parents}, 10);
    double phi = 0;
    for (std::size_t u1 = 1; u1 < tree.tokens.size(); ++u1) {
      ids path;
      for (auto v = static_cast<std::int32_t>(u1); v > 0; v = tree.parents[static_cast<std::size_t>(v)]) path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(v)]);
      const prefix& p = expected[u1 - 1];
      ids wanted;
      for (std::size_t j = 0; j < p.ranks.size(); ++j) wanted.push_back(slots.tokens_of(static_cast<std::int32_t>(j))[p.ranks[j]]);
      ASSERT_EQ(path, wanted) << trial << " node " << u1;
      phi += std::exp(p.log_score);
    }
    ASSERT_NEAR(builder.expected_accepted(), phi, 1e-12);
  }
}

// All prefix-closed sets of at most n nodes over a pool of scored prefixes, by recursion: the largest sum of scores.
TEST(DDTree, NoTreeOfThatSizeHasALargerSum) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 40; ++trial) {
    const matrix_of logits(random_logits(random, 3, 3, 1.5f));
    slot_ranker ranker;
    const auto slots = ranker.rank(logits.view(), 3);
    const auto pool = all_prefixes(slots);
    std::map<std::vector<std::size_t>, std::size_t> index;
    for (std::size_t i = 0; i < pool.size(); ++i) index[pool[i].ranks] = i;
    // nodes in depth-first order: take a node (if its parent is taken) or leave it and all below it
    std::vector<double> best(10, 0.);
    const auto search = [&](const auto& self, std::vector<std::vector<std::size_t>> open, std::size_t taken, double sum) -> void {
      for (std::size_t n = taken; n < best.size(); ++n) best[n] = std::max(best[n], sum);
      if (taken == 6) return;
      while (!open.empty()) {
        const auto next = open.back();
        open.pop_back();
        auto inner = open;
        for (std::size_t r = 0; r < 3 && next.size() < 3; ++r) {
          auto child = next;
          child.push_back(r);
          inner.push_back(child);
        }
        self(self, inner, taken + 1, sum + std::exp(pool[index[next]].log_score));
      }
    };
    search(search, {{0}, {1}, {2}}, 0, 0.);
    double previous = 0;
    for (std::int32_t n = 0; n <= 6; ++n) {
      ddtree builder;
      builder.build(9, slots, n);
      ASSERT_NEAR(builder.expected_accepted(), best[static_cast<std::size_t>(n)], 1e-12);
      ASSERT_GE(builder.expected_accepted(), previous);
      previous = builder.expected_accepted();
    }
  }
}

TEST(CaDDTree, StopsAtTheBestThroughputForConvexCosts) {
  std::mt19937 random(5);
  int stopped_inside = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const matrix_of logits(random_logits(random, 4, 6, 2.f));
    slot_ranker ranker;
    const auto slots = ranker.rank(logits.view(), 6);
    std::vector<double> verify{1.};
    double slope = 0.001 * static_cast<double>(random() % 100);
    while (verify.size() < 31) slope += 0.0004 * static_cast<double>(random() % 100), verify.push_back(verify.back() + slope);
    const round_cost cost{0.1 * static_cast<double>(random() % 10), verify};
    double best = 0;
    for (std::int32_t n = 0; n <= 30; ++n) {
      ddtree any;
      any.build(9, slots, n);
      best = std::max(best, throughput(cost, static_cast<std::size_t>(n), any.expected_accepted()));
    }
    ddtree builder;
    const auto n = builder.build(9, slots, 30, cost).tokens.size() - 1;
    stopped_inside += n > 0 && n < 30;
    ASSERT_NEAR(throughput(cost, n, builder.expected_accepted()), best, 1e-12);
  }
  EXPECT_GT(stopped_inside, 100);
}

TEST(DDTree, EdgesAndBadInput) {
  const matrix_of logits(logits_of({{.6, .4, 0.}, {.5, .5, 0.}}));
  slot_ranker ranker;
  const auto slots = ranker.rank(logits.view(), 3);
  ddtree builder;
  EXPECT_EQ(builder.build(7, slots, 0).tokens.size(), 1u);
  EXPECT_EQ(builder.build(7, slots, 100).tokens.size(), 1u + 2u + 4u);   // probability 0 never enters
  const auto two = builder.build(7, slots, 2);
  EXPECT_EQ(ids(two.tokens.begin(), two.tokens.end()), (ids{7, 0, 1}));
  EXPECT_NEAR(builder.expected_accepted(), 1.0, 1.1e-4);
  EXPECT_THROW(builder.build(7, slots, -1), error);
  const std::vector<double> few = {1., 2.}, zero = {0., 1., 2.};
  EXPECT_THROW(builder.build(7, slots, 2, {0., few}), error);
  EXPECT_THROW(builder.build(7, slots, 2, {0., zero}), error);
}

// A head whose law depends on the last two tokens of the path.
struct toy_head {
  std::int64_t vocabulary = 6;
  float certainty = 1.f;
  int passes = 0, rows_read = 0;
  std::vector<float> logits{};
  ids kept{};
  tensor_view<const float, 2> expand(const token_tree& tree, std::span<const std::int32_t> frontier) {
    ++passes, rows_read += static_cast<int>(frontier.size());
    logits.clear();
    for (const std::int32_t node : frontier) {
      const auto u = static_cast<std::size_t>(node);
      const auto row = after(u > 0 ? tree.tokens[static_cast<std::size_t>(tree.parents[u])] : 0, tree.tokens[u]);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return {logits.data(), extents{static_cast<std::int64_t>(frontier.size()), vocabulary}};
  }
  std::vector<float> after(std::int32_t before, std::int32_t last) const {
    std::seed_seq key{before, last};
    std::mt19937 random(key);
    std::vector<float> row;
    for (std::int64_t v = 0; v < vocabulary; ++v) row.push_back(certainty * std::normal_distribution<float>(0.f, 1.5f)(random));
    return row;
  }
  ids kept_tokens{};
  void keep(const token_tree& tree, std::span<const std::int32_t> path) {
    kept.assign(path.begin(), path.end()), kept_tokens.clear();
    for (const std::int32_t u : path) kept_tokens.push_back(tree.tokens[static_cast<std::size_t>(u)]);
  }
};

// The definition: levels as sorted lists of (score, tokens), the pool sorted as a whole.
struct reference_node {
  double score;
  ids path;
  std::size_t inserted;
};
std::vector<reference_node> eagle_definition(const toy_head& head, std::int32_t root, std::size_t width, std::size_t depth, std::size_t budget) {
  std::vector<reference_node> pool, frontier = {{0., {}, 0}};
  const auto order = [](const reference_node& a, const reference_node& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.path.size() != b.path.size() ? a.path.size() < b.path.size() : a.inserted < b.inserted;
  };
  for (std::size_t level = 0; level < depth; ++level) {
    std::vector<reference_node> next;
    for (const auto& node : frontier) {
      const auto n = node.path.size();
      const matrix_of logits({head.after(n > 1 ? node.path[n - 2] : n == 1 ? root : 0, n ? node.path.back() : root)});
      slot_ranker ranker;
      const auto best = ranker.rank(logits.view(), static_cast<std::int32_t>(width));
      for (std::size_t i = 0; i < best.tokens_of(0).size(); ++i) {
        next.push_back({node.score + best.log_probs_of(0)[i], node.path, pool.size() + next.size()});
        next.back().path.push_back(best.tokens_of(0)[i]);
      }
    }
    pool.insert(pool.end(), next.begin(), next.end());
    std::sort(next.begin(), next.end(), order);
    next.resize(std::min(next.size(), width));
    std::sort(next.begin(), next.end(), [](const auto& a, const auto& b) { return a.inserted < b.inserted; });
    frontier = next;
  }
  std::sort(pool.begin(), pool.end(), order);
  pool.resize(std::min(pool.size(), budget));
  return pool;
}

TEST(EagleTree, IsTheBestOfThePoolAndPrefixClosedWithTies) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 200; ++trial) {
    toy_head head;
    head.certainty = trial % 4 == 0 ? 1000.f : 1.f;   // probabilities that round to 1: children tie with their parents
    if (trial % 4 == 1) head.certainty = 0.f;         // all equal
    const auto width = 1 + static_cast<std::int32_t>(random() % 5), depth = 1 + static_cast<std::int32_t>(random() % 5), budget = 1 + static_cast<std::int32_t>(random() % 40);
    eagle_drafter drafter{head, {.width = width, .depth = depth}};
    const auto root = static_cast<std::int32_t>(random() % 6);
    const ids context = {3, root};
    const auto tree = drafter.propose(context, budget);
    ASSERT_EQ(head.passes, depth);
    ASSERT_EQ(head.rows_read, 1 + (depth - 1) * width);
    check("test", tree, 6);
    std::map<ids, double> found, expected;
    for (std::size_t u = 1; u < tree.tokens.size(); ++u) {
      ids path;
      for (auto v = static_cast<std::int32_t>(u); v > 0; v = tree.parents[static_cast<std::size_t>(v)]) path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(v)]);
      found[path] = drafter.log_scores()[u];
    }
    for (const auto& node : eagle_definition(head, root, static_cast<std::size_t>(width), static_cast<std::size_t>(depth), static_cast<std::size_t>(budget))) expected[node.path] = node.score;
    ASSERT_EQ(found, expected) << trial;
  }
}

TEST(EagleTree, KeepsInTheHeadsOwnNumbering) {
  toy_head head;
  eagle_drafter drafter{head, {.width = 4, .depth = 3}};
  const ids context = {1, 2};
  const auto tree = drafter.propose(context, 6);
  std::vector<std::int32_t> path;
  for (auto v = static_cast<std::int32_t>(tree.tokens.size()) - 1; v > 0; v = tree.parents[static_cast<std::size_t>(v)]) path.insert(path.begin(), v);
  drafter.keep(path);
  ASSERT_EQ(head.kept.size(), path.size());
  for (std::size_t i = 0; i < path.size(); ++i) EXPECT_EQ(head.kept_tokens[i], tree.tokens[static_cast<std::size_t>(path[i])]);
  EXPECT_GE(head.kept.back(), path.back());   // the pool is larger than the tree
  EXPECT_EQ(drafter.propose(context, 0).tokens.size(), 1u);
}

TEST(EagleTree, BadInput) {
  toy_head head;
  EXPECT_THROW((eagle_drafter{head, {.width = 0}}), error);
  EXPECT_THROW((eagle_drafter{head, {.depth = 0}}), error);
  eagle_drafter drafter{head};
  const ids context = {1};
  EXPECT_THROW(drafter.propose({}, 3), error);
  EXPECT_THROW(drafter.propose(context, -1), error);
  head.certainty = NAN;
  EXPECT_NE(message_of([&] { drafter.propose(context, 3); }).find("nan_logit"), std::string::npos);
}

TEST(BlockModel, LayersAndTokens) {
  EXPECT_EQ(context_layers(36, 5), (aligned_vector<std::int32_t>{1, 9, 17, 25, 33}));
  EXPECT_EQ(context_layers(32, 1), (aligned_vector<std::int32_t>{16}));
  for (const std::int32_t layers : {28, 30, 48, 61})
    for (std::int32_t m = 2; m < 8; ++m)
      for (std::int32_t j = 0; j < m; ++j) EXPECT_EQ(context_layers(layers, m)[static_cast<std::size_t>(j)], std::lround(1 + j * (layers - 4.) / (m - 1)));
  EXPECT_EQ(block_tokens(block_layout::dflash, 3, 7, 99), (aligned_vector<std::int32_t>{7, 99, 99, 99}));
  EXPECT_EQ(block_tokens(block_layout::dspark, 3, 7, 99), (aligned_vector<std::int32_t>{7, 99, 99}));
  EXPECT_EQ(rows_for(block_layout::dflash, 3).first_predicting, 1);
  EXPECT_EQ(rows_for(block_layout::dspark, 3).first_predicting, 0);
  EXPECT_THROW(context_layers(3, 2), error);
  EXPECT_THROW(context_layers(8, 0), error);
}

}  // namespace
