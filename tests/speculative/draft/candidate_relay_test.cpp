#include <heddle/speculative/draft/candidate_relay.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"
#include "speculative/draft/toy_block.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using namespace enumeration;
using toy::dot_product, toy::join, toy::operator+, toy::sigma, toy::weight;

constexpr std::int64_t V = 6, E = 3, D = 4, H = 2, S = 3, slots = 3;

struct modules {
  weight e{V, E, 1}, we{D, E, 2}, wu{D, 3, 3}, wh{D, H, 4}, pos{slots, D, 5}, r{S, E + D + S, 6}, z{S, E + D + S, 7}, n{S, E + D + S, 8}, w{1, S + D, 9}, alt{S, D, 10};
  weight q{4, D, 11}, k{4, D, 12}, v{4, D, 13}, o{D, 4, 14};
  float bias = .2f;
  relay_weights relay() const { return {e.view(), we.view(), wu.view(), wh.view(), pos.view(), r.view(), z.view(), n.view(), w.values, bias, alt.view()}; }
  candidate_attention reader() const { return candidate_attention{{q.view(), k.view(), v.view(), o.view(), 2}}; }
};
struct toy_backbone {
  weight u{slots, V, 21, 1.f}, h{slots, H, 22, 1.f};
  int kept = 0;
  block_prediction predict(std::span<const std::int32_t>, std::int32_t wanted) { return {u.view().slice(0, std::min<std::int64_t>(wanted, slots)), h.view()}; }
  void keep(std::span<const std::int32_t>) { ++kept; }
};

tokens pool_of(const row& u, std::size_t k) {
  tokens order(u.size());
  for (std::size_t v = 0; v < u.size(); ++v) order[v] = static_cast<std::int32_t>(v);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return u[static_cast<std::size_t>(a)] > u[static_cast<std::size_t>(b)]; });
  order.resize(k);
  return order;
}

// The formulas of the header, in double.
struct reference {
  const modules& m;
  std::vector<tokens> pools{};
  std::vector<std::vector<row>> g{};
  reference(const modules& of, const toy_backbone& backbone, std::size_t k) : m(of) {
    std::vector<row> z;
    for (std::int64_t i = 0; i < slots; ++i) {
      const row u = backbone.u.at(i);
      double sum = 0;
      for (const double x : u) sum += std::exp(x);
      pools.push_back(pool_of(u, k));
      for (std::size_t c = 0; c < k; ++c) {
        const double score = u[static_cast<std::size_t>(pools.back()[c])];
        z.push_back(m.we.times(m.e.at(pools.back()[c])) + m.wu.times({score, std::exp(score) / sum, static_cast<double>(c)}) + m.wh.times(backbone.h.at(i)) + m.pos.at(i));
      }
    }
    std::vector<row> read;
    for (const row& x : z) {
      const row query = m.q.times(x);
      row mixed(4);
      for (std::size_t head = 0; head < 2; ++head) {
        const auto part = [&](const row& all) { return row(all.begin() + static_cast<std::ptrdiff_t>(2 * head), all.begin() + static_cast<std::ptrdiff_t>(2 * head + 2)); };
        double sum = 0;
        row weights;
        for (const row& y : z) weights.push_back(std::exp(dot_product(part(query), part(m.k.times(y))) / std::sqrt(2.))), sum += weights.back();
        for (std::size_t j = 0; j < z.size(); ++j)
          for (std::size_t a = 0; a < 2; ++a) mixed[2 * head + a] += weights[j] / sum * part(m.v.times(z[j]))[a];
      }
      read.push_back(x + m.o.times(mixed));
    }
    for (std::size_t i = 0; i < slots; ++i) g.emplace_back(read.begin() + static_cast<std::ptrdiff_t>(i * k), read.begin() + static_cast<std::ptrdiff_t>((i + 1) * k));
  }
  row state_after(const tokens& before) const {   // the anchor, then the tokens chosen
    row s(S);
    for (std::size_t i = 0; i < before.size(); ++i) {
      row seen(D);
      if (i > 0)
        for (std::size_t c = 0; c < pools[i - 1].size(); ++c)
          if (pools[i - 1][c] == before[i]) seen = g[i - 1][c];
      const row x = join({m.e.at(before[i]), seen});
      row reset = m.r.times(join({x, s})), update = m.z.times(join({x, s}));
      for (std::size_t j = 0; j < S; ++j) reset[j] = sigma(reset[j]) * s[j];
      const row next = m.n.times(join({x, reset}));
      for (std::size_t j = 0; j < S; ++j) s[j] = (1 - sigma(update[j])) * std::tanh(next[j]) + sigma(update[j]) * s[j];
    }
    return s;
  }
  double keep(const tokens& before) const { return dot_product(m.w.at(0), join({state_after(before), g[before.size() - 1][0]})) + static_cast<double>(m.bias); }
  double alternative(const tokens& before, std::size_t c) const { return dot_product(state_after(before), m.alt.times(g[before.size() - 1][c])); }
};

