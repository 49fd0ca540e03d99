// The choice of draft lengths, with a clock that the test drives.
#include "speculative/enumerate.hpp"
#include "speculative/toy_model.hpp"

#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/draft/best_of.hpp>
#include <heddle/speculative/draft/calibrated.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft_pacer.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <cmath>
#include <map>

namespace {

using namespace toy;

struct fake_clock {
  double seconds = 0;
  static double read(void* self) { return static_cast<fake_clock*>(self)->seconds; }
  draft_pacer_options options() { return {.clock = read, .clock_state = this}; }
};

// ---- the argmax ----

double rate(const cost_curve& cost, double draft_seconds, const std::vector<std::vector<double>>& outlooks, const ids& lengths) {
  double tokens = 0;
  std::int64_t drafts = 0;
  for (std::size_t r = 0; r < outlooks.size(); ++r) {
    tokens += 1, drafts += lengths[r];
    for (std::int32_t i = 0; i < lengths[r]; ++i) tokens += outlooks[r][static_cast<std::size_t>(i)];
  }
  return tokens / (cost.seconds(static_cast<std::int64_t>(outlooks.size()) + drafts) + draft_seconds * static_cast<double>(drafts));
}
// Over all vectors of lengths.
double best_rate(const cost_curve& cost, double draft_seconds, const std::vector<std::vector<double>>& outlooks) {
  double best = 0;
  ids lengths(outlooks.size());
  for (;;) {
    best = std::max(best, rate(cost, draft_seconds, outlooks, lengths));
    std::size_t r = 0;
    while (r < lengths.size() && ++lengths[r] > static_cast<std::int32_t>(outlooks[r].size())) lengths[r++] = 0;
    if (r == lengths.size()) return best;
  }
}

TEST(DraftPacer, ChoosesTheBestLengthsOfOneAndOfSeveralRequests) {
  std::mt19937 random(1);
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  for (int trial = 0; trial < 300; ++trial) {
    draft_pacer pacer{{.patience = 1000000}};
    double seconds = 1;
    for (std::int64_t rows = 1; rows <= 16; ++rows) pacer.passed(rows, seconds), seconds += uniform() * (trial % 3 == 0 ? 0.1 : 0.8);  // not convex
    const double draft_seconds = trial % 2 ? 0.1 * uniform() : 0;
    pacer.drafted(1, draft_seconds);
    std::vector<std::vector<double>> outlooks(1 + random() % 3);
    for (auto& outlook : outlooks) {
      double survival = 1;
      for (std::size_t i = random() % 5; i > 0; --i) outlook.push_back(survival *= uniform());
    }
    const std::vector<std::span<const double>> views(outlooks.begin(), outlooks.end());
    ids lengths(outlooks.size());
    pacer.lengths(views, lengths);
    EXPECT_NEAR(rate(pacer.pass_cost(), draft_seconds, outlooks, lengths), best_rate(pacer.pass_cost(), draft_seconds, outlooks), 1e-12);
    if (outlooks.size() == 1) {
      EXPECT_EQ(pacer.length(views[0]), lengths[0]);
    }
  }
}

// speculative decoding's own example: SPS = (1, .5, .45), c = .8
TEST(DraftPacer, DraftsNothingWhereNoLengthPays) {
  draft_pacer pacer;
  for (int i = 0; i < 30; ++i) pacer.passed(1, 1), pacer.passed(2, 2), pacer.passed(3, 1 / 0.45);
  const double outlook[] = {0.8, 0.0};
  EXPECT_EQ(pacer.length(outlook), 0);
  EXPECT_EQ(pacer.length({}), 0);
}

TEST(DraftPacer, TheFirstPassIsPlainAndTrialsAreRare) {
  draft_pacer pacer{{.patience = 10}};
  const double outlook[] = {0.9, 0.8, 0.7};
  EXPECT_EQ(pacer.length(outlook), 0);
  for (int i = 0; i < 100; ++i) pacer.passed(1, 1), pacer.passed(2, 4), pacer.passed(4, 100);
  std::vector<int> trials;
  for (int round = 0; round < 1000; ++round)
    if (pacer.length(outlook) > 0) trials.push_back(round);
  EXPECT_EQ(trials, (std::vector<int>{9, 29, 69, 149, 309, 469, 629, 789, 949}));
  EXPECT_THROW(draft_pacer({.patience = 0}), error);
}

// Drafting pays a little: a plain pass now and then keeps the comparison honest. Where it pays a lot there is none.
TEST(DraftPacer, LooksAtPlainPassesWhereDraftingPaysLittle) {
  for (const bool much : {false, true}) {
    draft_pacer pacer;
    const double outlook[] = {0.9};
    pacer.passed(1, 1), pacer.passed(2, much ? 1.05 : 1.45);
    int plain = 0;
    for (int round = 0; round < 1000; ++round) {
      const std::int32_t drafts = pacer.length(outlook);
      pacer.passed(1 + drafts, drafts == 0 ? 1 : much ? 1.05 : 1.45);
      plain += drafts == 0;
    }
    EXPECT_GE(plain, much ? 0 : 3);
    EXPECT_LE(plain, much ? 0 : 20);
  }
}

// ---- loops under a clock ----

// Advances the clock by what its rows cost; with `disturbed`, the first pass of each number of rows takes four times as long, and later some do.
struct timed_model : toy_model {
  fake_clock* clock;
  double (*cost)(std::int64_t rows);
  bool disturbed;
  std::map<std::size_t, int> passes{};
  std::mt19937 random{2};
  double time_lost = 0;
  tensor_view<const float, 2> score(const token_tree& tree) {
    const double seconds = cost(static_cast<std::int64_t>(tree.tokens.size()));
    const bool slow = disturbed && (passes[tree.tokens.size()]++ == 0 || random() % 20 == 0);
    clock->seconds += seconds, time_lost += slow ? 3 * seconds : 0;
    if (slow) clock->seconds += 3 * seconds;
    return toy_model::score(tree);
  }
};

struct outcome {
  ids tokens;
  double tokens_per_second;
  decode_stats stats;
};
template <class Drafter>
outcome decode(Drafter drafter, double (*cost)(std::int64_t), std::int32_t length, bool paced, std::int64_t count = 400, bool disturbed = false) {
  fake_clock clock;
  timed_model model{{}, &clock, cost, disturbed};
  draft_pacer pacer{clock.options()};
  const ids prompt = {1, 2, 3, 1, 2, 3, 1};
  model.cache.assign(prompt.begin(), prompt.end() - 1);
  decode_loop loop{model, drafter, verify::match{.seed = 7}, sampling::chain{sampling::parameters{.temperature = 0.5f}}, {.prompt = prompt, .max_new_tokens = count, .draft_length = length}};
  if (paced) loop.pace_by(pacer);
  while (!loop.done()) loop.step();
  return {{loop.tokens().begin(), loop.tokens().end()}, static_cast<double>(count) / (clock.seconds - model.time_lost), loop.stats()};
}


TEST(DraftPacer, ALoopFindsTheBestFixedLength) {
  double (*const costs[])(std::int64_t) = {
      [](std::int64_t rows) { return 1 + 0.03 * static_cast<double>(rows - 1); },
      [](std::int64_t rows) { return 1 + 0.25 * static_cast<double>(rows - 1); },
      [](std::int64_t rows) { return 1 + 0.6 * static_cast<double>((rows - 1) / 4); },  // by tiles of four rows
      [](std::int64_t rows) { return static_cast<double>(rows); },
  };
  for (const unsigned mistakes : {1u, 2u, 8u})
    for (std::size_t c = 0; c < std::size(costs); ++c) {
      const random_drafter<draft_law::deterministic> drafter{.mistakes = mistakes};
      const outcome plain = decode(drafter, costs[c], 0, false);
      double best = plain.tokens_per_second;
      for (const std::int32_t length : {1, 2, 4, 8, 12}) {
        const outcome fixed = decode(drafter, costs[c], length, false);
        best = std::max(best, fixed.tokens_per_second);
        ASSERT_EQ(fixed.tokens, plain.tokens);
      }
      const outcome paced = decode(drafter, costs[c], 12, true);
      EXPECT_EQ(paced.tokens, plain.tokens);
      EXPECT_GT(paced.tokens_per_second, 0.93 * best) << "mistakes " << mistakes << ", costs " << c;
      EXPECT_GT(paced.tokens_per_second, 0.97 * plain.tokens_per_second) << "mistakes " << mistakes << ", costs " << c;
      if (c == 3) {  // a row costs a pass: never
        EXPECT_LT(static_cast<double>(paced.stats.drafted), 0.08 * static_cast<double>(paced.stats.rounds));
      }
    }
}

// Interruptions, first of all those of the first passes, do not keep a loop from the good lengths (speeds are without the time that they took).
TEST(DraftPacer, ALoopRecoversFromDisturbedMeasurements) {
  const auto cost = [](std::int64_t rows) { return 1 + 0.1 * static_cast<double>(rows - 1); };
  const random_drafter<draft_law::deterministic> drafter{.mistakes = 12};
  double best = 0;
  for (const std::int32_t length : {4, 8, 12}) best = std::max(best, decode(drafter, cost, length, false, 800).tokens_per_second);
  EXPECT_GT(decode(drafter, cost, 12, true, 800, true).tokens_per_second, 0.85 * best);
}

// A text whose beginning can be copied and whose rest cannot.
TEST(DraftPacer, FollowsTheText) {
  const auto cost = [](std::int64_t rows) { return 1 + 0.15 * static_cast<double>(rows - 1); };
  struct {
    std::size_t calls = 0;
    random_drafter<draft_law::deterministic> good{.mistakes = 1000}, bad{.mistakes = 1};
    draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) { return context.size() < 200 ? good.propose(context, budget) : bad.propose(context, budget); }
  } drafter;
  const outcome plain = decode(drafter, cost, 0, false), paced = decode(drafter, cost, 12, true), fixed = decode(drafter, cost, 12, false);
  EXPECT_EQ(paced.tokens, plain.tokens);
  EXPECT_GT(paced.tokens_per_second, 1.15 * plain.tokens_per_second);
  EXPECT_GT(paced.tokens_per_second, 1.3 * fixed.tokens_per_second);
}

