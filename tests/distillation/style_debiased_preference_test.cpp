// The preference loss against its definition in long double and finite differences, balances against their optimality conditions.
#include <heddle/distillation/style_debiased_preference.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using numbers = std::vector<double>;
using signs = std::vector<std::int8_t>;

struct batch {
  numbers chosen, reference_chosen, rejected, reference_rejected;
  explicit batch(std::size_t n, unsigned seed = 1) : chosen(n), reference_chosen(n), rejected(n), reference_rejected(n) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(-40, 15);
    for (auto* list : {&chosen, &reference_chosen, &rejected, &reference_rejected})
      for (double& x : *list) x = noise(random);
  }
  preference_pairs view() const { return {chosen, reference_chosen, rejected, reference_rejected}; }
};

double defined(const batch& b, std::size_t i, double beta, double o, double w) {
  const long double m = beta * ((b.chosen[i] - b.reference_chosen[i]) - (b.rejected[i] - b.reference_rejected[i]));
  return static_cast<double>(w * std::log(1 + std::exp(-o * m)));
}

TEST(StyleDebiasedPreference, EqualsTheDefinition) {
  const std::size_t n = 50;
  batch b(n);
  std::mt19937 random(3);
  signs o(n);
  numbers w(n);
  for (std::size_t i = 0; i < n; ++i) o[i] = random() % 2 ? 1 : -1, w[i] = static_cast<double>(random() % 5) / 2;
  numbers d_chosen(n), d_rejected(n), values(n);
  const preference_options options{.beta = 0.3, .orientation = o, .weights = w};
  const double loss = preference_loss(b.view(), {d_chosen, d_rejected, values}, options);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double expected = defined(b, i, 0.3, o[i], w[i]);
    EXPECT_NEAR(values[i], expected, 1e-12 * (1 + expected));
    sum += expected;
    const double h = 1e-5;
    for (auto [input, gradient] : {std::pair{&b.chosen, &d_chosen}, {&b.rejected, &d_rejected}}) {
      const double x = (*input)[i];
      (*input)[i] = x + h;
      const double up = preference_loss(b.view(), {}, options);
      (*input)[i] = x - h;
      const double down = preference_loss(b.view(), {}, options);
      (*input)[i] = x;
      EXPECT_NEAR((*gradient)[i], (up - down) / (2 * h), 1e-6 * (0.01 + std::abs((*gradient)[i])));
    }
  }
  EXPECT_NEAR(loss, sum, 1e-10 * sum);
}

TEST(StyleDebiasedPreference, WithoutSwapAndBalanceItIsDpo) {
  const batch b(20);
  numbers values(20);
  preference_loss(b.view(), {.values = values}, {.beta = 0.1});
  for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(values[i], -std::log(1 / (1 + std::exp(-0.1 * (b.chosen[i] - b.reference_chosen[i] - b.rejected[i] + b.reference_rejected[i])))), 1e-12);
  // Margins far on either side neither overflow nor lose the small side.
  numbers one(1), d(1);
  const numbers far = {2000.}, zero = {0.};
  EXPECT_EQ(preference_loss({zero, zero, far, zero}, {.chosen = d, .values = one}, {.beta = 1}), 2000);
  EXPECT_EQ(d[0], -1);
  const numbers near = {40.};
  EXPECT_NEAR(preference_loss({near, zero, zero, zero}, {.chosen = d}, {.beta = 1}), std::exp(-40.), 1e-30);
  EXPECT_NEAR(d[0], -std::exp(-40.), 1e-30);
}

TEST(StyleDebiasedPreference, OrientationSwapsAndSwappingTwiceIsIdentity) {
  const numbers factuality = {0, 0.5, 0.51, 1};
  signs o(4);
  EXPECT_EQ(factual_orientation(factuality, 0.5, o), 2);
  EXPECT_EQ(o, (signs{1, 1, -1, -1}));
  const batch b(4);
  batch swapped = b;
  for (std::size_t i = 2; i < 4; ++i) std::swap(swapped.chosen[i], swapped.rejected[i]), std::swap(swapped.reference_chosen[i], swapped.reference_rejected[i]);
  numbers v(4), u(4), dc(4), dr(4), ec(4), er(4);
  preference_loss(b.view(), {dc, dr, v}, {.orientation = o});
  preference_loss(swapped.view(), {ec, er, u}, {});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(v[i], u[i], 1e-14);
    EXPECT_NEAR(dc[i], o[i] > 0 ? ec[i] : er[i], 1e-14);
    EXPECT_NEAR(dr[i], o[i] > 0 ? er[i] : ec[i], 1e-14);
  }
  preference_loss(swapped.view(), {.values = u}, {.orientation = o});  // swapped pairs, swapped once more
  preference_loss(b.view(), {.values = v}, {});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(v[i], u[i], 1e-14);
}

