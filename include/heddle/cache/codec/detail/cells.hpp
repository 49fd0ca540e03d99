// Sixteen elements to and from lanes, and the transpose of sixteen by sixteen elements: what codecs of plain numbers are made of.
#pragma once
#include <heddle/core/simd.hpp>

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace heddle::codec::detail::inline HEDDLE_ISA {

template <class E>
inline constexpr bool is_float8 = std::is_same_v<E, float8_e4m3> || std::is_same_v<E, float8_e5m2>;

// fp8 through binary16, whose conversion handles subnormals, infinities and NaN. e5m2 is the upper byte of a binary16. The bits of e4m3,
// moved to those of binary16, are the value times 2^-8; adding one unit carries into bit 14 for NaN alone, and that bit makes the binary16
// a NaN.
template <class E>
[[gnu::always_inline]] inline simd::f32x16 load_float8(const E* p) {
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  alignas(32) std::uint16_t half[16];
  if constexpr (std::is_same_v<E, float8_e5m2>) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(half), _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
    return simd::load_f16(half);
  } else {
    const __m256i moved =
        _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    const __m256i not_a_number = _mm256_and_si256(_mm256_add_epi16(moved, _mm256_set1_epi16(0x80)), _mm256_set1_epi16(0x4000));
    _mm256_store_si256(reinterpret_cast<__m256i*>(half), _mm256_or_si256(moved, not_a_number));
    return simd::load_f16(half) * simd::splat(256.f);
  }
#else
  alignas(64) float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = p[i];
  return simd::load(wide);
#endif
}

// Nearest, ties to even, saturating; the lanes of E::saturating.
template <class E>
[[gnu::always_inline]] inline void store_float8(E* p, simd::f32x16 x) {
  constexpr bool e4m3 = std::is_same_v<E, float8_e4m3>;
  constexpr int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, dropped = 23 - mantissa_bits;
  const simd::f32x16 magnitude = simd::min(simd::abs(x), simd::splat(e4m3 ? 448.f : 57344.f));
  const simd::i32x16 bits = simd::bits_of(magnitude), odd = simd::shift_right<dropped>(bits) & simd::splat(1);
  const simd::i32x16 normal =
      simd::shift_right<dropped>(bits + simd::splat((1 << (dropped - 1)) - 1) + odd) - simd::splat((127 - bias) << mantissa_bits);
  const simd::f32x16 anchor = simd::splat(e4m3 ? 0x1p14f : 0x1p7f);  // one unit in its last place is the smallest subnormal
  const simd::i32x16 subnormal = simd::bits_of(magnitude + anchor) - simd::bits_of(anchor);
  const simd::f32x16 number =
      simd::select(simd::less(magnitude, simd::splat(e4m3 ? 0x1p-6f : 0x1p-14f)), simd::floats_of(subnormal), simd::floats_of(normal));
  const simd::f32x16 code = simd::select(simd::is_nan(x), simd::floats_of(simd::splat(e4m3 ? 0x7f : 0x7e)), number);
  const simd::i32x16 result = simd::bits_of(code) | (simd::shift_right<24>(simd::bits_of(x)) & simd::splat(0x80));
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  alignas(64) std::int32_t words[16];
  simd::store_words(words, result);
  const auto* w = reinterpret_cast<const __m256i*>(words);
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_load_si256(w), _mm256_load_si256(w + 1)), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#else
  std::int32_t words[16];
  simd::store_words(words, result);
  for (int i = 0; i < 16; ++i) p[i].bits = static_cast<std::uint8_t>(words[i]);
#endif
}

/// Sixteen elements as floats.
template <real_element E>
[[gnu::always_inline]] inline simd::f32x16 load(const E* p) {
  if constexpr (is_float8<E>) {
    return load_float8(p);
  } else if constexpr (std::is_same_v<E, double>) {
    alignas(64) float narrow[16];
    for (int i = 0; i < 16; ++i) narrow[i] = static_cast<float>(p[i]);
    return simd::load(narrow);
  } else {
    return simd::load(p);
  }
}
/// Floats as sixteen elements: nearest, ties to even; fp8 saturates.
template <real_element E>
[[gnu::always_inline]] inline void store(E* p, simd::f32x16 v) {
  if constexpr (is_float8<E>) store_float8(p, v);
  else simd::store(p, v);
}

/// out[i] = E(in[i]) for i < n. Bits are copied when the types are the same.
template <real_element E, real_element T>
[[gnu::always_inline]] inline void convert(const T* in, std::int64_t n, E* out) {
  if constexpr (std::is_same_v<E, T>) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(E));
  } else {
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) detail::store(out + i, detail::load(in + i));
    if (i == n) return;
    alignas(64) T rest[16] = {};
    alignas(64) E converted[16];
    std::memcpy(rest, in + i, static_cast<std::size_t>(n - i) * sizeof(T));
    detail::store(converted, detail::load(rest));
    std::memcpy(out + i, converted, static_cast<std::size_t>(n - i) * sizeof(E));
  }
}

