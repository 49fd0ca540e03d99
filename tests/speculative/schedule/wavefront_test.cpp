// Wavefront decoding: the text of plain decoding, the order of cells, the law of sampled drafts, and what the pipeline costs.
#include <heddle/speculative/schedule/wavefront.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/schedule/toy_looped.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using toy::ids;
using toy::looped;
const ids prompt = {1, 4, 2};
const sampling::chain greedy_policy{sampling::parameters{.temperature = 0}};
const sampling::chain warm_policy{sampling::parameters{.temperature = 0.8f, .top_p = 0.95f, .repetition_penalty = 1.1f}};

// Runs to the end; the states it keeps are those of plain decoding, bit for bit.
template <class Wave>
ids run(Wave& wave, looped& model, std::span<const std::int32_t> kv_map = {}) {
  ids steps;
  while (!wave.done())
    for (const std::int32_t token : wave.step()) steps.push_back(token);
  const ids text(wave.tokens().begin(), wave.tokens().end());
  EXPECT_EQ(ids(text.end() - static_cast<std::ptrdiff_t>(steps.size()), text.end()), steps);
  EXPECT_EQ(model.kept, model.plain_states(std::span<const std::int32_t>(text).first(text.size() - 1), kv_map));
  EXPECT_TRUE(model.nodes.empty());
  EXPECT_EQ(wave.stats().calls, static_cast<std::int64_t>(model.trace.size()));
  return text;
}

template <class Exit, class Rule, class Policy>
ids generate(looped model, const Rule& rule, const Policy& policy, std::int64_t n, std::int32_t exit_depth, const ids& ends = {}, std::span<const std::int32_t> kv_map = {}, loop_stats* stats = nullptr, std::vector<std::vector<loop_cell>>* trace = nullptr) {
  model.prefill(prompt, kv_map);
  wavefront wave{model, rule, policy, {.prompt = prompt, .max_new_tokens = n, .end_tokens = ends, .exit_depth = exit_depth, .kv_map = kv_map}, Exit{}};
  const ids text = run(wave, model, kv_map);
  if (stats) *stats = wave.stats();
  if (trace) *trace = model.trace;
  return text;
}

TEST(Wavefront, TextOfPlainDecoding) {
  for (const std::int32_t loops : {1, 2, 4, 5}) {
    const looped model{loops, 17};
    const ids greedy = model.plain_decoding_of(prompt, 30, greedy_policy, 0), warm = model.plain_decoding_of(prompt, 30, warm_policy, 7);
    for (std::int32_t d = 1; d <= loops; ++d) {
      loop_stats stats;
      ASSERT_EQ(generate<greedy_exit>(model, verify::greedy{}, greedy_policy, 30, d, {}, {}, &stats), greedy);
      ASSERT_EQ(generate<sampled_exit>(model, verify::token{.seed = 3}, greedy_policy, 30, d), greedy);
      ASSERT_EQ(generate<greedy_exit>(model, verify::match{.seed = 7}, warm_policy, 30, d), warm);
      ASSERT_EQ(generate<sampled_exit>(model, verify::match{.seed = 7}, warm_policy, 30, d), warm);
      loop_stats shared;
      ASSERT_EQ(generate<shared_noise_exit>(model, verify::match{.seed = 7}, warm_policy, 30, d, {}, {}, &shared), warm);
      for (const loop_stats& s : {stats, shared}) {   // a right draft costs d calls, a wrong one T
        EXPECT_EQ(s.emitted, 30);
        EXPECT_EQ(s.drafted, d < loops ? 29 : 0);
        EXPECT_EQ(s.calls, loops + d * s.accepted + loops * (29 - s.accepted));
        EXPECT_GT(s.accepted, d < loops ? 8 : -1);
      }
    }
  }
}

TEST(Wavefront, SharedNoiseAgreesMoreOften) {
  const looped model{4, 17};
  const sampling::chain policy{sampling::temperature(1.f)};
  loop_stats own, shared;
  generate<sampled_exit>(model, verify::match{.seed = 5}, policy, 300, 1, {}, {}, &own);
  generate<shared_noise_exit>(model, verify::match{.seed = 5}, policy, 300, 1, {}, {}, &shared);
  EXPECT_GT(shared.agreement(), own.agreement() + 0.1);
  EXPECT_LT(shared.calls_per_token(), own.calls_per_token());
}

