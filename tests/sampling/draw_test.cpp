// What is drawn: the keyed rules by brute force, token for token, and their laws by counting.
#include <heddle/sampling/row.hpp>

#include "support/reference/sampling.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace {

using namespace heddle;

tensor_view<const float, 1> view(const std::vector<float>& z) { return {z.data(), extents{static_cast<std::int64_t>(z.size())}}; }

const sampling::parameters policies[] = {
    {},
    {.temperature = 0.7f, .top_k = 40},
    {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f},
    {.temperature = 1.2f, .top_p = 0.95f},
    {.temperature = 1.f, .top_p = 0.6f, .min_p = 0.01f},
    {.temperature = 1.5f, .min_p = 0.05f},
    {.temperature = 1.f, .typical_p = 0.5f},
    {.temperature = 20.f},
    {.temperature = 0.02f},
};

std::vector<float> some_row(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> z(n);
  for (float& x : z) x = std::normal_distribution<float>(0.f, 2.f)(random);
  for (int i = 0; i < 5; ++i) z[random() % n] += 4.f;
  return z;
}

// Known fault kinds of filters and shortcuts: whatever is skipped, the token is the argmax over the kept set.
TEST(Draw, GumbelIsTheArgmaxOfPerturbedLogitsOverTheKeptSet) {
  for (const std::size_t n : {1u, 3u, 30u, 700u, 6000u})
    for (const auto& p : policies) {
      const auto z = some_row(n, static_cast<unsigned>(n));
      const sampling::chain policy{p};
      sampling::row_workspace memory(static_cast<std::int64_t>(n));
      const auto kept = reference::law_of(z, {.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .typical_p = p.typical_p, .top_k = p.top_k}).tokens;
      for (std::uint32_t position = 0; position < 60; ++position) {
        random_key key{.seed = 0x123456789abull, .request = 3, .position = position};
        std::int32_t best = -1;
        double best_score = 0;
        for (const std::int32_t v : kept) {
          key.index = static_cast<std::uint32_t>(v);
          const double score = double{z[static_cast<std::size_t>(v)]} / double{p.temperature} - std::log(-std::log((random_bits(key) + 0.5) / 4294967296.));
          if (best < 0 || score > best_score) best = v, best_score = score;
        }
        const auto next = sampling::sample_row(view(z), policy, {}, key, memory);
        ASSERT_EQ(next.token, best) << "n " << n << " policy " << (&p - policies) << " position " << position;
      }
    }
}

TEST(Draw, InverseCdfIsTheFirstTokenBeyondTheTarget) {
  for (const std::size_t n : {1u, 3u, 30u, 700u, 6000u})
    for (const auto& p : policies) {
      const auto z = some_row(n, 1 + static_cast<unsigned>(n));
      const sampling::chain policy{p};
      sampling::row_workspace memory(static_cast<std::int64_t>(n));
      const auto law = reference::law_of(z, {.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .typical_p = p.typical_p, .top_k = p.top_k});
      for (std::uint32_t position = 0; position < 60; ++position) {
        const random_key key{.seed = 5, .position = position};
        const double u = (random_bits(key) + 0.5) / 4294967296.;
        std::size_t i = 0;
        double sum = law.probabilities[0];
        while (sum <= u && i + 1 < law.tokens.size()) sum += law.probabilities[++i];
        const auto next = sampling::sample_row(view(z), policy, {}, key, memory, sampling::draw::inverse_cdf);
        if (std::abs(sum - u) < 1e-10 || std::abs(sum - law.probabilities[i] - u) < 1e-10) continue;  // the reference's rounding
        ASSERT_EQ(next.token, law.tokens[i]) << "n " << n << " policy " << (&p - policies) << " position " << position;
      }
    }
}

