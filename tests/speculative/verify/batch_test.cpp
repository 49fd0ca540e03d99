#include <heddle/speculative/verify/batch.hpp>

#include <heddle/core/thread_team.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;

struct batch {
  static constexpr std::int64_t requests = 7, longest = 5, vocabulary = 12;
  std::vector<float> logits = std::vector<float>(requests * (longest + 1) * vocabulary), laws = std::vector<float>(requests * longest * vocabulary);
  ids drafts = ids(requests * longest);
  std::vector<ids> contexts;
  std::vector<std::span<const std::int32_t>> context_spans;
  batch() {
    std::mt19937 random(6);
    for (float& x : logits) x = std::normal_distribution<float>(0.f, 1.5f)(random);
    for (std::int64_t r = 0; r < requests; ++r) {
      contexts.push_back(ids(static_cast<std::size_t>(2 + r), static_cast<std::int32_t>(r)));
      for (std::int64_t i = 0; i < longest; ++i) {
        const bool padding = i >= r;  // request r has min(r, 5) drafts
        const float* row = &logits[static_cast<std::size_t>((r * (longest + 1) + i) * vocabulary)];
        const auto likely = static_cast<std::int32_t>(std::max_element(row, row + vocabulary) - row);
        drafts[static_cast<std::size_t>(r * longest + i)] = padding ? (i == r ? -1 : 9999) : random() % 4 ? likely : static_cast<std::int32_t>(random() % vocabulary);
        for (std::int64_t v = 0; v < vocabulary; ++v) laws[static_cast<std::size_t>((r * longest + i) * vocabulary + v)] = padding ? 0.f : std::uniform_real_distribution<float>(.1f, 1.f)(random);
      }
    }
    for (const auto& c : contexts) context_spans.emplace_back(c);
  }
  tensor_view<const std::int32_t, 2> draft_view() const { return {drafts.data(), extents{requests, longest}}; }
  tensor_view<const float, 3> logit_view() const { return {logits.data(), extents{requests, longest + 1, vocabulary}}; }
  tensor_view<const float, 3> law_view() const { return {laws.data(), extents{requests, longest, vocabulary}}; }
};

struct results {
  ids tokens = ids(batch::requests * (batch::longest + 1), -9), accepted = ids(batch::requests, -9);
  std::vector<status> states = std::vector<status>(batch::requests);
  tensor_view<std::int32_t, 2> token_view() { return {tokens.data(), extents{batch::requests, batch::longest + 1}}; }
  tensor_view<std::int32_t, 1> accepted_view() { return {accepted.data(), extents{batch::requests}}; }
};

const sampling::chain<sampling::parameters> policies[] = {sampling::chain{sampling::parameters{.temperature = .9f, .top_p = .95f, .repetition_penalty = 1.1f}}};

// Known fault 46: padding is never read (its tokens lie outside the vocabulary, its laws are zero), and every request is decided as if alone.
TEST(VerifyBatch, RaggedRequestsAreDecidedAsIfAlone) {
  const batch b;
  thread_team team(2);
  std::vector<verify_workspace> memory;
  memory.emplace_back(b.vocabulary), memory.emplace_back(b.vocabulary);
  std::vector<verify::token> rules;
  for (std::uint32_t r = 0; r < b.requests; ++r) rules.push_back({.seed = 5, .request = r});
  results out;
  verify_batch(std::span<const verify::token>(rules), b.draft_view(), b.law_view(), b.logit_view(), std::span<const sampling::chain<sampling::parameters>>(policies), out.token_view(), out.accepted_view(), {.contexts = b.context_spans, .status = out.states, .memory = memory, .executor = team});
  const ids parents = {-1, 0, 1, 2, 3, 4}, rows = {0, 1, 2, 3, 4, 5};
  int accepted = 0;
  for (std::size_t r = 0; r < b.requests; ++r) {
    const std::size_t drafted = std::min<std::size_t>(r, b.longest);
    ids nodes = {b.contexts[r].back()};
    nodes.insert(nodes.end(), &b.drafts[r * b.longest], &b.drafts[r * b.longest] + drafted);
    const draft_tree<draft_law::independent> tree{nodes, std::span<const std::int32_t>(parents).first(drafted + 1), {.row_of = std::span<const std::int32_t>(rows).first(drafted + 1), .dense = b.law_view()[static_cast<std::int64_t>(r)].slice(0, static_cast<std::int64_t>(drafted))}};
    const auto v = rules[r](tree, b.logit_view()[static_cast<std::int64_t>(r)], policies[0], b.contexts[r], memory[0]);
    EXPECT_EQ(out.accepted[r], v.accepted);
    EXPECT_EQ(out.states[r], status::ok);
    accepted += v.accepted;
    for (std::size_t i = 0; i <= b.longest; ++i) EXPECT_EQ(out.tokens[r * (b.longest + 1) + i], i < v.tokens.size() ? v.tokens[i] : -1);
    EXPECT_LE(v.tokens.size(), drafted + 1);
  }
  EXPECT_GT(accepted, 4);
}