// While drafts are right, cell (t, r) is made in call d (t - t_0) + r. (That its inputs are of earlier calls, the model checks at every cell.)
TEST(Wavefront, CellsFollowTheDiagonal) {
  for (const std::int32_t d : {1, 2, 3, 5}) {
    const wavefront_schedule schedule{5, d};
    looped model{5, 17, 0.9f, 0.f};   // later loops change nothing: every draft is right
    loop_stats stats;
    std::vector<std::vector<loop_cell>> trace;
    generate<greedy_exit>(model, verify::greedy{}, greedy_policy, 20, d, {}, {}, &stats, &trace);
    EXPECT_EQ(stats.accepted, stats.drafted);
    std::size_t most = 0;
    for (std::size_t call = 0; call < trace.size(); ++call) {
      most = std::max(most, trace[call].size());
      for (const loop_cell& c : trace[call]) EXPECT_EQ(schedule.call_of(c.position - 2, c.depth), static_cast<std::int64_t>(call) + 1);
      for (const loop_cell& c : trace[call])   // and everything it reads is of an earlier call
        EXPECT_TRUE(c.parent < 0 || schedule.call_of(c.position - 3, c.depth) < static_cast<std::int64_t>(call) + 1);
    }
    EXPECT_EQ(most, static_cast<std::size_t>(schedule.positions_in_flight()));
    EXPECT_EQ(stats.calls, 5 + 19 * d);
  }
}

TEST(Wavefront, SharedKeysAndValuesAreAnotherTarget) {
  const looped model{6, 17, 0.9f, 0.6f};
  const aligned_vector<std::int32_t> all = shared_kv(6, 1), pairs = shared_kv(6, 2), first = shared_kv(6, 6), uneven = {1, 1, 2, 2, 2, 6};
  EXPECT_EQ(pairs, (aligned_vector<std::int32_t>{1, 1, 3, 3, 5, 5}));
  EXPECT_EQ(kv_traffic(all, 6), 1.);
  EXPECT_EQ(kv_traffic({}, 6), 1.);
  EXPECT_EQ(kv_traffic(pairs, 6), 0.5);
  EXPECT_EQ(kv_traffic(first, 6), 1. / 6);
  EXPECT_EQ(kv_traffic(uneven, 6), 0.5);
  const ids unshared = model.plain_decoding_of(prompt, 25, warm_policy, 7);
  for (const auto& kv_map : {all, pairs, first, uneven}) {
    const ids plain = model.plain_decoding_of(prompt, 25, warm_policy, 7, {}, kv_map);
    EXPECT_EQ(plain == unshared, kv_map == all);
    for (const std::int32_t d : {1, 2, 6}) EXPECT_EQ(generate<shared_noise_exit>(model, verify::match{.seed = 7}, warm_policy, 25, d, {}, kv_map), plain);
  }
}

// MUT: a map that follows the schedule, "the latest recurrence there is", makes what is kept depend on the exit depth; a fixed one never does.
TEST(Wavefront, AMapThatFollowsTheScheduleIsNoTarget) {
  for (const bool latest : {false, true}) {
    std::map<std::int32_t, std::vector<looped::column>> kept;
    for (const std::int32_t d : {1, 6}) {
      looped model{6, 17, 0.9f, 0.6f};
      model.latest = latest, model.prefill(prompt);
      wavefront wave{model, verify::match{.seed = 7}, warm_policy, {.prompt = prompt, .max_new_tokens = 12, .exit_depth = d}, shared_noise_exit{}};
      while (!wave.done()) wave.step();
      EXPECT_GT(wave.stats().accepted, d == 6 ? -1 : 0);
      kept[d] = model.kept;
    }
    EXPECT_EQ(kept[1] != kept[6], latest);
  }
}

template <class Exit>
double distance_from_target(std::int32_t loops, std::int32_t exit_depth, bool mistake = false, std::span<const std::int32_t> kv_map = {}) {
  const looped model{loops, 3, 0.9f, 0.8f};
  const std::size_t n = 3;
  enumeration::every_choice all;
  std::map<ids, double> law;
  const sampling::chain policy{};
  double total = 0;
  all.run([&] {
    looped own = model;
    const ids start = {1, 2};
    own.prefill(start, kv_map);
    wavefront<looped, verify::token, sampling::chain<>, Exit, toy::every_chance, toy::every_draw> wave{
        own, verify::token{}, policy, {.prompt = start, .max_new_tokens = static_cast<std::int64_t>(n), .exit_depth = exit_depth, .kv_map = kv_map}, Exit{}, {&all}, {&all, mistake}};
    while (!wave.done()) wave.step();
    if (all.probability() > 1e-14) {
      EXPECT_EQ(wave.stats().residual_fallback, 0);
    }
    law[ids(wave.tokens().begin() + 2, wave.tokens().end())] += all.probability();
    total += all.probability();
  });
  EXPECT_NEAR(total, 1, 1e-12);
  return enumeration::distance(law, toy::plain_law(model, {1, 2}, n, kv_map));
}

