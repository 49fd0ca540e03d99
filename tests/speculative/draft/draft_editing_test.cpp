#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/draft_editing.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

// Logits of every slot depend on all tokens of the block, in both directions, and (first pass) on none.
struct random_editor {
  std::int64_t vocabulary = 3;
  unsigned seed = 1;
  float repeat = 0.f;          // more of it: slots like to keep their token
  int passes = 0, kept = 0;
  std::vector<float> logits{};

  block_prediction predict(std::span<const std::int32_t>, std::int32_t slots) { return pass(tokens(static_cast<std::size_t>(slots), -1)); }
  block_prediction revise(std::span<const std::int32_t>, std::span<const std::int32_t> block) { return pass({block.begin(), block.end()}); }
  void keep(std::span<const std::int32_t>) { ++kept; }
  block_prediction pass(const tokens& block) {
    ++passes;
    logits.clear();
    for (std::size_t slot = 0; slot < block.size(); ++slot) {
      std::vector<unsigned> key(block.begin(), block.end());
      key.push_back(seed), key.push_back(static_cast<unsigned>(slot));
      std::seed_seq sequence(key.begin(), key.end());
      std::mt19937 random(sequence);
      for (std::int32_t v = 0; v < vocabulary; ++v) logits.push_back(std::normal_distribution<float>(0.f, 1.5f)(random) + (v == block[slot] ? repeat : 0.f));
    }
    return {{logits.data(), extents{static_cast<std::int64_t>(block.size()), vocabulary}}, {}};
  }
  tokens best(const tokens& block) {
    pass(block);
    tokens x;
    for (std::size_t slot = 0; slot < block.size(); ++slot) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(slot) * vocabulary;
      x.push_back(static_cast<std::int32_t>(std::max_element(row, row + vocabulary) - row));
    }
    return x;
  }
};
std::vector<float> copy_of(const block_prediction& block) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < block.logits.extent(0); ++i) all.insert(all.end(), block.logits.at(i), block.logits.at(i) + block.logits.extent(1));
  return all;
}
const tokens context = {0};

TEST(DraftEditing, PassesFollowTheFormulaAndEndAtAFixedPoint) {
  int stopped = 0, capped = 0;
  for (unsigned seed = 0; seed < 40; ++seed)
    for (std::int32_t edits = 0; edits < 6; ++edits) {
      random_editor model{.vocabulary = 4, .seed = seed, .repeat = 1.2f}, reference = model;
      edited_block edited{model, {.edits = edits}};
      greedy_block_sampler drafter{edited, no_correction{}, 3};
      const auto tree = drafter.propose(context, 3);
      tokens x = reference.best({-1, -1, -1});
      for (std::int32_t e = 1; e <= edits; ++e) {
        if (e < edited.passes()) {
          EXPECT_EQ(tokens(edited.fed_to_edit(e).begin(), edited.fed_to_edit(e).end()), x);
        }
        x = reference.best(x);   // no shortcuts
      }
      EXPECT_EQ(tokens(tree.tokens.begin() + 1, tree.tokens.end()), x);
      EXPECT_EQ(model.passes, edited.passes());
      EXPECT_LE(model.passes, 1 + edits);
      model.passes < 1 + edits ? ++stopped : ++capped;
      drafter.keep({});
      EXPECT_EQ(model.kept, 1);
    }
  EXPECT_GT(stopped, 20);
  EXPECT_GT(capped, 100);
}

TEST(DraftEditing, AFixedPointStaysOneAndOscillationRunsToTheCap) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    random_editor model{.vocabulary = 4, .seed = seed, .repeat = 2.5f};
    edited_block few{model, {.edits = 30}};
    const auto logits = copy_of(few.predict(context, 3));
    if (few.passes() == 31) continue;
    const auto last = few.fed_to_edit(few.passes() - 1);
    const tokens fixed(last.begin(), last.end());
    EXPECT_EQ(model.best(fixed), fixed);
    edited_block more{model, {.edits = 60}};
    EXPECT_EQ(copy_of(more.predict(context, 3)), logits);
  }
  struct flips {   // predicts the other token of two
    std::vector<float> z{};
    block_prediction predict(std::span<const std::int32_t>, std::int32_t) { return revise({}, tokens{1}); }
    block_prediction revise(std::span<const std::int32_t>, std::span<const std::int32_t> x) {
      z = x[0] ? std::vector<float>{1, 0} : std::vector<float>{0, 1};
      return {{z.data(), extents{1, 2}}, {}};
    }
  } model;
  for (const std::int32_t edits : {1, 2, 7, 8}) {
    edited_block edited{model, {.edits = edits}};
    EXPECT_EQ(edited.predict(context, 1).logits(0, edits % 2), 1.f);
    EXPECT_EQ(edited.passes(), 1 + edits);
  }
}

