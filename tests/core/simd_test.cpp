// Compiled for the tests' own target and, by CMakeLists.txt here, for others: the same expectations for every body of the layer.
#include <heddle/core/simd.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

using namespace heddle;
using simd::f32x16;
using simd::i32x16;
using simd::lanes;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

std::vector<float> edge_values() {
  std::vector<float> v;
  for (const float x : {0.f, 1.f, 1.5f, 2.f, 3.1415927f, 1e-3f, 1e10f, 8388607.5f, 8388608.f, 16777216.f, 0.1f, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::epsilon(), inf, std::numeric_limits<float>::quiet_NaN()})
    v.push_back(x), v.push_back(-x);
  while (v.size() % lanes) v.push_back(static_cast<float>(v.size()) / 3.f);
  return v;
}
std::vector<std::int32_t> edge_integers() {
  std::vector<std::int32_t> v;
  for (const std::int32_t x : {0, 1, 2, 7, 255, 256, 65535, 65536, 0x12345678, std::numeric_limits<std::int32_t>::max()}) v.push_back(x), v.push_back(-x);
  v.push_back(std::numeric_limits<std::int32_t>::min());
  while (v.size() % lanes) v.push_back(static_cast<std::int32_t>(v.size() * 2654435761u));
  return v;
}

bool same(float a, float b) { return std::memcmp(&a, &b, 4) == 0 || (a != a && b != b); }

// Every pair of edge values in every lane: op on lanes against the same op on scalars.
template <class Lanes, class Scalar>
void expect_binary(const char* name, Lanes op, Scalar scalar) {
  const auto v = edge_values();
  for (std::size_t i = 0; i < v.size(); i += lanes)
    for (std::size_t shift = 0; shift < v.size(); ++shift) {
      float a[lanes], b[lanes], got[lanes];
      for (std::size_t k = 0; k < lanes; ++k) a[k] = v[i + k], b[k] = v[(i + k + shift) % v.size()];
      simd::store(got, op(simd::load(a), simd::load(b)));
      for (std::size_t k = 0; k < lanes; ++k) ASSERT_TRUE(same(got[k], scalar(a[k], b[k]))) << name << '(' << a[k] << ", " << b[k] << ") = " << got[k];
    }
}
template <class Lanes, class Scalar>
void expect_comparison(const char* name, Lanes op, Scalar scalar) {
  expect_binary(name, [&](f32x16 a, f32x16 b) { return simd::select(op(a, b), simd::splat(1.f), simd::splat(0.f)); }, [&](float a, float b) { return scalar(a, b) ? 1.f : 0.f; });
}
template <class Lanes, class Scalar>
void expect_integer(const char* name, Lanes op, Scalar scalar) {
  const auto v = edge_integers();
  for (std::size_t i = 0; i < v.size(); i += lanes)
    for (std::size_t shift = 0; shift < v.size(); ++shift) {
      std::int32_t a[lanes], b[lanes], got[lanes];
      for (std::size_t k = 0; k < lanes; ++k) a[k] = v[i + k], b[k] = v[(i + k + shift) % v.size()];
      simd::store_words(got, op(simd::load_words(a), simd::load_words(b)));
      for (std::size_t k = 0; k < lanes; ++k) ASSERT_EQ(got[k], static_cast<std::int32_t>(scalar(static_cast<std::uint32_t>(a[k]), static_cast<std::uint32_t>(b[k])))) << name;
    }
}

}  // namespace

