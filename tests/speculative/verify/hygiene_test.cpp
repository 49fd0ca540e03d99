// Rules in use: what they leave behind when the input is bad, how their numbers add up, and that they do not allocate.
#include <heddle/speculative/verify/batch.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/saki.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <heddle/speculative/verify/typical.hpp>

#include "support/allocations.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
constexpr std::int64_t vocabulary = 40, drafts = 5;

// A chain of five drafts that are often accepted, with sparse laws.
struct fixture {
  std::vector<float> logits = std::vector<float>((drafts + 1) * vocabulary), probabilities;
  ids tokens = {3}, parents = {-1}, rows = {0}, listed, context = {9, 3};
  std::vector<std::int64_t> indptr = {0};
  sampling::chain<sampling::parameters> policy{sampling::parameters{.temperature = .8f, .top_k = 20, .top_p = .9f, .repetition_penalty = 1.1f}};
  explicit fixture(unsigned seed) {
    std::mt19937 random(seed);
    for (float& z : logits) z = std::normal_distribution<float>(0.f, 2.f)(random);
    for (std::int32_t u = 0; u <= drafts; ++u) {
      std::int32_t token = 0;
      for (int i = 0; i < 6; ++i) {   // six tokens, one after the other with gaps, in no order
        token = (token + 7 + static_cast<std::int32_t>(random() % 3)) % vocabulary;
        bool taken = false;
        for (std::size_t j = static_cast<std::size_t>(indptr.back()); j < listed.size(); ++j) taken |= listed[j] == token;
        if (taken) continue;
        listed.push_back(token), probabilities.push_back(.05f + static_cast<float>(random() % 100) / 100.f);
        logits[static_cast<std::size_t>(u * vocabulary + token)] += 2.f;
      }
      indptr.push_back(static_cast<std::int64_t>(listed.size()));
      if (u < drafts) tokens.push_back(listed[static_cast<std::size_t>(indptr[static_cast<std::size_t>(u)]) + random() % 3]), parents.push_back(u), rows.push_back(u + 1);
    }
  }
  tensor_view<const float, 2> view() const { return {logits.data(), extents{drafts + 1, vocabulary}}; }
  draft_tree<draft_law::independent> tree() const { return {tokens, parents, {.row_of = rows, .indptr = indptr, .tokens = listed, .probabilities = probabilities}}; }
  template <class Rule>
  auto decide(const Rule& rule, verify_workspace& memory) const {
    return rule(tree(), view(), policy, context, memory);
  }
};

template <class Rule>
Rule with_seed(std::uint64_t seed) {
  Rule rule{.seed = seed};
  if constexpr (requires { rule.radius; }) rule.radius = 3;   // a ball wide enough for corrections
  return rule;
}

template <class Rule>
class EveryRule : public testing::Test {};
using rules = testing::Types<verify::token, verify::block, verify::k_seq, verify::match, verify::typical, verify::saki>;
TYPED_TEST_SUITE(EveryRule, rules);

TYPED_TEST(EveryRule, DoesNotAllocateAfterTheFirstCall) {
  std::vector<fixture> inputs;
  for (unsigned seed = 0; seed < 8; ++seed) inputs.emplace_back(seed);
  verify_workspace memory(vocabulary);
  inputs[0].decide(with_seed<TypeParam>(0), memory);
  const std::int64_t before = allocations.count;
  int accepted = 0, rejected = 0;
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    const auto v = inputs[seed % 8].decide(with_seed<TypeParam>(seed), memory);
    accepted += v.accepted, rejected += v.accepted < drafts;
  }
  EXPECT_EQ(allocations.count, before);
  EXPECT_TRUE(accepted > 0 && rejected > 0);

  // the batched call: three requests, one of them without drafts
  const fixture& f = inputs[1];
  const std::vector<std::int64_t> positions = {2, 2, 2};
  ids drafted(3 * drafts, -1), out(3 * (drafts + 1)), counts(3);
  std::vector<float> logits;
  for (std::size_t r = 0; r < 3; ++r) {
    logits.insert(logits.end(), f.logits.begin(), f.logits.end());
    for (std::size_t i = 0; i < 2 * r; ++i) drafted[r * drafts + i] = f.tokens[i + 1];
  }
  std::vector<float> laws(3 * (drafts + 1) * vocabulary, 1.f);
  const TypeParam rule[] = {{.seed = 4}};
  const sampling::chain<sampling::parameters> chains[] = {sampling::chain{sampling::parameters{}}};
  std::vector<verify_workspace> memories;
  memories.emplace_back(vocabulary);
  const auto batch = [&] {
    verify_batch(std::span<const TypeParam>(rule), tensor_view<const std::int32_t, 2>{drafted.data(), extents{3, drafts}}, tensor_view<const float, 3>{laws.data(), extents{3, drafts + 1, vocabulary}}, tensor_view<const float, 3>{logits.data(), extents{3, drafts + 1, vocabulary}},
                 std::span<const sampling::chain<sampling::parameters>>(chains), tensor_view<std::int32_t, 2>{out.data(), extents{3, drafts + 1}}, tensor_view<std::int32_t, 1>{counts.data(), extents{3}}, {.positions = positions, .memory = memories});
  };
  batch();
  EXPECT_EQ(allocations_of(batch), 0);
}