// ---- several drafters ----

// Continues the plain text from where the context ends, or something else; says that a match of `match` tokens speaks for it.
struct oracle {
  const ids* text;
  bool right;
  std::int32_t match = 3;
  ids tokens{}, parents{};
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    tokens = {context.back()}, parents = {-1};
    for (std::int32_t i = 0; i < budget && context.size() + static_cast<std::size_t>(i) < text->size(); ++i) {
      const std::int32_t next = (*text)[context.size() + static_cast<std::size_t>(i)];
      tokens.push_back(right ? next : (next + 1) % static_cast<std::int32_t>(vocabulary)), parents.push_back(i);
    }
    return {tokens, parents};
  }
  std::int32_t match_length() const { return match; }
};
static_assert(matching_drafter<oracle> && matching_drafter<prompt_lookup> && !matching_drafter<no_drafter>);

TEST(BestOf, LearnsWhichDrafterIsRight) {
  const auto cost = [](std::int64_t rows) { return 1 + 0.1 * static_cast<double>(rows - 1); };
  const ids text = decode(no_drafter{}, cost, 0, false).tokens;
  oracle wrong{.text = &text, .right = false, .match = 9}, right{.text = &text, .right = true, .match = 2};
  using both = best_of<oracle, oracle>;
  static_assert(foreseeing_drafter<both>);
  const outcome paced = decode(both{wrong, right}, cost, 12, true), blind = decode(both{wrong, right}, cost, 12, false);
  EXPECT_EQ(paced.tokens, text);
  EXPECT_EQ(blind.tokens, text);
  EXPECT_GT(paced.stats.mean_accepted_tokens(), 8);
  EXPECT_GT(blind.stats.mean_accepted_tokens(), 8);  // chooses among them without a pacer too
  // wrong alone: learnt without drafting, so hardly anything is drafted
  const outcome alone = decode(best_of<oracle>{wrong}, cost, 12, true);
  EXPECT_LT(alone.stats.drafted, 150);
  EXPECT_EQ(alone.stats.accepted, 0);
}

