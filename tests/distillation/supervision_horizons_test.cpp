// Weights against the recursion as the paper's formula has it, and its laws.
#include <heddle/distillation/supervision_horizons.hpp>

#include <heddle/distillation/loss.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle::distillation;
using numbers = std::vector<double>;

// Sum over j of D_j times the product of the gates before it, for each t from the start.
numbers defined_averages(const numbers& d, double mean, double deviation, const horizon_options& o) {
  const auto gate = [&](std::size_t t) { return 1 / (1 + std::exp(-o.kappa * (d[t] - mean) / (deviation + o.epsilon))); };
  numbers a;
  for (std::size_t t = 0; t < d.size(); ++t) {
    double n = 0, m = 0, product = 1;
    for (std::size_t j = t; j < d.size() && (o.horizon == 0 || j < t + static_cast<std::size_t>(o.horizon)); ++j) {
      n += product * d[j], m += product;
      product *= o.gamma * gate(j);
    }
    a.push_back(n / m);
  }
  return a;
}

numbers defined_weights(const numbers& d, const horizon_options& o) {
  const double n = static_cast<double>(d.size()), mean = std::accumulate(d.begin(), d.end(), 0.) / n;
  double variance = 0;
  for (const double x : d) variance += (x - mean) * (x - mean) / n;
  numbers w = defined_averages(d, mean, std::sqrt(variance), o);
  const double mean_average = std::accumulate(w.begin(), w.end(), 0.) / n;
  for (double& x : w) x = mean_average > 0 ? 1 + o.strength * (x / mean_average - 1) : 1;
  return w;
}

numbers random_divergences(std::mt19937& random, std::size_t n) {
  numbers d(n);
  for (double& x : d) x = random() % 5 ? std::exponential_distribution<double>(1)(random) : 0;
  return d;
}

numbers weights_of(const numbers& d, const horizon_options& o) {
  numbers w(d.size());
  horizon_weights(d, w, o);
  return w;
}

constexpr horizon_options variants[] = {{}, {.kappa = -2, .gamma = 1}, {.kappa = 3, .gamma = 0.7, .strength = 0.4}, {.horizon = 1}, {.gamma = 1, .horizon = 3}, {.horizon = 16}, {.kappa = 0, .horizon = 1000}, {.kappa = 500, .gamma = 1, .horizon = 5}};

TEST(SupervisionHorizons, EqualTheDefinition) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial)
    for (const auto& options : variants) {
      const auto d = random_divergences(random, 1 + random() % 70);
      const auto w = weights_of(d, options), expected = defined_weights(d, options);
      for (std::size_t t = 0; t < d.size(); ++t) ASSERT_NEAR(w[t], expected[t], 1e-12) << t << " of " << d.size() << " horizon " << options.horizon;
    }
}

TEST(SupervisionHorizons, InPlace) {
  std::mt19937 random(2);
  auto d = random_divergences(random, 40);
  const auto w = weights_of(d, {.horizon = 6});
  horizon_weights(d, d, {.horizon = 6});
  EXPECT_EQ(d, w);
}

TEST(SupervisionHorizons, Laws) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial)
    for (const auto& options : variants) {
      const auto d = random_divergences(random, 2 + random() % 50);
      const double n = static_cast<double>(d.size());
      const auto w = weights_of(d, options);
      EXPECT_NEAR(std::accumulate(w.begin(), w.end(), 0.) / n, 1, 1e-12);
      EXPECT_GE(*std::min_element(w.begin(), w.end()), 0);

      const gap_statistics frozen{.mean = 0.8, .deviation = 0.9};
      numbers a(d.size()), b(d.size());
      horizon_averages(d, a, frozen, options);
      for (std::size_t t = 0; t < d.size(); ++t) {
        const auto from = d.begin() + static_cast<std::ptrdiff_t>(t);
        ASSERT_GE(a[t], *std::min_element(from, d.end()) - 1e-12);
        ASSERT_LE(a[t], *std::max_element(from, d.end()) + 1e-12);
      }
      // A token tells only those before it.
      const std::size_t changed = random() % d.size();
      numbers other = d;
      other[changed] += 1;
      horizon_averages(other, b, frozen, options);
      EXPECT_NE(a[changed], b[changed]);
      for (std::size_t j = changed + 1; j < d.size(); ++j) ASSERT_EQ(a[j], b[j]);
      // Scale.
      auto exact = options;
      exact.epsilon = 0;
      numbers scaled = d;
      for (double& x : scaled) x *= 8;
      const auto v = weights_of(d, exact), u = weights_of(scaled, exact);
      for (std::size_t t = 0; t < d.size(); ++t) ASSERT_NEAR(v[t], u[t], 1e-12);
    }
}

TEST(SupervisionHorizons, SpecialCases) {
  std::mt19937 random(4);
  const auto d = random_divergences(random, 30);
  const numbers ones(30, 1.);
  EXPECT_EQ(weights_of(d, {.strength = 0}), ones);
  for (const double constant : {0., 0.25}) EXPECT_EQ(weights_of(numbers(30, constant), {.gamma = 0.5}), ones) << constant;
  EXPECT_EQ(weights_of({3.}, {}), numbers{1.});
  EXPECT_EQ(weights_of({}, {}), numbers{});
  numbers a(30);
  horizon_averages(d, a, {.mean = 1, .deviation = 1}, {.gamma = 0});
  EXPECT_EQ(a, d);
}

