#pragma once
// What codecs of small integers with one scale a row promise beyond the laws of every codec: typed tests over `Codecs`.
#include "codec_laws.hpp"

#include <heddle/cache/codec/integer_storage.hpp>

namespace codec_test {

template <class C>
inline constexpr double largest_code = C::zero_code - 1;

// The stored row next to what the definition gives in double.
template <class C, class T>
void check_nearest_multiples(const std::vector<T>& rows, int count, int d) {
  bytes key_run = fresh_run<keys<C>>(d), value_run = fresh_run<values<C>>(d);
  C::encode_keys(rows.data(), d, count, d, key_run.data(), 0);
  C::encode_values(rows.data(), d, count, d, value_run.data(), 0);
  for (int s = 0; s < count; ++s) {
    double top = 0;
    for (int c = 0; c < d; ++c) top = std::max(top, std::fabs(static_cast<double>(rows[static_cast<std::size_t>(s * d + c)])));
    const double scale = top / largest_code<C>;
    const std::vector<float> key = decoded<keys<C>>(key_run, s, d), value = decoded<values<C>>(value_run, s, d);
    for (int c = 0; c < d; ++c) {
      const double x = rows[static_cast<std::size_t>(s * d + c)], y = key[static_cast<std::size_t>(c)];
      ASSERT_LE(std::fabs(y - x), scale * (0.5 + 1e-4)) << "slot " << s << " channel " << c;
      const double code = scale == 0 ? 0 : y / scale;
      ASSERT_NEAR(code, std::round(code), 1e-3) << "a multiple of the scale";
      ASSERT_LE(std::fabs(code), largest_code<C> + 1e-3);
      ASSERT_EQ(key[static_cast<std::size_t>(c)], value[static_cast<std::size_t>(c)]) << "keys and values share their codes";
    }
  }
}

}  // namespace codec_test

template <class Codec>
class row_scaled_laws : public testing::Test {};
TYPED_TEST_SUITE_P(row_scaled_laws);

TYPED_TEST_P(row_scaled_laws, codes_are_the_nearest_multiples_of_the_scale) {
  for (const int d : {1, 3, 8, 63, 64, 80, 130}) {
    std::vector<float> rows = codec_test::normal_rows(16, d, 21);
    rows[0] = 40.f;   // an outlier
    for (int c = 0; c < d; ++c) rows[static_cast<std::size_t>(5 * d + c)] = c % 3 ? 2.5f : -2.5f;
    codec_test::check_nearest_multiples<TypeParam>(rows, 16, d);
    codec_test::check_nearest_multiples<TypeParam>(std::vector<double>(rows.begin(), rows.end()), 5, d);
    codec_test::check_nearest_multiples<TypeParam>(std::vector<heddle::float16>(rows.begin(), rows.end()), 16, d);
    codec_test::check_nearest_multiples<TypeParam>(std::vector<heddle::float8_e4m3>(rows.begin(), rows.end()), 7, d);
  }
}

// Halves go to the even code, so rounding has no bias; the largest magnitude is exact on both sides.
TYPED_TEST_P(row_scaled_laws, ties_are_unbiased_and_the_range_is_symmetric) {
  const float limit = static_cast<float>(codec_test::largest_code<TypeParam>);
  const std::vector<float> row = {limit, -limit, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 0.f, -0.f};
  const std::vector<float> expected = {limit, -limit, 0.f, 0.f, 2.f, -2.f, 2.f, -2.f, 0.f, 0.f};
  const int d = static_cast<int>(row.size());
  codec_test::bytes run(TypeParam::key_run_bytes(d));
  TypeParam::encode_keys(row.data(), d, 1, d, run.data(), 9);
  EXPECT_EQ(codec_test::decoded<codec_test::keys<TypeParam>>(run, 9, d), expected);
}

TYPED_TEST_P(row_scaled_laws, encoding_what_was_decoded_changes_nothing) {
  constexpr int d = 72;
  const std::vector<float> rows = codec_test::normal_rows(16, d, 22);
  codec_test::bytes run(TypeParam::key_run_bytes(d)), again(TypeParam::key_run_bytes(d));
  TypeParam::encode_keys(rows.data(), d, 16, d, run.data(), 0);
  for (int s = 0; s < 16; ++s) {
    const std::vector<float> row = codec_test::decoded<codec_test::keys<TypeParam>>(run, s, d);
    TypeParam::encode_keys(row.data(), d, 1, d, again.data(), s);
    const std::vector<float> twice = codec_test::decoded<codec_test::keys<TypeParam>>(again, s, d);
    for (int c = 0; c < d; ++c) EXPECT_NEAR(row[static_cast<std::size_t>(c)], twice[static_cast<std::size_t>(c)], 1e-6f);
  }
}

TYPED_TEST_P(row_scaled_laws, a_row_that_is_not_finite_is_nan_throughout) {
  constexpr int d = 20;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    for (const int channel : {0, 15, 19}) {
      std::vector<float> rows = codec_test::normal_rows(16, d, 23);
      rows[static_cast<std::size_t>(6 * d + channel)] = bad;
      codec_test::bytes run = codec_test::fresh_run<codec_test::values<TypeParam>>(d);
      TypeParam::encode_values(rows.data(), d, 16, d, run.data(), 0);
      for (int s = 0; s < 16; ++s)
        for (const float x : codec_test::decoded<codec_test::values<TypeParam>>(run, s, d)) EXPECT_EQ(std::isnan(x), s == 6);
    }
}

TYPED_TEST_P(row_scaled_laws, ends_of_the_range) {
  constexpr int d = 16;
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> rows(3 * d, 0.f);
  rows[0] = -largest, rows[1] = largest, rows[2] = largest / 2;
  rows[d] = 0x1p-99f, rows[d + 1] = -0x1p-99f;
  rows[2 * d] = 0x1p-101f, rows[2 * d + 3] = std::numeric_limits<float>::denorm_min();
  codec_test::bytes run(TypeParam::value_run_bytes(d));
  TypeParam::encode_values(rows.data(), d, 3, d, run.data(), 2);
  const auto row = [&](int slot) { return codec_test::decoded<codec_test::values<TypeParam>>(run, slot, d); };
  for (const float x : row(2)) EXPECT_TRUE(std::isfinite(x));
  EXPECT_FLOAT_EQ(row(2)[1], largest);
  EXPECT_FLOAT_EQ(row(3)[0], 0x1p-99f);
  EXPECT_FLOAT_EQ(row(3)[1], -0x1p-99f);
  EXPECT_EQ(row(4), std::vector<float>(d, 0.f)) << "rows below 2^-100 are rows of zeros";
}

REGISTER_TYPED_TEST_SUITE_P(row_scaled_laws, codes_are_the_nearest_multiples_of_the_scale, ties_are_unbiased_and_the_range_is_symmetric,
                            encoding_what_was_decoded_changes_nothing, a_row_that_is_not_finite_is_nan_throughout, ends_of_the_range);