#if defined(__AVX2__)
[[gnu::always_inline]] inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
[[gnu::always_inline]] inline void store256(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// Eight rows: 4x4 words in every half register by two levels of interleaving, then halves change places.
[[gnu::always_inline]] inline void transpose_8x8_words(const std::byte* in, std::int64_t stride, std::byte* out) {
  __m256i row[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i) row[i] = load256(in + i * stride);
  for (int i = 0; i < 8; i += 2)
    pair[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]), pair[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int k = 0; k < 2; ++k) {
      quad[i + 2 * k] = _mm256_unpacklo_epi64(pair[i + k], pair[i + k + 2]);
      quad[i + 2 * k + 1] = _mm256_unpackhi_epi64(pair[i + k], pair[i + k + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    store256(out + i * 64, _mm256_permute2x128_si256(quad[i], quad[i + 4], 0x20));
    store256(out + (i + 4) * 64, _mm256_permute2x128_si256(quad[i], quad[i + 4], 0x31));
  }
}
// Eight rows of sixteen half words: column c of them in the lower half of register c, column 8 + c in the upper.
[[gnu::always_inline]] inline void columns_of_half_words(const std::byte* in, std::int64_t stride, __m256i* column) {
  __m256i row[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i) row[i] = load256(in + i * stride);
  for (int i = 0; i < 8; i += 2)
    pair[i] = _mm256_unpacklo_epi16(row[i], row[i + 1]), pair[i + 1] = _mm256_unpackhi_epi16(row[i], row[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int k = 0; k < 2; ++k) {
      quad[i + 2 * k] = _mm256_unpacklo_epi32(pair[i + k], pair[i + k + 2]);
      quad[i + 2 * k + 1] = _mm256_unpackhi_epi32(pair[i + k], pair[i + k + 2]);
    }
  for (int i = 0; i < 4; ++i)
    column[2 * i] = _mm256_unpacklo_epi64(quad[i], quad[i + 4]), column[2 * i + 1] = _mm256_unpackhi_epi64(quad[i], quad[i + 4]);
}
// Sixteen rows of bytes: rows i and i + 8 share a register, three levels of interleaving, then quarters change places.
[[gnu::always_inline]] inline void transpose_bytes(const std::byte* in, std::int64_t stride, std::byte* out) {
  __m256i row[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i)
    row[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * stride))),
                                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + (i + 8) * stride)), 1);
  for (int i = 0; i < 8; i += 2) pair[i] = _mm256_unpacklo_epi8(row[i], row[i + 1]), pair[i + 1] = _mm256_unpackhi_epi8(row[i], row[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int k = 0; k < 2; ++k) {
      quad[i + 2 * k] = _mm256_unpacklo_epi16(pair[i + k], pair[i + k + 2]);
      quad[i + 2 * k + 1] = _mm256_unpackhi_epi16(pair[i + k], pair[i + k + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    store256(out + i * 64, _mm256_permute4x64_epi64(_mm256_unpacklo_epi32(quad[i], quad[i + 4]), 0xd8));
    store256(out + i * 64 + 32, _mm256_permute4x64_epi64(_mm256_unpackhi_epi32(quad[i], quad[i + 4]), 0xd8));
  }
}
#endif

/// out[c][s] = in[s][c] for sixteen rows of sixteen cells; in_stride in cells, out contiguous.
template <class Cell>
[[gnu::always_inline]] inline void transpose_16x16(const Cell* in, std::int64_t in_stride, Cell* out) {
  static_assert(sizeof(Cell) == 1 || sizeof(Cell) == 2 || sizeof(Cell) == 4);
#if defined(__AVX2__)
  const auto* source = reinterpret_cast<const std::byte*>(in);
  auto* target = reinterpret_cast<std::byte*>(out);
  const std::int64_t stride = in_stride * static_cast<std::int64_t>(sizeof(Cell));
  if constexpr (sizeof(Cell) == 4) {
    for (int half = 0; half < 2; ++half) {
      transpose_8x8_words(source + 32 * half, stride, target + 512 * half);
      transpose_8x8_words(source + 32 * half + 8 * stride, stride, target + 512 * half + 32);
    }
  } else if constexpr (sizeof(Cell) == 2) {
    __m256i upper[8], lower[8];
    columns_of_half_words(source, stride, upper);
    columns_of_half_words(source + 8 * stride, stride, lower);
    for (int c = 0; c < 8; ++c) {
      store256(target + 32 * c, _mm256_permute2x128_si256(upper[c], lower[c], 0x20));
      store256(target + 32 * (c + 8), _mm256_permute2x128_si256(upper[c], lower[c], 0x31));
    }
  } else {
    transpose_bytes(source, stride, target);
  }
#else
  for (int c = 0; c < 16; ++c)
    for (int s = 0; s < 16; ++s) out[c * 16 + s] = in[s * in_stride + c];
#endif
}

/// Lanes first .. first + count - 1 of sixteen vectors of sixteen cells; the other lanes of `to` are not touched, nor read.
template <class Cell>
[[gnu::always_inline]] inline void store_lanes(const Cell* from, int first, int count, Cell* to) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Cell);
  for (int i = 0; i < 16; ++i) {
    const auto* source = reinterpret_cast<const std::byte*>(from + 16 * i + first);
    auto* target = reinterpret_cast<std::byte*>(to + 16 * i + first);
    std::size_t at = 0;
    for (; at + 16 <= bytes; at += 16) std::memcpy(target + at, source + at, 16);
    if (bytes & 8) std::memcpy(target + at, source + at, 8), at += 8;
    if (bytes & 4) std::memcpy(target + at, source + at, 4), at += 4;
    if (bytes & 2) std::memcpy(target + at, source + at, 2), at += 2;
    if (bytes & 1) target[at] = source[at];
  }
}

}  // namespace heddle::codec::detail::inline HEDDLE_ISA
