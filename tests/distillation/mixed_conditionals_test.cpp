// Tokens against the plain sampler and the mixture law; targets of a toy model that knows a fact only when told.
#include <heddle/distillation/mixed_conditionals.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using distillation::mix_conditionals;
using distillation::mixture_options;
using ids = std::vector<std::int32_t>;
using row = tensor_view<const float, 1>;

constexpr std::int64_t vocabulary = 12;

/// Logits are a function of the prefix's last tokens and the model.
class toy_model {
 public:
  explicit toy_model(unsigned seed, float sharpness = 1.f) : seed_(seed), sharpness_(sharpness) {}
  row operator()(std::span<const std::int32_t> prefix) {
    std::mt19937 random(seed_ + 100u * static_cast<unsigned>(prefix.size()) + (prefix.empty() ? 0u : static_cast<unsigned>(prefix.back())));
    for (float& z : logits_) z = sharpness_ * std::normal_distribution<float>(0.f, 2.f)(random);
    ++calls;
    return {logits_.data(), extents{vocabulary}};
  }
  int calls = 0;

 private:
  unsigned seed_;
  float sharpness_;
  std::vector<float> logits_ = std::vector<float>(vocabulary);
};

template <class Model, class Chain>
ids plain(Model model, const Chain& policy, random_key key, std::size_t length) {
  sampling::row_workspace memory(vocabulary);
  ids tokens;
  for (; tokens.size() < length; ++key.position) tokens.push_back(sampling::sample_row(model(tokens), policy, {{}, tokens}, key, memory).token);
  return tokens;
}

const auto anything = [](std::span<const std::int32_t>) { return true; };

template <class... Stage>
auto mixed(const sampling::chain<Stage...>& policy, random_key key, const mixture_options& options, toy_model naive = toy_model(1), toy_model expert = toy_model(2)) {
  sampling::row_workspace memory(vocabulary);
  return mix_conditionals(naive, expert, policy, key, anything, memory, options);
}

TEST(MixedConditionals, SharesZeroAndOneAreOneConditionalBitForBit) {
  for (const sampling::parameters& p : {sampling::parameters{.temperature = 0}, {.temperature = 0.8f, .top_k = 5}, {.top_p = 0.9f, .repetition_penalty = 1.3f}}) {
    const sampling::chain policy{p};
    const random_key key{.seed = 4, .request = 2, .position = 17};
    const auto naive = mixed(policy, key, {.naive_share = 1, .max_tokens = 40}), expert = mixed(policy, key, {.naive_share = 0, .max_tokens = 40});
    EXPECT_EQ(ids(naive.tokens.begin(), naive.tokens.end()), plain(toy_model(1), policy, key, 40));
    EXPECT_EQ(ids(expert.tokens.begin(), expert.tokens.end()), plain(toy_model(2), policy, key, 40));
    EXPECT_TRUE(naive.accepted && expert.accepted);
    EXPECT_EQ(naive.attempts, 1);
  }
}

TEST(MixedConditionals, OnlyTheChosenConditionalIsAsked) {
  toy_model naive(1), expert(2);
  sampling::row_workspace memory(vocabulary);
  const auto target = mix_conditionals(naive, expert, sampling::chain{sampling::temperature(1.f)}, {.seed = 1}, anything, memory, {.naive_share = 0.4, .max_tokens = 200});
  const auto from_naive = std::count(target.from_naive.begin(), target.from_naive.end(), 1);
  EXPECT_EQ(naive.calls, from_naive);
  EXPECT_EQ(expert.calls, 200 - from_naive);
  EXPECT_NEAR(static_cast<double>(from_naive), 80, 5 * std::sqrt(200 * 0.4 * 0.6));
}

TEST(MixedConditionals, StepsFollowTheMixtureLaw) {
  const sampling::chain policy{sampling::temperature(0.9f), sampling::top_k(8)};
  sampling::row_workspace memory(vocabulary);
  double probability[2][vocabulary] = {};
  for (unsigned model = 0; model < 2; ++model) {
    toy_model toy(model + 1);
    const auto law = sampling::law_of(toy({}), policy, {}, {}, memory);
    for (std::size_t i = 0; i < law.tokens.size(); ++i) probability[model][law.tokens[i]] = law.probability(i);
  }
  constexpr int draws = 30000;
  for (const double share : {0.3, 0.5}) {
    double count[vocabulary] = {}, chi_square = 0;
    for (std::uint32_t i = 0; i < draws; ++i) ++count[mixed(policy, {.seed = 9, .request = i}, {.naive_share = share, .max_tokens = 1}).tokens[0]];
    int cells = 0;
    for (int v = 0; v < vocabulary; ++v) {
      const double expected = draws * (share * probability[0][v] + (1 - share) * probability[1][v]);
      if (expected == 0) EXPECT_EQ(count[v], 0);
      else chi_square += (count[v] - expected) * (count[v] - expected) / expected, ++cells;
    }
    EXPECT_LT(chi_square, cells + 5 * std::sqrt(2. * cells)) << share;
  }
}

