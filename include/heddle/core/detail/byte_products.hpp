// Exact sums of products of bytes and small integers, sixteen lanes at a time.
//
// A lane holds a cell: 32 bits with four unsigned bytes, or eight of four bits in two planes (plane p is bits 4 p .. 4 p + 3 of every byte).
// It is multiplied with four integers that all lanes share. Integers have one digit, |x| <= 127, or two, |x| <= 16256 = 128 * 127. Sums are
// taken modulo 2^32, so they are exact whenever the final sum fits an int32, in any order, on any instruction set.
//
//   AVX-512 VNNI   vpdpbusd on bytes; x = 128 * high + low takes one product a digit
//   AVX-512, AVX2  bytes widened to 16 bits, vpmaddwd; both digits at once. vpmaddubsw would saturate at these ranges
//   otherwise      32-bit multiplies
#pragma once
#include <heddle/core/simd.hpp>

namespace heddle::detail::inline HEDDLE_ISA {

template <int digits>
inline constexpr int largest_integer = digits == 1 ? 127 : 128 * 127;

// Over all lanes: the sum modulo 2^32 of integers, the largest of floats that are not negative and not NaN.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
[[gnu::always_inline]] inline __m256i lower_lanes(simd::i32x16 v) { return _mm512_maskz_extracti64x4_epi64(0xff, v.all, 0); }
[[gnu::always_inline]] inline __m256i upper_lanes(simd::i32x16 v) { return _mm512_maskz_extracti64x4_epi64(0xff, v.all, 1); }
#else
[[gnu::always_inline]] inline __m256i lower_lanes(simd::i32x16 v) { return v.low; }
[[gnu::always_inline]] inline __m256i upper_lanes(simd::i32x16 v) { return v.high; }
#endif
template <class Join>
[[gnu::always_inline]] inline std::int32_t fold_lanes(simd::i32x16 v, Join join) {
  __m128i x = join(join(_mm256_castsi256_si128(lower_lanes(v)), _mm256_castsi256_si128(upper_lanes(v))), join(_mm256_extracti128_si256(lower_lanes(v), 1), _mm256_extracti128_si256(upper_lanes(v), 1)));
  x = join(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(join(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline std::int32_t sum_of(simd::i32x16 v) {
  return fold_lanes(v, [](__m128i a, __m128i b) __attribute__((always_inline)) { return _mm_add_epi32(a, b); });
}
inline float largest_of(simd::f32x16 v) {   // bits of such floats are ordered as integers
  return std::bit_cast<float>(fold_lanes(simd::bits_of(v), [](__m128i a, __m128i b) __attribute__((always_inline)) { return _mm_max_epi32(a, b); }));
}
#else
inline std::int32_t sum_of(simd::i32x16 v) {
  alignas(64) std::int32_t a[16];
  simd::store_words(a, v);
  std::uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += static_cast<std::uint32_t>(a[i]);
  return static_cast<std::int32_t>(sum);
}
inline float largest_of(simd::f32x16 v) { return simd::reduce_max(v); }
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

template <int digits>
struct byte_products {
  static constexpr int words = digits;   ///< 32-bit words that four packed integers take

  struct cells {
    __m512i bytes;
  };
  struct sums {
    __m512i digit[digits];
  };

  /// Sixteen integers, in the order of the channels or tokens they belong to, to 4 * words words.
  [[gnu::always_inline]] static void pack(simd::i32x16 x, std::uint32_t* to) {
    auto* out = reinterpret_cast<__m128i*>(to);
    if constexpr (digits == 1) {
      _mm_storeu_si128(out, _mm512_maskz_cvtepi32_epi8(0xffff, x.all));
    } else {
      const simd::i32x16 high = simd::shift_right_signed<7>(x + simd::splat(64));
      const __m128i h = _mm512_maskz_cvtepi32_epi8(0xffff, high.all), l = _mm512_maskz_cvtepi32_epi8(0xffff, (x - simd::shift_left<7>(high)).all);
      _mm_storeu_si128(out, _mm_unpacklo_epi32(h, l));
      _mm_storeu_si128(out + 1, _mm_unpackhi_epi32(h, l));
    }
  }
  template <int bits, int plane>
  [[gnu::always_inline]] static cells open(simd::i32x16 x) {
    if constexpr (bits == 8) return {x.all};
    return {(simd::shift_right<4 * plane>(x) & simd::splat(0x0f0f0f0f)).all};
  }
  [[gnu::always_inline]] static sums start(std::int32_t x) {
    sums s;
    for (int i = 0; i < digits; ++i) s.digit[i] = _mm512_setzero_si512();
    s.digit[digits - 1] = _mm512_set1_epi32(x);
    return s;
  }
  [[gnu::always_inline]] static void add(sums& s, const cells& c, const std::uint32_t* integers) {
    for (int i = 0; i < digits; ++i) s.digit[i] = _mm512_dpbusd_epi32(s.digit[i], c.bytes, _mm512_set1_epi32(static_cast<int>(integers[i])));
  }
  [[gnu::always_inline]] static simd::i32x16 total(const sums& s) {
    if constexpr (digits == 1) return {s.digit[0]};
    else return simd::shift_left<7>(simd::i32x16{s.digit[0]}) + simd::i32x16{s.digit[1]};
  }
};

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

template <int digits>
struct byte_products {
  static constexpr int words = 2;   ///< 32-bit words that four packed integers take: 0 and 2, then 1 and 3

  struct cells {
    simd::i32x16 even, odd;   // bytes 0 and 2, bytes 1 and 3 of a cell, 16 bits each
  };
  struct sums {
    simd::i32x16 all;
  };

  /// Sixteen integers, in the order of the channels or tokens they belong to, to 4 * words words.
  [[gnu::always_inline]] static void pack(simd::i32x16 x, std::uint32_t* to) {
    alignas(64) std::int32_t lane[16];
    simd::store_words(lane, x);
    const auto* half = reinterpret_cast<const __m256i*>(lane);
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_load_si256(half), _mm256_load_si256(half + 1)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(packed, order));
  }
  template <int bits, int plane>
  [[gnu::always_inline]] static cells open(simd::i32x16 x) {
    if constexpr (bits == 8) {
      return {x & simd::splat(0x00ff00ff), shift_right_16<8>(x)};
    } else if constexpr (plane == 0) {
      return {x & simd::splat(0x000f000f), shift_right_16<8>(x) & simd::splat(0x000f000f)};
    } else {
      return {shift_right_16<4>(x) & simd::splat(0x000f000f), shift_right_16<12>(x)};
    }
  }
  [[gnu::always_inline]] static sums start(std::int32_t x) { return {simd::splat(x)}; }
  [[gnu::always_inline]] static void add(sums& s, const cells& c, const std::uint32_t* integers) {
    s.all = multiply_add(s.all, c.even, integers[0]);
    in_place(s);
    s.all = multiply_add(s.all, c.odd, integers[1]);
    in_place(s);
  }
  [[gnu::always_inline]] static simd::i32x16 total(const sums& s) { return s.all; }

 private:
  // Sums stay in their registers, one product at a time. Left alone, compilers add products to each other first and run out of registers.
#if defined(__AVX512BW__) && defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
  [[gnu::always_inline]] static void in_place(sums& s) { __asm__("" : "+v"(s.all.all)); }
  template <int n>
  [[gnu::always_inline]] static simd::i32x16 shift_right_16(simd::i32x16 x) { return {_mm512_srli_epi16(x.all, n)}; }
  [[gnu::always_inline]] static simd::i32x16 multiply_add(simd::i32x16 sum, simd::i32x16 pairs, std::uint32_t pair) {
    return sum + simd::i32x16{_mm512_madd_epi16(pairs.all, _mm512_set1_epi32(static_cast<int>(pair)))};
  }
#else
  [[gnu::always_inline]] static void in_place(sums& s) { __asm__("" : "+x"(s.all.low), "+x"(s.all.high)); }
  template <int n>
  [[gnu::always_inline]] static simd::i32x16 shift_right_16(simd::i32x16 x) { return {_mm256_srli_epi16(x.low, n), _mm256_srli_epi16(x.high, n)}; }
  [[gnu::always_inline]] static simd::i32x16 multiply_add(simd::i32x16 sum, simd::i32x16 pairs, std::uint32_t pair) {
    const __m256i y = _mm256_set1_epi32(static_cast<int>(pair));
#if defined(__AVXVNNI__)
    return {_mm256_dpwssd_avx_epi32(sum.low, pairs.low, y), _mm256_dpwssd_avx_epi32(sum.high, pairs.high, y)};
#else
    return sum + simd::i32x16{_mm256_madd_epi16(pairs.low, y), _mm256_madd_epi16(pairs.high, y)};
#endif
  }
#endif
};

#else

template <int digits>
struct byte_products {
  static constexpr int words = 4;   ///< 32-bit words that four packed integers take

  struct cells {
    simd::i32x16 byte[4];
  };
  struct sums {
    simd::i32x16 all;
  };

  /// Sixteen integers, in the order of the channels or tokens they belong to, to 4 * words words.
  [[gnu::always_inline]] static void pack(simd::i32x16 x, std::uint32_t* to) { simd::store_words(to, x); }
  template <int bits, int plane>
  [[gnu::always_inline]] static cells open(simd::i32x16 x) {
    const simd::i32x16 mask = simd::splat(bits == 8 ? 255 : 15);
    constexpr int p = 4 * plane;
    return {{simd::shift_right<p>(x) & mask, simd::shift_right<8 + p>(x) & mask, simd::shift_right<16 + p>(x) & mask, simd::shift_right<24 + p>(x) & mask}};
  }
  [[gnu::always_inline]] static sums start(std::int32_t x) { return {simd::splat(x)}; }
  [[gnu::always_inline]] static void add(sums& s, const cells& c, const std::uint32_t* integers) {
    for (int i = 0; i < 4; ++i) s.all = s.all + c.byte[i] * simd::splat(static_cast<std::int32_t>(integers[i]));
  }
  [[gnu::always_inline]] static simd::i32x16 total(const sums& s) { return s.all; }
};

#endif

}  // namespace heddle::detail::inline HEDDLE_ISA
