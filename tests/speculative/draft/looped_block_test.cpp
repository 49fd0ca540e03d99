// Two looped passes of a block drafter: laws and tokens of each pass, exactness by enumeration, the repetition trap, the training loss.
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/looped_block.hpp>
#include <heddle/speculative/draft/looped_block_loss.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

// First pass: laws by slot. Later ones: laws by slot and prefix. Both in one buffer that every call overwrites; rows that nobody may read are NaN.
struct two_pass_model {
  std::int32_t vocabulary;
  unsigned seed = 5;
  int calls = 0;
  std::vector<tokens> prefixes{};
  std::vector<float> buffer{};
  float at(const tokens& prefix, std::int32_t slot, std::int32_t v) const {
    std::seed_seq key{seed, static_cast<unsigned>(prefix.size()), static_cast<unsigned>(slot), prefix.empty() ? 0u : 1u + static_cast<unsigned>(prefix.back()), prefix.size() > 1 ? static_cast<unsigned>(prefix.front()) : 7u};
    std::mt19937 random(key);
    random.discard(static_cast<unsigned>(v));
    return static_cast<float>(random() % 4000) / 1000.f;
  }
  block_prediction fill(const tokens& prefix, std::int32_t slots) {
    ++calls;
    buffer.assign(static_cast<std::size_t>(slots * vocabulary), NAN);
    for (auto slot = static_cast<std::int32_t>(prefix.size()); slot < slots; ++slot)
      for (std::int32_t v = 0; v < vocabulary; ++v) buffer[static_cast<std::size_t>(slot * vocabulary + v)] = at(prefix, slot, v);
    return {{buffer.data(), extents{std::int64_t{slots}, std::int64_t{vocabulary}}}, {}};
  }
  block_prediction predict(std::span<const std::int32_t>, std::int32_t slots) {
    prefixes.clear();
    return fill({}, slots);
  }
  block_prediction predict_after(std::span<const std::int32_t>, std::span<const std::int32_t> prefix, std::int32_t slots) {
    prefixes.emplace_back(prefix.begin(), prefix.end());
    return fill(prefixes.back(), slots);
  }
};

TEST(LoopedBlock, EveryDraftAndDecisionTogetherAreTheTargetsLaw) {
  const std::int32_t slots = 3;
  const world w = make_world(3, "random", 31);
  for (const double sure : {0., 0.5, 1.})
    for (const std::int32_t passes : {1, 2, 3}) {
      two_pass_model model{3};
      looped_block looped{model, {.passes = passes, .sure = sure}};
      every_choice draws;
      block_sampler<decltype(looped), decltype(looped.head()), scripted_draws> drafter{looped, looped.head(), {.num_slots = slots}, scripted_draws{&draws}};
      EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::token{}, slots, slots + 1), target_law(w, slots + 1)), 1e-12);
      EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::block{}, slots, slots + 1), target_law(w, slots + 1)), 1e-12);
      EXPECT_EQ(looped.passes(), sure == 0. ? 1 : sure == 1. ? passes : looped.passes());
    }
}

// MUT: the prefix is kept or not by the token that was drawn.
struct keeps_by_token {
  every_choice* draws;
  tokens nodes{}, parents{-1, 0}, row_of{0, -1};
  float m[2] = {.3f, .7f}, r[2] = {.5f, .5f};
  draft_tree<draft_law::independent> propose(std::span<const std::int32_t> context, std::int32_t) {
    const float* law = m;
    auto x = static_cast<std::int32_t>(draws->choose({m[0], m[1]}));
    if (x != 0) law = r, x = static_cast<std::int32_t>(draws->choose({r[0], r[1]}));
    nodes = {context.back(), x};
    return {nodes, parents, {.row_of = row_of, .dense = {law, extents{1, 2}}}};
  }
};
TEST(LoopedBlock, APrefixChosenByItsTokensBendsTheLaw) {
  const world w = constant_world({.5, .5}, {.5, .5});
  every_choice draws;
  keeps_by_token drafter{&draws};
  auto law = emitted_law(drafter, draws, w, verify::token{}, 1, 1);
  EXPECT_NEAR(law[tokens{0}], 13. / 20, 1e-7);
  EXPECT_NEAR(law[tokens{1}], 7. / 20, 1e-7);
}

