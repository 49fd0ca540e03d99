// Valid digits against all numbers of three digits and all boxes; the weights against their formula.
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/coordinate_quality.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;

TEST(CoordinateQuality, ValidDigitsOfAllBoxes) {
  for (int low = 0; low < 1000; ++low) {
    // for a box [low, high]: digit v is valid after a prefix if some number in the box begins with both; one more number per step of high
    std::uint16_t first = 0, second[10] = {}, third[100] = {};
    for (int high = low; high < 1000; ++high) {
      const int a = high / 100, b = high / 10 % 10, c = high % 10;
      first = static_cast<std::uint16_t>(first | 1u << a), second[a] = static_cast<std::uint16_t>(second[a] | 1u << b), third[10 * a + b] = static_cast<std::uint16_t>(third[10 * a + b] | 1u << c);
      ASSERT_EQ(valid_digits({}, 3, low, high), first);
      for (std::int32_t x = 0; x < 10; ++x) {
        const std::int32_t one[] = {x};
        ASSERT_EQ(valid_digits(one, 3, low, high), second[x]);
        for (std::int32_t y = 0; y < 10; ++y) {
          const std::int32_t two[] = {x, y};
          ASSERT_EQ(valid_digits(two, 3, low, high), third[10 * x + y]);
        }
      }
    }
  }
  const std::int32_t nine[] = {9};
  EXPECT_EQ(valid_digits(nine, 18, 0, 999999999999999999), 0x3ff);
  EXPECT_EQ(valid_digits(nine, 3, 1000, 2000), 0);   // a box that no number of the width reaches
  EXPECT_EQ(valid_digits({}, 1, -5, 2), 7);
}

template <class T>
class CoordinateQuality : public testing::Test {};
using elements = testing::Types<float, double>;
TYPED_TEST_SUITE(CoordinateQuality, elements);

TYPED_TEST(CoordinateQuality, WeightsFollowTheFormula) {
  using T = TypeParam;
  std::mt19937 random(1);
  const std::int64_t n = 40, width = 33;
  const std::vector<std::int32_t> digit_tokens{20, 3, 4, 5, 6, 7, 8, 30, 10, 11};
  auto y = test::gaussian<T>(n, width, random);
  std::vector<std::uint16_t> valid;
  for (std::int64_t i = 0; i < n; ++i) valid.push_back(i % 7 == 0 ? not_a_coordinate : static_cast<std::uint16_t>(random() % 1024));
  valid[1] = 0;   // a dead prefix
  for (std::int64_t i = 3; i < n; i += 2)   // confident rows, on a digit
    y(i, digit_tokens[static_cast<std::size_t>(i % 10)]) = 8;
  const double tau = 1.3;
  const array<double> exact = test::as<double>(y);
  for (const auto gate : {quality_gate::soft, quality_gate::argmax, quality_gate::off})
    for (const bool scale : {true, false})
      for (const double kappa : {0., 0.25, 1.}) {
        std::vector<double> weights(static_cast<std::size_t>(n));
        quality_weights(y.view(), digit_tokens, valid, weights, {.kappa = kappa, .gate = gate, .scale_by_confidence = scale}, {.temperature = tau});
        for (std::int64_t i = 0; i < n; ++i) {
          const auto row = static_cast<std::size_t>(i);
          const auto t = test::log_softmax(exact, i, tau);
          const auto best = std::max_element(t.begin(), t.end());
          double inside = 0;
          for (std::size_t d = 0; d < 10; ++d)
            if (valid[row] >> d & 1) inside += gate == quality_gate::argmax ? best - t.begin() == digit_tokens[d] : std::exp(t[static_cast<std::size_t>(digit_tokens[d])]);
          const double c = gate == quality_gate::off ? 1 : kappa + (1 - kappa) * inside;
          const double expected = valid[row] == not_a_coordinate ? 1 : c * (scale ? std::exp(*best) : 1);
          EXPECT_NEAR(weights[row], expected, sizeof(T) == 4 ? 1e-6 : 1e-13);
          if (!scale && valid[row] != not_a_coordinate && gate != quality_gate::off) {
            EXPECT_TRUE(weights[row] >= kappa - 1e-12 && weights[row] <= 1 + 1e-12);
          }
          if (i == 1 && !scale && gate != quality_gate::off) {
            EXPECT_EQ(weights[row], kappa);
          }
        }
      }
}

TEST(CoordinateQuality, EdgesAndErrors) {
  const std::vector<std::int32_t> digits{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  array<float> y(3, 12);
  y(0, 4) = 60;   // one-hot on a valid digit: the gate opens
  const std::int32_t four[] = {4};
  const std::vector<std::uint16_t> valid{valid_digits({}, 3, 412, 460), valid_digits(four, 3, 412, 460), valid_digits({}, 3, 412, 460)};
  std::vector<double> weights(3);
  y(2, 0) = std::numeric_limits<float>::quiet_NaN();
  const auto statuses = quality_weights(y.view(), digits, valid, weights, {.kappa = 0.1});
  EXPECT_NEAR(weights[0], 1, 1e-6);
  EXPECT_NEAR(weights[1], (0.1 + 0.9 * 6 / 12) / 12, 1e-6);   // flat row, digits 1 to 6
  EXPECT_EQ(statuses[2], status::nan_logit);
  EXPECT_EQ(weights[2], 0);
  EXPECT_NE(message_of([] { valid_digits({}, 3, 5, 4); }).find("expected low <= high"), std::string::npos);
  EXPECT_NE(message_of([] { valid_digits({}, 0, 1, 4); }).find("'width' is 0"), std::string::npos);
  EXPECT_NE(message_of([] { valid_digits(std::vector<std::int32_t>{1, 2, 3}, 3, 1, 4); }).find("'emitted' has 3 digits"), std::string::npos);
  EXPECT_NE(message_of([] { valid_digits(std::vector<std::int32_t>{10}, 3, 1, 4); }).find("entry 0 is 10"), std::string::npos);
  const auto fails = [&](std::span<const std::int32_t> tokens, double kappa) { return message_of([&] { quality_weights(y.view(), tokens, valid, weights, {.kappa = kappa}); }); };
  EXPECT_NE(fails(digits, 1.5).find("'kappa' is 1.5"), std::string::npos);
  EXPECT_NE(fails(digits, NAN).find("'kappa' is NaN"), std::string::npos);
  EXPECT_NE(fails(std::span(digits).first(9), 0.5).find("'digit_tokens' has 9"), std::string::npos);
  EXPECT_NE(fails(std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 12}, 0.5).find("entry 9 is 12"), std::string::npos);
}

}  // namespace
