// AVX-512 (F, BW, VL, DQ): one register of sixteen lanes. Included by core/simd.hpp only.
#pragma once
#include <heddle/core/element.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <immintrin.h>

namespace heddle::simd::inline HEDDLE_ISA {

inline constexpr int registers = 32;   ///< vector registers of the target
inline constexpr bool wide_registers = true;   ///< one register holds all sixteen lanes

struct f32x16 {
  __m512 all;
};
struct i32x16 {
  __m512i all;
};
struct mask16 {
  __mmask16 all;
};

[[gnu::always_inline]] inline f32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
[[gnu::always_inline]] inline i32x16 splat(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
[[gnu::always_inline]] inline f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
[[gnu::always_inline]] inline void store(float* p, f32x16 v) { _mm512_storeu_ps(p, v.all); }
[[gnu::always_inline]] inline i32x16 load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
[[gnu::always_inline]] inline void store_words(void* p, i32x16 v) { _mm512_storeu_si512(p, v.all); }
[[gnu::always_inline]] inline f32x16 load_f16(const void* p) { return {_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
[[gnu::always_inline]] inline f32x16 load_bf16(const void* p) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p))), 16))};
}
[[gnu::always_inline]] inline void store_f16(void* p, f32x16 v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(0xffff, v.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
[[gnu::always_inline]] inline void store_bf16(void* p, f32x16 v) {
  const __m512i b = _mm512_castps_si512(v.all), odd = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, b, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_maskz_srli_epi32(0xffff, b, 16), _mm512_set1_epi32(0x40));
  const __m512i result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v.all, v.all, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, result));
}

[[gnu::always_inline]] inline f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.all, b.all)}; }
[[gnu::always_inline]] inline f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.all, b.all)}; }
[[gnu::always_inline]] inline f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.all, b.all)}; }
[[gnu::always_inline]] inline f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.all, b.all)}; }
[[gnu::always_inline]] inline f32x16 operator-(f32x16 a) { return {_mm512_xor_ps(a.all, _mm512_set1_ps(-0.f))}; }
[[gnu::always_inline]] inline f32x16 abs(f32x16 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.f), a.all)}; }
[[gnu::always_inline]] inline f32x16 max(f32x16 a, f32x16 b) { return {_mm512_maskz_max_ps(0xffff, a.all, b.all)}; }
[[gnu::always_inline]] inline f32x16 min(f32x16 a, f32x16 b) { return {_mm512_maskz_min_ps(0xffff, a.all, b.all)}; }
[[gnu::always_inline]] inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
[[gnu::always_inline]] inline f32x16 product(f32x16 a, f32x16 b) {
  f32x16 v = a * b;
  __asm__("" : "+v"(v.all));
  return v;
}

[[gnu::always_inline]] inline i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 operator-(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 operator*(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 operator&(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 operator|(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.all, b.all)}; }
[[gnu::always_inline]] inline i32x16 operator^(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.all, b.all)}; }
template <int n>
[[gnu::always_inline]] inline i32x16 shift_left(i32x16 a) { return {_mm512_maskz_slli_epi32(0xffff, a.all, n)}; }
template <int n>
[[gnu::always_inline]] inline i32x16 shift_right(i32x16 a) { return {_mm512_maskz_srli_epi32(0xffff, a.all, n)}; }
template <int n>
[[gnu::always_inline]] inline i32x16 shift_right_signed(i32x16 a) { return {_mm512_maskz_srai_epi32(0xffff, a.all, n)}; }

[[gnu::always_inline]] inline i32x16 bits_of(f32x16 a) { return {_mm512_castps_si512(a.all)}; }
[[gnu::always_inline]] inline f32x16 floats_of(i32x16 a) { return {_mm512_castsi512_ps(a.all)}; }
[[gnu::always_inline]] inline f32x16 to_float(i32x16 a) { return {_mm512_maskz_cvtepi32_ps(0xffff, a.all)}; }
/// Rounds to the nearest integer, ties to even.
[[gnu::always_inline]] inline i32x16 to_int(f32x16 a) { return {_mm512_maskz_cvtps_epi32(0xffff, a.all)}; }

[[gnu::always_inline]] inline mask16 less(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.all, b.all, _CMP_LT_OQ)}; }
[[gnu::always_inline]] inline mask16 less_equal(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.all, b.all, _CMP_LE_OQ)}; }
[[gnu::always_inline]] inline mask16 equal(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.all, b.all, _CMP_EQ_OQ)}; }
[[gnu::always_inline]] inline mask16 is_nan(f32x16 a) { return {_mm512_cmp_ps_mask(a.all, a.all, _CMP_UNORD_Q)}; }
[[gnu::always_inline]] inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return {_mm512_mask_mov_ps(no.all, m.all, yes.all)}; }
/// 0 where the condition holds, v elsewhere.
[[gnu::always_inline]] inline f32x16 clear(mask16 m, f32x16 v) { return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~m.all), v.all)}; }
/// Bit i is lane i.
[[gnu::always_inline]] inline std::uint32_t bits_of(mask16 m) { return m.all; }
[[gnu::always_inline]] inline mask16 mask_of(std::uint32_t bits) { return {static_cast<__mmask16>(bits)}; }

/// Lanes 2 i and 2 i + 1 change places.
[[gnu::always_inline]] inline f32x16 swap_pairs(f32x16 v) { return {_mm512_maskz_permute_ps(0xffff, v.all, 0xb1)}; }
/// Lane i of the result is lane i ^ n.
template <int n>
[[gnu::always_inline]] inline f32x16 exchange(f32x16 a) {
  static_assert(n == 8 || n == 4 || n == 2 || n == 1);
  if constexpr (n >= 4) return {_mm512_maskz_shuffle_f32x4(0xffff, a.all, a.all, n == 8 ? 0x4e : 0xb1)};
  else return {_mm512_maskz_permute_ps(0xffff, a.all, n == 2 ? 0x4e : 0xb1)};
}
[[gnu::always_inline]] inline float first_lane(f32x16 v) { return _mm512_cvtss_f32(v.all); }

}  // namespace heddle::simd::inline HEDDLE_ISA