TEST(CandidateRelay, SelectorFollowsTheFormulas) {
  const modules m;
  toy_backbone backbone;
  const reference expected(m, backbone, 3);
  slot_ranker ranker;
  relay_selector selector(m.relay(), m.reader());
  std::mt19937 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    selector.read(backbone.predict({}, slots), ranker.rank(backbone.u.view(), 3));
    tokens before;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      before.push_back(static_cast<std::int32_t>(random() % V));   // in the pool or not
      const relay_scores scores = selector.select(slot, before.back());
      EXPECT_NEAR(scores.keep, expected.keep(before), 2e-4);   // log-probabilities in the embedding are within 1.1e-4
      for (std::size_t c = 1; c < 3; ++c) EXPECT_NEAR(scores.alternatives[c], expected.alternative(before, c), 2e-4);
    }
  }
}

const tokens context = {4, 2};

TEST(CandidateRelay, SureOfTheNativeTokenOrWithoutAlternativesItIsTheNativeDrafter) {
  modules m;
  toy_backbone backbone;
  greedy_block_sampler native{backbone, no_correction{}, slots};
  const auto expected = native.propose(context, 3);
  const auto expect_native = [&](const relay_options& options) {
    greedy_candidate_relay greedy{backbone, m.relay(), m.reader(), options};
    const auto g = greedy.propose(context, 3);
    EXPECT_TRUE(std::equal(g.tokens.begin(), g.tokens.end(), expected.tokens.begin(), expected.tokens.end()));
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      candidate_relay sampled{backbone, m.relay(), m.reader(), {.num_slots = options.num_slots, .candidates = options.candidates, .seed = seed}};
      const auto s = sampled.propose(context, 3);
      EXPECT_TRUE(std::equal(s.tokens.begin(), s.tokens.end(), expected.tokens.begin(), expected.tokens.end()));
      EXPECT_EQ(s.laws.tokens.size(), 3u);   // point masses
      for (const float q : s.laws.probabilities) EXPECT_EQ(q, 1.f);
    }
  };
  expect_native({.candidates = 1});
  m.bias = 1e4f;
  expect_native({.candidates = 4});
}

TEST(CandidateRelay, GreedyRepairsWhereTheNativeTokenIsUnlikely) {
  toy_backbone backbone;
  int repaired = 0;
  for (const float bias : {-3.f, -.5f, 0.f, .7f}) {
    modules m;
    m.bias = bias;
    const reference expected(m, backbone, 3);
    tokens x = {2};
    for (std::size_t i = 0; i < slots; ++i) {
      std::size_t best = 0;
      if (sigma(expected.keep(x)) < .5) best = expected.alternative(x, 1) >= expected.alternative(x, 2) ? 1 : 2, ++repaired;
      x.push_back(expected.pools[i][best]);
    }
    greedy_candidate_relay greedy{backbone, m.relay(), m.reader(), {.candidates = 3}};
    const auto tree = greedy.propose(context, 5);
    EXPECT_EQ(tokens(tree.tokens.begin(), tree.tokens.end()), x);
    candidate_relay cold{backbone, m.relay(), m.reader(), {.candidates = 3, .temperature = 1e-5}};
    EXPECT_EQ(tokens(cold.propose(context, 3).tokens.begin(), cold.propose(context, 3).tokens.end()), x);
    greedy.keep({}), cold.keep({});
  }
  EXPECT_GT(repaired, 2);
  EXPECT_EQ(backbone.kept, 8);
}

