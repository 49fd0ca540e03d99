// LoopAhead: the text of plain decoding whatever is drafted, paused and resumed; which cells run; the law under rejection; what it saves.
#include <heddle/speculative/schedule/loop_ahead.hpp>
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
const sampling::chain warm_policy{sampling::parameters{.temperature = 0.8f, .top_p = 0.95f, .presence_penalty = 0.2f}};

// Knows the text to come and says it with mistakes; the right token is then its second choice.
struct oracle {
  const looped* model;
  ids text{};
  std::int32_t depth = 1;          // at which it must be asked
  unsigned mistakes = 0;           // one slot in so many; 0: none
  float bad = 0.f;                 // put into the second slot
  int calls = 0;
  std::vector<float> logits{};
  tensor_view<const float, 2> look_ahead(std::int32_t node, std::int32_t slots) {
    ++calls;
    const looped::held& at = model->nodes.at(node);
    EXPECT_EQ(at.states.size(), static_cast<std::size_t>(depth) + 1);
    logits.assign(static_cast<std::size_t>(slots * model->vocabulary), 0.f);
    for (std::int32_t i = 0; i < slots; ++i) {
      const auto position = static_cast<std::size_t>(at.position + 1 + i);
      const std::int32_t right = position < text.size() ? text[position] : 0, wrong = (right + 1 + static_cast<std::int32_t>(position) % 5) % model->vocabulary;
      const bool errs = mistakes && position * 2654435761u / 64 % mistakes == 0;
      logits[static_cast<std::size_t>(i * model->vocabulary + right)] = errs ? 5.f : 6.f;
      if (wrong != right) logits[static_cast<std::size_t>(i * model->vocabulary + wrong)] = errs ? 6.f : 3.f;
      if (i == 1 && bad != 0.f) logits[static_cast<std::size_t>(i * model->vocabulary)] = bad;
    }
    return {logits.data(), extents{std::int64_t{slots}, std::int64_t{model->vocabulary}}};
  }
};

template <class Rule, class Policy>
loop_stats expect_plain(looped model, oracle lookahead, const Rule& rule, const Policy& policy, loop_ahead_options options, const ids& expected, std::vector<std::vector<loop_cell>>* trace = nullptr) {
  model.prefill(prompt, options.kv_map);
  lookahead.model = &model, lookahead.depth = options.lookahead_depth;
  options.prompt = prompt;
  if (options.end_tokens.empty()) options.max_new_tokens = static_cast<std::int64_t>(expected.size() - prompt.size());
  loop_ahead loop{model, lookahead, rule, policy, options};
  ids steps = prompt;
  while (!loop.done())
    for (const std::int32_t token : loop.step()) steps.push_back(token);
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(ids(loop.tokens().begin(), loop.tokens().end()), expected);
  EXPECT_EQ(model.kept, model.plain_states(std::span<const std::int32_t>(expected).first(expected.size() - 1), options.kv_map));   // paused or not: the same bits
  EXPECT_TRUE(model.nodes.empty());
  EXPECT_EQ(loop.stats().calls, static_cast<std::int64_t>(model.trace.size()));
  for (const auto& call : model.trace) {   // at most W, and with each cell those of the nodes before it, unless these are further on
    EXPECT_LE(call.size(), static_cast<std::size_t>(options.max_active));
    for (const loop_cell& c : call) EXPECT_TRUE(c.parent < 0 || std::any_of(call.begin(), call.end(), [&](const loop_cell& p) { return p.node == c.parent && p.depth >= c.depth; }));
  }
  if (trace) *trace = model.trace;
  return loop.stats();
}