TEST(Wavefront, EveryChoiceTogetherIsTheTargetsLaw) {
  EXPECT_LT(distance_from_target<sampled_exit>(3, 1), 1e-12);
  EXPECT_LT(distance_from_target<sampled_exit>(3, 2), 1e-12);
  EXPECT_LT(distance_from_target<sampled_exit>(2, 1, false, shared_kv(2, 2)), 1e-12);
  EXPECT_LT(distance_from_target<greedy_exit>(3, 1), 1e-12);
  EXPECT_LT(distance_from_target<greedy_exit>(3, 3), 1e-12);
  EXPECT_GT(distance_from_target<sampled_exit>(3, 1, true), 1e-3);   // MUT: chosen by rule, verified as if drawn
}

TEST(Wavefront, WhatIsNotLosslessDoesNotCompile) {
  static_assert(!lossless<shared_noise_exit::law, verify::token> && lossless<shared_noise_exit::law, verify::match>);
  static_assert(lossless<sampled_exit::law, verify::token> && lossless<greedy_exit::law, verify::token>);
}

TEST(Wavefront, EndTokensAndTheLimit) {
  const looped model{4, 17};
  const ids all = model.plain_decoding_of(prompt, 25, warm_policy, 7);
  for (std::size_t at = prompt.size(); at < all.size(); ++at) {
    const ids until(all.begin(), std::find(all.begin() + 3, all.end(), all[at]) + 1);
    std::vector<std::vector<loop_cell>> trace;
    EXPECT_EQ((generate<shared_noise_exit>(model, verify::match{.seed = 7}, warm_policy, 25, 1, {99, all[at]}, {}, nullptr, &trace)), until);
    for (const auto& call : trace)   // an end token that was drafted is not run
      for (const loop_cell& c : call) EXPECT_TRUE(c.token != all[at] || c.position < 3);
    const auto limit = static_cast<std::int64_t>(at - 2);
    EXPECT_EQ((generate<shared_noise_exit>(model, verify::match{.seed = 7}, warm_policy, limit, 1, {}, {}, nullptr, &trace)), ids(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at) + 1));
    for (const auto& call : trace)
      for (const loop_cell& c : call) EXPECT_LT(c.position, 2 + limit);   // nothing enters behind the limit
  }
}

TEST(Wavefront, BadLogits) {
  const ids expected = looped{4, 17}.plain_decoding_of(prompt, 12, greedy_policy, 0);
  for (std::int64_t call = 1; call < 20; ++call)
    for (const std::int32_t depth : {1, 4}) {
      looped model{4, 17};
      model.prefill(prompt);
      model.poisoned_call = call, model.poisoned_depth = depth;
      wavefront wave{model, verify::greedy{}, greedy_policy, {.prompt = prompt, .max_new_tokens = 12}};
      int errors = 0;
      while (!wave.done()) {
        const auto kept = model.kept;
        const std::string message = message_of([&] { wave.step(); });
        if (message == "no error") continue;
        ++errors;
        EXPECT_NE(message.find("nan_logit"), std::string::npos) << message;
        EXPECT_EQ(model.kept, kept);
      }
      EXPECT_EQ(ids(wave.tokens().begin(), wave.tokens().end()), expected);
      EXPECT_LE(errors, depth == 4);   // a bad early row drafts nothing
    }
}

TEST(Wavefront, BadOptions) {
  looped model{4, 17};
  model.prefill(prompt);
  const ids rising = {1, 1, 4, 4}, falling = {1, 2, 1, 4}, zero = {0, 1, 1, 1}, few = {1, 1};
  const auto message = [&](const wavefront_options& options) { return message_of([&] { wavefront{model, verify::greedy{}, greedy_policy, options}; }); };
  EXPECT_NE(message({}).find("'prompt' is empty"), std::string::npos);
  EXPECT_NE(message({.prompt = prompt, .max_new_tokens = -1}).find("'max_new_tokens' is -1"), std::string::npos);
  for (const std::int32_t d : {0, 5, -1}) EXPECT_NE(message({.prompt = prompt, .exit_depth = d}).find("'exit_depth'"), std::string::npos);
  for (const ids& map : {rising, falling, zero, few}) EXPECT_NE(message({.prompt = prompt, .kv_map = map}).find("'kv_map'"), std::string::npos);
  wavefront warm{model, verify::greedy{}, warm_policy, {.prompt = prompt, .exit_depth = 4}};
  for (int i = 0; i < 3; ++i) warm.step();
  EXPECT_NE(message_of([&] { warm.step(); }).find("temperature"), std::string::npos);
  EXPECT_THROW(shared_kv(0, 1), error);
  EXPECT_THROW(shared_kv(2, 0), error);
  EXPECT_THROW(simulate_wavefront({4, 5}, 10, [](std::int64_t) { return true; }), error);
  EXPECT_THROW(simulate_wavefront({4, 1}, 0, [](std::int64_t) { return true; }), error);
  EXPECT_THROW(simulate_phase_separated({4, 1}, 0, 10, [](std::int64_t) { return true; }), error);
}

