// Chains sampled from a block through each head: the head's formula in double, the laws handed over, and that verification keeps the target's law.
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"
#include "speculative/draft/toy_block.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using namespace enumeration;
using toy::join, toy::operator+, toy::sigma, toy::weight;
constexpr std::int64_t V = 6, d = 5, slots = 3;

struct toy_block_model {
  weight u{slots, V, 1, 1.f}, h{slots, d, 2, 1.f};
  int calls = 0;
  block_prediction predict(std::span<const std::int32_t>, std::int32_t wanted) {
    ++calls;
    return {u.view().slice(0, std::min<std::int64_t>(wanted, slots)), h.view()};
  }
};

// bias(slot, tokens x_0 .. x_{i-1}, corrected logits so far) in double, against the head's.
template <class Head, class Reference>
void compare(Head head, const Reference& reference) {
  toy_block_model model;
  std::mt19937 random(9);
  for (int trial = 0; trial < 20; ++trial) {
    head.start();
    tokens before;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      before.push_back(static_cast<std::int32_t>(random() % V));
      std::vector<float> z(model.u.values.begin() + slot * V, model.u.values.begin() + (slot + 1) * V);
      const std::vector<float> hidden(model.h.values.begin() + slot * d, model.h.values.begin() + (slot + 1) * d);
      const row expected = reference(slot, before, row(z.begin(), z.end()), row(hidden.begin(), hidden.end()));
      head.correct(slot, before.back(), hidden, z);
      for (std::size_t v = 0; v < V; ++v)
        if (std::isinf(expected[v]))
          ASSERT_EQ(static_cast<double>(z[v]), expected[v]);
        else
          ASSERT_NEAR(static_cast<double>(z[v]), expected[v], 2e-6);
    }
  }
}

const weight w1(V, 4, 11), w2(V, 4, 12), gate(4, d + 4, 13), confidence(1, d + 4, 14);

TEST(CausalHead, Markov) {
  compare(markov_head({w1.view(), w2.view()}), [](int, const tokens& before, const row& u, const row&) { return u + w2.times(w1.at(before.back())); });
  markov_head gated({w1.view(), w2.view(), gate.view(), {confidence.values.data(), confidence.values.size()}});
  compare(gated, [](int, const tokens& before, const row& u, const row& h) {
    row e = w1.at(before.back());
    const row g = gate.times(join({h, e}));
    for (std::size_t k = 0; k < e.size(); ++k) e[k] *= sigma(g[k]);
    return u + w2.times(e);
  });
  std::vector<float> h(d, 0.3f), z(V);
  gated.correct(0, 2, h, z);
  EXPECT_NEAR(gated.confidence(), sigma(confidence.times(join({row(h.begin(), h.end()), w1.at(2)}))[0]), 1e-6);
}

TEST(CausalHead, Recurrent) {
  const weight out(V, 3, 15), g(2, 2 + 4 + d, 16), s(2, 2 + 4 + d, 17), o(3, 2 + 4 + d, 18);
  compare(rnn_head({w1.view(), out.view(), g.view(), s.view(), o.view()}), [&](int, const tokens& before, const row& u, const row&) {
    toy_block_model model;
    row state(2, 0.), last;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const row h = model.h.at(static_cast<std::int32_t>(i)), c = join({state, w1.at(before[i]), h}), gs = g.times(c), ss = s.times(c);
      last = o.times(c);
      for (std::size_t k = 0; k < 2; ++k) state[k] = sigma(gs[k]) * state[k] + (1 - sigma(gs[k])) * std::tanh(ss[k]);
    }
    for (double& x : last) x = std::tanh(x);
    return u + out.times(last);
  });
}

TEST(CausalHead, Domino) {
  const std::int64_t s = 3, a = 4;
  const weight e(V, 2, 19), r(s, 2 + s, 20), z(s, 2 + s, 21), n(s, 2 + s, 22), wa(a, d + s, 23), wb(V, a, 24);
  compare(domino_head({e.view(), r.view(), z.view(), n.view(), wa.view(), wb.view()}), [&](int, const tokens& before, const row& u, const row& h) {
    row state(3, 0.);
    for (const std::int32_t x : before) {
      const row rs = r.times(join({e.at(x), state})), zs = z.times(join({e.at(x), state}));
      row reset = state;
      for (std::size_t k = 0; k < 3; ++k) reset[k] *= sigma(rs[k]);
      const row ns = n.times(join({e.at(x), reset}));
      for (std::size_t k = 0; k < 3; ++k) state[k] = (1 - sigma(zs[k])) * std::tanh(ns[k]) + sigma(zs[k]) * state[k];
    }
    row middle = wa.times(join({h, state}));
    for (double& m : middle) m *= sigma(m);
    return u + wb.times(middle);
  });
}

