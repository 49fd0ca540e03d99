#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/transition_spine.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"
#include "speculative/draft/toy_block.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using namespace enumeration;
using toy::sigma, toy::weight;

constexpr std::int64_t d = 5;

// A block drafter without attention among its rows: each layer is a small MLP of the row, the output a projection to the vocabulary.
struct rowwise_backbone {
  std::int64_t vocabulary = 3;
  int layers = 2;
  std::vector<float> hidden{}, logits{};
  std::vector<std::vector<float>> after_layer{};
  std::int64_t slots = 0;
  int disturbed = -1;   // a slot that begins elsewhere
  int kept = 0;

  tensor_view<float, 2> begin(std::span<const std::int32_t> context, std::int32_t count) {
    slots = count, after_layer.clear();
    hidden = weight(count, d, 50 + static_cast<unsigned>(context.size())).values;
    if (disturbed >= 0)
      for (std::int64_t k = 0; k < d; ++k) hidden[static_cast<std::size_t>(disturbed * d + k)] += .3f;
    return {hidden.data(), extents{slots, d}};
  }
  std::int64_t num_layers() const { return layers; }
  void layer(std::int32_t l) {
    const weight w(d, d, 60 + static_cast<unsigned>(l));
    for (std::int64_t i = 0; i < slots; ++i) {
      const row x(hidden.begin() + i * d, hidden.begin() + (i + 1) * d), y = w.times(x);
      for (std::size_t k = 0; k < d; ++k) hidden[static_cast<std::size_t>(i * d) + k] = static_cast<float>(x[k] + std::tanh(y[k]));
    }
    after_layer.push_back(hidden);
  }
  block_prediction finish() {
    const weight out(vocabulary, d, 70);
    logits.clear();
    for (std::int64_t i = 0; i < slots; ++i)
      for (const double x : out.times(row(hidden.begin() + i * d, hidden.begin() + (i + 1) * d))) logits.push_back(static_cast<float>(x));
    return {{logits.data(), extents{slots, vocabulary}}, {hidden.data(), extents{slots, d}}};
  }
  void keep(std::span<const std::int32_t>) { ++kept; }
};
struct bare_block {   // the same without a spine: DFlash
  rowwise_backbone& backbone;
  block_prediction predict(std::span<const std::int32_t> context, std::int32_t slots) {
    backbone.begin(context, slots);
    for (int l = 0; l < backbone.layers; ++l) backbone.layer(l);
    return backbone.finish();
  }
};

struct spine_modules {
  std::int64_t rank;
  weight z, w, modulation;
  std::vector<weight> p, q, a;
  std::vector<spine_layer_weights> layers{};
  spine_modules(std::int64_t r, std::int64_t vocabulary, int count, float bias = -.3f) : rank(r), z(vocabulary, r, 1), w(r, r, 2, 2.f), modulation(r, d, 3) {
    for (unsigned l = 0; l < static_cast<unsigned>(count); ++l) p.emplace_back(r, d, 10 + l), q.emplace_back(d, r, 20 + l), a.emplace_back(1, 2 * d, 30 + l);
    for (std::size_t l = 0; l < p.size(); ++l) layers.push_back({p[l].view(), q[l].view(), a[l].values, bias});
  }
  transition_spine spine() const { return {z.view(), layers}; }
  spine_head head() const { return spine_head{{z.view(), w.view(), modulation.view()}}; }
};

const tokens context = {0, 2};

