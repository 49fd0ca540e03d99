#pragma once
// The laws of cache/codec/codec.hpp, for any codec: typed tests over `Codecs`.
//
//     using codecs = testing::Types<heddle::codec::f16>;
//     INSTANTIATE_TYPED_TEST_SUITE_P(F16, codec_laws, codecs);
#include <heddle/cache/codec/codec.hpp>
#include <heddle/core/aligned_vector.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace codec_test {

using bytes = heddle::aligned_vector<std::byte>;

inline std::vector<float> normal_rows(int count, int head_dim, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(count) * static_cast<std::size_t>(head_dim));
  for (float& x : rows) x = normal(engine);
  return rows;
}

// One interface for both sides.
template <class C>
struct keys {
  static std::size_t run_bytes(int d) { return C::key_run_bytes(d); }
  static std::size_t row_bytes(int d) { return C::key_row_bytes(d); }
  template <class T>
  static void encode(const T* rows, std::int64_t stride, int n, int d, std::byte* run, int slot) {
    C::encode_keys(rows, stride, n, d, run, slot);
  }
  template <class T>
  static void encode_row(const T* row, int d, std::byte* record) {
    C::encode_key_row(row, d, record);
  }
  static void decode(const std::byte* run, int slot, int d, float* out) { C::decode_key(run, slot, d, out); }
  static void copy(const std::byte* from, int a, std::byte* to, int b, int d) { C::copy_key(from, a, to, b, d); }
  static void pack(const std::byte* record, std::byte* run, int slot, int d) { C::pack_key_row(record, run, slot, d); }
};
template <class C>
struct values {
  static std::size_t run_bytes(int d) { return C::value_run_bytes(d); }
  static std::size_t row_bytes(int d) { return C::value_row_bytes(d); }
  template <class T>
  static void encode(const T* rows, std::int64_t stride, int n, int d, std::byte* run, int slot) {
    C::encode_values(rows, stride, n, d, run, slot);
  }
  template <class T>
  static void encode_row(const T* row, int d, std::byte* record) {
    C::encode_value_row(row, d, record);
  }
  static void decode(const std::byte* run, int slot, int d, float* out) { C::decode_value(run, slot, d, out); }
  static void copy(const std::byte* from, int a, std::byte* to, int b, int d) { C::copy_value(from, a, to, b, d); }
  static void pack(const std::byte* record, std::byte* run, int slot, int d) { C::pack_value_row(record, run, slot, d); }
};

// A run whose bytes are all 0xff: NaN in every float type. Runs are compared through the slots that were written.
template <class Side>
bytes fresh_run(int d) {
  return bytes(Side::run_bytes(d), std::byte{0xff});
}

// The bytes of one slot alone: copied into an empty run.
template <class Side>
bytes slot_bytes(const bytes& run, int slot, int d) {
  bytes alone(Side::run_bytes(d), std::byte{0});
  Side::copy(run.data(), slot, alone.data(), 0, d);
  return alone;
}

template <class Side>
std::vector<float> decoded(const bytes& run, int slot, int d) {
  std::vector<float> out(static_cast<std::size_t>(d));
  Side::decode(run.data(), slot, d, out.data());
  return out;
}

inline constexpr int head_dims[] = {1, 7, 16, 64, 80, 128};

template <class Side, class T>
void check_order_of_encoding(const std::vector<T>& rows, int d) {
  bytes at_once = fresh_run<Side>(d), one_by_one = at_once, in_pieces = at_once;
  Side::encode(rows.data(), d, 16, d, at_once.data(), 0);
  for (int i = 0; i < 16; ++i) {
    const int slot = (7 * i + 3) % 16;
    Side::encode(rows.data() + slot * d, d, 1, d, one_by_one.data(), slot);
  }
  Side::encode(rows.data() + 5 * d, d, 11, d, in_pieces.data(), 5);
  Side::encode(rows.data(), d, 5, d, in_pieces.data(), 0);
  for (int s = 0; s < 16; ++s) {
    EXPECT_EQ(slot_bytes<Side>(at_once, s, d), slot_bytes<Side>(one_by_one, s, d)) << "head_dim " << d << " slot " << s;
    EXPECT_EQ(slot_bytes<Side>(at_once, s, d), slot_bytes<Side>(in_pieces, s, d)) << "head_dim " << d << " slot " << s;
  }
}

