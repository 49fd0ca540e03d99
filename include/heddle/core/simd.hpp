// Sixteen logical lanes on any instruction set.
//
// The number of lanes is fixed, so results do not depend on the width of registers. They depend on one thing: whether the target has a fused
// multiply-add. Units with one (x86-64-v3, v4, aarch64) give the same bits; others round the product of fma() separately.
// One of three bodies is chosen by predefined macros: AVX-512, AVX2 with FMA, or four vectors of four lanes.
//
// f32x16, i32x16   sixteen floats, sixteen 32-bit integers
// mask16           sixteen conditions
//
// Rules: a product that feeds a sum is fma(), or product(): compilers contract a * b + c on their own, differently per target. max(a, b)
// drops a NaN in a and keeps one in b. Loads and stores take any alignment.
//
//     // y = a x + y over n numbers, n a multiple of sixteen
//     for (std::int64_t i = 0; i < n; i += simd::lanes) simd::store(y + i, simd::fma(simd::splat(a), simd::load(x + i), simd::load(y + i)));
#pragma once
#include <heddle/core/element.hpp>
#include <heddle/core/isa.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <heddle/core/detail/simd_avx512.hpp>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <heddle/core/detail/simd_avx2.hpp>
#else
#include <heddle/core/detail/simd_portable.hpp>
#endif

namespace heddle::simd::inline HEDDLE_ISA {

inline constexpr int lanes = 16;
inline constexpr float infinity = std::numeric_limits<float>::infinity();

// --- loads of elements, widened to float ---
[[gnu::always_inline]] inline f32x16 load(const float16* p) { return load_f16(p); }
[[gnu::always_inline]] inline f32x16 load(const bfloat16* p) { return load_bf16(p); }
[[gnu::always_inline]] inline void store(float16* p, f32x16 v) { store_f16(p, v); }
[[gnu::always_inline]] inline void store(bfloat16* p, f32x16 v) { store_bf16(p, v); }

/// The first n <= 16 elements, zeros after them. Reads no element beyond.
template <class T>
[[gnu::always_inline]] inline f32x16 load_first(const T* p, std::int64_t n) {
  if (n >= lanes) return load(p);
  alignas(64) T buffer[lanes] = {};
  for (std::int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
template <class T>
[[gnu::always_inline]] inline void store_first(T* p, f32x16 v, std::int64_t n) {
  if (n >= lanes) return store(p, v);
  alignas(64) T buffer[lanes];
  store(buffer, v);
  for (std::int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

/// The sum of all lanes in one fixed tree: l and l + 8, then + 4, + 2, + 1.
inline float reduce_add(f32x16 v) {
  v = v + exchange<8>(v);
  v = v + exchange<4>(v);
  v = v + exchange<2>(v);
  return first_lane(v + exchange<1>(v));
}
/// The largest lane; NaN lanes are dropped unless all are NaN (then any).
inline float reduce_max(f32x16 v) {
  const auto larger = [](f32x16 a, f32x16 b) __attribute__((always_inline)) { return select(is_nan(b), a, max(a, b)); };
  v = larger(v, exchange<8>(v));
  v = larger(v, exchange<4>(v));
  v = larger(v, exchange<2>(v));
  return first_lane(larger(v, exchange<1>(v)));
}

namespace detail {
/// e^x = p 2^n with p = e^r, |r| <= ln(2) / 2: p, and n in the low bits of the second float.
struct scaled_exp {
  f32x16 p, n;
};
/// bias, a whole number below 2^20, is added to n.
[[gnu::always_inline]] inline scaled_exp split_exp(f32x16 x, float bias) {
  const f32x16 round = splat(12582912.f + bias);   // 1.5 * 2^23: adding it rounds to the nearest integer
  const f32x16 shifted = fma(x, splat(1.44269504f), round), n = shifted - round;
  f32x16 r = fma(n, splat(-0.693145751953125f), x);
  r = fma(n, splat(-1.42860677e-6f), r);
  f32x16 p = splat(0.00139484694f);   // Taylor series, the terms in r^7 and r^8 economised into lower ones on |r| <= ln(2) / 2
  p = fma(p, r, splat(0.00837503932f));
  p = fma(p, r, splat(0.0416662209f));
  p = fma(p, r, splat(0.166664168f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.f));
  p = fma(p, r, splat(1.f));
  return {p, shifted};
}
}  // namespace detail

/// e^x for x below 88: relative error about 1 ulp; x < -87.33 gives 0; NaN stays NaN.
[[gnu::always_inline]] inline f32x16 exp(f32x16 x) {
  const detail::scaled_exp e = detail::split_exp(x, 0.f);
  const f32x16 p = floats_of(bits_of(e.p) + shift_left<23>(bits_of(e.n)));
  return select(is_nan(x), x, clear(less(x, splat(-87.33f)), p));
}
/// exp(x) for x <= 0 in fewer steps: the same bits where multiply-adds are fused. NaN gives NaN.
[[gnu::always_inline]] inline f32x16 exp_nonpositive(f32x16 x) {
  const detail::scaled_exp e = detail::split_exp(x, 127.f);
  return clear(less(x, splat(-87.33f)), e.p * floats_of(shift_left<23>(bits_of(e.n))));
}
inline float exp(float x) { return first_lane(exp(splat(x))); }

/// Fused multiply-add of scalars, in the arithmetic of the lanes.
[[gnu::always_inline]] inline float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace heddle::simd::inline HEDDLE_ISA