TEST(VerifyBatch, DeterministicDraftsNeedNoLawsAndPositionsReplaceContexts) {
  batch b;
  std::vector<verify_workspace> memory;
  memory.emplace_back(b.vocabulary);
  const verify::match rule[] = {{.seed = 2}};
  const sampling::chain<sampling::parameters> plain[] = {sampling::chain{sampling::parameters{}}};
  std::vector<std::int64_t> positions;
  for (const auto& c : b.contexts) positions.push_back(static_cast<std::int64_t>(c.size()));
  results with_contexts, with_positions;
  const auto run = [&](results& out, verify_options<host> options) {
    options.memory = memory, options.status = out.states;
    verify_batch(std::span<const verify::match>(rule), b.draft_view(), deterministic_drafts{}, b.logit_view(), std::span<const sampling::chain<sampling::parameters>>(plain), out.token_view(), out.accepted_view(), options);
  };
  run(with_contexts, {.contexts = b.context_spans});
  run(with_positions, {.positions = positions});
  EXPECT_EQ(with_contexts.tokens, with_positions.tokens);
  EXPECT_EQ(with_contexts.accepted, with_positions.accepted);

  b.logits[2 * (b.longest + 1) * b.vocabulary] = std::numeric_limits<float>::quiet_NaN();  // request 2, its first row
  results bad;
  run(bad, {.positions = positions});
  for (std::size_t r = 0; r < b.requests; ++r) {
    EXPECT_EQ(bad.states[r], r == 2 ? status::nan_logit : status::ok);
    EXPECT_EQ(bad.accepted[r], r == 2 ? 0 : with_positions.accepted[r]);
    for (std::size_t i = 0; i <= b.longest; ++i) EXPECT_EQ(bad.tokens[r * (b.longest + 1) + i], r == 2 ? -1 : with_positions.tokens[r * (b.longest + 1) + i]);
  }
  EXPECT_THROW(run(bad, {.positions = positions, .on_bad_row = on_bad_row::throw_error}), error);
}

TEST(VerifyBatch, ErrorsComeBeforeAnythingIsWritten) {
  batch b;
  std::vector<verify_workspace> memory;
  memory.emplace_back(b.vocabulary);
  const verify::token rule[] = {{}};
  results out;
  const auto run = [&](verify_options<host> options) {
    verify_batch(std::span<const verify::token>(rule), b.draft_view(), b.law_view(), b.logit_view(), std::span<const sampling::chain<sampling::parameters>>(policies), out.token_view(), out.accepted_view(), options);
  };
  EXPECT_THROW(run({.contexts = b.context_spans}), error);  // no workspace
  EXPECT_THROW(run({.memory = memory}), error);             // no positions
  std::vector<verify_workspace> of_another_size;
  of_another_size.emplace_back(b.vocabulary), of_another_size.emplace_back(b.vocabulary - 1);
  EXPECT_THROW(run({.contexts = b.context_spans, .memory = of_another_size}), error);
  b.contexts[6][0] = 99;
  EXPECT_THROW(run({.contexts = b.context_spans, .memory = memory}), error);  // the penalties of the last request would look at a token outside the vocabulary
  b.contexts[6][0] = 6;
  const auto last = static_cast<std::size_t>(6 * b.longest);
  for (std::int64_t v = 0; v < b.vocabulary; ++v) b.laws[last * b.vocabulary + static_cast<std::size_t>(v)] = v == b.drafts[last] ? 0.f : .1f;
  EXPECT_THROW(run({.contexts = b.context_spans, .memory = memory}), error);  // the last request's draft has probability 0
  b.drafts[last] = 12;
  EXPECT_THROW(run({.contexts = b.context_spans, .memory = memory}), error);  // a token outside the vocabulary
  EXPECT_EQ(out.tokens, results{}.tokens);
}

}  // namespace