TEST(LoopAhead, TextOfPlainDecoding) {
  const std::int32_t early[] = {1, 2}, late[] = {3}, all[] = {1, 2, 3, 4};
  const looped model{5, 17};
  const ids greedy = model.plain_decoding_of(prompt, 24, greedy_policy, 0), warm = model.plain_decoding_of(prompt, 24, warm_policy, 7);
  std::int64_t paused = 0;
  for (const unsigned mistakes : {0u, 2u, 5u})
    for (const std::int32_t r0 : {1, 2, 4})
      for (const std::int32_t drafts : {1, 3, 6})
        for (const std::int32_t width : {1, 3})
          for (const std::int32_t active : {1, 2, 5, 64}) {
            const std::span<const std::int32_t> feedback = r0 == 1 ? std::span<const std::int32_t>(early) : r0 == 2 ? std::span<const std::int32_t>(late) : drafts == 3 ? std::span<const std::int32_t>(all) : std::span<const std::int32_t>{};
            const loop_ahead_options options{.lookahead_depth = r0, .drafts = drafts, .width = width, .pipelined = drafts != 6, .max_active = active, .max_nodes = active == 5 ? 9 : 60, .feedback_depths = feedback};
            const loop_stats g = expect_plain(model, {nullptr, greedy, 1, mistakes}, verify::greedy{}, greedy_policy, options, greedy);
            const loop_stats t = expect_plain(model, {nullptr, greedy, 1, mistakes}, verify::token{.seed = 2}, greedy_policy, options, greedy);
            const loop_stats m = expect_plain(model, {nullptr, warm, 1, mistakes}, verify::match{.seed = 7}, warm_policy, options, warm);
            EXPECT_EQ(g.calls, t.calls);
            for (const loop_stats& s : {g, m}) {
              EXPECT_EQ(s.emitted, 24);
              if (active == 1) {
                EXPECT_EQ(s.calls, 24 * 5);   // plain decoding
              } else if (active == 64 && mistakes != 2) {
                EXPECT_LT(s.calls, 24 * 5);
              }
              paused += s.paused;
            }
          }
  EXPECT_GT(paused, 1000);
}

TEST(LoopAhead, NoDraftsIsPlainDecoding) {
  const looped model{4, 17};
  const ids expected = model.plain_decoding_of(prompt, 12, warm_policy, 7);
  const loop_stats stats = expect_plain(model, {nullptr, expected}, verify::match{.seed = 7}, warm_policy, {.drafts = 0}, expected);
  EXPECT_EQ(stats.calls, 12 * 4);
  EXPECT_EQ(stats.cells, 12 * 4);
  const auto kv_map = shared_kv(4, 2);
  const ids shared = model.plain_decoding_of(prompt, 12, warm_policy, 7, {}, kv_map);
  EXPECT_NE(shared, expected);
  expect_plain(model, {nullptr, shared, 1, 3}, verify::match{.seed = 7}, warm_policy, {.kv_map = kv_map}, shared);
}

// Nodes whose scores fall wait, and go on where they were when these are the best again. Their bits are compared by expect_plain.
TEST(LoopAhead, PausedNodesResume) {
  const std::int32_t feedback[] = {1, 2, 3, 4, 5};
  int resumed = 0, kept_after_waiting = 0;
  for (const std::int32_t active : {2, 3})
    for (const std::int32_t vocabulary : {17, 19, 23, 29}) {
      const looped model{6, vocabulary, 0.9f, 1.f};
      const ids expected = model.plain_decoding_of(prompt, 40, warm_policy, 7);
      std::vector<std::vector<loop_cell>> trace;
      const loop_stats stats = expect_plain(model, {nullptr, expected, 1, 2}, verify::match{.seed = 7}, warm_policy, {.drafts = 6, .width = 2, .max_active = active, .feedback_depths = feedback, .lookahead_temperature = 3}, expected, &trace);
      EXPECT_GT(stats.paused, 0);
      std::map<std::int32_t, std::pair<loop_cell, std::size_t>> last;   // of a node: its latest cell and the call
      std::map<std::int32_t, bool> waited;
      for (std::size_t call = 0; call < trace.size(); ++call)
        for (const loop_cell& c : trace[call]) {
          if (c.depth == 1) waited[c.node] = false;
          else if (last[c.node].second + 1 < call) waited[c.node] = true, ++resumed;
          last[c.node] = {c, call};
          kept_after_waiting += c.depth == 6 && waited[c.node];
        }
    }
  EXPECT_GT(resumed, 0);
  EXPECT_GT(kept_after_waiting, 0);
}

// With room for two cells the second goes to the branch that the feedback favours, though the lookahead preferred the other.
TEST(LoopAhead, FeedbackChoosesTheBranch) {
  const looped model{6, 17};
  const ids expected = model.plain_decoding_of(prompt, 16, greedy_policy, 0);
  const std::int32_t feedback[] = {1, 2, 3, 4, 5};
  const loop_ahead_options blind{.lookahead_depth = 1, .drafts = 6, .width = 2, .max_active = 2};
  loop_ahead_options told = blind;
  told.feedback_depths = feedback;
  const loop_stats without = expect_plain(model, {nullptr, expected, 1, 1}, verify::greedy{}, greedy_policy, blind, expected);
  const loop_stats with = expect_plain(model, {nullptr, expected, 1, 1}, verify::greedy{}, greedy_policy, told, expected);
  EXPECT_LT(with.calls, without.calls);
}

