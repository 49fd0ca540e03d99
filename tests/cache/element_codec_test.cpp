#include "codec_laws.hpp"

#include <heddle/cache/codec/element.hpp>

#include <bit>

namespace codec = heddle::codec;
using heddle::bfloat16;
using heddle::float16;
using heddle::float8_e4m3;
using heddle::float8_e5m2;

using element_codecs = testing::Types<codec::f32, codec::f16, codec::bf16, codec::fp8_e4m3, codec::fp8_e5m2>;
INSTANTIATE_TYPED_TEST_SUITE_P(Element, codec_laws, element_codecs);

// --- the concept ---

static_assert(heddle::cache_codec<codec::f32> && heddle::cache_codec<codec::fp8_e5m2>);
static_assert(heddle::element_storage<codec::f16>);
static_assert(!heddle::sealing_codec<codec::f16>);
static_assert(!heddle::cache_codec<float>);

// near misses
struct runs_of_eight : codec::f16 {
  static constexpr int run_tokens = 8;
};
static_assert(!heddle::cache_codec<runs_of_eight>);
struct without_name : codec::f16 {
  static constexpr int name = 3;
};
static_assert(!heddle::cache_codec<without_name>);
struct takes_floats_only : codec::f16 {
  static void encode_keys(const float*, std::int64_t, int, int, std::byte*, int);
};
static_assert(!heddle::cache_codec<takes_floats_only>);
struct cannot_copy : codec::f16 {
  static void copy_key(const std::byte*, int, std::byte*, int) = delete;
};
static_assert(!heddle::cache_codec<cannot_copy>);
struct sizes_in_int : codec::f16 {
  static int key_run_bytes(int);
};
static_assert(!heddle::cache_codec<sizes_in_int>);
struct writes_what_it_decodes : codec::f16 {
  static void decode_key(std::byte*, int, int, float*);
};
static_assert(!heddle::cache_codec<writes_what_it_decodes>);
struct groups_without_seal : codec::f16 {
  static constexpr int group_tokens = 32;
};
static_assert(heddle::cache_codec<groups_without_seal> && !heddle::sealing_codec<groups_without_seal>);
struct integers : codec::f16 {
  using element = int;
};
static_assert(heddle::cache_codec<integers> && !heddle::element_storage<integers>);

// --- the numbers ---

template <class E>
class element_codec : public testing::Test {};
using elements = testing::Types<float16, bfloat16, float8_e4m3, float8_e5m2>;
TYPED_TEST_SUITE(element_codec, elements);

template <class E>
E of_bits(std::uint32_t bits) {
  return E::from_bits(static_cast<decltype(E{}.bits)>(bits));
}

TYPED_TEST(element_codec, every_code_survives_a_round_trip) {
  using C = codec::element_codec<TypeParam>;
  constexpr std::uint32_t codes = 1u << (8 * sizeof(TypeParam));
  constexpr int d = 16;
  for (std::uint32_t first = 0; first < codes; first += 16 * d) {
    float rows[16][d];
    for (std::uint32_t i = 0; i < 16 * d; ++i) rows[i / d][i % d] = of_bits<TypeParam>(first + i);
    alignas(64) std::byte key_run[16 * d * sizeof(TypeParam)], value_run[16 * d * sizeof(TypeParam)];
    C::encode_keys(&rows[0][0], d, 16, d, key_run, 0);
    C::encode_values(&rows[0][0], d, 16, d, value_run, 0);
    for (int s = 0; s < 16; ++s) {
      float key[d], value[d];
      C::decode_key(key_run, s, d, key);
      C::decode_value(value_run, s, d, value);
      for (int c = 0; c < d; ++c) {
        const float x = rows[s][c];
        float expected = x;
        if (sizeof(TypeParam) == 1 && std::isinf(x)) expected = std::copysign(57344.f, x);  // fp8 saturates
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(key[c]) && std::isnan(value[c]));
          EXPECT_EQ(std::signbit(key[c]), std::signbit(x));
        } else {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(key[c]), std::bit_cast<std::uint32_t>(expected));
          EXPECT_EQ(std::bit_cast<std::uint32_t>(value[c]), std::bit_cast<std::uint32_t>(expected));
        }
      }
    }
  }
}

