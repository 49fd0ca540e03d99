// The laws of both forms: counts by chi-square against the beta-binomial law, the Beta law against its distribution function.
#include <heddle/distillation/span_dropout.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using distillation::span_dropout;
using mask = std::vector<std::uint8_t>;

mask dropped(std::size_t spans, const span_dropout& options, random_key key = {.seed = 1}) {
  mask keep(spans, 9);
  const auto kept = distillation::drop_spans(keep, key, options);
  EXPECT_EQ(kept, std::count(keep.begin(), keep.end(), 1));
  EXPECT_EQ(spans, static_cast<std::size_t>(std::count(keep.begin(), keep.end(), 0) + kept));
  return keep;
}

double log_beta(double a, double b) { return std::lgamma(a) + std::lgamma(b) - std::lgamma(a + b); }

struct law {
  double rate, concentration;
};
constexpr law laws[] = {{0.3, 0}, {0.1, 1}, {0.5, 0.2}, {0.25, 6}, {0.02, 0.5}};

TEST(SpanDropout, CountsFollowTheirLaw) {
  constexpr int spans = 7, draws = 40000;
  for (const auto& [p, a] : laws) {
    const double b = a * (1 - p) / p;
    const span_dropout options{.rate = p, .concentration = a};
    double count[spans + 1] = {}, sum = 0, squares = 0;
    for (std::uint32_t i = 0; i < draws; ++i) {
      const auto keep = dropped(spans, options, {.seed = 5, .request = i});
      const auto k = static_cast<std::size_t>(std::count(keep.begin(), keep.end(), 0));
      ++count[k], sum += static_cast<double>(k), squares += static_cast<double>(k * k);
    }
    double chi_square = 0;
    int cells = 0;
    for (int k = 0; k <= spans; ++k) {
      const double choose = std::lgamma(spans + 1) - std::lgamma(k + 1) - std::lgamma(spans - k + 1);
      const double probability = std::exp(choose + (a == 0 ? k * std::log(p) + (spans - k) * std::log(1 - p) : log_beta(a + k, b + spans - k) - log_beta(a, b)));
      if (probability * draws < 5) continue;
      chi_square += std::pow(count[k] - draws * probability, 2) / (draws * probability), ++cells;
      if (k == 0) { EXPECT_NEAR(distillation::keep_all_probability(spans, options), probability, 1e-12); }
    }
    EXPECT_LT(chi_square, cells + 5 * std::sqrt(2. * cells)) << p << ' ' << a;
    const double variance = a == 0 ? spans * p * (1 - p) : spans * p * (1 - p) * (a + b + spans) / (a + b + 1);
    EXPECT_NEAR(sum / draws, spans * p, 5 * std::sqrt(variance / draws));
    EXPECT_NEAR(squares / draws - sum * sum / draws / draws, variance, 0.06 * variance);
  }
}

TEST(SpanDropout, BetaKeepsTheWholeSequenceLikelier) {
  for (const double p : {0.01, 0.3, 0.9})
    for (const double a : {0.01, 1., 50.})
      for (const int n : {2, 3, 100}) {
        const double whole = distillation::keep_all_probability(n, {.rate = p, .concentration = a}), bernoulli = std::pow(1 - p, n);
        EXPECT_GT(whole, bernoulli);
        EXPECT_NEAR(distillation::keep_all_probability(n, {.rate = p}), bernoulli, 1e-12);
      }
  EXPECT_NEAR(distillation::keep_all_probability(1, {.rate = 0.3, .concentration = 2}), 0.7, 1e-12);
}

// Two shapes whose distribution functions are elementary: Beta(1/2, 1/2) and Beta(1, 3); and one so small that the Gamma variates underflow.
TEST(SpanDropout, RatesFollowTheBetaLaw) {
  constexpr int draws = 20000;
  const auto largest_gap = [&](const span_dropout& options, auto distribution) {
    std::vector<double> rates(draws);
    for (std::uint32_t i = 0; i < draws; ++i) rates[i] = distillation::draw_rate({.seed = 3, .request = i}, options);
    std::sort(rates.begin(), rates.end());
    double gap = 0;
    for (int i = 0; i < draws; ++i) gap = std::max(gap, std::abs(distribution(rates[static_cast<std::size_t>(i)]) - (i + 0.5) / draws));
    return gap * std::sqrt(draws);
  };
  EXPECT_LT(largest_gap({.rate = 0.5, .concentration = 0.5}, [](double x) { return std::asin(std::sqrt(x)) * 2 / 3.141592653589793; }), 2.2);  // Kolmogorov: exceeded once in 8,000
  EXPECT_LT(largest_gap({.rate = 0.25, .concentration = 1}, [](double x) { return 1 - std::pow(1 - x, 3); }), 2.2);
  for (const double smallest : {1e-4, 1e-310}) {
    double sum = 0;
    for (std::uint32_t i = 0; i < draws; ++i) {
      const double rate = distillation::draw_rate({.seed = 4, .request = i}, {.rate = 0.2, .concentration = smallest});
      ASSERT_TRUE(rate >= 0 && rate <= 1);
      sum += rate;
    }
    EXPECT_NEAR(sum / draws, 0.2, 5 * 0.4 / std::sqrt(draws)) << smallest;
  }
}

