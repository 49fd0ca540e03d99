#include <heddle/core/element.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

using namespace heddle;

namespace {

// The formats by their definition in double arithmetic, without bit tricks.
template <class T>
struct format;
template <>
struct format<float16> {
  static constexpr int exponent_bits = 5, mantissa_bits = 10;
  static constexpr bool infinite = true;
};
template <>
struct format<bfloat16> {
  static constexpr int exponent_bits = 8, mantissa_bits = 7;
  static constexpr bool infinite = true;
};
template <>
struct format<float8_e5m2> {
  static constexpr int exponent_bits = 5, mantissa_bits = 2;
  static constexpr bool infinite = true;
};
template <>
struct format<float8_e4m3> {
  static constexpr int exponent_bits = 4, mantissa_bits = 3;
  static constexpr bool infinite = false;
};

template <class T>
struct numbers : format<T> {
  using format<T>::exponent_bits, format<T>::mantissa_bits, format<T>::infinite;
  using bits_type = decltype(T::bits);
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr unsigned sign = 1u << (exponent_bits + mantissa_bits), magnitudes = sign;

  static double value(unsigned code) {
    const double s = code & sign ? -1 : 1;
    const int exponent = static_cast<int>((code & (sign - 1)) >> mantissa_bits), mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
    if (infinite && exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : s * HUGE_VAL;
    if (!infinite && (code & (sign - 1)) == sign - 1) return std::nan("");
    return s * std::ldexp(exponent ? (1 << mantissa_bits) + mantissa : mantissa, (exponent ? exponent : 1) - bias - mantissa_bits);
  }
  static unsigned largest() { return infinite ? (((1u << exponent_bits) - 1u) << mantissa_bits) - 1u : sign - 2u; }

  // x / unit rounded to an integer, ties to even; the unit is that of the exponent of x.
  static double rounded(double x) {
    if (x == 0 || std::isnan(x)) return x;
    if (std::isinf(x)) return infinite ? x : std::nan("");
    const int exponent = std::max(std::ilogb(x), 1 - bias);
    const double unit = std::ldexp(1., exponent - mantissa_bits), r = std::nearbyint(x / unit) * unit;
    return std::fabs(r) <= value(largest()) ? r : std::copysign(infinite ? HUGE_VAL : std::nan(""), x);
  }
};

template <class T>
void expect_conversion(float x) {
  using n = numbers<T>;
  const T narrow(x);
  const double expected = n::rounded(x), got = n::value(narrow.bits);
  if (std::isnan(expected)) ASSERT_TRUE(std::isnan(got)) << x;
  else ASSERT_EQ(got, expected) << x;
  ASSERT_EQ(std::signbit(x), (narrow.bits & n::sign) != 0) << x;
}

template <class T>
class element : public testing::Test {};
using narrow_types = testing::Types<float16, bfloat16, float8_e4m3, float8_e5m2>;
TYPED_TEST_SUITE(element, narrow_types);

}  // namespace

TYPED_TEST(element, every_code_has_its_value_and_survives_a_round_trip) {
  using n = numbers<TypeParam>;
  for (unsigned code = 0; code < 2 * n::magnitudes; ++code) {
    const auto narrow = TypeParam::from_bits(static_cast<typename n::bits_type>(code));
    const float wide = narrow;
    const double expected = n::value(code);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << code;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(wide))));
    } else {
      ASSERT_EQ(wide, expected) << code;
      ASSERT_EQ(TypeParam(wide).bits, code);
    }
    ASSERT_EQ(std::signbit(wide), code >= n::magnitudes) << code;
  }
}

// Conversion is a step function: it is right everywhere if it is right around every step.
TYPED_TEST(element, rounds_to_nearest_even_around_every_step) {
  using n = numbers<TypeParam>;
  for (unsigned code = 0; code <= n::largest(); ++code) {
    const double here = n::value(code), next = code < n::largest() ? n::value(code + 1) : here + (here - n::value(code - 1));
    const float middle = static_cast<float>((here + next) / 2);   // exact: the formats have far fewer bits
    for (const float x : {static_cast<float>(here), std::nextafter(middle, 0.f), middle, std::nextafter(middle, HUGE_VALF)}) {
      expect_conversion<TypeParam>(x);
      expect_conversion<TypeParam>(-x);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(element, floats_of_every_exponent) {
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 19997) {
    expect_conversion<TypeParam>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(element, extremes) {
  using n = numbers<TypeParam>;
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float x : {0.f, -0.f, inf, -inf, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), std::nanf("")}) expect_conversion<TypeParam>(x);
  const auto signalling = std::bit_cast<float>(0xff800001u);
  EXPECT_TRUE(std::isnan(n::value(TypeParam(signalling).bits)));
  EXPECT_EQ(TypeParam{}.bits, 0);
  static_assert(static_cast<float>(TypeParam(1.5f)) == 1.5f);   // at compile time as well
}

TEST(element, fp8_saturates_on_request) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float x : {448.f, 449.f, 464.f, 465.f, 1e30f, inf}) {
    EXPECT_EQ(static_cast<float>(float8_e4m3::saturating(x)), 448.f);
    EXPECT_EQ(static_cast<float>(float8_e4m3::saturating(-x)), -448.f);
  }
  EXPECT_EQ(static_cast<float>(float8_e5m2::saturating(inf)), 57344.f);
  EXPECT_EQ(static_cast<float>(float8_e5m2::saturating(-61441.f)), -57344.f);
  EXPECT_EQ(static_cast<float>(float8_e5m2(61441.f)), inf);
  EXPECT_EQ(static_cast<float>(float8_e4m3(464.f)), 448.f);   // half-way to 480, to even
  EXPECT_TRUE(std::isnan(static_cast<float>(float8_e4m3(465.f))));
  EXPECT_TRUE(std::isnan(static_cast<float>(float8_e4m3::saturating(std::nanf("")))));
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 99991) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::fabs(x) <= 448.f) {
      ASSERT_EQ(float8_e4m3::saturating(x).bits, float8_e4m3(x).bits);
    }
  }
}

static_assert(real_element<float> && real_element<double> && real_element<float16> && real_element<bfloat16> && real_element<float8_e4m3> && real_element<float8_e5m2>);
static_assert(!real_element<int> && !real_element<const float> && !real_element<float&> && !real_element<long double> && !real_element<std::uint16_t> && !narrow_element<float>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 && std::is_trivially_copyable_v<float16> && std::is_trivially_copyable_v<float8_e5m2>);
static_assert(!std::is_convertible_v<float, float16> && std::is_convertible_v<float16, float>);