TEST(MixedConditionals, EndTokensAndSeeds) {
  const sampling::chain policy{sampling::temperature(1.f)};
  const ids end_tokens = {3, 5};
  const mixture_options options{.naive_share = 0.4, .max_tokens = 100, .end_tokens = end_tokens};
  const auto target = mixed(policy, {.seed = 3}, options), again = mixed(policy, {.seed = 3}, options), other = mixed(policy, {.seed = 4}, options);
  EXPECT_EQ(target.tokens, again.tokens);
  EXPECT_EQ(target.from_naive, again.from_naive);
  EXPECT_NE(target.tokens, other.tokens);
  for (std::size_t i = 0; i < target.tokens.size(); ++i) EXPECT_EQ(target.tokens[i] == 3 || target.tokens[i] == 5, i + 1 == target.tokens.size());
}

TEST(MixedConditionals, RefusedTargetsAreWrittenAgain) {
  const sampling::chain policy{sampling::temperature(1.f)};
  toy_model naive(1), expert(2);
  sampling::row_workspace memory(vocabulary);
  std::vector<ids> seen;
  const auto accept_third = [&](std::span<const std::int32_t> tokens) { return seen.emplace_back(tokens.begin(), tokens.end()), seen.size() == 3; };
  auto target = mix_conditionals(naive, expert, policy, {.seed = 6}, accept_third, memory, {.max_tokens = 30, .attempts = 5});
  EXPECT_TRUE(target.accepted);
  EXPECT_EQ(target.attempts, 3);
  EXPECT_EQ(ids(target.tokens.begin(), target.tokens.end()), seen[2]);
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[1], seen[2]);
  seen.clear();
  target = mix_conditionals(naive, expert, policy, {.seed = 6}, accept_third, memory, {.max_tokens = 30, .attempts = 2});
  EXPECT_FALSE(target.accepted);
  EXPECT_EQ(target.attempts, 2);
}

// A base model that gives the fact little mass, and the same model with the fact in view.
TEST(MixedConditionals, TargetsAreTheMoreLikelyUnderTheBaseModelTheLargerItsShare) {
  const auto with_fact = [](float strength) {
    return [strength, base = toy_model(1), logits = std::vector<float>(vocabulary)](std::span<const std::int32_t> prefix) mutable {
      const row z = base(prefix);
      for (std::int64_t v = 0; v < vocabulary; ++v) logits[static_cast<std::size_t>(v)] = z(v) + (v % 4 == 1 ? strength : 0.f);
      return row{logits.data(), extents{vocabulary}};
    };
  };
  const sampling::chain policy{sampling::temperature(1.f)};
  sampling::row_workspace memory(vocabulary);
  double before = -1;
  for (const double share : {1., 0.7, 0.4, 0.}) {
    double nll = 0;
    std::int64_t tokens = 0;
    for (std::uint32_t item = 0; item < 200; ++item) {
      auto naive = with_fact(0), expert = with_fact(6);
      const auto target = mix_conditionals(naive, expert, policy, {.seed = 1, .request = item}, anything, memory, {.naive_share = share, .max_tokens = 20});
      for (std::size_t i = 0; i < target.tokens.size(); ++i, ++tokens) nll -= sampling::log_prob(naive(std::span(target.tokens).first(i)), target.tokens[i]);
    }
    EXPECT_GT(nll / static_cast<double>(tokens), before + 0.1) << share;
    before = nll / static_cast<double>(tokens);
  }
}

TEST(MixedConditionals, BadInput) {
  const sampling::chain policy{sampling::temperature(1.f)};
  for (const mixture_options& bad : {mixture_options{.naive_share = -0.1}, {.naive_share = 1.1}, {.naive_share = std::nan("")}, {.max_tokens = 0}, {.attempts = 0}}) EXPECT_THROW(mixed(policy, {}, bad), error);
  sampling::row_workspace memory(vocabulary);
  std::vector<float> logits(vocabulary);
  logits[3] = NAN;
  auto bad_model = [&](std::span<const std::int32_t> prefix) {
    static const std::vector<float> good(vocabulary);
    return prefix.size() < 2 ? row{good.data(), extents{vocabulary}} : row{logits.data(), extents{vocabulary}};
  };
  const auto target = mix_conditionals(bad_model, bad_model, policy, {}, anything, memory);
  EXPECT_EQ(target.status, status::nan_logit);
  EXPECT_TRUE(target.tokens.empty());
  EXPECT_FALSE(target.accepted);
}

}  // namespace