TEST(Draw, FrequenciesFollowTheLaw) {
  constexpr int draws = 100000;
  const auto z = some_row(24, 9);
  for (const auto how : {sampling::draw::gumbel, sampling::draw::inverse_cdf})
    for (const auto& p : policies) {
      const sampling::chain policy{p};
      sampling::row_workspace memory(24);
      const auto law = reference::law_of(z, {.temperature = p.temperature, .top_p = p.top_p, .min_p = p.min_p, .typical_p = p.typical_p, .top_k = p.top_k});
      std::vector<int> counts(24);
      for (std::uint32_t i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sampling::sample_row(view(z), policy, {}, {.seed = 11, .position = i}, memory, how).token)];
      double chi2 = 0, rest = draws, rest_expected = draws;
      int cells = 0;
      for (std::size_t i = 0; i < law.tokens.size(); ++i) {
        const double expected = draws * law.probabilities[i], count = counts[static_cast<std::size_t>(law.tokens[i])];
        if (expected < 5) continue;
        chi2 += (count - expected) * (count - expected) / expected, rest -= count, rest_expected -= expected, ++cells;
      }
      if (rest_expected >= 5) chi2 += (rest - rest_expected) * (rest - rest_expected) / rest_expected, ++cells;
      const double freedom = cells - 1;
      // a chi-squared variable exceeds f + 5.3 sqrt(2 f) + 19 with a probability below 1e-6 (Laurent and Massart 2000: f + 2 sqrt(f x) + 2 x, x = 13.8)
      EXPECT_LT(chi2, freedom + 2 * std::sqrt(freedom * 13.8) + 27.6) << "policy " << (&p - policies);
    }
}

TEST(Draw, TokensDependOnTheKeyAndNothingElse) {
  const auto z = some_row(3000, 2);
  sampling::row_workspace memory(3000), other(3000);
  const sampling::chain policy{policies[3]};
  int differ = 0;
  for (std::uint32_t position = 0; position < 100; ++position) {
    const auto draw = [&](const random_key& key, sampling::row_workspace& m) { return sampling::sample_row(view(z), policy, {}, key, m).token; };
    const random_key key{.seed = 1, .request = 2, .position = position};
    const auto token = draw(key, memory);
    EXPECT_EQ(token, draw(key, other));
    differ += token != draw({.seed = 2, .request = 2, .position = position}, memory);
    differ += token != draw({.seed = 1, .request = 3, .position = position}, memory);
  }
  EXPECT_GT(differ, 150);
}

TEST(Draw, XtcRemovesAllTopChoicesButTheLeastProbable) {
  const std::vector<float> z = {std::log(.3f), std::log(.3f), std::log(.2f), std::log(.15f), std::log(.05f)};
  const auto kept = [&](const sampling::parameters& p, std::uint32_t position) {
    sampling::row_workspace memory(5);
    const auto law = sampling::law_of(view(z), sampling::chain{p}, {}, {.seed = 1, .position = position}, memory);
    return std::vector<std::int32_t>(law.tokens.begin(), law.tokens.end());
  };
  using ids = std::vector<std::int32_t>;
  EXPECT_EQ(kept({.xtc_probability = 1.f, .xtc_threshold = .18f}, 0), (ids{2, 3, 4}));
  EXPECT_EQ(kept({.xtc_probability = 1.f, .xtc_threshold = .25f}, 0), (ids{1, 2, 3, 4}));  // of equal ones the last stays
  EXPECT_EQ(kept({.xtc_probability = 1.f, .xtc_threshold = .4f}, 0), (ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept({.xtc_probability = 1.f, .xtc_threshold = .6f}, 0), (ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept({.top_k = 3, .xtc_probability = 1.f, .xtc_threshold = .18f}, 0), ids{2});  // after the other truncations
  const std::vector<float> peaked = {0.f, -1e4f, 5.f, -1e4f};   // a token of probability 0 is no top choice, even at threshold 0
  sampling::row_workspace memory(4);
  const sampling::chain all{sampling::parameters{.xtc_probability = 1.f, .xtc_threshold = 0.f}};
  for (const auto how : {sampling::draw::gumbel, sampling::draw::inverse_cdf}) EXPECT_EQ(sampling::sample_row(view(peaked), all, {}, {.seed = 1}, memory, how).token, 0);
  int removed = 0;
  for (std::uint32_t i = 0; i < 4000; ++i) removed += kept({.xtc_probability = .25f, .xtc_threshold = .18f}, i).size() == 3;
  EXPECT_NEAR(removed, 1000, 5 * std::sqrt(4000 * .25 * .75));
}

}  // namespace