// The right tokens, each with a wrong sibling behind it; what it states is wrong as well.
struct doubtful {
  const ids* text;
  double stated;
  ids tokens{}, parents{};
  std::vector<double> chances{};
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    tokens = {context.back()}, parents = {-1}, chances = {1};
    std::int32_t truth = 0;
    for (std::int32_t i = 0; i + 1 < budget && context.size() + static_cast<std::size_t>(i / 2) < text->size(); i += 2) {
      const std::int32_t next = (*text)[context.size() + static_cast<std::size_t>(i / 2)], parent = truth;
      tokens.push_back(next), parents.push_back(parent), chances.push_back(stated);
      truth = static_cast<std::int32_t>(tokens.size()) - 1;
      tokens.push_back((next + 1) % static_cast<std::int32_t>(vocabulary)), parents.push_back(parent), chances.push_back(0.3);
    }
    return {tokens, parents};
  }
  std::span<const double> probabilities() const { return chances; }
  std::int32_t match_length() const { return 4; }
};

TEST(Calibrated, LearnsWhatStatedProbabilitiesAreWorth) {
  const auto cost = [](std::int64_t rows) { return 1 + 0.2 * static_cast<double>(rows - 1); };
  const ids text = decode(no_drafter{}, cost, 0, false).tokens;
  static_assert(foreseeing_drafter<calibrated<doubtful>> && confident_drafter<doubtful> && !confident_drafter<oracle>);
  doubtful modest{.text = &text, .stated = 0.15}, boastful{.text = &text, .stated = 0.95};
  for (doubtful* tree : {&modest, &boastful}) {
    calibrated drafter{*tree};
    ids context(text.begin(), text.begin() + 7);
    for (std::size_t n = 7; n < 200; ++n) {
      const auto outlook = drafter.outlook(context, 6);
      ASSERT_EQ(outlook.size(), 6u);
      for (std::size_t i = 1; i < 6; ++i) EXPECT_LE(outlook[i], outlook[i - 1]);
      if (n > 150) {
        EXPECT_GT(outlook[0], 0.9);
        EXPECT_LT(outlook[1], 0.1);
      }
      context.push_back(text[n]);
    }
  }
  const outcome paced = decode(calibrated<doubtful>{boastful}, cost, 12, true);
  EXPECT_EQ(paced.tokens, text);
  EXPECT_LT(paced.stats.drafted, paced.stats.accepted + paced.stats.rounds / 2);  // wrong siblings follow the right one, and are left out
}