TEST(CausalHead, Candidates) {
  const weight a(V, 4, 25), wh(4, d, 26), s(V, 4, 27);
  compare(candidate_head({a.view(), wh.view(), s.view(), 3}), [&](int, const tokens& before, const row& u, const row& h) {
    row q = wh.times(h), out(V, -INFINITY);
    for (std::size_t k = 0; k < 4; ++k) q[k] *= a.at(before.back())[k];
    for (std::int32_t c = 0; c < V; ++c) {
      const auto better = std::count_if(u.begin(), u.end(), [&](double x) { return x > u[static_cast<std::size_t>(c)]; });
      if (better >= 3) continue;
      out[static_cast<std::size_t>(c)] = u[static_cast<std::size_t>(c)];
      for (std::size_t k = 0; k < 4; ++k) out[static_cast<std::size_t>(c)] += q[k] * s.at(c)[k];
    }
    return out;
  });
}

template <class Head>
std::pair<tokens, std::vector<float>> drawn(Head head, std::int32_t top_k, std::uint64_t seed) {
  toy_block_model model;
  block_sampler drafter{model, head, {.top_k = top_k, .temperature = 0.9, .seed = seed}};
  const tokens context = {3, 1};
  const auto tree = drafter.propose(context, 8);
  std::vector<float> laws(tree.laws.probabilities.begin(), tree.laws.probabilities.end());
  for (std::int64_t r = 0; r < tree.laws.dense.extent(0); ++r) laws.insert(laws.end(), tree.laws.dense.at(r), tree.laws.dense.at(r) + V);
  return {tokens(tree.tokens.begin(), tree.tokens.end()), laws};
}

TEST(CausalHead, RankZeroAndZeroWeightsAreDFlash) {
  weight zero1(V, 4, 1, 0.f), zero2(V, 3, 1, 0.f), none(V, 0, 1), g(2, 2 + 4 + d, 16), s(2, 2 + 4 + d, 17), o(3, 2 + 4 + d, 18);
  for (const std::int32_t top_k : {0, 3})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto plain = drawn(no_correction{}, top_k, seed);
      EXPECT_EQ(drawn(markov_head({none.view(), none.view()}), top_k, seed), plain);
      EXPECT_EQ(drawn(markov_head({w1.view(), zero1.view(), gate.view()}), top_k, seed), plain);
      EXPECT_EQ(drawn(rnn_head({w1.view(), zero2.view(), g.view(), s.view(), o.view()}), top_k, seed), plain);
    }
}

// Every chain a sampler can draw, with its probability, must be q_1 q_2 q_3, q_i the rows it hands over; verified, the target's law comes out.
template <class Head, class Rule>
double distance_from_target(const Head& head, std::int32_t top_k, const Rule& rule) {
  const world w = make_world(V, "random", 31);
  toy_block_model model;
  every_choice draws;
  block_sampler<toy_block_model, Head, scripted_draws> drafter{model, head, {.num_slots = 2, .top_k = top_k}, scripted_draws{&draws}};
  return distance(emitted_law(drafter, draws, w, rule, 2, 2), target_law(w, 2));
}

TEST(BlockSampler, VerificationKeepsTheTargetsLaw) {
  const weight a(V, 4, 25), wh(4, d, 26), s(V, 4, 27);
  const markov_head markov({w1.view(), w2.view(), gate.view()});
  const candidate_head candidates({a.view(), wh.view(), s.view(), 3});
  for (const std::int32_t top_k : {0, 2}) {
    EXPECT_LT(distance_from_target(no_correction{}, top_k, verify::token{}), 1e-12);
    EXPECT_LT(distance_from_target(markov, top_k, verify::token{}), 1e-12);
    EXPECT_LT(distance_from_target(markov, top_k, verify::block{}), 1e-12);
    EXPECT_LT(distance_from_target(candidates, top_k, verify::token{}), 1e-12);
  }
}