TEST(simd, arithmetic) {
  expect_binary("+", [](f32x16 a, f32x16 b) { return a + b; }, [](float a, float b) { return a + b; });
  expect_binary("-", [](f32x16 a, f32x16 b) { return a - b; }, [](float a, float b) { return a - b; });
  expect_binary("*", [](f32x16 a, f32x16 b) { return a * b; }, [](float a, float b) { return a * b; });
  expect_binary("/", [](f32x16 a, f32x16 b) { return a / b; }, [](float a, float b) { return a / b; });
  expect_binary("product", [](f32x16 a, f32x16 b) { return simd::product(a, b); }, [](float a, float b) { return a * b; });
  expect_binary("negation", [](f32x16 a, f32x16) { return -a; }, [](float a, float) { return -a; });
  expect_binary("abs", [](f32x16 a, f32x16) { return simd::abs(a); }, [](float a, float) { return std::fabs(a); });
  expect_binary("max", [](f32x16 a, f32x16 b) { return simd::max(a, b); }, [](float a, float b) { return a > b ? a : b; });   // NaN in either: b
  expect_binary("min", [](f32x16 a, f32x16 b) { return simd::min(a, b); }, [](float a, float b) { return a < b ? a : b; });
}

TEST(simd, fused_where_the_target_fuses) {
  const auto v = edge_values();
  for (const float c : v) {
    const auto scalar = [&](float a, float b) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
      return std::fma(a, b, c);
#else
      volatile float p = a * b;
      return p + c;
#endif
    };
    expect_binary("fma", [&](f32x16 a, f32x16 b) { return simd::fma(a, b, simd::splat(c)); }, scalar);
    expect_binary("scalar fma", [&](f32x16 a, f32x16 b) {
      float x[lanes], y[lanes];
      simd::store(x, a), simd::store(y, b);
      for (int k = 0; k < lanes; ++k) x[k] = simd::fma(x[k], y[k], c);
      return simd::load(x);
    }, scalar);
  }
}

TEST(simd, a_product_is_rounded_before_it_is_added) {
  volatile float x = 1 + 0x1p-12f;
  const f32x16 a = simd::splat(x);
  EXPECT_EQ(simd::first_lane(simd::product(a, a) - simd::splat(1 + 0x1p-11f)), 0.f);   // a fused one leaves 2^-24
}

TEST(simd, comparisons_and_masks) {
  expect_comparison("less", [](f32x16 a, f32x16 b) { return simd::less(a, b); }, [](float a, float b) { return a < b; });
  expect_comparison("less_equal", [](f32x16 a, f32x16 b) { return simd::less_equal(a, b); }, [](float a, float b) { return a <= b; });
  expect_binary("clear", [](f32x16 a, f32x16 b) { return simd::clear(simd::less(a, b), a); }, [](float a, float b) { return a < b ? 0.f : a; });
  expect_comparison("equal", [](f32x16 a, f32x16 b) { return simd::equal(a, b); }, [](float a, float b) { return a == b; });
  expect_comparison("is_nan", [](f32x16 a, f32x16) { return simd::is_nan(a); }, [](float a, float) { return a != a; });
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    ASSERT_EQ(simd::bits_of(simd::mask_of(bits)), bits);
    ASSERT_EQ(simd::bits_of(simd::mask_of(bits | 0xabcd0000u)), bits);
  }
}

TEST(simd, integers) {
  using u32 = std::uint32_t;
  expect_integer("+", [](i32x16 a, i32x16 b) { return a + b; }, [](u32 a, u32 b) { return a + b; });
  expect_integer("-", [](i32x16 a, i32x16 b) { return a - b; }, [](u32 a, u32 b) { return a - b; });
  expect_integer("*", [](i32x16 a, i32x16 b) { return a * b; }, [](u32 a, u32 b) { return a * b; });
  expect_integer("&", [](i32x16 a, i32x16 b) { return a & b; }, [](u32 a, u32 b) { return a & b; });
  expect_integer("|", [](i32x16 a, i32x16 b) { return a | b; }, [](u32 a, u32 b) { return a | b; });
  expect_integer("^", [](i32x16 a, i32x16 b) { return a ^ b; }, [](u32 a, u32 b) { return a ^ b; });
  expect_integer("shift_left", [](i32x16 a, i32x16) { return simd::shift_left<23>(a); }, [](u32 a, u32) { return a << 23; });
  expect_integer("shift_right", [](i32x16 a, i32x16) { return simd::shift_right<5>(a); }, [](u32 a, u32) { return a >> 5; });
  expect_integer("shift_right_signed", [](i32x16 a, i32x16) { return simd::shift_right_signed<5>(a); }, [](u32 a, u32) { return static_cast<std::int32_t>(a) >> 5; });
  expect_integer("bits", [](i32x16 a, i32x16) { return simd::bits_of(simd::floats_of(a)); }, [](u32 a, u32) { return a; });
  expect_integer("splat", [](i32x16, i32x16) { return simd::splat(-5); }, [](u32, u32) { return -5; });
  expect_integer("to_float", [](i32x16 a, i32x16) { return simd::bits_of(simd::to_float(a)); }, [](u32 a, u32) { return std::bit_cast<u32>(static_cast<float>(static_cast<std::int32_t>(a))); });
}