TEST(TransitionSpine, InjectionAndHeadFollowTheFormulas) {
  const spine_modules m(3, 6, 2);
  transition_spine spine = m.spine();
  for (const std::int64_t slots : {1, 4}) {
    weight h(slots, d, 9);
    std::vector<row> u = {m.z.at(5)}, expected;
    for (std::int64_t i = 0; i < slots; ++i) u.push_back(m.p[1].times(h.at(i)));
    for (std::int64_t i = 0; i < slots; ++i) {
      const row heard = m.q[1].times(u[static_cast<std::size_t>(i)]);
      row x = h.at(i), gate_input = x;
      gate_input.insert(gate_input.end(), heard.begin(), heard.end());
      const double gate = sigma(m.a[1].times(gate_input)[0] - static_cast<double>(.3f));
      for (std::size_t k = 0; k < d; ++k) x[k] += gate * heard[k];
      expected.push_back(x);
    }
    spine.inject(1, 5, {h.values.data(), extents{slots, d}});
    for (std::int64_t i = 0; i < slots; ++i) {
      for (std::size_t k = 0; k < d; ++k) EXPECT_NEAR(h.at(i)[k], expected[static_cast<std::size_t>(i)][k], 1e-6);
      for (std::int64_t k = 0; k < 3; ++k) EXPECT_NEAR(static_cast<double>(spine.transitions()(i, k)), u[static_cast<std::size_t>(i) + 1][static_cast<std::size_t>(k)], 1e-6);
    }
  }
  const weight h(1, d, 4), base(1, 6, 5);
  row next = m.w.times(m.z.at(2));
  for (std::size_t k = 0; k < 3; ++k) next[k] *= sigma(m.modulation.times(h.at(0))[k]);
  std::vector<float> logits = base.values;
  spine_head head = m.head();
  head.correct(0, 2, h.values, logits);
  for (std::size_t v = 0; v < 6; ++v) EXPECT_NEAR(static_cast<double>(logits[v]), base.at(0)[v] + m.z.times(next)[v], 1e-6);
}

TEST(TransitionSpine, ClosedGatesAndNoTransitionAreDFlashBitForBit) {
  rowwise_backbone backbone, plain;
  bare_block bare{plain};
  const auto drawn = [&](auto& model, auto head, std::uint64_t seed) {
    block_sampler drafter{model, head, {.num_slots = 4, .seed = seed}};
    const auto tree = drafter.propose(context, 4);
    std::vector<float> laws(tree.laws.dense.at(0), tree.laws.dense.at(0) + 12);
    laws.insert(laws.end(), tree.tokens.begin(), tree.tokens.end());
    return laws;
  };
  spine_modules closed(3, 3, 2, -std::numeric_limits<float>::infinity()), open(3, 3, 2);
  const spine_modules nothing(0, 3, 2);
  std::fill(closed.w.values.begin(), closed.w.values.end(), 0.f);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto dflash = drawn(bare, no_correction{}, seed);
    spined_block a{backbone, closed.spine()};
    EXPECT_EQ(drawn(a, closed.head(), seed), dflash);
    EXPECT_EQ(backbone.hidden, plain.hidden);
    spined_block b{backbone, nothing.spine()};
    EXPECT_EQ(drawn(b, nothing.head(), seed), dflash);
    spined_block c{backbone, open.spine()};
    EXPECT_NE(drawn(c, no_correction{}, seed), dflash);
    EXPECT_NE(drawn(a, open.head(), seed), dflash);
  }
}

TEST(TransitionSpine, ASlotReachesTheNextOnesOnePerLayer) {
  constexpr std::int32_t slots = 6;
  const spine_modules m(3, 3, 4);
  rowwise_backbone backbone{.layers = 4};
  spined_block spined{backbone, m.spine()};
  const auto states = [&](int disturbed, std::int32_t anchor) {
    backbone.disturbed = disturbed;
    spined.predict(tokens{1, anchor}, slots);
    auto all = backbone.after_layer;   // as they enter each layer's injection
    all.push_back(backbone.hidden);    // and after the last
    return all;
  };
  const auto moved = [&](const auto& x, const auto& y, std::size_t layer, int i) { return !std::equal(x[layer].begin() + i * d, x[layer].begin() + (i + 1) * d, y[layer].begin() + i * d); };
  const auto calm = states(-1, 2);
  for (int j = 0; j < slots; ++j) {
    const auto disturbed = states(j, 2);
    for (std::size_t injections = 0; injections <= 4; ++injections)   // before injection l + 1, l have been
      for (int i = 0; i < slots; ++i) EXPECT_EQ(moved(calm, disturbed, injections, i), i >= j && i - j <= static_cast<int>(injections)) << j << " " << i << " " << injections;
  }
  const auto other_anchor = states(-1, 1);   // slot 0, so to speak
  for (std::size_t injections = 0; injections <= 4; ++injections)
    for (int i = 0; i < slots; ++i) EXPECT_EQ(moved(calm, other_anchor, injections, i), i + 1 <= static_cast<int>(injections));
}

