// AVX2 with FMA and F16C: two registers of eight lanes. Included by core/simd.hpp only.
#pragma once
#include <heddle/core/element.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <immintrin.h>

namespace heddle::simd::inline HEDDLE_ISA {

inline constexpr int registers = 16;   ///< vector registers of the target
inline constexpr bool wide_registers = false;   ///< one register holds all sixteen lanes

struct f32x16 {
  __m256 low, high;
};
struct i32x16 {
  __m256i low, high;
};
struct mask16 {
  __m256 low, high;   // all bits of a lane set or clear
};

[[gnu::always_inline]] inline f32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
[[gnu::always_inline]] inline i32x16 splat(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
[[gnu::always_inline]] inline f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
[[gnu::always_inline]] inline void store(float* p, f32x16 v) { _mm256_storeu_ps(p, v.low), _mm256_storeu_ps(p + 8, v.high); }
[[gnu::always_inline]] inline i32x16 load_words(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
[[gnu::always_inline]] inline void store_words(void* p, i32x16 v) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, v.low), _mm256_storeu_si256(q + 1, v.high);
}
[[gnu::always_inline]] inline f32x16 load_f16(const void* p) {
  const auto* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
[[gnu::always_inline]] inline f32x16 load_bf16(const void* p) {
  const auto* q = static_cast<const __m128i*>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}
[[gnu::always_inline]] inline void store_f16(void* p, f32x16 v) {
  auto* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT)), _mm_storeu_si128(q + 1, _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
}
[[gnu::always_inline]] inline void store_bf16(void* p, f32x16 v) {
  const auto round = [](__m256 x) __attribute__((always_inline)) {
    const __m256i b = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  };
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(round(v.low), round(v.high)), 0xd8);
  _mm256_storeu_si256(static_cast<__m256i*>(p), packed);
}

[[gnu::always_inline]] inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
[[gnu::always_inline]] inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
[[gnu::always_inline]] inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
[[gnu::always_inline]] inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
[[gnu::always_inline]] inline f32x16 operator-(f32x16 a) { return {_mm256_xor_ps(a.low, _mm256_set1_ps(-0.f)), _mm256_xor_ps(a.high, _mm256_set1_ps(-0.f))}; }
[[gnu::always_inline]] inline f32x16 abs(f32x16 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.f), a.low), _mm256_andnot_ps(_mm256_set1_ps(-0.f), a.high)}; }
[[gnu::always_inline]] inline f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
[[gnu::always_inline]] inline f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
[[gnu::always_inline]] inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
[[gnu::always_inline]] inline f32x16 product(f32x16 a, f32x16 b) {
  f32x16 v = a * b;
  __asm__("" : "+x"(v.low), "+x"(v.high));
  return v;
}

[[gnu::always_inline]] inline i32x16 operator+(i32x16 a, i32x16 b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 operator-(i32x16 a, i32x16 b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 operator*(i32x16 a, i32x16 b) { return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 operator&(i32x16 a, i32x16 b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 operator|(i32x16 a, i32x16 b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
[[gnu::always_inline]] inline i32x16 operator^(i32x16 a, i32x16 b) { return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)}; }
template <int n>
[[gnu::always_inline]] inline i32x16 shift_left(i32x16 a) { return {_mm256_slli_epi32(a.low, n), _mm256_slli_epi32(a.high, n)}; }
template <int n>
[[gnu::always_inline]] inline i32x16 shift_right(i32x16 a) { return {_mm256_srli_epi32(a.low, n), _mm256_srli_epi32(a.high, n)}; }
template <int n>
[[gnu::always_inline]] inline i32x16 shift_right_signed(i32x16 a) { return {_mm256_srai_epi32(a.low, n), _mm256_srai_epi32(a.high, n)}; }

[[gnu::always_inline]] inline i32x16 bits_of(f32x16 a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
[[gnu::always_inline]] inline f32x16 floats_of(i32x16 a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
[[gnu::always_inline]] inline f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
/// Rounds to the nearest integer, ties to even.
[[gnu::always_inline]] inline i32x16 to_int(f32x16 a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }

[[gnu::always_inline]] inline mask16 less(f32x16 a, f32x16 b) { return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)}; }
[[gnu::always_inline]] inline mask16 less_equal(f32x16 a, f32x16 b) { return {_mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ)}; }
[[gnu::always_inline]] inline mask16 equal(f32x16 a, f32x16 b) { return {_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ)}; }
[[gnu::always_inline]] inline mask16 is_nan(f32x16 a) { return {_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)}; }
[[gnu::always_inline]] inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return {_mm256_blendv_ps(no.low, yes.low, m.low), _mm256_blendv_ps(no.high, yes.high, m.high)}; }
/// 0 where the condition holds, v elsewhere.
[[gnu::always_inline]] inline f32x16 clear(mask16 m, f32x16 v) { return {_mm256_andnot_ps(m.low, v.low), _mm256_andnot_ps(m.high, v.high)}; }
/// Bit i is lane i.
[[gnu::always_inline]] inline std::uint32_t bits_of(mask16 m) { return static_cast<std::uint32_t>(_mm256_movemask_ps(m.low)) | static_cast<std::uint32_t>(_mm256_movemask_ps(m.high)) << 8; }
[[gnu::always_inline]] inline mask16 mask_of(std::uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const auto spread = [&](std::uint32_t b) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(b)), lane), lane));
  };
  return {spread(bits & 255u), spread(bits >> 8 & 255u)};
}

/// Lanes 2 i and 2 i + 1 change places.
[[gnu::always_inline]] inline f32x16 swap_pairs(f32x16 v) { return {_mm256_permute_ps(v.low, 0xb1), _mm256_permute_ps(v.high, 0xb1)}; }
/// Lane i of the result is lane i ^ n.
template <int n>
[[gnu::always_inline]] inline f32x16 exchange(f32x16 a) {
  static_assert(n == 8 || n == 4 || n == 2 || n == 1);
  if constexpr (n == 8) return {a.high, a.low};
  else if constexpr (n == 4) return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
  else return {_mm256_permute_ps(a.low, n == 2 ? 0x4e : 0xb1), _mm256_permute_ps(a.high, n == 2 ? 0x4e : 0xb1)};
}
[[gnu::always_inline]] inline float first_lane(f32x16 v) { return _mm256_cvtss_f32(v.low); }

}  // namespace heddle::simd::inline HEDDLE_ISA
