#include <heddle/sampling/sample.hpp>

#include <heddle/core/thread_team.hpp>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
constexpr float none = -std::numeric_limits<float>::infinity();

struct batch {
  static constexpr std::int64_t rows = 9, vocabulary = 700;
  std::vector<float> logits = std::vector<float>(rows * vocabulary);
  std::vector<sampling::chain<sampling::parameters>> chains;
  std::vector<random_key> keys;
  std::vector<sampling::history> histories;
  ids committed = {1, 2, 3, 2, 1}, path = {5};
  batch() {
    std::mt19937 random(3);
    for (float& x : logits) x = std::normal_distribution<float>(0.f, 2.f)(random);
    const sampling::parameters kinds[] = {{.temperature = 0.f}, {.temperature = .8f, .top_k = 20}, {.top_p = .9f}, {.temperature = 1.2f, .min_p = .1f, .repetition_penalty = 1.2f}, {.dry_multiplier = 1.f, .dry_allowed_length = 1}};
    for (std::uint32_t r = 0; r < rows; ++r) {
      chains.emplace_back(kinds[r % 5]);
      keys.push_back({.seed = r % 2, .request = r, .position = 40 + r});
      histories.push_back({committed, path});
    }
  }
  tensor_view<const float, 2> view() const { return {logits.data(), extents{rows, vocabulary}}; }
  std::span<const sampling::chain<sampling::parameters>> policies() const { return chains; }
  ids alone() const {
    ids out;
    sampling::row_workspace memory(vocabulary);
    for (std::size_t r = 0; r < rows; ++r) out.push_back(sampling::sample_row(view()[static_cast<std::int64_t>(r)], chains[r], histories[r], keys[r], memory).token);
    return out;
  }
};

TEST(Sample, EveryRowIsDrawnAsIfAlone) {
  const batch b;
  const ids expected = b.alone();
  thread_team team(3);
  for (executor_ref run : {executor_ref{}, executor_ref{team}})
    for (const bool with_workspace : {false, true}) {
      std::vector<std::byte> workspace(with_workspace ? sampling::sample_workspace_size(b.rows, b.vocabulary, run.concurrency(), 6) : 0);
      ids tokens(b.rows, -7);
      sampling::sample(b.view(), b.policies(), tensor_view<std::int32_t, 1>{tokens.data(), extents{b.rows}}, {.keys = b.keys, .histories = b.histories, .executor = run, .workspace = workspace});
      EXPECT_EQ(tokens, expected);
    }
}

TEST(Sample, BadRowsGetAStatusAndTheOthersAreComplete) {
  batch b;
  const ids expected = b.alone();
  b.logits[2 * b.vocabulary + 5] = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t v = 0; v < b.vocabulary; ++v) b.logits[static_cast<std::size_t>(3 * b.vocabulary + v)] = none;
  b.logits[4 * b.vocabulary] = -none;
  ids tokens(b.rows);
  std::vector<status> states(b.rows);
  const tensor_view<std::int32_t, 1> out{tokens.data(), extents{b.rows}};
  sampling::sample(b.view(), b.policies(), out, {.keys = b.keys, .histories = b.histories, .status = states});
  for (std::size_t r = 0; r < b.rows; ++r) EXPECT_EQ(tokens[r], r >= 2 && r <= 4 ? -1 : expected[r]);
  EXPECT_EQ(states[2], status::nan_logit);
  EXPECT_EQ(states[3], status::empty_support);
  EXPECT_EQ(states[4], status::inf_logit);
  EXPECT_EQ(states[5], status::ok);
  EXPECT_THROW(sampling::sample(b.view(), b.policies(), out, {.keys = b.keys, .histories = b.histories, .on_bad_row = on_bad_row::throw_error}), error);
}

TEST(Sample, GreedyRowsBesideOthers) {  // known fault 40
  const std::vector<float> logits = {1.f, none, 1.f, 2.f};
  const sampling::chain<sampling::parameters> chains[] = {sampling::chain{sampling::parameters{.temperature = 0.f}}, sampling::chain{sampling::parameters{.temperature = .8f}}};
  const random_key keys[2] = {};
  ids tokens(2);
  sampling::sample(tensor_view<const float, 2>{logits.data(), extents{2, 2}}, std::span<const sampling::chain<sampling::parameters>>(chains), tensor_view<std::int32_t, 1>{tokens.data(), extents{2}}, {.keys = keys});
  EXPECT_EQ(tokens[0], 0);
  sampling::row_workspace memory(2);
  const auto law = sampling::law_of(tensor_view<const float, 1>{logits.data(), extents{2}}, chains[0], {}, {}, memory);
  EXPECT_EQ(law.tokens.size(), 1u);
  EXPECT_EQ(law.probability(0), 1.);
}

TEST(Sample, ErrorsComeBeforeAnythingIsWritten) {
  batch b;
  ids tokens(b.rows, -7);
  const tensor_view<std::int32_t, 1> out{tokens.data(), extents{b.rows}}, short_out{tokens.data(), extents{b.rows - 1}};
  const auto keys = std::span<const random_key>(b.keys);
  EXPECT_THROW(sampling::sample(b.view(), b.policies(), short_out, {.keys = keys}), error);
  EXPECT_THROW(sampling::sample(b.view(), b.policies().first(2), out, {.keys = keys}), error);
  EXPECT_THROW(sampling::sample(b.view(), b.policies(), out, {.keys = keys.first(3)}), error);
  EXPECT_THROW(sampling::sample(b.view(), b.policies(), out, {.keys = keys, .histories = std::span<const sampling::history>(b.histories).first(1)}), error);
  std::vector<std::byte> small(100);
  EXPECT_THROW(sampling::sample(b.view(), b.policies(), out, {.keys = keys, .workspace = small}), error);
  const ids outside = {1, 700};
  b.histories[8] = {outside, {}};
  EXPECT_THROW(sampling::sample(b.view(), b.policies(), out, {.keys = keys, .histories = b.histories}), error);
  EXPECT_EQ(tokens, ids(b.rows, -7));
  sampling::sample(tensor_view<const float, 2>{b.logits.data(), extents{0, b.vocabulary}}, b.policies().first(1), tensor_view<std::int32_t, 1>{tokens.data(), extents{0}}, {});
}

}  // namespace
