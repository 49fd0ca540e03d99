#include "row_scaled_laws.hpp"

#include <heddle/cache/codec/int4.hpp>

namespace codec = heddle::codec;

using int4_codecs = testing::Types<codec::int4<>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Int4, codec_laws, int4_codecs);
INSTANTIATE_TYPED_TEST_SUITE_P(Int4, row_scaled_laws, int4_codecs);

static_assert(heddle::cache_codec<codec::int4<>> && heddle::integer_storage<codec::int4<>> && heddle::integer_storage<codec::int4_precise>);

TEST(int4_format, sizes) {
  EXPECT_EQ(codec::int4<>::key_run_bytes(128), 8u * 128 + 64);
  EXPECT_EQ(codec::int4<>::value_run_bytes(128), 8u * 128 + 64);
  EXPECT_EQ(codec::int4<>::key_run_bytes(9), 2u * 64 + 64);
  EXPECT_EQ(codec::int4<>::value_run_bytes(9), 8u * 16 + 64);
  EXPECT_EQ(codec::int4<>::key_row_bytes(128), 68u);
}

// Where each code lies, as integer_storage.hpp says: two planes of four bits.
TEST(int4_format, cells) {
  constexpr int d = 19;
  std::vector<float> rows(16 * d);
  for (int s = 0; s < 16; ++s)
    for (int c = 0; c < d; ++c) rows[static_cast<std::size_t>(s * d + c)] = c == 0 ? 7.f : static_cast<float>((s * 7 + c * 11) % 15 - 7);
  codec_test::bytes key(codec::int4<>::key_run_bytes(d), std::byte{0xff}), value(codec::int4<>::value_run_bytes(d), std::byte{0xff});
  codec::int4<>::encode_keys(rows.data(), d, 16, d, key.data(), 0);
  codec::int4<>::encode_values(rows.data(), d, 16, d, value.data(), 0);
  for (int s = 0; s < 16; ++s) {
    for (int c = 0; c < 24; ++c) {
      const int code = c < d ? static_cast<int>(rows[static_cast<std::size_t>(s * d + c)]) + 8 : 8;
      EXPECT_EQ(static_cast<int>(key[static_cast<std::size_t>(c / 8 * 64 + s * 4 + c % 4)]) >> (c / 4 % 2 * 4) & 15, code);
    }
    for (int c = 0; c < 32; ++c) {
      const int code = c < d ? static_cast<int>(rows[static_cast<std::size_t>(s * d + c)]) + 8 : 8;
      EXPECT_EQ(static_cast<int>(value[static_cast<std::size_t>((s / 8 * 32 + c) * 4 + s % 4)]) >> (s / 4 % 2 * 4) & 15, code);
    }
  }
}