template <class Side>
void check_slots_are_independent(const std::vector<float>& rows, int d) {
  for (int slot = 0; slot < 16; ++slot) {
    bytes alone = fresh_run<Side>(d);
    Side::encode(rows.data(), d, 1, d, alone.data(), slot);  // the same row in every slot
    bytes first = fresh_run<Side>(d);
    Side::encode(rows.data(), d, 1, d, first.data(), 0);
    EXPECT_EQ(slot_bytes<Side>(alone, slot, d), slot_bytes<Side>(first, 0, d)) << "head_dim " << d << " slot " << slot;

    bytes full = fresh_run<Side>(d);
    Side::encode(rows.data(), d, 16, d, full.data(), 0);
    bytes rewritten = full;
    Side::encode(rows.data() + d * ((slot + 5) % 16), d, 1, d, rewritten.data(), slot);
    for (int s = 0; s < 16; ++s)
      if (s != slot) { EXPECT_EQ(slot_bytes<Side>(full, s, d), slot_bytes<Side>(rewritten, s, d)); }
    Side::encode(rows.data() + d * slot, d, 1, d, rewritten.data(), slot);
    EXPECT_EQ(full, rewritten) << "writing a slot again leaves the whole run as it was";
  }
}

template <class Side, class T>
void check_records(const std::vector<T>& rows, int d) {
  bytes run = fresh_run<Side>(d), packed = fresh_run<Side>(d);
  Side::encode(rows.data(), d, 16, d, run.data(), 0);
  for (int s = 15; s >= 0; --s) {
    bytes record(Side::row_bytes(d) + 1, std::byte{0x5a});
    Side::encode_row(rows.data() + s * d, d, record.data());
    EXPECT_EQ(record.back(), std::byte{0x5a}) << "a record ends where row_bytes says";
    Side::pack(record.data(), packed.data(), s, d);
    EXPECT_EQ(slot_bytes<Side>(run, s, d), slot_bytes<Side>(packed, s, d)) << "head_dim " << d << " slot " << s;
  }
}

template <class Side>
void check_copies(const std::vector<float>& rows, int d) {
  bytes run = fresh_run<Side>(d);
  Side::encode(rows.data(), d, 16, d, run.data(), 0);
  bytes moved = run;
  Side::copy(moved.data(), 11, moved.data(), 2, d);  // inside one run
  for (int s = 0; s < 16; ++s) EXPECT_EQ(decoded<Side>(moved, s, d), decoded<Side>(run, s == 2 ? 11 : s, d));
  Side::copy(run.data(), 2, moved.data(), 2, d);
  EXPECT_EQ(moved, run);
}

template <class Side>
void check_bad_rows_stay_alone(std::vector<float> rows, int d) {
  bytes clean = fresh_run<Side>(d), dirty = fresh_run<Side>(d);
  Side::encode(rows.data(), d, 16, d, clean.data(), 0);
  rows[static_cast<std::size_t>(3 * d)] = std::numeric_limits<float>::quiet_NaN();
  rows[static_cast<std::size_t>(9 * d)] = std::numeric_limits<float>::infinity();
  Side::encode(rows.data(), d, 16, d, dirty.data(), 0);
  for (int s = 0; s < 16; ++s)
    if (s != 3 && s != 9) { EXPECT_EQ(slot_bytes<Side>(clean, s, d), slot_bytes<Side>(dirty, s, d)); }
  bool has_nan = false;
  for (const float x : decoded<Side>(dirty, 3, d)) has_nan = has_nan || std::isnan(x);
  EXPECT_TRUE(has_nan) << "NaN must not be stored as a number";
}