TEST(SpanDropout, ALargeConcentrationIsBernoulli) {
  int different = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const random_key key{.seed = 2, .request = i};
    const auto bernoulli = dropped(20, {.rate = 0.3}, key);
    EXPECT_EQ(dropped(20, {.rate = 0.3, .concentration = INFINITY}, key), bernoulli);
    const auto close = dropped(20, {.rate = 0.3, .concentration = 1e10}, key);
    for (std::size_t s = 0; s < 20; ++s) different += close[s] != bernoulli[s];
  }
  EXPECT_LE(different, 1);
}

TEST(SpanDropout, EndsProtectionAndSeeds) {
  for (const double a : {0., 0.7}) {
    EXPECT_EQ(dropped(50, {.rate = 0, .concentration = a}), mask(50, 1));
    EXPECT_EQ(dropped(50, {.rate = 1, .concentration = a}), mask(50, 0));
    EXPECT_EQ(dropped(0, {.concentration = a}), mask{});
    const span_dropout options{.rate = 0.5, .concentration = a};
    const auto keep = dropped(50, options);
    EXPECT_EQ(dropped(50, options), keep);
    EXPECT_NE(dropped(50, options, {.seed = 2}), keep);
    EXPECT_NE(dropped(50, options, {.seed = 1, .request = 1}), keep);
    auto longer = dropped(60, options);  // a span's fate does not depend on those behind it
    longer.resize(50);
    EXPECT_EQ(longer, keep);
    mask guard(50);
    for (std::size_t s = 0; s < 50; s += 3) guard[s] = 1;
    const auto guarded = dropped(50, {.rate = 0.5, .concentration = a, .protected_spans = guard});
    for (std::size_t s = 0; s < 50; ++s) EXPECT_EQ(guarded[s], guard[s] ? 1 : keep[s]) << s;
    EXPECT_EQ(dropped(3, {.rate = 1, .concentration = a, .protected_spans = mask{0, 1, 0}}), (mask{0, 1, 0}));
  }
}

TEST(SpanDropout, Tokens) {
  mask tokens(7, 9);
  distillation::spans_to_tokens(std::vector<std::int32_t>{0, 3, 3, 4, 7}, mask{1, 0, 0, 1}, tokens);
  EXPECT_EQ(tokens, (mask{1, 1, 1, 0, 1, 1, 1}));
  for (const std::vector<std::int32_t>& boundaries : {std::vector<std::int32_t>{0, 3, 7}, {0, 3, 2, 4, 7}, {0, 3, 3, 4, 8}, {1, 3, 3, 4, 7}})
    EXPECT_THROW(distillation::spans_to_tokens(boundaries, mask{1, 0, 0, 1}, tokens), error);
}

TEST(SpanDropout, BadInput) {
  mask keep(3, 9);
  for (const span_dropout& bad : {span_dropout{.rate = -0.1}, {.rate = 1.1}, {.rate = std::nan("")}, {.concentration = -1}, {.concentration = std::nan("")}}) {
    EXPECT_THROW(distillation::drop_spans(keep, {}, bad), error);
    EXPECT_THROW(distillation::draw_rate({}, bad), error);
    EXPECT_THROW(distillation::keep_all_probability(3, bad), error);
  }
  EXPECT_NE(message_of([&] { distillation::drop_spans(keep, {}, {.protected_spans = mask{1}}); }).find("protected_spans"), std::string::npos);
  EXPECT_THROW(distillation::keep_all_probability(-1, {}), error);
  EXPECT_EQ(keep, mask(3, 9));
}

}  // namespace
