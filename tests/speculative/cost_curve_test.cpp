#include <heddle/speculative/cost_curve.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace {

using heddle::cost_curve;

TEST(CostCurve, InterpolatesWhatItHasSeen) {
  cost_curve cost;
  EXPECT_DOUBLE_EQ(cost.seconds(1), 1);
  EXPECT_DOUBLE_EQ(cost.seconds(11), 2.5);
  cost.observe(4, 0.016);
  EXPECT_NEAR(cost.seconds(4), 0.016, 1e-15);
  EXPECT_NEAR(cost.seconds(1), 0.016 / 1.45, 1e-15);         // nothing below is known: the prior's shape
  EXPECT_NEAR(cost.seconds(8), 0.016 / 1.45 * 2.05, 1e-15);  // nor above
  cost.observe(1, 0.010);
  EXPECT_NEAR(cost.seconds(2), 0.012, 2e-5);
  EXPECT_NEAR(cost.seconds(9), 0.026, 1e-4);
  EXPECT_TRUE(cost.knows(4));
  EXPECT_FALSE(cost.knows(3));
  cost.observe(1, 0), cost.observe(1, -1), cost.observe(1, std::nan(""));
  EXPECT_NEAR(cost.seconds(1), 0.010, 1e-15);
  EXPECT_THROW(cost.observe(0, 1), heddle::error);
  EXPECT_THROW(cost_curve({.prior_slope = -1}), heddle::error);
}

TEST(CostCurve, IsNotFooledByNoiseAndInterruptions) {
  std::mt19937 random(3);
  const auto truth = [](std::int64_t rows) { return 0.01 * (1 + 0.12 * static_cast<double>(rows / 4 * 4)); };
  cost_curve cost;
  for (int i = 0; i < 3000; ++i) {
    const auto rows = static_cast<std::int64_t>(1 + random() % 16);
    double seconds = truth(rows) * std::exp(std::normal_distribution<double>(0, 0.05)(random));
    if (random() % 50 == 0) seconds *= 20;
    cost.observe(rows, seconds);
  }
  for (std::int64_t rows = 1; rows <= 16; ++rows) EXPECT_NEAR(cost.seconds(rows) / truth(rows), 1, 0.12) << rows;
}

// The machine becomes half as fast while one-row passes alone are made: what is known of others moves along.
// The first pass of a count was interrupted: the next ones set it right, and meanwhile it is no dearer than passes of more rows.
TEST(CostCurve, ForgetsABadBeginning) {
  cost_curve cost;
  cost.observe(1, 0.05);
  cost.observe(2, 0.011);
  EXPECT_LE(cost.seconds(1), cost.seconds(2));
  for (int i = 0; i < 12; ++i) cost.observe(1, 0.010);
  EXPECT_NEAR(cost.seconds(1), 0.010, 0.0012);
}

TEST(CostCurve, ACommonChangeMovesAllCounts) {
  cost_curve cost;
  for (int i = 0; i < 30; ++i) cost.observe(1, 0.01), cost.observe(8, 0.02);
  for (int i = 0; i < 60; ++i) cost.observe(1, 0.02);
  EXPECT_NEAR(cost.seconds(1), 0.02, 0.0005);
  EXPECT_GT(cost.seconds(8) / cost.seconds(1), 1.2);
  EXPECT_LT(cost.seconds(8) / cost.seconds(1), 2.01);
}

// What has not been seen for a while is thought cheaper, by a quarter at most; a look at it, or at a count nearby, ends that.
TEST(CostCurve, OldMeasurementsAreTrustedLess) {
  cost_curve cost;
  cost.observe(1, 0.01), cost.observe(8, 0.02), cost.observe(10, 0.022);
  for (int i = 0; i < 64; ++i) cost.observe(1, 0.01);
  EXPECT_NEAR(cost.seconds(8), 0.02 * 0.875, 1e-4);
  for (int i = 0; i < 1000; ++i) cost.observe(1, 0.01);
  EXPECT_NEAR(cost.seconds(8), 0.015, 1e-4);
  cost.observe(10, 0.022);
  EXPECT_NEAR(cost.seconds(8), 0.02, 1e-4);
}

}  // namespace
