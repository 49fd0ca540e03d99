#include "row_scaled_laws.hpp"

#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int8.hpp>

namespace codec = heddle::codec;

// Digits do not change what is stored: one instance stands for all.
using int8_codecs = testing::Types<codec::int8<>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Int8, codec_laws, int8_codecs);
INSTANTIATE_TYPED_TEST_SUITE_P(Int8, row_scaled_laws, int8_codecs);

static_assert(heddle::cache_codec<codec::int8<>> && heddle::integer_storage<codec::int8<>> && heddle::integer_storage<codec::int8_fast>);
static_assert(!heddle::element_storage<codec::int8<>> && !heddle::sealing_codec<codec::int8<>>);
static_assert(!heddle::integer_storage<codec::f16>);
template <int query_digits, int weight_digits>
concept int8_exists = requires { typename codec::int8<query_digits, weight_digits>; };
static_assert(int8_exists<2, 1> && !int8_exists<3, 2> && !int8_exists<2, 0>);

// near misses of the concept
struct three_digits : codec::int8<> {
  static constexpr int query_digits = 3;
};
struct seven_bits : codec::int8<> {
  static constexpr int code_bits = 7;
};
struct zero_outside : codec::int8<> {
  static constexpr int zero_code = 256;
};
static_assert(!heddle::integer_storage<three_digits> && !heddle::integer_storage<seven_bits> && !heddle::integer_storage<zero_outside>);

TEST(int8_format, sizes) {
  EXPECT_EQ(codec::int8<>::key_run_bytes(128), 16u * 128 + 64);
  EXPECT_EQ(codec::int8<>::value_run_bytes(128), 16u * 128 + 64);
  EXPECT_EQ(codec::int8<>::key_run_bytes(5), 2u * 64 + 64);
  EXPECT_EQ(codec::int8<>::value_run_bytes(5), 16u * 16 + 64);
  EXPECT_EQ(codec::int8<>::key_row_bytes(128), 132u);
  EXPECT_EQ(codec::int8<>::value_row_bytes(5), 12u);
}

// Where each code lies, as integer_storage.hpp says.
TEST(int8_format, cells) {
  constexpr int d = 19;
  std::vector<float> rows(16 * d);
  for (int s = 0; s < 16; ++s)
    for (int c = 0; c < d; ++c) rows[static_cast<std::size_t>(s * d + c)] = c == 0 ? 127.f : static_cast<float>((s * 7 + c * 11) % 255 - 127);
  codec_test::bytes key(codec::int8<>::key_run_bytes(d), std::byte{0xff}), value(codec::int8<>::value_run_bytes(d), std::byte{0xff});
  codec::int8<>::encode_keys(rows.data(), d, 16, d, key.data(), 0);
  codec::int8<>::encode_values(rows.data(), d, 16, d, value.data(), 0);
  for (int s = 0; s < 16; ++s) {
    for (int c = 0; c < 20; ++c) {
      const int code = c < d ? static_cast<int>(rows[static_cast<std::size_t>(s * d + c)]) + 128 : 128;
      EXPECT_EQ(static_cast<int>(key[static_cast<std::size_t>(c / 4 * 64 + s * 4 + c % 4)]), code);
    }
    for (int c = 0; c < 32; ++c) {
      const int code = c < d ? static_cast<int>(rows[static_cast<std::size_t>(s * d + c)]) + 128 : 128;
      EXPECT_EQ(static_cast<int>(value[static_cast<std::size_t>((s / 4 * 32 + c) * 4 + s % 4)]), code);
    }
    float scale;
    std::memcpy(&scale, key.data() + 5 * 64 + 4 * s, 4);
    EXPECT_EQ(scale, 1.f);
    std::memcpy(&scale, value.data() + 4 * 32 * 4 + 4 * s, 4);
    EXPECT_EQ(scale, 1.f);
  }
}

// A group of zeros among others (zero scale, then 0 / 0) is the classical fault; so is a zero channel that disturbs its neighbours.
TEST(int8_format, zeros_among_numbers) {
  const std::vector<float> rows = {0.f, 0.f, 0.f, 0.f, 3.f, 0.f, -127.f, 1.f};
  codec_test::bytes run(codec::int8<>::key_run_bytes(4));
  codec::int8<>::encode_keys(rows.data(), 4, 2, 4, run.data(), 0);
  EXPECT_EQ(codec_test::decoded<codec_test::keys<codec::int8<>>>(run, 0, 4), (std::vector<float>{0.f, 0.f, 0.f, 0.f}));
  EXPECT_EQ(codec_test::decoded<codec_test::keys<codec::int8<>>>(run, 1, 4), (std::vector<float>{3.f, 0.f, -127.f, 1.f}));
}