TEST(LoopAhead, SpeedupInCalls) {
  for (const std::int32_t loops : {4, 8})
    for (const std::int32_t r0 : {1, 2})
      for (const std::int32_t drafts : {1, 3, 5}) {
        const looped model{loops, 17};
        const std::int64_t n = (1 + drafts) * 8;
        const ids expected = model.plain_decoding_of(prompt, n, greedy_policy, 0);
        const loop_stats rounds = expect_plain(model, {nullptr, expected}, verify::greedy{}, greedy_policy, {.lookahead_depth = r0, .drafts = drafts, .pipelined = false}, expected);
        EXPECT_EQ(rounds.calls, 8 * (loops + r0));
        EXPECT_DOUBLE_EQ(loops / rounds.calls_per_token(), unpipelined_speedup(loops, r0, drafts));
        const loop_stats pipelined = expect_plain(model, {nullptr, expected}, verify::greedy{}, greedy_policy, {.lookahead_depth = r0, .drafts = drafts}, expected);
        EXPECT_EQ(pipelined.calls, loops + (n - 1 + drafts - 1) / drafts * r0);   // K tokens per r_0 calls once it runs
        EXPECT_LE(loops / pipelined.calls_per_token(), pipelined_ceiling(loops, r0, drafts));
        EXPECT_GE(loops / pipelined.calls_per_token(), unpipelined_speedup(loops, r0, drafts));
      }
  EXPECT_DOUBLE_EQ(unpipelined_speedup(8, 2, 3), 3.2);
  EXPECT_DOUBLE_EQ(pipelined_ceiling(8, 2, 3), 12);
}

double distance_from_target(std::int32_t active, std::int32_t width, std::span<const std::int32_t> feedback) {
  const looped model{3, 3, 0.9f, 0.8f};
  const ids start = {1, 2};
  enumeration::every_choice all;
  std::map<ids, double> law;
  const sampling::chain policy{};
  all.run([&] {
    looped own = model;
    own.prefill(start);
    oracle lookahead{&own, {1, 2, 0, 1, 2, 0, 1}, 1, 3};
    loop_ahead<looped, oracle, verify::token, sampling::chain<>, toy::every_chance> loop{
        own, lookahead, verify::token{}, policy, {.prompt = start, .max_new_tokens = 4, .drafts = 3, .width = width, .max_active = active, .feedback_depths = feedback}, {&all}};
    while (!loop.done()) loop.step();
    EXPECT_EQ(loop.stats().residual_fallback, 0);
    law[ids(loop.tokens().begin() + 2, loop.tokens().end())] += all.probability();
  });
  return enumeration::distance(law, toy::plain_law(model, start, 4));
}

TEST(LoopAhead, EveryChoiceTogetherIsTheTargetsLaw) {
  const std::int32_t feedback[] = {1, 2};
  for (const std::int32_t active : {1, 2, 64})
    for (const std::int32_t width : {1, 2}) EXPECT_LT(distance_from_target(active, width, feedback), 1e-12);
  EXPECT_LT(distance_from_target(3, 3, {}), 1e-12);
}

// MUT: a draft drawn from q = (.5, .5) and dropped where its own score is low (it is 1), the rest verified by q. With p = (.5, .5) that gives (.75, .25); a
// paused draft that is still verified gives p.
TEST(LoopAhead, DroppingByItsOwnScoreBendsTheLaw) {
  const float logits[] = {0, 0}, q[] = {.5f, .5f};
  const std::int32_t text[] = {0}, parents[] = {-1, 0}, row_of[] = {0, -1};
  const sampling::chain policy{};
  verify_workspace memory(2);
  for (const bool dropping : {false, true}) {
    enumeration::every_choice all;
    double law[2] = {};
    all.run([&] {
      const std::int32_t tokens[] = {0, static_cast<std::int32_t>(all.choose({.5, .5}))};
      const std::size_t nodes = dropping && tokens[1] == 1 ? 1 : 2;
      const draft_tree<draft_law::independent> star{std::span(tokens).first(nodes), std::span(parents).first(nodes), {.row_of = std::span(row_of).first(nodes), .dense = {q, extents{1, 2}}}};
      toy::every_chance chance{&all};
      loop_stats stats;
      const auto next = heddle::detail::decide_slot(verify::token{}, star, tensor_view<const float, 1>{logits, extents{2}}, policy, text, memory, chance, stats);
      law[next.token] += all.probability();
    });
    EXPECT_NEAR(law[0], dropping ? .75 : .5, 1e-12);
    EXPECT_NEAR(law[1], dropping ? .25 : .5, 1e-12);
  }
}