const auto agrees_with = [](double alpha) {
  return [alpha](std::int64_t token) { return uniform({.seed = 11, .position = static_cast<std::uint32_t>(token)}) < alpha; };
};

TEST(WavefrontCost, FiguresOfThePaper) {
  const wavefront_schedule four{4, 1};
  EXPECT_NEAR(four.agreement_for(2.42), 0.782, 5e-4);
  EXPECT_NEAR(four.calls_per_token(0.782), 1.654, 1e-9);
  EXPECT_NEAR(four.speedup(0.782), 2.42, 2e-3);
  EXPECT_EQ((wavefront_schedule{4, 4}.speedup(0.3)), 1);
  EXPECT_EQ((wavefront_schedule{1, 1}.speedup(0.3)), 1);
  EXPECT_EQ((wavefront_schedule{7, 3}.positions_in_flight()), 3);
  // the pipeline, token by token, at the agreement that 2.42 and 3.54 stand for
  for (const auto& [schedule, speedup] : {std::pair{four, 2.42}, std::pair{wavefront_schedule{32, 1}, 3.54}, std::pair{wavefront_schedule{32, 4}, 3.54}}) {
    const double alpha = schedule.agreement_for(speedup);
    std::int64_t right = 0;
    const std::int64_t n = 40000;
    const auto run = simulate_wavefront(schedule, n, [&](std::int64_t i) { const bool a = agrees_with(alpha)(i); right += a; return a; });
    EXPECT_EQ(run.tokens, n);
    EXPECT_EQ(run.calls, schedule.loops + schedule.exit_depth * right + schedule.loops * (n - 1 - right));
    EXPECT_NEAR(plain_decoding(schedule, n).time / run.time, speedup, 0.05 * speedup);
  }
}

// Wide calls read several recurrences of the text; with shared ones they read fewer, and come near the speedup in calls.
TEST(WavefrontCost, SharedRecurrencesRaiseTheSpeedup) {
  const wavefront_schedule schedule{32, 1};
  const double alpha = schedule.agreement_for(4.9);
  const loop_call_cost cost{.weights = 1, .keys_values = 0.03};
  const double plain = plain_decoding(schedule, 20000, cost).time;
  double before = 0;
  for (const std::int32_t stretch : {1, 4, 32}) {
    const double speedup = plain / simulate_wavefront(schedule, 20000, agrees_with(alpha), cost, shared_kv(32, stretch)).time;
    EXPECT_GT(speedup, before);
    before = speedup;
  }
  EXPECT_NEAR(before, 4.9, 0.2);
  EXPECT_LT(plain / simulate_wavefront(schedule, 20000, agrees_with(alpha), cost).time, 4.2);
}

TEST(WavefrontCost, AheadOfDraftingFirst) {
  for (const auto& schedule : {wavefront_schedule{4, 1}, wavefront_schedule{8, 1}, wavefront_schedule{8, 3}, wavefront_schedule{32, 2}})
    for (const double alpha : {0., 0.3, 0.782, 0.95, 1.})
      for (std::int32_t drafts = 1; drafts <= 12; ++drafts) {
        const double tokens = verify::mean_accepted_tokens(alpha, drafts - 1), power = std::pow(alpha, drafts);
        const double more = schedule.phase_separated_calls_per_token(alpha, drafts) - schedule.calls_per_token(alpha);
        EXPECT_GE(more * tokens, power * (schedule.loops - schedule.exit_depth) - 1e-9);
        const auto run = simulate_phase_separated(schedule, drafts, 4000, agrees_with(alpha));
        EXPECT_NEAR(run.calls_per_token(), schedule.phase_separated_calls_per_token(alpha, drafts), 0.1 * run.calls_per_token());
        EXPECT_LE(simulate_wavefront(schedule, 4000, agrees_with(alpha)).calls_per_token(), run.calls_per_token() + 0.05 * schedule.loops);
      }
}

TEST(WavefrontCost, TheSimulatorIsTheDecoder) {
  for (const std::int32_t d : {1, 2, 3}) {
    looped model{5, 17};
    model.prefill(prompt);
    wavefront wave{model, verify::greedy{}, greedy_policy, {.prompt = prompt, .max_new_tokens = 40, .exit_depth = d}};
    std::vector<bool> right;
    std::int64_t accepted = 0;
    while (!wave.done())
      if (!wave.step().empty()) right.push_back(wave.stats().accepted > accepted), accepted = wave.stats().accepted;
    const auto run = simulate_wavefront(wave.schedule(), 40, [&](std::int64_t token) { return right[static_cast<std::size_t>(token) - 1]; });
    EXPECT_EQ(run.calls, wave.stats().calls);
    EXPECT_EQ(run.cells, wave.stats().cells);
  }
}

}  // namespace