template <class Drafter>
std::pair<tokens, std::vector<float>> drawn(Drafter& drafter, std::int32_t slots) {
  const tokens context = {2};
  const auto tree = drafter.propose(context, slots);
  const float* const rows = tree.laws.dense.data();
  return {tokens(tree.tokens.begin(), tree.tokens.end()), std::vector<float>(rows, rows + tree.laws.dense.extent(0) * tree.laws.dense.extent(1))};
}

TEST(LoopedBlock, OnePassIsTheModelItself) {
  const std::int32_t V = 7;
  for (std::uint64_t seed = 0; seed < 30; ++seed)
    for (const std::int32_t slots : {1, 2, 5}) {
      two_pass_model model{V};
      block_sampler plain{model, no_correction{}, {.num_slots = slots, .seed = seed}};
      const auto expected = drawn(plain, slots);
      for (const looped_block_options& options : {looped_block_options{.passes = 1, .sure = 1}, looped_block_options{.passes = 3, .sure = 0}, looped_block_options{.passes = 2, .sure = slots == 1 ? 1. : 0.}}) {
        model.calls = 0;
        looped_block looped{model, options};
        block_sampler drafter{looped, looped.head(), {.num_slots = slots, .seed = seed}};
        ASSERT_EQ(drawn(drafter, slots), expected);
        EXPECT_EQ(model.calls, 1);
        EXPECT_EQ(looped.passes(), 1);
      }
    }
}

TEST(LoopedBlock, LaterPassesPredictBehindThePrefixAndLeaveItAlone) {
  const std::int32_t V = 7, slots = 6;
  const auto largest_share = [&](const two_pass_model& m, const tokens& prefix, std::int32_t slot) {
    row p;
    for (std::int32_t v = 0; v < V; ++v) p.push_back(std::exp(static_cast<double>(m.at(prefix, slot, v))));
    p = normalised(p);
    return *std::max_element(p.begin(), p.end());
  };
  int longer = 0;
  for (unsigned model_seed = 0; model_seed < 12; ++model_seed)
    for (const std::int32_t passes : {2, 3, 9}) {
      std::size_t first_prefix = 0;
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        two_pass_model model{V, model_seed};
        block_sampler plain{model, no_correction{}, {.num_slots = slots, .seed = seed}};
        const auto once = drawn(plain, slots);
        looped_block looped{model, {.passes = passes, .sure = 0.4}};
        block_sampler drafter{looped, looped.head(), {.num_slots = slots, .seed = seed}};
        const auto [text, laws] = drawn(drafter, slots);
        const tokens block(text.begin() + 1, text.end());
        tokens prefix;   // of the pass that a slot should have
        std::size_t until = 0;
        std::int32_t pass = 0;
        for (std::int32_t slot = 0; slot < slots; ++slot) {
          if (static_cast<std::size_t>(slot) == until && pass < passes) {
            prefix.assign(block.begin(), block.begin() + slot);
            ++pass;
            until = static_cast<std::size_t>(slot) + 1;
            while (until < slots && largest_share(model, prefix, slot) >= 0.4 && largest_share(model, prefix, static_cast<std::int32_t>(until)) >= 0.4) ++until;
            if (pass == 1) {
              EXPECT_TRUE(seed == 0 || first_prefix == until);   // whatever was drawn
              first_prefix = until;
              longer += until > 1 && until < slots;
            } else {
              ASSERT_EQ(model.prefixes[static_cast<std::size_t>(pass) - 2], prefix);
            }
          }
          EXPECT_EQ(looped.pass_of(slot), pass);
          double sum = 0;
          for (std::int32_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(model.at(prefix, slot, v)));
          double mass = 0;
          for (std::int32_t v = 0; v < V; ++v) mass += static_cast<double>(laws[static_cast<std::size_t>(slot * V + v)]);
          for (std::int32_t v = 0; v < V; ++v) EXPECT_NEAR(static_cast<double>(laws[static_cast<std::size_t>(slot * V + v)]) / mass, std::exp(static_cast<double>(model.at(prefix, slot, v))) / sum, 1e-6);
          EXPECT_TRUE(static_cast<std::size_t>(slot) >= first_prefix || block[static_cast<std::size_t>(slot)] == once.first[static_cast<std::size_t>(slot) + 1]);
        }
        EXPECT_EQ(looped.passes(), pass);
        EXPECT_EQ(model.prefixes.size(), static_cast<std::size_t>(pass) - 1);
      }
    }
  EXPECT_GT(longer, 0);
}