TEST(CandidateRelay, PoolsHoldTheBestTokensTiesByIdAndNoImpossibleOne) {
  const modules m;
  toy_backbone backbone;
  backbone.u.values = {1, 2, 2, 2, 0, 0, -INFINITY, -INFINITY, 3, -INFINITY, 1, -INFINITY, 0, 0, 0, 0, 0, 0};
  const tokens pools[] = {{1, 2, 3}, {8 - 6, 10 - 6}, {0, 1, 2}};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    candidate_relay sampled{backbone, m.relay(), m.reader(), {.candidates = 3, .seed = seed}};
    const auto tree = sampled.propose(context, 3);
    check_laws("test", tree, V, strictness::strict);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto first = tree.laws.tokens.begin() + tree.laws.indptr[i], last = tree.laws.tokens.begin() + tree.laws.indptr[i + 1];
      EXPECT_EQ(tokens(first, last), pools[i]);
      EXPECT_NEAR(sum_of(tree.laws, static_cast<std::int64_t>(i)), 1, 1e-6);
    }
  }
}

using scripted_relay = candidate_relay<toy_backbone, candidate_attention, scripted_draws>;

TEST(CandidateRelay, LawsDependOnEarlierTokensAndAllPoolsOnly) {
  const modules m;
  toy_backbone backbone;
  const auto laws_by_prefix = [&] {
    every_choice draws;
    scripted_relay drafter{backbone, m.relay(), m.reader(), {.candidates = 3}, scripted_draws{&draws}};
    std::map<tokens, std::vector<float>> laws;
    draws.run([&] {
      const auto tree = drafter.propose(context, 3);
      for (std::ptrdiff_t i = 0; i < 3; ++i) {
        const auto at = [&](std::ptrdiff_t r) { return tree.laws.probabilities.begin() + tree.laws.indptr[static_cast<std::size_t>(r)]; };
        const auto [entry, fresh] = laws.try_emplace(tokens(tree.tokens.begin(), tree.tokens.begin() + i + 1), at(i), at(i + 1));
        EXPECT_EQ(entry->second, std::vector<float>(at(i), at(i + 1)));   // whatever is drawn there or later
      }
    });
    EXPECT_EQ(laws.size(), 1u + 3u + 9u);
    return laws;
  };
  const auto before = laws_by_prefix();
  EXPECT_NE(before.at({2, pool_of(backbone.u.at(0), 3)[0]}), before.at({2, pool_of(backbone.u.at(0), 3)[1]}));
  backbone.u.values[2 * V] += .5f;   // the last slot's pool is read by the first
  EXPECT_NE(laws_by_prefix().at({2}), before.at({2}));
}

TEST(CandidateRelay, VerificationKeepsTheTargetsLaw) {
  const modules m;
  for (const char* kind : {"random", "one-hot", "zero in p"})
    for (const std::int32_t candidates : {1, 2, 6}) {
      const world w = make_world(V, kind, 3);
      toy_backbone backbone;
      every_choice draws;
      scripted_relay drafter{backbone, m.relay(), m.reader(), {.candidates = candidates, .temperature = 1.3}, scripted_draws{&draws}};
      const auto expected = target_law(w, 2);
      EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::token{}, 2, 2), expected), 1e-12) << kind << candidates;
      EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::block{}, 2, 2), expected), 1e-12) << kind << candidates;
      if (candidates != 2 || kind != std::string("random")) continue;
      std::vector<float> native;   // wrong: the pool's own probabilities instead of the realised law
      const auto wrong = emitted_law(drafter, draws, w, verify::token{}, 2, 2, [&](auto& tree) {
        native.clear();
        for (std::size_t i = 0; i < tree.laws.tokens.size(); ++i) native.push_back(std::exp(backbone.u.values[i / 2 * V + static_cast<std::size_t>(tree.laws.tokens[i])]));
        tree.laws.probabilities = native;
      });
      EXPECT_GT(distance(wrong, expected), 1e-3);
    }
}

