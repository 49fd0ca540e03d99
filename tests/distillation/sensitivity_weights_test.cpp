// The weights against their formula, and their bounds.
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/sensitivity_weights.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::infinity;

double distance(const test::log_probs& p, const test::log_probs& q, sensitivity_distance kind) {
  if (kind == sensitivity_distance::total_variation) return test::tv(p, q);
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) {
    const double middle = std::log((std::exp(p[v]) + std::exp(q[v])) / 2);
    sum += (test::weighed(p[v], p[v], middle) + test::weighed(q[v], q[v], middle)) / 2;
  }
  return sum / std::log(2.);
}

template <class T>
class SensitivityWeights : public testing::Test {};
using elements = testing::Types<float, double>;
TYPED_TEST_SUITE(SensitivityWeights, elements);

TYPED_TEST(SensitivityWeights, FollowTheFormulaWithinTheirBounds) {
  using T = TypeParam;
  std::mt19937 random(1);
  const std::int64_t n = 12, width = 29;
  auto clean = test::gaussian<T>(n, width, random), corrupted = test::gaussian<T>(n, width, random), removed = test::gaussian<T>(n, width, random);
  for (std::int64_t v = 0; v < width; ++v) {
    corrupted(2, v) = removed(2, v) = clean(2, v);                                     // nothing changes
    clean(3, v) = v % 2 ? 0 : -static_cast<T>(infinity), removed(3, v) = v % 2 ? -static_cast<T>(infinity) : 0;   // disjoint
    clean(5, v) = std::numeric_limits<T>::quiet_NaN();
    corrupted(6, v) = std::numeric_limits<T>::quiet_NaN();   // masked below
  }
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(n), 1);
  mask[6] = 0;
  const double tolerance = sizeof(T) == 4 ? 2e-6 : 1e-12, kappa = 1.7;
  for (const auto kind : {sensitivity_distance::total_variation, sensitivity_distance::jensen_shannon})
    for (const auto combine : {sensitivity_union::maximum, sensitivity_union::noisy_or}) {
      std::vector<double> raw(static_cast<std::size_t>(n)), weights(static_cast<std::size_t>(n));
      const auto statuses = sensitivity_weights(clean.view(), corrupted.view(), removed.view(), raw, {.kappa = kappa, .distance = kind, .combine = combine, .normalise = false}, {.mask = mask});
      sensitivity_weights(clean.view(), corrupted.view(), removed.view(), weights, {.kappa = kappa, .distance = kind, .combine = combine}, {.mask = mask});
      double mean = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto row = static_cast<std::size_t>(i);
        EXPECT_EQ(statuses[row], i == 5 ? status::nan_logit : status::ok);
        if (i == 5 || i == 6) {
          EXPECT_EQ(raw[row], 0);
          EXPECT_EQ(weights[row], 0);
          continue;
        }
        const auto c = test::log_softmax(test::as<double>(clean), i, 1), x = test::log_softmax(test::as<double>(corrupted), i, 1), r = test::log_softmax(test::as<double>(removed), i, 1);
        const double a = distance(c, r, kind), b = distance(c, x, kind);
        EXPECT_NEAR(raw[row], 1 + kappa * (combine == sensitivity_union::maximum ? std::max(a, b) : 1 - (1 - a) * (1 - b)), tolerance);
        EXPECT_GE(raw[row], 1);
        EXPECT_LE(raw[row], 1 + kappa);
        EXPECT_GE(weights[row], 1 / (1 + kappa) - 1e-12);
        EXPECT_LE(weights[row], 1 + kappa + 1e-12);
        mean += weights[row] / static_cast<double>(n - 2);
      }
      EXPECT_NEAR(mean, 1, 1e-12);
      EXPECT_NEAR(raw[2], 1, tolerance);
      EXPECT_NEAR(raw[3], 1 + kappa, tolerance);
    }
  // three equal contexts everywhere: weight 1
  for (std::int64_t v = 0; v < width; ++v) clean(5, v) = 0;
  std::vector<double> ones(static_cast<std::size_t>(n));
  sensitivity_weights(clean.view(), clean.view(), clean.view(), ones, {.kappa = 3});
  for (const double w : ones) EXPECT_NEAR(w, 1, 1e-12);
}

TEST(SensitivityWeights, GrowWithBothDistances) {
  for (const auto combine : {sensitivity_union::maximum, sensitivity_union::noisy_or})
    for (double a = 0; a <= 1; a += 0.125)
      for (double b = 0; b <= 1; b += 0.125) {
        const double w = sensitivity_weight(a, b, 2, combine);
        if (a < 1) {
          EXPECT_GE(sensitivity_weight(a + 0.125, b, 2, combine), w);
        }
        if (b < 1) {
          EXPECT_GE(sensitivity_weight(a, b + 0.125, 2, combine), w);
        }
        EXPECT_EQ(sensitivity_weight(a, b, 0, combine), 1);
      }
}

TEST(SensitivityWeights, Errors) {
  array<float> rows(2, 3), wide(2, 4);
  std::vector<double> weights(2, 7);
  EXPECT_NE(message_of([&] { sensitivity_weights(rows.view(), rows.view(), rows.view(), weights, {.kappa = -1}); }).find("'kappa' is -1"), std::string::npos);
  EXPECT_NE(message_of([&] { sensitivity_weights(rows.view(), rows.view(), wide.view(), weights); }).find("third row"), std::string::npos);
  EXPECT_EQ(weights[0], 7);
  weights.resize(3);
  EXPECT_NE(message_of([&] { sensitivity_weights(rows.view(), rows.view(), rows.view(), weights); }).find("'out'"), std::string::npos);
}

}  // namespace