TEST(simd, to_int_rounds_ties_to_even) {
  for (const float x : {0.f, -0.f, 0.4f, 0.5f, 0.50001f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 8388606.5f, 8388607.5f, -8388607.5f, 8388609.f, 2147483520.f, -2147483648.f}) {
    std::int32_t got[lanes];
    simd::store_words(got, simd::to_int(simd::splat(x)));
    for (const std::int32_t g : got) EXPECT_EQ(g, static_cast<std::int32_t>(std::nearbyint(x))) << x;
  }
}

TEST(simd, elements_load_and_store_as_their_types_convert) {
  for (std::uint32_t first = 0; first < 65536; first += lanes) {
    float16 h[lanes], h_back[lanes];
    bfloat16 b[lanes], b_back[lanes];
    float hw[lanes], bw[lanes];
    for (std::uint32_t k = 0; k < lanes; ++k) h[k] = float16::from_bits(static_cast<std::uint16_t>(first + k)), b[k] = bfloat16::from_bits(static_cast<std::uint16_t>(first + k));
    const f32x16 wide_h = simd::load(h), wide_b = simd::load(b);
    simd::store(hw, wide_h), simd::store(bw, wide_b);
    simd::store(h_back, wide_h), simd::store(b_back, wide_b);
    for (std::uint32_t k = 0; k < lanes; ++k) {   // bits, of NaN too
      ASSERT_EQ(std::bit_cast<std::uint32_t>(hw[k]), std::bit_cast<std::uint32_t>(static_cast<float>(h[k]))) << first + k;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(bw[k]), std::bit_cast<std::uint32_t>(static_cast<float>(b[k]))) << first + k;
      ASSERT_EQ(h_back[k].bits, float16(hw[k]).bits);
      ASSERT_EQ(b_back[k].bits, bfloat16(bw[k]).bits);
    }
  }
  for (std::uint64_t first = 0; first < (1ull << 32); first += 65521 * lanes) {
    float x[lanes];
    float16 h[lanes];
    bfloat16 b[lanes];
    for (std::uint32_t k = 0; k < lanes; ++k) x[k] = std::bit_cast<float>(static_cast<std::uint32_t>(first + 65521ull * k));
    simd::store(h, simd::load(x)), simd::store(b, simd::load(x));
    for (std::uint32_t k = 0; k < lanes; ++k) {
      ASSERT_EQ(h[k].bits, float16(x[k]).bits) << x[k];
      ASSERT_EQ(b[k].bits, bfloat16(x[k]).bits) << x[k];
    }
  }
}

TEST(simd, partial_loads_and_stores_touch_nothing_else) {
  const auto check = [&]<class T>(T) {
    for (std::int64_t n = 0; n <= lanes + 1; ++n) {
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(n, lanes));
      std::vector<T> exact(count), out(lanes + 1, T(99.f));   // the address sanitizer sees a read beyond `exact`
      for (std::size_t i = 0; i < count; ++i) exact[i] = T(static_cast<float>(i + 1));
      float wide[lanes];
      simd::store(wide, simd::load_first(exact.data(), n));
      for (std::size_t i = 0; i < lanes; ++i) ASSERT_EQ(wide[i], i < count ? static_cast<float>(i + 1) : 0.f);
      simd::store_first(out.data(), simd::splat(5.f), n);
      for (std::size_t i = 0; i <= lanes; ++i) ASSERT_EQ(static_cast<float>(out[i]), i < count ? 5.f : 99.f);
    }
  };
  check(float{}), check(float16{}), check(bfloat16{});
}