TEST(LoopAhead, EndTokensAndTheLimit) {
  const looped model{4, 17};
  const ids all = model.plain_decoding_of(prompt, 20, warm_policy, 7);
  for (std::size_t at = prompt.size(); at < all.size(); ++at) {
    const ids until(all.begin(), std::find(all.begin() + 3, all.end(), all[at]) + 1);
    const ids ends = {99, all[at]};
    std::vector<std::vector<loop_cell>> trace;
    expect_plain(model, {nullptr, all, 1, 4}, verify::match{.seed = 7}, warm_policy, {.end_tokens = ends, .drafts = 5, .width = 2}, until, &trace);
    for (const auto& call : trace)
      for (const loop_cell& c : call) EXPECT_TRUE(c.token != all[at] || c.position < 3);   // not run
    const ids cut(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    expect_plain(model, {nullptr, all, 1, 4}, verify::match{.seed = 7}, warm_policy, {.drafts = 5, .width = 2}, cut, &trace);
    for (const auto& call : trace)
      for (const loop_cell& c : call) EXPECT_LT(c.position, static_cast<std::int64_t>(at));
  }
}

TEST(LoopAhead, BadLogits) {
  const looped whole{4, 17};
  const ids expected = whole.plain_decoding_of(prompt, 12, greedy_policy, 0);
  const std::int32_t feedback[] = {2};
  int errors = 0;
  for (std::int64_t call = 1; call < 20; ++call)
    for (const std::int32_t depth : {2, 4}) {
      looped model{4, 17};
      model.prefill(prompt);
      model.poisoned_call = call, model.poisoned_depth = depth;
      oracle lookahead{&model, expected, 1, 4};
      loop_ahead loop{model, lookahead, verify::greedy{}, greedy_policy, {.prompt = prompt, .max_new_tokens = 12, .drafts = 3, .width = 2, .feedback_depths = feedback}};
      while (!loop.done()) {
        const auto kept = model.kept;
        const std::string message = message_of([&] { loop.step(); });
        if (message == "no error") continue;
        ++errors;
        EXPECT_EQ(depth, 4);
        EXPECT_NE(message.find("nan_logit"), std::string::npos) << message;
        EXPECT_EQ(model.kept, kept);
      }
      EXPECT_EQ(ids(loop.tokens().begin(), loop.tokens().end()), expected);
      EXPECT_TRUE(model.nodes.empty());
    }
  EXPECT_GT(errors, 0);
  for (const float bad : {NAN, INFINITY})   // the lookahead's: drafting ends before that slot
    expect_plain(whole, {nullptr, expected, 1, 0, bad}, verify::greedy{}, greedy_policy, {.drafts = 4}, expected);
}

TEST(LoopAhead, BadOptions) {
  looped model{4, 17};
  model.prefill(prompt);
  oracle lookahead{&model};
  const auto message = [&](loop_ahead_options options) {
    if (options.prompt.empty() && options.width != 7) options.prompt = prompt;
    return message_of([&] { loop_ahead{model, lookahead, verify::greedy{}, greedy_policy, options}; });
  };
  const ids zero = {0}, last = {4}, twice = {2, 2}, rising = {1, 3, 3, 3};
  EXPECT_EQ(message({}), "no error");
  EXPECT_NE(message({.width = 7}).find("'prompt'"), std::string::npos);
  EXPECT_NE(message({.max_new_tokens = -1}).find("'max_new_tokens'"), std::string::npos);
  for (const std::int32_t r : {0, 4}) EXPECT_NE(message({.lookahead_depth = r}).find("'lookahead_depth'"), std::string::npos);
  EXPECT_NE(message({.drafts = -1}).find("'drafts' is -1"), std::string::npos);
  EXPECT_NE(message({.width = 0}).find("'width'"), std::string::npos);
  EXPECT_NE(message({.max_active = 0}).find("'max_active'"), std::string::npos);
  EXPECT_NE(message({.max_nodes = 0}).find("'max_nodes'"), std::string::npos);
  EXPECT_NE(message({.lookahead_temperature = 0}).find("'lookahead_temperature'"), std::string::npos);
  for (const ids& depths : {zero, last, twice}) EXPECT_NE(message({.feedback_depths = depths}).find("'feedback_depths'"), std::string::npos);
  EXPECT_NE(message({.kv_map = rising}).find("'kv_map'"), std::string::npos);
}

}  // namespace