// ---- exactness of a paced loop ----

using enumeration::every_choice;
using texts = std::map<ids, double>;

constexpr std::int64_t letters = 3;
enumeration::row table_row(std::span<const std::int32_t> text, unsigned salt) {
  std::seed_seq key{salt, static_cast<unsigned>(text.size()), static_cast<unsigned>(text.back())};
  std::mt19937 random(key);
  enumeration::row p(letters);
  double sum = 0;
  for (double& x : p) sum += x = std::uniform_real_distribution<double>(0.05, 1)(random);
  for (double& x : p) x /= sum;
  return p;
}
struct table_model {
  ids cache{};
  token_tree tree{};
  std::vector<float> logits{};
  fake_clock* clock;
  tensor_view<const float, 2> score(const token_tree& t) {
    tree = t;
    logits.clear();
    ids text = cache;
    for (const std::int32_t token : t.tokens) {  // a chain
      text.push_back(token);
      for (const double p : table_row(text, 1)) logits.push_back(static_cast<float>(std::log(p)));
    }
    clock->seconds += 1 + 0.05 * static_cast<double>(t.tokens.size());
    return {logits.data(), extents{static_cast<std::int64_t>(t.tokens.size()), letters}};
  }
  void keep(std::span<const std::int32_t> path) {
    cache.push_back(tree.tokens[0]);
    for (const std::int32_t u : path) cache.push_back(tree.tokens[static_cast<std::size_t>(u)]);
  }
};
// Draws from its table, every way in turn. peeks: drafts that end with letter 0 are cut short, which no length may do.
struct table_drafter {
  every_choice* choices;
  bool peeks = false;
  ids tokens{}, parents{}, row_of{};
  std::vector<float> laws{};
  draft_tree<draft_law::independent> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    ids text(context.begin(), context.end());
    tokens = {context.back()}, parents = {-1}, row_of.clear(), laws.clear();
    for (std::int32_t i = 0; i < budget; ++i) {
      enumeration::row q;
      for (const double x : table_row(text, 2)) q.push_back(static_cast<double>(static_cast<float>(x)));
      for (const double x : q) laws.push_back(static_cast<float>(x));
      text.push_back(static_cast<std::int32_t>(choices->choose(q)));
      if (peeks && text.back() == 0) break;
      row_of.push_back(i), tokens.push_back(text.back()), parents.push_back(i);
    }
    row_of.push_back(row_of.size() < laws.size() / letters ? static_cast<std::int32_t>(row_of.size()) : -1);
    return {tokens, parents, {.row_of = row_of, .dense = {laws.data(), extents{static_cast<std::int64_t>(laws.size()) / letters, letters}}}};
  }
};
// A rule that takes its chances from the enumeration.
template <class Rule>
struct enumerated {
  every_choice* choices;
  Rule rule{};
  template <draft_law Law>
  static constexpr bool lossless = Rule::template lossless<Law>;
  template <draft_law Law, class Chain>
  auto operator()(const draft_tree<Law>& tree, const tensor_view<const float, 2>& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory) const {
    const verify::scored_draft<Law, tensor_view<const float, 2>, Chain> draft{tree, logits, policy, committed, static_cast<std::int64_t>(committed.size()), memory};
    return walk(rule, draft, *choices);
  }
};