// Independent of the conversion under test: the nearest of all finite values, found by search, ties to the even code.
TYPED_TEST(element_codec, rounds_to_the_nearest_value_with_ties_to_even) {
  using C = codec::element_codec<TypeParam>;
  std::vector<std::pair<float, std::uint32_t>> finite;  // non-negative values with their codes, ascending
  for (std::uint32_t b = 0; b < 1u << (8 * sizeof(TypeParam) - 1); ++b)
    if (const float x = of_bits<TypeParam>(b); std::isfinite(x)) finite.push_back({x, b});
  std::mt19937 engine(5);
  std::uniform_int_distribution<std::size_t> any(0, finite.size() - 2);
  constexpr int d = 112;
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::vector<float> rows(16 * d), expected(16 * d);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& [low, low_bits] = finite[any(engine)];
      const float high = finite[low_bits + 1].first;
      const double middle = (static_cast<double>(low) + high) / 2;
      const float offsets[] = {0.f, -1.f, 1.f};
      float x = static_cast<float>(middle);
      if (const float o = offsets[i % 3]; o != 0.f) x = std::nextafter(x, o * std::numeric_limits<float>::infinity());
      const float nearest = x < middle ? low : x > middle ? high : low_bits % 2 ? high : low;
      const float sign = i % 2 ? -1.f : 1.f;
      rows[i] = sign * x, expected[i] = sign * nearest;
    }
    codec_test::bytes run(C::key_run_bytes(d));
    C::encode_keys(rows.data(), d, 16, d, run.data(), 0);
    for (int s = 0; s < 16; ++s) {
      const auto key = codec_test::decoded<codec_test::keys<C>>(run, s, d);
      for (int c = 0; c < d; ++c) {
        ASSERT_EQ(key[static_cast<std::size_t>(c)], expected[static_cast<std::size_t>(s * d + c)])
            << rows[static_cast<std::size_t>(s * d + c)];
      }
    }
  }
}

template <class C>
std::vector<float> stored(const std::vector<float>& row) {
  const int d = static_cast<int>(row.size());
  codec_test::bytes run(C::value_run_bytes(d));
  C::encode_values(row.data(), d, 1, d, run.data(), 6);
  return codec_test::decoded<codec_test::values<C>>(run, 6, d);
}

TEST(element_codec_range, overflow) {
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  const std::vector<float> row = {1e9f, -1e9f, infinity, -infinity, largest, 0x1p-149f, -0x1p-140f};
  EXPECT_EQ(stored<codec::f32>(row), row);
  EXPECT_EQ(stored<codec::f16>(row), (std::vector<float>{infinity, -infinity, infinity, -infinity, infinity, 0.f, -0.f}));
  EXPECT_EQ(stored<codec::fp8_e4m3>(row), (std::vector<float>{448.f, -448.f, 448.f, -448.f, 448.f, 0.f, -0.f}));
  EXPECT_EQ(stored<codec::fp8_e5m2>(row), (std::vector<float>{57344.f, -57344.f, 57344.f, -57344.f, 57344.f, 0.f, -0.f}));
  EXPECT_EQ(stored<codec::fp8_e4m3>({464.f, 465.f, 0x1p-10f, 0x1.8p-10f}), (std::vector<float>{448.f, 448.f, 0.f, 0x1p-9f}));
}

TEST(element_codec_copies, rows_of_the_stored_type_keep_every_bit) {
  constexpr int d = 16;
  std::vector<float16> rows(16 * d);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = float16::from_bits(static_cast<std::uint16_t>(0x7c00 + i));  // infinity and 255 NaNs
  codec_test::bytes key_run(codec::f16::key_run_bytes(d)), value_run(codec::f16::value_run_bytes(d));
  codec::f16::encode_keys(rows.data(), d, 16, d, key_run.data(), 0);
  codec::f16::encode_values(rows.data(), d, 16, d, value_run.data(), 0);
  const auto* key = reinterpret_cast<const float16*>(key_run.data());
  for (int s = 0; s < 16; ++s)
    for (int c = 0; c < d; ++c) EXPECT_EQ(key[c * 16 + s].bits, rows[static_cast<std::size_t>(s * d + c)].bits);
  EXPECT_EQ(std::memcmp(value_run.data(), rows.data(), value_run.size()), 0);
}

TEST(element_codec_padding, padding_channels_of_values_are_zero) {
  constexpr int d = 7;
  const std::vector<float> row(d, 3.f);
  codec_test::bytes run(codec::bf16::value_run_bytes(d), std::byte{0xff});
  codec::bf16::encode_values(row.data(), d, 1, d, run.data(), 2);
  const auto* cell = reinterpret_cast<const bfloat16*>(run.data());
  for (int c = 0; c < 16; ++c) EXPECT_EQ(static_cast<float>(cell[2 * 16 + c]), c < d ? 3.f : 0.f);
  EXPECT_TRUE(std::isnan(static_cast<float>(cell[3 * 16])));
}

TEST(element_codec_inputs, rows_of_every_real_type_are_taken) {
  constexpr int d = 19;
  std::vector<double> rows(16 * d);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 0.25 * static_cast<double>(i % 33) - 4;
  const std::vector<float> expected(rows.begin(), rows.end());
  const std::vector<float8_e5m2> coarse(expected.begin(), expected.end());
  codec_test::bytes run(codec::f32::key_run_bytes(d));
  codec::f32::encode_keys(rows.data(), d, 16, d, run.data(), 0);
  for (int s = 0; s < 16; ++s)
    EXPECT_EQ(codec_test::decoded<codec_test::keys<codec::f32>>(run, s, d),
              std::vector<float>(expected.begin() + s * d, expected.begin() + (s + 1) * d));
  codec::f32::encode_keys(coarse.data(), d, 16, d, run.data(), 0);
  for (int s = 0; s < 16; ++s)
    EXPECT_EQ(codec_test::decoded<codec_test::keys<codec::f32>>(run, s, d),
              std::vector<float>(coarse.begin() + s * d, coarse.begin() + (s + 1) * d));
}
