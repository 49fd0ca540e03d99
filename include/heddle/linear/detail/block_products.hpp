// Exact integer products of one record of codes with one block of up to a tile of rows, in three bodies: VNNI, pairs of 16-bit sums
// (AVX2 and AVX-512), any target. All give
//     part[i][r], lane o = sum over the 32 inputs of code(o, k) part[i](r, k)
// where codes of bytes are those of the weights (the offset of 128 is taken back) and nibbles are 0..15. Largest magnitude: 2^31 - 2^28.
#pragma once
#include <heddle/linear/activations.hpp>

namespace heddle::linear::detail::inline HEDDLE_ISA {

using simd::i32x16;

[[gnu::always_inline]] inline i32x16 low_nibbles(i32x16 v) { return v & simd::splat(0x0f0f0f0f); }
[[gnu::always_inline]] inline i32x16 high_nibbles(i32x16 v) { return low_nibbles(simd::shift_right<4>(v)); }
[[gnu::always_inline]] inline i32x16 splat_word(const void* p) {
  std::int32_t word;
  std::memcpy(&word, p, sizeof word);
  return simd::splat(word);
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)

// Most rows of a tile that fit the registers.
template <bool nibbles, int digits>
inline constexpr int product_rows = digits == 1 ? 12 : 6;

template <bool nibbles, int digits, int rows>
[[gnu::always_inline]] inline void block_products(const std::byte* record, const digit_block<digits>* x, i32x16 (&part)[digit_block<digits>::parts][rows]) {
  i32x16 sum[digits][rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
    for (int d = 0; d < digits; ++d) sum[d][r] = simd::splat(0);
#pragma GCC unroll 8
  for (int z = 0; z < 8; ++z) {
    i32x16 codes;
    if constexpr (nibbles) codes = z < 4 ? low_nibbles(simd::load_words(record + 64 * z)) : high_nibbles(simd::load_words(record + 64 * (z - 4)));
    else codes = simd::load_words(record + 64 * z);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
      for (int d = 0; d < digits; ++d) sum[d][r].all = _mm512_dpbusd_epi32(sum[d][r].all, codes.all, splat_word(x[r].digit[d] + 4 * z).all);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
    part[0][r] = sum[0][r];
    if constexpr (digits > 1) part[0][r] = simd::shift_left<8>(part[0][r]) + sum[1][r];
    if constexpr (digits > 2) part[1][r] = sum[2][r];
    if constexpr (!nibbles)
      for (int i = 0; i < digit_block<digits>::parts; ++i) part[i][r] = part[i][r] + simd::splat(x[r].minus_128_sums[i]);
  }
}

#elif (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))

#if defined(__AVX512BW__)
[[gnu::always_inline]] inline i32x16 multiply_bytes(i32x16 codes, i32x16 x) { return {_mm512_maddubs_epi16(codes.all, x.all)}; }
[[gnu::always_inline]] inline i32x16 multiply_words(i32x16 a, i32x16 b) { return {_mm512_madd_epi16(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 add_words(i32x16 a, i32x16 b) { return {_mm512_add_epi16(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 odd_bytes(i32x16 a) { return {_mm512_srli_epi16(a.all, 8)}; }
#else
[[gnu::always_inline]] inline i32x16 multiply_bytes(i32x16 codes, i32x16 x) { return {_mm256_maddubs_epi16(codes.low, x.low), _mm256_maddubs_epi16(codes.high, x.high)}; }
[[gnu::always_inline]] inline i32x16 multiply_words(i32x16 a, i32x16 b) { return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 add_words(i32x16 a, i32x16 b) { return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 odd_bytes(i32x16 a) { return {_mm256_srli_epi16(a.low, 8), _mm256_srli_epi16(a.high, 8)}; }
#endif
[[gnu::always_inline]] inline i32x16 even_bytes(i32x16 a) { return a & simd::splat(0x00ff00ff); }
/// Keeps compilers from collecting all products before they add any: there are no registers for that.
[[gnu::always_inline]] inline void settle(i32x16& v) {
#if defined(__AVX512BW__)
  __asm__("" : "+v"(v.all));
#else
  __asm__("" : "+x"(v.low), "+x"(v.high));
#endif
}

template <bool nibbles, int digits>
inline constexpr int product_rows = digits == 1 ? 4 : digits == 2 ? (nibbles ? 3 : 4) : (nibbles ? 2 : 3);

template <bool nibbles, int digits, int rows>
[[gnu::always_inline]] inline void block_products(const std::byte* record, const digit_block<digits>* x, i32x16 (&part)[digit_block<digits>::parts][rows]) {
  constexpr int parts = digit_block<digits>::parts;
  if constexpr (nibbles) {   // a 16-bit sum of 16 products of 15 by 128 stays below 2^15: one widening per block
    i32x16 sum[digits][rows];
#pragma GCC unroll 8
    for (int z = 0; z < 4; ++z) {
      const i32x16 word = simd::load_words(record + 64 * z);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const i32x16 codes = half == 0 ? low_nibbles(word) : high_nibbles(word);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
          for (int d = 0; d < digits; ++d) {
            const i32x16 products = multiply_bytes(codes, splat_word(x[r].digit[d] + 4 * (z + 4 * half)));
            sum[d][r] = z == 0 && half == 0 ? products : add_words(sum[d][r], products);
            settle(sum[d][r]);
          }
      }
    }
    const i32x16 ones = simd::splat(0x00010001), base = simd::splat(0x01000100);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      part[0][r] = multiply_words(sum[0][r], digits == 1 ? ones : base);
      if constexpr (digits > 1) part[0][r] = part[0][r] + multiply_words(sum[1][r], ones);
      if constexpr (digits > 2) part[1][r] = multiply_words(sum[2][r], ones);
    }
  } else {   // codes widened to 16 bits: products of whole parts, no digit by digit
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int i = 0; i < parts; ++i) part[i][r] = simd::splat(x[r].minus_128_sums[i]);
#pragma GCC unroll 8
    for (int z = 0; z < 8; ++z) {
      const i32x16 word = simd::load_words(record + 64 * z);
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const i32x16 codes = odd ? odd_bytes(word) : even_bytes(word);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
          for (int i = 0; i < parts; ++i) {
            part[i][r] = part[i][r] + multiply_words(codes, splat_word(x[r].part[i] + 2 * (z + 8 * odd)));
            settle(part[i][r]);
          }
      }
    }
  }
}

#else

template <bool nibbles, int digits>
inline constexpr int product_rows = 2;

template <bool nibbles, int digits, int rows>
inline void block_products(const std::byte* record, const digit_block<digits>* x, i32x16 (&part)[digit_block<digits>::parts][rows]) {
  constexpr int parts = digit_block<digits>::parts;
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < parts; ++i) part[i][r] = simd::splat(nibbles ? 0 : x[r].minus_128_sums[i]);
  const auto accumulate = [&](i32x16 codes, int input) __attribute__((always_inline)) {
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < parts; ++i) part[i][r] = part[i][r] + codes * simd::splat(std::int32_t{x[r].part[i][input % 16 * 2 + input / 16]});
  };
  for (int z = 0; z < (nibbles ? 4 : 8); ++z) {
    i32x16 word = simd::load_words(record + 64 * z);
    for (int i = 0; i < 4; ++i) {
      if constexpr (nibbles) {
        accumulate(word & simd::splat(15), z + 8 * i);
        accumulate(simd::shift_right<4>(word) & simd::splat(15), z + 4 + 8 * i);
      } else {
        accumulate(word & simd::splat(255), z + 8 * i);
      }
      word = simd::shift_right<8>(word);
    }
  }
}

#endif

}  // namespace heddle::linear::detail::inline HEDDLE_ISA