TEST(BlockSampler, LawsAreSoftmaxesAndDrawsFollowThem) {
  toy_block_model model;
  const double temperature = 0.7;
  std::map<std::int32_t, int> counts;
  const int rounds = 20000;
  row q;
  for (const std::int32_t top_k : {0, 4}) {
    counts.clear();
    for (int seed = 0; seed < rounds; ++seed) {
      block_sampler drafter{model, no_correction{}, {.num_slots = 1, .top_k = top_k, .temperature = temperature, .seed = static_cast<std::uint64_t>(seed)}};
      const tokens context = {2};
      const auto tree = drafter.propose(context, 4);
      ASSERT_EQ(tree.tokens.size(), 2u);
      if (seed == 0) {
        check_laws("test", tree, V, strictness::strict);
        q.assign(V, 0.);
        row z(model.u.values.begin(), model.u.values.begin() + V);
        for (std::size_t v = 0; v < V; ++v)
          if (top_k == 0 || std::count_if(z.begin(), z.end(), [&](double x) { return x > z[v]; }) < top_k) q[v] = std::exp(z[v] / temperature);
        q = normalised(q);
        for (std::int32_t v = 0; v < V; ++v) ASSERT_NEAR(entry_of(tree.laws, 0, v) / sum_of(tree.laws, 0), q[static_cast<std::size_t>(v)], 1e-6);
      }
      ++counts[tree.tokens[1]];
    }
    double chi2 = 0;
    for (std::int32_t v = 0; v < V; ++v)
      if (q[static_cast<std::size_t>(v)] > 0) chi2 += std::pow(counts[v] - rounds * q[static_cast<std::size_t>(v)], 2) / (rounds * q[static_cast<std::size_t>(v)]);
    EXPECT_LT(chi2, 36);   // p > 1e-6 with 5 degrees of freedom
  }
}

TEST(BlockSampler, LargeVocabulariesDrawTheSameFromBlocksOfWeights) {   // sums by blocks of 256, against one running sum
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> weights(1 + random() % 1500);
    for (float& w : weights) w = random() % 3 ? 0.f : static_cast<float>(random() % 1000);
    weights[random() % weights.size()] = 5.f;
    const keyed_draws draw{static_cast<std::uint64_t>(trial)};
    const double u = uniform({.seed = static_cast<std::uint64_t>(trial), .position = 4, .purpose = purpose::draft});
    double sum = 0, running = 0;
    for (const float w : weights) sum += static_cast<double>(w);
    std::size_t expected = 0;
    while ((running += static_cast<double>(weights[expected])) <= u * sum) ++expected;
    ASSERT_EQ(draw(4, 0u, std::span<const float>(weights)), expected);
  }
}

TEST(BlockSampler, GreedyTakesTheArgmaxOfTheCorrectedSlots) {
  toy_block_model model;
  greedy_block_sampler drafter{model, markov_head({w1.view(), w2.view()})};
  const tokens context = {2};
  const auto tree = drafter.propose(context, 8);
  ASSERT_EQ(tree.tokens.size(), 4u);
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    const row z = model.u.at(slot) + w2.times(w1.at(tree.tokens[static_cast<std::size_t>(slot)]));
    EXPECT_EQ(tree.tokens[static_cast<std::size_t>(slot) + 1], std::max_element(z.begin(), z.end()) - z.begin());
  }
  EXPECT_EQ(drafter.propose(context, 0).tokens.size(), 1u);
  markov_head sure({w1.view(), w2.view(), {}, {confidence.values.data(), confidence.values.size()}});
  block_sampler estimating{model, sure, {}};
  estimating.propose(context, 2);
  EXPECT_EQ(estimating.confidences().size(), 2u);
}

TEST(BlockSampler, BadInput) {
  toy_block_model model;
  using sampler = block_sampler<toy_block_model, no_correction>;
  EXPECT_THROW((sampler{model, {}, {.num_slots = 0}}), error);
  EXPECT_THROW((sampler{model, {}, {.top_k = -1}}), error);
  for (const double t : {0., -1., double{NAN}}) EXPECT_THROW((sampler{model, {}, {.temperature = t}}), error);
  const tokens context = {2}, outside = {V};
  sampler drafter{model, {}, {}};
  EXPECT_THROW(drafter.propose({}, 2), error);
  EXPECT_THROW(drafter.propose(context, -1), error);
  for (const float bad : {NAN, INFINITY}) {
    model.u.values[V + 2] = bad;
    EXPECT_NE(message_of([&] { drafter.propose(context, 3); }).find(std::isnan(bad) ? "slot 1: nan_logit" : "slot 1: inf_logit"), std::string::npos);
  }
  model.u.values[V + 2] = 0.f;
  block_sampler with_head{model, markov_head({w1.view(), w2.view()}), {}};
  EXPECT_THROW(with_head.propose(outside, 2), error);
  EXPECT_THROW(markov_head({w1.view(), gate.view()}), error);
  const weight other(4, 2, 1);
  EXPECT_THROW(markov_head({w1.view(), w2.view(), other.view()}), error);
  EXPECT_THROW(candidate_head({w1.view(), gate.view(), w2.view(), 0}), error);
}

}  // namespace