// The same divergence weighs differently behind different continuations, and only through them: a pointwise rule (gamma = 0) cannot tell.
TEST(SupervisionHorizons, WeightsDifferFromPointwiseOnesThroughWhatFollows) {
  const numbers d = {1, 3, 1, 0, 1, 3, 1, 0};
  const auto pointwise = weights_of(d, {.gamma = 0}), w = weights_of(d, {.gamma = 0.9});
  EXPECT_EQ(pointwise[0], pointwise[2]);
  EXPECT_GT(w[0], w[2] + 0.1);  // 3 follows, against 0
}

TEST(SupervisionHorizons, MasksAndRaggedBatches) {
  std::mt19937 random(5);
  const std::vector<std::int32_t> indptr = {0, 7, 7, 8, 40};
  auto d = random_divergences(random, 40);
  std::vector<std::uint8_t> mask(40);
  for (std::size_t t = 0; t < 40; ++t)
    if (!(mask[t] = random() % 3 > 0)) d[t] = std::numeric_limits<double>::quiet_NaN();
  for (const auto& variant : variants) {
    auto options = variant;
    options.mask = mask, options.indptr = indptr;
    const auto w = weights_of(d, options);
    for (std::size_t s = 0; s + 1 < indptr.size(); ++s) {
      numbers alone;
      for (auto t = static_cast<std::size_t>(indptr[s]); t < static_cast<std::size_t>(indptr[s + 1]); ++t)
        if (mask[t]) alone.push_back(d[t]);
      const auto expected = defined_weights(alone, variant);
      std::size_t next = 0;
      for (auto t = static_cast<std::size_t>(indptr[s]); t < static_cast<std::size_t>(indptr[s + 1]); ++t) {
        if (mask[t]) EXPECT_NEAR(w[t], expected[next++], 1e-12);
        else EXPECT_EQ(w[t], 0);
      }
    }
  }
}

// The divergences of the loss itself are reused: no further pass over student or teacher. lambda = 0 is the loss without weights.
template <class T>
void weights_of_the_loss() {
  std::mt19937 random(6);
  auto [z, exact] = test::same_numbers<T>(test::gaussian<double>(10, 17, random));
  auto [y, exact_teacher] = test::same_numbers<T>(test::gaussian<double>(10, 17, random));
  const std::vector<std::uint8_t> mask = {1, 1, 0, 1, 1, 1, 0, 1, 1, 1};
  const auto rows = per_row(reverse_kl{}, {.mask = mask}, z.view(), y.view());
  numbers w(10);
  test::array<T> weighted(10, 17), plain(10, 17);
  const auto vanilla = loss(z.view(), y.view(), reverse_kl{}, plain.view(), {.mask = mask});
  for (const double strength : {0., 0.8}) {
    horizon_weights(rows.values(), w, {.strength = strength, .mask = mask});
    const auto result = reduce(rows, {.weights = w}, weighted.view());
    double expected = 0;
    for (std::size_t r = 0; r < 10; ++r)
      if (mask[r]) expected += w[r] * test::kl(test::softmax(exact, static_cast<std::int64_t>(r)), test::softmax(exact_teacher, static_cast<std::int64_t>(r))) / 8;
    EXPECT_NEAR(result.value, expected, 1e-5);
    for (std::int64_t r = 0; r < 10; ++r)
      for (std::int64_t v = 0; v < 17; ++v) EXPECT_NEAR(weighted(r, v), w[static_cast<std::size_t>(r)] * static_cast<double>(plain(r, v)), 1e-6);
    if (strength == 0) { EXPECT_EQ(result.value, vanilla.value); }
  }
}
TEST(SupervisionHorizons, WeightsOfALossInFloat) { weights_of_the_loss<float>(); }
TEST(SupervisionHorizons, WeightsOfALossInDouble) { weights_of_the_loss<double>(); }

TEST(SupervisionHorizons, BadInputWritesNothing) {
  numbers d = {1, 2}, w = {7, 7};
  for (const horizon_options& o : {horizon_options{.gamma = 1.5}, {.gamma = -0.1}, {.gamma = std::nan("")}, {.strength = 1.01}, {.strength = -1}, {.epsilon = -1}, {.horizon = -1}, {.kappa = INFINITY}})
    EXPECT_THROW(horizon_weights(d, w, o), heddle::error);
  for (const double bad : {-0.5, std::nan(""), static_cast<double>(INFINITY)}) {
    d[1] = bad;
    EXPECT_NE(message_of([&] { horizon_weights(d, w); }).find("row 1"), std::string::npos);
  }
  d[1] = 2;
  numbers longer(3);
  EXPECT_THROW(horizon_weights(d, longer), heddle::error);
  const std::vector<std::uint8_t> mask(3);
  EXPECT_THROW(horizon_weights(d, w, {.mask = mask}), heddle::error);
  for (const std::vector<std::int32_t>& indptr : {std::vector<std::int32_t>{0, 1}, {1, 2}, {0, 3, 2}}) EXPECT_THROW(horizon_weights(d, w, {.indptr = indptr}), heddle::error);
  EXPECT_EQ(w, (numbers{7, 7}));
}

}  // namespace