TEST(TransitionSpine, OneSlotHearsTheAnchorAlone) {
  const spine_modules m(3, 3, 1);
  rowwise_backbone one{.layers = 1}, four{.layers = 1};
  spined_block a{one, m.spine()}, b{four, m.spine()};
  a.predict(context, 1), b.predict(context, 4);
  EXPECT_TRUE(std::equal(one.hidden.begin(), one.hidden.end(), four.hidden.begin()));
  EXPECT_NE(one.hidden, one.after_layer[0]);
}

TEST(TransitionSpine, VerificationKeepsTheTargetsLaw) {
  const spine_modules m(2, 3, 2);
  for (const char* kind : {"random", "one-hot", "zero in p"}) {
    const world w = make_world(3, kind, 3);
    rowwise_backbone backbone;
    spined_block spined{backbone, m.spine()};
    every_choice draws;
    block_sampler<decltype(spined), spine_head, scripted_draws> drafter{spined, m.head(), {.num_slots = 2}, scripted_draws{&draws}};
    const auto expected = target_law(w, 3);
    EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::token{}, 2, 3), expected), 1e-12) << kind;
    EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::block{}, 2, 3), expected), 1e-12) << kind;
    if (kind != std::string("random")) continue;
    std::vector<float> laws;   // wrong: the block's own law, without the head
    const auto wrong = emitted_law(drafter, draws, w, verify::token{}, 2, 3, [&](auto& tree) {
      laws.clear();
      for (const float z : backbone.logits) laws.push_back(std::exp(z));
      tree.laws.dense = {laws.data(), extents{2, 3}};
    });
    EXPECT_GT(distance(wrong, expected), 1e-3);
    drafter.keep({});
    EXPECT_EQ(backbone.kept, 1);
  }
}

TEST(TransitionSpine, TheTextIsPlainDecodings) {
  const spine_modules m(3, toy::vocabulary, 2);
  rowwise_backbone backbone{.vocabulary = toy::vocabulary};
  spined_block spined{backbone, m.spine()};
  for (const sampling::parameters& p : {sampling::parameters{.temperature = 0.f}, {.temperature = .8f, .top_k = 8}})
    for (const std::int32_t length : {0, 1, 5}) {
      block_sampler sampled{spined, m.head(), {.num_slots = 4}};
      toy::expect_plain_text(sampled, p, length);
      greedy_block_sampler greedy{spined, m.head(), 4};
      toy::expect_plain_text(greedy, p, length);
    }
}

TEST(TransitionSpine, CacheHoldsOneRowPerTokenInTransferSpace) {
  const weight e(7, d, 1), basis(2, d, 2);
  std::vector<float> z(14);
  transition_cache(e.view(), basis.view(), {z.data(), extents{7, 2}});
  for (std::int64_t v = 0; v < 7; ++v)
    for (std::size_t k = 0; k < 2; ++k) EXPECT_NEAR(static_cast<double>(z[static_cast<std::size_t>(v) * 2 + k]), basis.times(e.at(v))[k], 1e-6);
  EXPECT_THROW(transition_cache(e.view(), basis.view(), {z.data(), extents{2, 7}}), error);
}

TEST(TransitionSpine, BadInput) {
  const spine_modules m(3, 3, 2);
  std::vector<spine_layer_weights> layers = m.layers;
  layers[1].gate = layers[1].gate.first(3);
  EXPECT_NE(message_of([&] { transition_spine(m.z.view(), layers); }).find("'gate' has 3"), std::string::npos);
  layers = m.layers, layers[0].gate_bias = NAN;
  EXPECT_THROW(transition_spine(m.z.view(), layers), error);
  layers = m.layers, layers[0].project = m.q[0].view();
  EXPECT_THROW(transition_spine(m.z.view(), layers), error);
  EXPECT_THROW(spine_head({m.z.view(), m.modulation.view(), {}}), error);
  rowwise_backbone backbone{.layers = 3};
  spined_block spined{backbone, m.spine()};
  EXPECT_NE(message_of([&] { spined.predict(context, 2); }).find("3 layers"), std::string::npos);
  backbone.layers = 2;
  EXPECT_THROW(spined.predict({}, 2), error);
  EXPECT_THROW(spined.predict(tokens{3}, 2), error);
  EXPECT_THROW(m.spine().inject(2, 0, {backbone.hidden.data(), extents{1, d}}), error);
}

}  // namespace
