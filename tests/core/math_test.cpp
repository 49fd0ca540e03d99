#include <heddle/core/math.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

using namespace heddle;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

// Distance in units of the last place of the exact value, which long double knows to 11 more bits.
double ulps(double got, long double exact) {
  const double nearest = std::fabs(static_cast<double>(exact));
  const double unit = std::max(std::nextafter(nearest, inf) - nearest, std::numeric_limits<double>::denorm_min());
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / static_cast<long double>(unit));
}

}  // namespace

static_assert(std::numeric_limits<long double>::digits >= 64, "the reference needs a wider type than double");

TEST(math, exp_is_within_two_ulp) {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> wide(-708, 709.7), small(-1, 1), subnormal(-745, -708);
  double worst = 0;
  for (int i = 0; i < 60000; ++i)
    for (const double x : {wide(engine), small(engine), std::ldexp(small(engine), -i % 60)}) worst = std::max(worst, ulps(math::exp(x), std::exp(static_cast<long double>(x))));
  EXPECT_LT(worst, 2);
  for (int i = 0; i < 20000; ++i) {
    const double x = subnormal(engine);
    EXPECT_LT(ulps(math::exp(x), std::exp(static_cast<long double>(x))), 2) << x;
  }
}

TEST(math, exp_at_the_edges) {
  EXPECT_EQ(math::exp(0.), 1);
  EXPECT_EQ(math::exp(-0.), 1);
  EXPECT_EQ(math::exp(-inf), 0);
  EXPECT_EQ(math::exp(inf), inf);
  EXPECT_TRUE(std::isnan(math::exp(std::nan(""))));
  EXPECT_LT(math::exp(709.78271289338397), inf);
  EXPECT_EQ(math::exp(709.78271289338410), inf);
  EXPECT_EQ(math::exp(-746.), 0);
  EXPECT_EQ(math::exp(-745.1), std::numeric_limits<double>::denorm_min());
}

TEST(math, log_is_within_two_ulp) {
  std::mt19937_64 engine(2);
  double worst = 0;
  std::uniform_real_distribution<double> near_one(0.5, 2.), tiny(-1e-6, 1e-6);
  for (int i = 0; i < 100000; ++i) {
    const double any = std::bit_cast<double>(engine() & 0x7fffffffffffffffu);
    for (const double x : {any, near_one(engine), 1 + tiny(engine)})
      if (x > 0 && x < inf) worst = std::max(worst, ulps(math::log(x), std::log(static_cast<long double>(x))));
  }
  EXPECT_LT(worst, 2);
}

TEST(math, log_at_the_edges) {
  EXPECT_EQ(math::log(1.), 0);
  EXPECT_EQ(math::log(0.), -inf);
  EXPECT_EQ(math::log(-0.), -inf);
  EXPECT_EQ(math::log(inf), inf);
  EXPECT_TRUE(std::isnan(math::log(-1.)));
  EXPECT_TRUE(std::isnan(math::log(-inf)));
  EXPECT_TRUE(std::isnan(math::log(std::nan(""))));
  EXPECT_LT(ulps(math::log(std::numeric_limits<double>::denorm_min()), std::log(static_cast<long double>(std::numeric_limits<double>::denorm_min()))), 2);
  EXPECT_LT(ulps(math::log(std::numeric_limits<double>::max()), std::log(static_cast<long double>(std::numeric_limits<double>::max()))), 2);
}

TEST(math, sincos_is_within_two_ulp_up_to_2_to_the_50) {
  std::mt19937_64 engine(3);
  double worst = 0;
  for (int exponent = -60; exponent < 50; ++exponent)
    for (int i = 0; i < 1000; ++i) {
      const double x = std::ldexp(1 + static_cast<double>(engine() >> 12) * 0x1p-52, exponent) * (i % 2 ? 1 : -1);
      const auto t = math::sincos(x);
      worst = std::max({worst, ulps(t.sine, std::sin(static_cast<long double>(x))), ulps(t.cosine, std::cos(static_cast<long double>(x)))});
    }
  // the nearest doubles to multiples of a quarter turn are the hardest
  for (int i = 1; i < 10000; ++i) {
    const double x = i * 1.5707963267948966;
    const auto t = math::sincos(x);
    worst = std::max({worst, ulps(t.sine, std::sin(static_cast<long double>(x))), ulps(t.cosine, std::cos(static_cast<long double>(x)))});
  }
  EXPECT_LT(worst, 2);
}

TEST(math, sincos_at_the_edges) {
  EXPECT_EQ(math::sincos(0.).sine, 0);
  EXPECT_TRUE(std::signbit(math::sincos(-0.).sine));
  EXPECT_EQ(math::sincos(0.).cosine, 1);
  EXPECT_FALSE(std::isnan(math::sincos(0x1p50).sine));
  for (const double x : {std::nextafter(0x1p50, inf), -1e300, inf, -inf, std::nan("")}) EXPECT_TRUE(std::isnan(math::sincos(x).sine) && std::isnan(math::sincos(x).cosine));
  for (const double x : {0.3, 1., 2., 4., 1e6, 123456789.25}) {
    EXPECT_EQ(math::sincos(-x).sine, -math::sincos(x).sine);
    EXPECT_EQ(math::sincos(-x).cosine, math::sincos(x).cosine);
  }
}