// A model that is right about a slot whenever the slots before it are: every edit accepts one more token at least, and none does harm.
TEST(DraftEditing, AcceptedLengthGrowsWithEdits) {
  struct right_after_right {
    std::vector<float> z{};
    static std::int32_t next(std::int32_t x) { return (3 * x + 1) % 7; }
    block_prediction predict(std::span<const std::int32_t> text, std::int32_t slots) { return revise(text, tokens(static_cast<std::size_t>(slots), 6)); }
    block_prediction revise(std::span<const std::int32_t> text, std::span<const std::int32_t> x) {
      z.assign(x.size() * 7, 0.f);
      for (std::size_t i = 0; i < x.size(); ++i) z[i * 7 + static_cast<std::size_t>(next(i ? x[i - 1] : text.back()))] = 1.f;
      return {{z.data(), extents{static_cast<std::int64_t>(x.size()), 7}}, {}};
    }
  } model;
  tokens reference = {right_after_right::next(0)};
  while (reference.size() < 5) reference.push_back(right_after_right::next(reference.back()));
  edit_counts counts;
  tokens before;
  for (std::int32_t edits = 0; edits <= 6; ++edits) {
    edited_block edited{model, {.edits = edits}};
    greedy_block_sampler drafter{edited, no_correction{}, 5};
    const auto tree = drafter.propose(context, 5);
    const tokens after(tree.tokens.begin() + 1, tree.tokens.end());
    EXPECT_GE(accepted_prefix(after, reference), std::min(edits + 1, 5));
    if (edits) counts.add(before, after, reference);
    before = after;
  }
  EXPECT_EQ(before, reference);
  EXPECT_EQ(counts.harmful, 0);
  EXPECT_GE(counts.repairs, 2);
}

TEST(DraftEditing, WithoutEditsItIsTheModelBitForBit) {
  random_editor model, bare;
  edited_block none{model, {.edits = 0, .temperature = 1., .keep_probability = .1}};
  EXPECT_EQ(copy_of(none.predict(context, 4)), copy_of(bare.predict(context, 4)));
  EXPECT_EQ(model.passes, 1);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    block_sampler a{none, no_correction{}, {.num_slots = 4, .seed = seed}};
    block_sampler b{bare, no_correction{}, {.num_slots = 4, .seed = seed}};
    const auto x = a.propose(context, 4), y = b.propose(context, 4);
    EXPECT_TRUE(std::equal(x.tokens.begin(), x.tokens.end(), y.tokens.begin(), y.tokens.end()));
  }
}

using scripted_editor = edited_block<random_editor, scripted_draws>;

TEST(DraftEditing, VerificationKeepsTheTargetsLaw) {
  int kept_slots = 0;
  for (const char* kind : {"random", "one-hot", "zero in p"})
    for (const edited_block_options& options : {edited_block_options{.edits = 2}, {.edits = 1, .temperature = 1., .keep_probability = .5}, {.edits = 2, .temperature = .7, .keep_probability = .45}}) {
      const world w = make_world(3, kind, 5);
      random_editor model;
      every_choice draws;
      scripted_editor edited{model, options, scripted_draws{&draws}};
      block_sampler<scripted_editor, no_correction, scripted_draws> drafter{edited, {}, {.num_slots = 2}, scripted_draws{&draws}};
      const auto count_kept = [&](auto& tree) {
        for (std::int64_t slot = 0; slot < 2; ++slot) kept_slots += std::count(tree.laws.dense.at(slot), tree.laws.dense.at(slot) + 3, 0.f) == 2;
      };
      EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::token{}, 2, 3, count_kept), target_law(w, 3)), 1e-12) << kind << " " << options.edits;
      EXPECT_LT(distance(emitted_law(drafter, draws, w, verify::block{}, 2, 3), target_law(w, 3)), 1e-12) << kind << " " << options.edits;
    }
  EXPECT_GT(kept_slots, 20);
}

// x_2 ~ (.5, .5) is kept, x_1 is drawn anew and has seen it.
struct leaking_model {
  std::vector<float> z{};
  block_prediction predict(std::span<const std::int32_t>, std::int32_t) { return rows({.25, .25, .25, .25}, {.5, .5, 0, 0}); }
  block_prediction revise(std::span<const std::int32_t>, std::span<const std::int32_t> x) {
    return x[1] == 0 ? rows({.9, .1, 0, 0}, {1, 1, 1, 1}) : rows({.1, .9, 0, 0}, {1, 1, 1, 1});
  }
  block_prediction rows(const row& first, const row& second) {
    z.clear();
    for (const row& law : {first, second})
      for (const double p : law) z.push_back(logit(p));
    return {{z.data(), extents{2, 4}}, {}};
  }
};