TEST(simd, any_alignment) {
  alignas(64) unsigned char memory[256];
  for (std::size_t start = 0; start < 64; ++start) {
    std::memset(memory, 0, sizeof memory);
    simd::store_words(memory + start, simd::splat(0x01020304));
    std::int32_t got[lanes];
    simd::store_words(got, simd::load_words(memory + start));
    for (const std::int32_t g : got) ASSERT_EQ(g, 0x01020304);
    ASSERT_EQ(memory[start + 64], 0);
  }
}

TEST(simd, lanes_move_as_said) {
  float x[lanes], got[lanes];
  for (int i = 0; i < lanes; ++i) x[i] = static_cast<float>(i);
  simd::store(got, simd::swap_pairs(simd::load(x)));
  for (int i = 0; i < lanes; ++i) EXPECT_EQ(got[i], static_cast<float>(i ^ 1));
  EXPECT_EQ(simd::first_lane(simd::load(x)), 0);
}

TEST(simd, reductions_go_by_one_tree) {
  float x[lanes];
  for (int i = 0; i < lanes; ++i) x[i] = std::ldexp(1.f + static_cast<float>(i) / 7.f, 3 * i - 20);
  float tree[lanes];
  std::memcpy(tree, x, sizeof x);
  for (int width : {8, 4, 2, 1})
    for (int i = 0; i < width; ++i) tree[i] = tree[i] + tree[i + width];
  EXPECT_EQ(simd::reduce_add(simd::load(x)), tree[0]);
  EXPECT_EQ(simd::reduce_max(simd::load(x)), x[15]);
  for (int hot = 0; hot < lanes; ++hot) {
    for (int i = 0; i < lanes; ++i) x[i] = i % 3 ? -inf : std::numeric_limits<float>::quiet_NaN();
    x[hot] = -7;
    EXPECT_EQ(simd::reduce_max(simd::load(x)), -7) << hot;
  }
}

TEST(simd, exp_is_accurate_and_safe_at_the_edges) {
  double worst = 0;
  for (float x = -87.32f; x < 88.f; x += 0.0013f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(simd::exp(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 1.3e-7);   // one unit in the last place is 6e-8 to 1.2e-7
  EXPECT_EQ(simd::exp(0.f), 1);
  EXPECT_EQ(simd::exp(-inf), 0);
  EXPECT_EQ(simd::exp(-1e30f), 0);
  EXPECT_EQ(simd::exp(-87.34f), 0);
  EXPECT_EQ(simd::exp(-std::numeric_limits<float>::max()), 0);
  EXPECT_TRUE(std::isnan(simd::exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_GE(simd::exp(-87.33f), std::numeric_limits<float>::min());
}

TEST(simd, exp_nonpositive_is_exp) {
  const auto nonpositive = [](float x) { return simd::first_lane(simd::exp_nonpositive(simd::splat(x))); };
  double worst = 0;
  for (std::uint32_t bits = 0x80000000u; bits <= 0xff800000u; bits += 1009) {
    const float x = std::bit_cast<float>(bits), got = nonpositive(x), expected = simd::exp(x);
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected)) << x;
#endif
    if (expected > 0) worst = std::max(worst, std::fabs(static_cast<double>(got) / static_cast<double>(expected) - 1));
    else ASSERT_EQ(got, 0) << x;
  }
  EXPECT_LT(worst, 2.5e-7);
  EXPECT_EQ(nonpositive(0.f), 1);
  EXPECT_EQ(nonpositive(-inf), 0);
  EXPECT_TRUE(std::isnan(nonpositive(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(nonpositive(std::bit_cast<float>(0x7fc12345u))));
}