TEST(StyleDebiasedPreference, ScalarStyleCancels) {
  const numbers style = {3, 1, -1, 2, 0.5};
  const signs o = {1, 1, 1, -1, -1};
  numbers w(5);
  const auto balance = style_balance(style, o, w);
  EXPECT_EQ(w, (numbers{1, 1, 1, 1.2, 1.2}));
  EXPECT_NEAR(balance.residual, 0, 1e-15);
  EXPECT_FALSE(balance.clipped);
  // A ratio that is too large, or negative, is clipped and what is left is reported.
  auto clipped = style_balance(numbers{10, 0.5}, signs{1, -1}, std::span(w).first(2), {.max_weight = 4});
  EXPECT_TRUE(clipped.clipped);
  EXPECT_EQ(w[1], 4);
  EXPECT_EQ(clipped.residual, 8);
  clipped = style_balance(numbers{10, -1}, signs{1, -1}, std::span(w).first(2));
  EXPECT_TRUE(clipped.clipped);
  EXPECT_EQ(w[1], 0);
  EXPECT_EQ(clipped.residual, 10);
  // Nothing to balance with.
  clipped = style_balance(numbers{10, -1}, signs{1, 1}, std::span(w).first(2));
  EXPECT_FALSE(clipped.clipped);
  EXPECT_EQ(w[0] + w[1], 2);
  EXPECT_EQ(clipped.residual, 9);
  EXPECT_EQ(style_balance(numbers{}, signs{}, std::span<double>{}).residual, 0);
}

// w minimises a convex function over w >= 0: its derivative is 0 where w > 0 and not negative where w = 0.
TEST(StyleDebiasedPreference, VectorStyleMeetsTheOptimalityConditions) {
  std::mt19937 random(5);
  int zeros = 0;
  for (const double ridge : {1e-3, 0.1, 10.})
    for (const std::int64_t q : {1, 3}) {
      const std::int64_t n = 60;
      std::vector<float> phi(static_cast<std::size_t>(n * q));
      signs o(static_cast<std::size_t>(n));
      for (float& x : phi) x = std::exponential_distribution<float>(1.f)(random);
      for (auto& x : o) x = random() % 6 ? 1 : -1;
      phi[0] = 6, o[0] = 1;  // its weight must become 0
      numbers w(static_cast<std::size_t>(n));
      const auto balance = style_balance(tensor_view{phi.data(), extents{n, q}}, o, w, {.ridge = ridge});
      EXPECT_TRUE(balance.converged) << balance.steps;
      numbers sum(static_cast<std::size_t>(q));
      double unbalanced = 0, norm = 0;
      for (std::int64_t k = 0; k < q; ++k) {
        double at_one = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          const double x = o[static_cast<std::size_t>(i)] * static_cast<double>(phi[static_cast<std::size_t>(i * q + k)]);
          sum[static_cast<std::size_t>(k)] += w[static_cast<std::size_t>(i)] * x, at_one += x;
        }
        unbalanced += at_one * at_one, norm += sum[static_cast<std::size_t>(k)] * sum[static_cast<std::size_t>(k)];
      }
      EXPECT_NEAR(balance.residual, std::sqrt(norm), 1e-9);
      EXPECT_LT(balance.residual, std::sqrt(unbalanced));
      if (ridge == 1e-3) { EXPECT_LT(balance.residual, 1e-2 * std::sqrt(unbalanced)); }
      for (std::int64_t i = 0; i < n; ++i) {
        double derivative = ridge * (w[static_cast<std::size_t>(i)] - 1);
        for (std::int64_t k = 0; k < q; ++k) derivative += sum[static_cast<std::size_t>(k)] * o[static_cast<std::size_t>(i)] * static_cast<double>(phi[static_cast<std::size_t>(i * q + k)]);
        ASSERT_GE(w[static_cast<std::size_t>(i)], 0);
        if (w[static_cast<std::size_t>(i)] > 0) {
          EXPECT_NEAR(derivative, 0, 1e-9);
        } else {
          EXPECT_GE(derivative, -1e-9);
          ++zeros;
        }
      }
    }
  EXPECT_GT(zeros, 0);  // the constraint is tested
}