TEST(CandidateRelay, TheTextIsPlainDecodings) {
  struct guess {   // right about the next token, then nearly
    std::vector<float> z{};
    block_prediction predict(std::span<const std::int32_t> text, std::int32_t wanted) {
      toy::ids more(text.begin(), text.end());
      z.resize(static_cast<std::size_t>(wanted) * toy::vocabulary);
      for (std::int32_t i = 0; i < wanted; ++i) {
        float* const row = &z[static_cast<std::size_t>(i) * toy::vocabulary];
        toy::toy_model::row_after(more, row);
        more.push_back(static_cast<std::int32_t>(std::max_element(row, row + toy::vocabulary) - row));
      }
      return {{z.data(), extents{std::int64_t{wanted}, toy::vocabulary}}, {}};
    }
  } model;
  modules m;
  const weight e(toy::vocabulary, E, 1);
  relay_weights weights = m.relay();
  weights.embedding = e.view(), weights.from_hidden = {}, weights.keep_bias = 10.f;
  std::int64_t accepted = 0;
  for (const sampling::parameters& p : {sampling::parameters{.temperature = 0.f}, {.temperature = .8f, .top_k = 8}})
    for (const std::int32_t length : {0, 1, 3}) {
      candidate_relay sampled{model, weights, m.reader(), {.num_slots = 3, .candidates = 5}};
      greedy_candidate_relay greedy{model, weights, m.reader(), {.num_slots = 3, .candidates = 5}};
      accepted += toy::expect_plain_text(sampled, p, length) + toy::expect_plain_text(greedy, p, length);
    }
  EXPECT_GT(accepted, 40);
}

TEST(CandidateRelay, BadInput) {
  modules m;
  toy_backbone backbone;
  using relay = candidate_relay<toy_backbone, candidate_attention>;
  EXPECT_THROW((relay{backbone, m.relay(), m.reader(), {.num_slots = 0}}), error);
  EXPECT_THROW((relay{backbone, m.relay(), m.reader(), {.candidates = 0}}), error);
  for (const double t : {0., double{NAN}}) EXPECT_THROW((relay{backbone, m.relay(), m.reader(), {.temperature = t}}), error);
  relay_weights wrong = m.relay();
  wrong.keep = wrong.keep.first(2);
  EXPECT_NE(message_of([&] { relay{backbone, wrong, m.reader(), {}}; }).find("'keep'"), std::string::npos);
  EXPECT_THROW((candidate_attention{{m.q.view(), m.k.view(), m.v.view(), m.o.view(), 3}}), error);
  relay drafter{backbone, m.relay(), m.reader(), {}};
  EXPECT_EQ(drafter.propose(context, 0).tokens.size(), 1u);
  EXPECT_THROW(drafter.propose({}, 1), error);
  EXPECT_THROW(drafter.propose(tokens{V}, 1), error);   // an anchor without embedding
  backbone.u.values[V + 1] = NAN;
  EXPECT_NE(message_of([&] { drafter.propose(context, 3); }).find("row 1: nan_logit"), std::string::npos);
  backbone.u.values[V + 1] = 0, m.w.values[0] = NAN;
  relay broken{backbone, m.relay(), m.reader(), {}};
  EXPECT_NE(message_of([&] { broken.propose(context, 3); }).find("scores for slot 0"), std::string::npos);
}

}  // namespace