TEST(LoopedBlock, PlainTextUnderMatch) {
  for (const float temperature : {0.f, 0.9f}) {
    two_pass_model model{toy::vocabulary};
    looped_block looped{model, {.sure = 0.1}};
    block_sampler sampled{looped, looped.head(), {.num_slots = 6, .seed = 3}};
    toy::expect_plain_text(sampled, {.temperature = temperature}, 6);
    greedy_block_sampler greedy{looped, looped.head(), 4};
    toy::expect_plain_text(greedy, {.temperature = temperature}, 4);
  }
}

// A token that belongs at slot 1 or at slot 2: independent slots double it one time in four, the second pass never does.
struct either_place {
  std::vector<float> buffer{};
  block_prediction fill(const std::vector<row>& laws) {
    buffer.clear();
    for (const row& law : laws)
      for (const double p : law) buffer.push_back(logit(p));
    return {{buffer.data(), extents{2, 3}}, {}};
  }
  block_prediction predict(std::span<const std::int32_t>, std::int32_t) { return fill({{.5, .5, 0}, {.5, 0, .5}}); }
  block_prediction predict_after(std::span<const std::int32_t>, std::span<const std::int32_t> prefix, std::int32_t) {
    return fill({{1, 0, 0}, prefix[0] == 0 ? row{0, 0, 1} : row{1, 0, 0}});
  }
};
TEST(LoopedBlock, RepetitionTrap) {
  either_place model;
  double rep = 0;
  repetition(model.predict({}, 2).logits, {&rep, 1});
  EXPECT_NEAR(rep, 0.25, 1e-6);
  const tokens context = {2};
  for (const std::int32_t passes : {1, 2}) {
    looped_block looped{model, {.passes = passes, .sure = 0.9}};
    repetition_count counts[2];
    int doubled = 0;
    for (std::uint64_t seed = 0; seed < 4000; ++seed) {
      block_sampler drafter{looped, looped.head(), {.num_slots = 2, .seed = seed}};
      const auto tree = drafter.propose(context, 2);
      looped.count_repetition(tree.tokens.subspan(1), counts);
      doubled += tree.tokens[1] == tree.tokens[2];
    }
    EXPECT_EQ(counts[0].pairs, passes == 1 ? 4000 : 0);
    EXPECT_EQ(counts[1].pairs, 0);
    EXPECT_NEAR(counts[0].expected, passes == 1 ? 1000 : 0, 1e-2);
    EXPECT_EQ(counts[0].equal, doubled);
    EXPECT_NEAR(doubled, passes == 1 ? 1000 : 0, passes == 1 ? 150 : 0);   // five standard deviations; never
  }
}