template <class Rule>
texts law_of_loop(bool peeks) {
  every_choice choices;
  texts out;
  const ids prompt = {0};
  std::int64_t drafted = 0;
  choices.run([&] {
    fake_clock clock;
    table_model model{.clock = &clock};
    table_drafter drafter{.choices = &choices, .peeks = peeks};
    draft_pacer pacer{clock.options()};
    pacer.passed(1, 1);
    decode_loop loop{model, drafter, enumerated<Rule>{&choices}, sampling::chain{}, {.prompt = prompt, .max_new_tokens = 4, .draft_length = 2}};
    loop.pace_by(pacer);
    while (!loop.done()) loop.step();
    out[{loop.tokens().begin(), loop.tokens().end()}] += choices.probability();
    drafted += loop.stats().drafted;
  });
  EXPECT_GT(drafted, 0);
  return out;
}
double distance_to_target(const texts& law) {
  double far = 0, sum = 0;
  for (const auto& [text, probability] : law) {
    double p = 1;
    for (std::size_t i = 1; i < text.size(); ++i) {
      enumeration::row q = table_row(std::span(text).first(i), 1);
      double total = 0;
      for (double& x : q) total += x = std::exp(static_cast<double>(static_cast<float>(std::log(x))));
      p *= q[static_cast<std::size_t>(text[i])] / total;
    }
    far = std::max(far, std::abs(p - probability)), sum += probability;
  }
  EXPECT_EQ(law.size(), 81u);
  return std::max(far, std::abs(sum - 1));
}

// All drafts, decisions and corrections of whole texts of four tokens, several rounds each: the law is the target's.
TEST(DraftPacer, PacedSamplingHasExactlyTheTargetsLaw) {
  EXPECT_LT(distance_to_target(law_of_loop<verify::token>(false)), 1e-12);
  EXPECT_LT(distance_to_target(law_of_loop<verify::block>(false)), 1e-12);
  EXPECT_GT(distance_to_target(law_of_loop<verify::token>(true)), 1e-3);  // a length that looks at the drafts is seen
}

}  // namespace