template <class Side>
void check_zero_rows(std::vector<float> rows, int d) {
  for (int c = 0; c < d; ++c) rows[static_cast<std::size_t>(4 * d + c)] = c % 2 ? 0.f : -0.f;
  bytes run = fresh_run<Side>(d);
  Side::encode(rows.data(), d, 16, d, run.data(), 0);
  for (const float x : decoded<Side>(run, 4, d)) EXPECT_EQ(x, 0.f);
  for (const float x : decoded<Side>(run, 5, d)) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace codec_test

template <class Codec>
class codec_laws : public testing::Test {};
TYPED_TEST_SUITE_P(codec_laws);

TYPED_TEST_P(codec_laws, sizes_of_runs_are_whole_cache_lines) {
  for (const int d : codec_test::head_dims) {
    EXPECT_EQ(TypeParam::key_run_bytes(d) % 64, 0u);
    EXPECT_EQ(TypeParam::value_run_bytes(d) % 64, 0u);
  }
}
TYPED_TEST_P(codec_laws, bytes_do_not_depend_on_how_many_rows_come_at_once) {
  for (const int d : codec_test::head_dims) {
    const std::vector<float> rows = codec_test::normal_rows(16, d, 1);
    codec_test::check_order_of_encoding<codec_test::keys<TypeParam>>(rows, d);
    codec_test::check_order_of_encoding<codec_test::values<TypeParam>>(rows, d);
    const std::vector<heddle::bfloat16> narrow(rows.begin(), rows.end());
    codec_test::check_order_of_encoding<codec_test::keys<TypeParam>>(narrow, d);
    codec_test::check_order_of_encoding<codec_test::values<TypeParam>>(narrow, d);
  }
}
TYPED_TEST_P(codec_laws, slots_are_independent) {
  for (const int d : codec_test::head_dims) {
    codec_test::check_slots_are_independent<codec_test::keys<TypeParam>>(codec_test::normal_rows(16, d, 2), d);
    codec_test::check_slots_are_independent<codec_test::values<TypeParam>>(codec_test::normal_rows(16, d, 3), d);
  }
}
TYPED_TEST_P(codec_laws, records_pack_to_the_bytes_of_runs) {
  for (const int d : codec_test::head_dims) {
    codec_test::check_records<codec_test::keys<TypeParam>>(codec_test::normal_rows(16, d, 4), d);
    codec_test::check_records<codec_test::values<TypeParam>>(codec_test::normal_rows(16, d, 5), d);
  }
}
TYPED_TEST_P(codec_laws, copies_are_exact) {
  for (const int d : codec_test::head_dims) {
    codec_test::check_copies<codec_test::keys<TypeParam>>(codec_test::normal_rows(16, d, 6), d);
    codec_test::check_copies<codec_test::values<TypeParam>>(codec_test::normal_rows(16, d, 7), d);
  }
}
TYPED_TEST_P(codec_laws, a_bad_row_disturbs_no_other) {
  for (const int d : codec_test::head_dims) {
    codec_test::check_bad_rows_stay_alone<codec_test::keys<TypeParam>>(codec_test::normal_rows(16, d, 8), d);
    codec_test::check_bad_rows_stay_alone<codec_test::values<TypeParam>>(codec_test::normal_rows(16, d, 9), d);
  }
}
TYPED_TEST_P(codec_laws, a_row_of_zeros_is_zero) {
  for (const int d : codec_test::head_dims) {
    codec_test::check_zero_rows<codec_test::keys<TypeParam>>(codec_test::normal_rows(16, d, 10), d);
    codec_test::check_zero_rows<codec_test::values<TypeParam>>(codec_test::normal_rows(16, d, 11), d);
  }
}
REGISTER_TYPED_TEST_SUITE_P(codec_laws, sizes_of_runs_are_whole_cache_lines, bytes_do_not_depend_on_how_many_rows_come_at_once,
                            slots_are_independent, records_pack_to_the_bytes_of_runs, copies_are_exact, a_bad_row_disturbs_no_other,
                            a_row_of_zeros_is_zero);