TEST(LoopedBlock, Loss) {
  const std::int64_t V = 5, K = 4, blocks = 3;
  std::mt19937 random(8);
  const auto rows = static_cast<std::size_t>(blocks * K);
  std::vector<float> first(rows * V), second(rows * V), d_first(rows * V, 7.f), d_second(rows * V, 7.f);
  for (auto* logits : {&first, &second})
    for (float& z : *logits) z = std::normal_distribution<float>()(random);
  const tokens labels = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}, prefixes = {1, 3, 4};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1};
  const double gamma = 2;
  double expected = 0;
  std::vector<double> weight_first(rows), weight_second(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto i = static_cast<std::int32_t>(row % K), prefix = prefixes[row / K];
    if (mask[row]) (i < prefix ? weight_first : weight_second)[row] = std::exp(-(i < prefix ? i : i - prefix) / gamma) / blocks;
    for (std::int64_t v = 0; v < V; ++v)   // what is not to be read
      (i < prefix ? second : first)[row * V + static_cast<std::size_t>(v)] = NAN;
  }
  const extents shape{blocks * K, V};
  const auto view = [&](std::vector<float>& x) { return tensor_view<float, 2>{x.data(), shape}; };
  const auto result = losses::looped_block_loss(view(first), view(second), labels, prefixes, {.block = K, .gamma = gamma, .mask = mask}, view(d_first), view(d_second));
  for (const auto& [logits, weights, gradient] : {std::tuple{&first, &weight_first, &d_first}, std::tuple{&second, &weight_second, &d_second}})
    for (std::size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (std::size_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>((*logits)[row * V + v]));
      const double w = (*weights)[row];
      if (w > 0) expected -= w * (static_cast<double>((*logits)[row * V + static_cast<std::size_t>(labels[row])]) - std::log(sum));
      for (std::size_t v = 0; v < V; ++v) {
        const double slope = w > 0 ? w * (std::exp(static_cast<double>((*logits)[row * V + v])) / sum - (static_cast<std::int32_t>(v) == labels[row])) : 0;
        ASSERT_NEAR(static_cast<double>((*gradient)[row * V + v]), slope, 1e-6);
      }
    }
  EXPECT_NEAR(result.value, expected, 1e-6);
  std::map<std::int32_t, int> lengths;
  for (std::uint32_t i = 0; i < 3000; ++i) ++lengths[losses::prefix_length({.seed = 4, .position = i}, 4)];
  EXPECT_EQ(lengths.size(), 3u);
  for (const std::int32_t l : {1, 2, 3}) EXPECT_NEAR(lengths[l], 1000, 130);
  EXPECT_EQ(losses::prefix_length({}, 1), 1);
  const tokens zero = {0, 1, 1}, many = {1, 5, 1};
  for (const tokens& wrong : {zero, many})
    EXPECT_NE(message_of([&] { losses::looped_block_loss(view(first), view(second), labels, wrong, {.block = K}, view(d_first), view(d_second)); }).find("'prefixes'"), std::string::npos);
  EXPECT_THROW(losses::looped_block_loss(view(first), view(second), labels, prefixes, {.block = 3}, view(d_first), view(d_second)), error);
  EXPECT_THROW(losses::looped_block_loss(view(first), view(second), labels, prefixes, {.block = K, .gamma = 0}, view(d_first), view(d_second)), error);
}

struct poisoned {
  two_pass_model inner{4};
  std::int32_t pass, slot;
  std::int64_t missing = 0;
  block_prediction poison(block_prediction block, std::int32_t p) {
    if (p == pass) inner.buffer[static_cast<std::size_t>(slot * 4)] = NAN;
    if (p == pass && missing) block.logits = block.logits.slice(0, block.logits.extent(0) - missing);
    return block;
  }
  block_prediction predict(std::span<const std::int32_t> context, std::int32_t slots) { return poison(inner.predict(context, slots), 1); }
  block_prediction predict_after(std::span<const std::int32_t> context, std::span<const std::int32_t> prefix, std::int32_t slots) { return poison(inner.predict_after(context, prefix, slots), 2); }
};
TEST(LoopedBlock, BadInput) {
  const tokens context = {2};
  poisoned first{.pass = 1, .slot = 0}, second{.pass = 2, .slot = 1}, few{.pass = 2, .slot = 3, .missing = 1};
  const auto propose = [&](poisoned& model, const looped_block_options& options) {
    return message_of([&] {
      looped_block looped{model, options};
      block_sampler drafter{looped, looped.head(), {.num_slots = 4}};
      drafter.propose(context, 4);
    });
  };
  EXPECT_NE(propose(first, {.sure = 1}).find("pass 1: the logits of slot 0: nan_logit"), std::string::npos);
  EXPECT_NE(propose(second, {.passes = 3, .sure = 1}).find("pass 2: the logits of slot 1: nan_logit"), std::string::npos);
  EXPECT_NE(propose(second, {.sure = 1}).find("slot 1: nan_logit"), std::string::npos);
  EXPECT_NE(propose(few, {.sure = 1}).find("pass 2 gave logits [3, 4]; expected [4, 4]"), std::string::npos);
  EXPECT_NE(propose(first, {.passes = 0}).find("'passes' is 0"), std::string::npos);
  for (const double sure : {-0.1, 1.1, double{NAN}}) EXPECT_NE(propose(first, {.sure = sure}).find("'sure'"), std::string::npos);
  EXPECT_NE(propose(first, {.temperature = 0}).find("'temperature'"), std::string::npos);
  double one = 0;
  EXPECT_THROW(repetition(two_pass_model{4}.predict({}, 3).logits, {&one, 1}), error);
  two_pass_model model{4};
  looped_block looped{model, {}};
  looped.predict(context, 3);
  repetition_count count[1];
  EXPECT_THROW(looped.count_repetition(context, count), error);
}

}  // namespace