TEST(DraftEditing, KeptTokensVerifiedByTheirMarginalLeak) {
  const world w{4, [](const tokens& x) { return x.empty() ? row{.5, .5, 0, 0} : x.back() == 0 ? row{.75, .25, 0, 0} : row{.25, .75, 0, 0}; }, {}};
  leaking_model model;
  every_choice draws;
  using editor = edited_block<leaking_model, scripted_draws>;
  editor edited{model, {.edits = 1, .temperature = 1., .keep_probability = .4}, scripted_draws{&draws}};
  block_sampler<editor, no_correction, scripted_draws> drafter{edited, {}, {.num_slots = 2}, scripted_draws{&draws}};
  const auto right = emitted_law(drafter, draws, w, verify::token{}, 2, 2);
  EXPECT_LT(distance(right, target_law(w, 2)), 1e-12);
  EXPECT_NEAR(right.at({0, 0}), 3. / 8, 1e-7);
  const auto as_marginal = [laws = std::vector<float>(8)](auto& tree) mutable {
    std::copy_n(tree.laws.dense.at(0), 4, laws.begin());
    std::copy_n(std::array{.5f, .5f, 0.f, 0.f}.begin(), 4, laws.begin() + 4);
    tree.laws.dense = {laws.data(), extents{2, 4}};
  };
  auto tamper = as_marginal;
  const auto wrong = emitted_law(drafter, draws, w, verify::token{}, 2, 2, [&](auto& tree) { tamper(tree); });
  EXPECT_NEAR(wrong.at({0, 0}), 17. / 40, 1e-7);
  EXPECT_GT(distance(wrong, target_law(w, 2)), .04);
}

TEST(DraftEditing, TheTextIsPlainDecodings) {
  for (const sampling::parameters& p : {sampling::parameters{.temperature = 0.f}, {.temperature = .8f, .top_k = 8}})
    for (const std::int32_t length : {0, 1, 5}) {
      random_editor model{.vocabulary = toy::vocabulary, .repeat = 1.f};
      edited_block edited{model, {.edits = 2, .temperature = p.temperature == 0.f ? 0. : .9, .keep_probability = .3}};
      block_sampler sampled{edited, no_correction{}, {.num_slots = 4}};
      toy::expect_plain_text(sampled, p, length);
      greedy_block_sampler greedy{edited, no_correction{}, 4};
      toy::expect_plain_text(greedy, p, length);
    }
}

TEST(DraftEditing, CountsRepairsAndHarmfulEdits) {
  const tokens reference = {5, 6, 7, 8}, none = {1, 6, 7}, two = {5, 6, 9}, all = {5, 6, 7};
  EXPECT_EQ(accepted_prefix(none, reference), 0);
  EXPECT_EQ(accepted_prefix(two, reference), 2);
  EXPECT_EQ(accepted_prefix(reference, all), 3);
  edit_counts counts;
  counts.add(none, two, reference), counts.add(two, all, reference), counts.add(all, none, reference), counts.add(two, two, reference);
  EXPECT_EQ(counts.edits, 4);
  EXPECT_EQ(counts.repairs, 2);
  EXPECT_EQ(counts.harmful, 1);
  EXPECT_EQ(counts.accepted_before, 0 + 2 + 3 + 2);
  EXPECT_EQ(counts.accepted_after, 2 + 3 + 0 + 2);
  EXPECT_THROW(counts.add(none, reference, reference), error);
}

TEST(DraftEditing, BadInput) {
  random_editor model;
  using editor = edited_block<random_editor>;
  EXPECT_THROW((editor{model, {.edits = -1}}), error);
  for (const double t : {-1., 1e-9, double{NAN}}) EXPECT_THROW((editor{model, {.temperature = t}}), error);
  for (const double k : {0., -1., double{NAN}}) EXPECT_THROW((editor{model, {.keep_probability = k}}), error);
  struct nan_in_edit : random_editor {
    block_prediction revise(std::span<const std::int32_t> c, std::span<const std::int32_t> x) {
      const block_prediction block = random_editor::revise(c, x);
      logits[4] = NAN;
      return block;
    }
  } bad;
  edited_block edited{bad, {.edits = 2}};
  EXPECT_NE(message_of([&] { edited.predict(context, 2); }).find("pass 1: the logits of slot 1: nan_logit"), std::string::npos);
  EXPECT_THROW(edited.fed_to_edit(0), error);
}

}  // namespace
