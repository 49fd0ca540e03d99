#include "speculative/toy_model.hpp"

#include <heddle/speculative/decode_batch.hpp>
#include <heddle/speculative/draft/best_of.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <memory>

namespace {

using namespace toy;

// One toy model per request behind a common pass.
struct toy_batch {
  std::vector<toy_model> models;
  std::vector<float> logits{};
  std::size_t passes = 0;
  int poisoned = -1;
  explicit toy_batch(const std::vector<ids>& prompts) : models(prompts.size()) {
    for (std::size_t r = 0; r < prompts.size(); ++r) models[r].cache.assign(prompts[r].begin(), prompts[r].end() - 1);
  }
  tensor_view<const float, 2> score(std::span<const token_tree> trees) {
    logits.clear(), ++passes;
    for (std::size_t r = 0; r < trees.size(); ++r) {
      if (trees[r].tokens.empty()) continue;
      models[r].poisoned = static_cast<int>(r) == poisoned && models[r].cache.size() > 20;
      const auto rows = models[r].score(trees[r]);
      logits.insert(logits.end(), rows.data(), rows.data() + rows.size());
    }
    return {logits.data(), extents{static_cast<std::int64_t>(logits.size()) / vocabulary, vocabulary}};
  }
  void keep(std::int32_t request, std::span<const std::int32_t> path) { models[static_cast<std::size_t>(request)].keep(path); }
};
static_assert(batch_target_model<toy_batch> && !batch_target_model<toy_model>);

const std::vector<ids> prompts = {{1, 2, 3, 1, 2, 3, 1}, {5}, {7, 7, 7, 7}, {1, 2, 3, 1, 2, 3, 1}, {20, 3, 9}};
constexpr std::int64_t limits[] = {60, 3, 41, 60, 25};
decode_options options_of(std::size_t r, std::int32_t draft_length) { return {.prompt = prompts[r], .max_new_tokens = limits[r], .draft_length = draft_length}; }

// Chains and branching trees, ragged; half of the requests at another temperature and seed.
template <class Drafter, class Rule>
void expect_streams_of_single_loops(const Rule& rule_with, bool paced) {
  std::vector<ids> alone;
  std::vector<Drafter> drafters;
  std::vector<batch_request<Drafter, Rule, sampling::chain<sampling::parameters>>> requests;
  drafters.reserve(prompts.size());
  for (std::size_t r = 0; r < prompts.size(); ++r) {
    Drafter drafter{};
    if constexpr (requires { drafter.max_children; }) drafter.max_children = r % 2 ? 3 : 1;
    Rule rule = rule_with;
    rule.seed += r / 2;
    const sampling::chain policy{sampling::parameters{.temperature = r % 2 ? 0.f : 0.8f, .repetition_penalty = r == 2 ? 1.3f : 1.f}};
    const auto draft_length = static_cast<std::int32_t>(2 * r);
    toy_model model;
    model.cache.assign(prompts[r].begin(), prompts[r].end() - 1);
    Drafter own = drafter;
    decode_loop loop{model, own, rule, policy, options_of(r, draft_length)};
    while (!loop.done()) loop.step();
    alone.emplace_back(loop.tokens().begin(), loop.tokens().end());
    drafters.push_back(drafter);
    requests.push_back(batch_request{drafters.back(), rule, policy, options_of(r, draft_length)});
  }
  toy_batch model(prompts);
  decode_batch batch{model, std::span<const batch_request<Drafter, Rule, sampling::chain<sampling::parameters>>>(requests)};
  draft_pacer pacer;
  if (paced) batch.pace_by(pacer);
  std::vector<ids> streamed = prompts;
  while (!batch.done()) {
    batch.step();
    for (std::size_t r = 0; r < batch.size(); ++r) {
      streamed[r].insert(streamed[r].end(), batch.emitted(r).begin(), batch.emitted(r).end());
      EXPECT_EQ(model.models[r].cache, ids(batch.tokens(r).begin(), batch.tokens(r).end() - 1));
    }
  }
  std::int64_t most_rounds = 0;
  for (std::size_t r = 0; r < batch.size(); ++r) {
    EXPECT_EQ(ids(batch.tokens(r).begin(), batch.tokens(r).end()), alone[r]) << "request " << r;
    EXPECT_EQ(streamed[r], alone[r]);
    EXPECT_EQ(batch.stats(r).emitted, limits[r]);
    most_rounds = std::max(most_rounds, batch.stats(r).rounds);
  }
  EXPECT_EQ(model.passes, static_cast<std::size_t>(most_rounds));  // one pass for all
  EXPECT_THROW(batch.step(), error);
}

TEST(DecodeBatch, StreamsAreThoseOfSingleLoops) {
  expect_streams_of_single_loops<random_drafter<draft_law::unpredictable>>(verify::match{.seed = 5}, false);
  expect_streams_of_single_loops<random_drafter<draft_law::unpredictable>>(verify::match{.seed = 5}, true);
  expect_streams_of_single_loops<random_drafter<draft_law::deterministic>>(verify::token{.seed = 5}, false);
  expect_streams_of_single_loops<prompt_lookup>(verify::match{.seed = 9}, true);
}

TEST(DecodeBatch, ARequestWithBadLogitsEndsAlone) {
  const sampling::chain policy{};
  no_drafter none[3];  // one per request: it holds the request's drafts
  const auto run = [&](int poisoned) {
    toy_batch model(prompts);
    model.poisoned = poisoned;
    decode_batch batch{model, batch_request{none[0], verify::match{.seed = 1}, policy, options_of(0, 4)}, batch_request{none[1], verify::match{.seed = 2}, policy, options_of(1, 4)},
                       batch_request{none[2], verify::match{.seed = 3}, policy, options_of(2, 4)}};
    while (!batch.done()) batch.step();
    std::vector<ids> out;
    for (std::size_t r = 0; r < batch.size(); ++r) {
      EXPECT_EQ(batch.status(r), static_cast<int>(r) == poisoned ? status::nan_logit : status::ok);
      out.emplace_back(batch.tokens(r).begin(), batch.tokens(r).end());
      EXPECT_EQ(model.models[r].cache, ids(out[r].begin(), out[r].end() - 1));
    }
    return out;
  };
  const auto good = run(-1), bad = run(0);
  EXPECT_EQ(bad[1], good[1]);
  EXPECT_EQ(bad[2], good[2]);
  EXPECT_EQ(bad[0].size(), 22u);
  EXPECT_TRUE(std::equal(bad[0].begin(), bad[0].end(), good[0].begin()));
}

}  // namespace