TYPED_TEST(EveryRule, NumbersAddUp) {
  verify_workspace memory(vocabulary);
  for (unsigned seed = 0; seed < 300; ++seed) {
    const fixture f(seed);
    const auto v = f.decide(with_seed<TypeParam>(seed), memory);
    ASSERT_EQ(v.status, status::ok);
    ASSERT_EQ(v.residual_fallback, 0);
    ASSERT_EQ(v.path.size(), static_cast<std::size_t>(v.accepted));
    ASSERT_EQ(v.tokens.size(), v.path.size() + 1);
    for (std::size_t i = 0; i < v.path.size(); ++i) {
      ASSERT_EQ(v.path[i], static_cast<std::int32_t>(i) + 1);
      ASSERT_EQ(v.tokens[i], f.tokens[i + 1]);
    }
    ASSERT_TRUE(v.tokens.back() >= 0 && v.tokens.back() < vocabulary);
  }
}

// Bad values give their status and no token; whatever was wrong, the next call in the same memory is as in a new one.
TYPED_TEST(EveryRule, BadInputLeavesNothingBehind) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const fixture good(3);
  verify_workspace memory(vocabulary), fresh(vocabulary);
  const TypeParam rule = with_seed<TypeParam>(11);
  const auto expected = good.decide(rule, fresh);
  const ids tokens(expected.tokens.begin(), expected.tokens.end());
  const auto still_works = [&] {
    const auto v = good.decide(rule, memory);
    EXPECT_EQ(ids(v.tokens.begin(), v.tokens.end()), tokens);
  };
  for (const auto& [value, what] : {std::pair{std::numeric_limits<float>::quiet_NaN(), status::nan_logit}, {infinity, status::inf_logit}, {-infinity, status::empty_support}}) {
    fixture bad = good;
    for (std::int64_t v = 0; v < (what == status::empty_support ? vocabulary : 1); ++v) bad.logits[static_cast<std::size_t>(v)] = value;
    const auto v = bad.decide(rule, memory);
    EXPECT_EQ(v.status, what);
    EXPECT_TRUE(v.tokens.empty() && v.path.empty() && v.accepted == 0);
    still_works();
  }
  const auto fails = [&](const fixture& bad) {
    EXPECT_THROW(bad.decide(rule, memory), error);
    still_works();
  };
  fixture bad = good;
  bad.parents[2] = 2, fails(bad);
  bad = good, bad.parents[0] = 0, fails(bad);
  bad = good, bad.tokens[4] = vocabulary, fails(bad);
  bad = good, bad.tokens[4] = -1, fails(bad);
  bad = good, bad.context.back() = 4, fails(bad);
  bad = good, bad.parents.pop_back(), fails(bad);
  if constexpr (requires { rule.mode; }) {
    bad = good, bad.rows[1] = 99, fails(bad);
    bad = good, bad.rows.pop_back(), fails(bad);
    bad = good, bad.probabilities[0] = -1.f, fails(bad);
    bad = good, bad.probabilities[0] = std::numeric_limits<float>::quiet_NaN(), fails(bad);
    bad = good, bad.listed[0] = vocabulary, fails(bad);
    bad = good, bad.indptr[1] = bad.indptr[2] + 1, fails(bad);
    bad = good, bad.probabilities.pop_back(), fails(bad);
    bad = good;
    for (std::size_t i = 0; i < static_cast<std::size_t>(bad.indptr[1]); ++i) bad.probabilities[i] = bad.listed[i] == bad.tokens[1] ? 0.f : bad.probabilities[i];
    fails(bad);   // its own law excludes the draft
  }
}

}  // namespace