// Answers that are longer are preferred although length says nothing: after balancing, the gradient on a reward that is length vanishes.
TEST(StyleDebiasedPreference, ARewardForStyleGetsNoGradient) {
  const numbers length = {5, 4, 6, 3, 5, 2, 4};
  const signs o = {1, 1, 1, 1, -1, -1, -1};
  numbers w(7), zero(7), d(7);
  style_balance(length, o, w);
  const auto slope = [&](const preference_options& options) {
    preference_loss({zero, zero, zero, zero}, {.chosen = d}, options);
    double s = 0;
    for (std::size_t i = 0; i < 7; ++i) s += d[i] * length[i];
    return s;
  };
  EXPECT_NEAR(slope({.orientation = o, .weights = w}), 0, 1e-15);
  EXPECT_LT(slope({.orientation = o}), -0.1);
}

// Chosen answers are longer; three of ten are wrong while the rejected one is right. Judged on pairs whose right answer is the shorter one, a linear reward of (length,
// fact) trained with the labels as they are prefers length, with orientation and balance it prefers facts.
TEST(StyleDebiasedPreference, FactsWinOverStyle) {
  std::mt19937 random(9);
  const std::size_t n = 400;
  numbers length(n), fact(n), factuality(n);
  for (std::size_t i = 0; i < n; ++i) {
    length[i] = std::normal_distribution<double>(1.5, 0.5)(random);
    fact[i] = random() % 10 < 3 ? -1 : 1;
    factuality[i] = fact[i] < 0 ? 0.9 : 0.1;
  }
  const auto accuracy = [&](const preference_options& options) {
    double by_length = 0, by_fact = 0;
    numbers reward(n), zero(n), d(n);
    for (int step = 0; step < 300; ++step) {
      for (std::size_t i = 0; i < n; ++i) reward[i] = by_length * length[i] + by_fact * fact[i];
      preference_loss({reward, zero, zero, zero}, {.chosen = d}, options);
      for (std::size_t i = 0; i < n; ++i) by_length -= 0.02 * d[i] * length[i] / 4, by_fact -= 0.02 * d[i] * fact[i] / 4;
    }
    int right = 0;
    std::mt19937 fresh(10);
    for (int i = 0; i < 1000; ++i) right += by_fact - by_length * std::exponential_distribution<double>(1)(fresh) > 0;
    return right / 1000.;
  };
  signs o(n);
  numbers w(n);
  factual_orientation(factuality, 0.5, o);
  EXPECT_NEAR(style_balance(length, o, w).residual, 0, 1e-9);
  EXPECT_GT(accuracy({.beta = 1, .orientation = o, .weights = w}), 0.98);
  EXPECT_LT(accuracy({.beta = 1}), 0.6);
}

TEST(StyleDebiasedPreference, BadInput) {
  batch b(3);
  numbers out(3, 7.), w = {1, -1, 1};
  const signs o = {1, 0, 1};
  EXPECT_THROW(preference_loss(b.view(), {.values = out}, {.beta = 0}), error);
  EXPECT_THROW(preference_loss(b.view(), {.values = out}, {.orientation = o}), error);
  EXPECT_THROW(preference_loss(b.view(), {.values = out}, {.weights = w}), error);
  EXPECT_THROW(preference_loss(b.view(), {.values = std::span(out).first(2)}), error);
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY), static_cast<double>(-INFINITY)}) {
    b.rejected[2] = bad;
    EXPECT_NE(message_of([&] { preference_loss(b.view(), {.values = out}); }).find("pair 2"), std::string::npos);
  }
  signs orientation(2, 5);
  EXPECT_THROW(factual_orientation(numbers{0, 1.5}, 0.5, orientation), error);
  EXPECT_THROW(factual_orientation(numbers{0}, 0.5, orientation), error);
  EXPECT_THROW(factual_orientation(numbers{0, 1}, std::nan(""), orientation), error);
  EXPECT_EQ(orientation, signs(2, 5));
  EXPECT_THROW(style_balance(numbers{1, std::nan(""), 1}, signs{1, 1, 1}, out), error);
  EXPECT_THROW(style_balance(numbers{1, 1, 1}, signs{1, 2, 1}, out), error);
  EXPECT_THROW(style_balance(numbers{1, 1, 1}, signs{1, 1, 1}, out, {.max_weight = -1}), error);
  numbers phi = {1, 2, 3};
  EXPECT_THROW(style_balance(tensor_view{phi.data(), extents{3, 1}}, signs{1, 1, 1}, out, {.ridge = 0}), error);
  EXPECT_EQ(out, numbers(3, 7.));
}

}  // namespace
