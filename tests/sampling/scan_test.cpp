// The float bounds by which truncations are decided: the exact mass lies within, and they are as tight as their documents say.
#include <heddle/sampling/detail/scan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace {

using namespace heddle::sampling::detail;

TEST(Scan, TheMassOfTheOtherTokensLiesWithinBothBounds) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 300; ++trial) {
    const auto n = static_cast<std::int64_t>(1 + random() % 5000);
    const float spread = std::uniform_real_distribution<float>(.01f, 12.f)(random), centre = std::uniform_real_distribution<float>(-300.f, 300.f)(random);
    std::vector<float> z(static_cast<std::size_t>(n));
    for (float& x : z) x = random() % 50 ? centre + std::normal_distribution<float>(0.f, spread)(random) : impossible;
    z[0] = centre;
    std::vector<float> sorted = z;
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    const std::int64_t listed = static_cast<std::int64_t>(random() % static_cast<std::size_t>(n));
    const softness soft{sorted[0], 1. / std::uniform_real_distribution<double>(.05, 3)(random)};
    const auto exact = static_cast<double>(total_mass(sorted.data() + listed, n - listed, soft));
    const mass_bounds fine = difference(rough_sum(z.data(), n, soft), rough_sum(sorted.data(), listed, soft), n);
    const mass_bounds coarse = difference(coarse_sum(z.data(), n, soft), coarse_sum(sorted.data(), listed, soft), n, coarse_excess);
    for (const mass_bounds& others : {fine, coarse}) {
      ASSERT_LE(others.low, exact + .5 * static_cast<double>(n));
      ASSERT_GE(others.high, exact - .5 * static_cast<double>(n));
    }
    const double whole = static_cast<double>(total_mass(z.data(), n, soft));
    ASSERT_LE(fine.high - fine.low, 5e-5 * exact + 1e-5 * whole + static_cast<double>(n));
    ASSERT_LE(coarse.high - coarse.low, .065 * exact + 1e-5 * whole + static_cast<double>(n));
  }
}

// The coarse weight at every fraction of a binary exponent.
TEST(Scan, CoarseWeightsAreAtMostSixPercentTooLarge) {
  for (int i = 0; i < 20000; ++i) {
    float z[16] = {};
    for (int k = 0; k < 16; ++k) z[k] = -static_cast<float>(16 * i + k) * 5e-5f;
    alignas(64) float weight[16];
    heddle::simd::store(weight, coarse_weight(heddle::simd::load(z), heddle::simd::splat(0.f), heddle::simd::splat(12102203.f), heddle::simd::splat(-60.f)));
    for (int k = 0; k < 16; ++k) {
      const double ratio = static_cast<double>(weight[k]) / std::exp(static_cast<double>(z[k]));
      ASSERT_TRUE(ratio > 1 - 1e-5 && ratio < 1 + coarse_excess) << z[k] << ' ' << ratio;
    }
  }
}

}  // namespace
