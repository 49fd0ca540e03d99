// Any target: four vectors of four lanes in the compiler's own vector types. Included by core/simd.hpp only.
#pragma once
#include <heddle/core/element.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace heddle::simd::inline HEDDLE_ISA {

inline constexpr int registers = 16;   ///< vector registers of the target
inline constexpr bool wide_registers = false;   ///< one register holds all sixteen lanes

namespace detail {
using f32x4 = float __attribute__((vector_size(16)));
using i32x4 = std::int32_t __attribute__((vector_size(16)));
using u32x4 = std::uint32_t __attribute__((vector_size(16)));
template <class To, class From>
[[gnu::always_inline]] inline To reinterpret(From v) {
  To r;
  std::memcpy(&r, &v, sizeof r);
  return r;
}
}  // namespace detail

struct f32x16 {
  detail::f32x4 part[4];
};
struct i32x16 {
  detail::i32x4 part[4];
};
struct mask16 {
  detail::i32x4 part[4];   // all bits of a lane set or clear
};

namespace detail {
template <class To, class F>
[[gnu::always_inline]] inline To each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
}  // namespace detail

[[gnu::always_inline]] inline f32x16 splat(float x) {
  return detail::each<f32x16>([&](int) __attribute__((always_inline)) { return detail::f32x4{x, x, x, x}; });
}
[[gnu::always_inline]] inline i32x16 splat(std::int32_t x) {
  return detail::each<i32x16>([&](int) __attribute__((always_inline)) { return detail::i32x4{x, x, x, x}; });
}
[[gnu::always_inline]] inline f32x16 load(const float* p) {
  f32x16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store(float* p, f32x16 v) { std::memcpy(p, &v, sizeof v); }
[[gnu::always_inline]] inline i32x16 load_words(const void* p) {
  i32x16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store_words(void* p, i32x16 v) { std::memcpy(p, &v, sizeof v); }

namespace detail {
template <class Element>
[[gnu::always_inline]] inline f32x16 widen(const void* p) {
  Element cell[16];
  std::memcpy(cell, p, sizeof cell);
  float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = static_cast<float>(cell[i]);
  return load(wide);
}
template <class Element>
[[gnu::always_inline]] inline void narrow(void* p, f32x16 v) {
  float wide[16];
  store(wide, v);
  Element cell[16];
  for (int i = 0; i < 16; ++i) cell[i] = Element(wide[i]);
  std::memcpy(p, cell, sizeof cell);
}
}  // namespace detail
[[gnu::always_inline]] inline f32x16 load_f16(const void* p) { return detail::widen<float16>(p); }
[[gnu::always_inline]] inline f32x16 load_bf16(const void* p) { return detail::widen<bfloat16>(p); }
[[gnu::always_inline]] inline void store_f16(void* p, f32x16 v) { detail::narrow<float16>(p, v); }
[[gnu::always_inline]] inline void store_bf16(void* p, f32x16 v) { detail::narrow<bfloat16>(p, v); }

[[gnu::always_inline]] inline f32x16 operator+(f32x16 a, f32x16 b) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] + b.part[i]; });
}
[[gnu::always_inline]] inline f32x16 operator-(f32x16 a, f32x16 b) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] - b.part[i]; });
}
[[gnu::always_inline]] inline f32x16 operator*(f32x16 a, f32x16 b) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] * b.part[i]; });
}
[[gnu::always_inline]] inline f32x16 operator/(f32x16 a, f32x16 b) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] / b.part[i]; });
}
[[gnu::always_inline]] inline f32x16 operator-(f32x16 a) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return -a.part[i]; });
}
[[gnu::always_inline]] inline f32x16 abs(f32x16 a) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::f32x4>(detail::reinterpret<detail::i32x4>(a.part[i]) & 0x7fffffff); });
}
[[gnu::always_inline]] inline f32x16 max(f32x16 a, f32x16 b) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
}
[[gnu::always_inline]] inline f32x16 min(f32x16 a, f32x16 b) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
}
[[gnu::always_inline]] inline f32x16 product(f32x16 a, f32x16 b) {
  f32x16 v = a * b;
#if defined(__ARM_NEON)
  __asm__("" : "+w"(v.part[0]), "+w"(v.part[1]), "+w"(v.part[2]), "+w"(v.part[3]));
#elif defined(__SSE2__)
  __asm__("" : "+x"(v.part[0]), "+x"(v.part[1]), "+x"(v.part[2]), "+x"(v.part[3]));
#endif
  return v;
}
[[gnu::always_inline]] inline f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__ARM_NEON)
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) {
    return detail::reinterpret<detail::f32x4>(vfmaq_f32(detail::reinterpret<float32x4_t>(c.part[i]), detail::reinterpret<float32x4_t>(a.part[i]), detail::reinterpret<float32x4_t>(b.part[i])));
  });
#elif defined(__FMA__)
  f32x16 r;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 4; ++k) r.part[i][k] = __builtin_fmaf(a.part[i][k], b.part[i][k], c.part[i][k]);
  return r;
#else
  return product(a, b) + c;
#endif
}

[[gnu::always_inline]] inline i32x16 operator+(i32x16 a, i32x16 b) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(detail::reinterpret<detail::u32x4>(a.part[i]) + detail::reinterpret<detail::u32x4>(b.part[i])); });
}
[[gnu::always_inline]] inline i32x16 operator-(i32x16 a, i32x16 b) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(detail::reinterpret<detail::u32x4>(a.part[i]) - detail::reinterpret<detail::u32x4>(b.part[i])); });
}
[[gnu::always_inline]] inline i32x16 operator*(i32x16 a, i32x16 b) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(detail::reinterpret<detail::u32x4>(a.part[i]) * detail::reinterpret<detail::u32x4>(b.part[i])); });
}
[[gnu::always_inline]] inline i32x16 operator&(i32x16 a, i32x16 b) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] & b.part[i]; });
}
[[gnu::always_inline]] inline i32x16 operator|(i32x16 a, i32x16 b) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] | b.part[i]; });
}
[[gnu::always_inline]] inline i32x16 operator^(i32x16 a, i32x16 b) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] ^ b.part[i]; });
}
template <int n>
[[gnu::always_inline]] inline i32x16 shift_left(i32x16 a) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(detail::reinterpret<detail::u32x4>(a.part[i]) << n); });
}
template <int n>
[[gnu::always_inline]] inline i32x16 shift_right(i32x16 a) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(detail::reinterpret<detail::u32x4>(a.part[i]) >> n); });
}
template <int n>
[[gnu::always_inline]] inline i32x16 shift_right_signed(i32x16 a) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return a.part[i] >> n; });
}

[[gnu::always_inline]] inline i32x16 bits_of(f32x16 a) {
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(a.part[i]); });
}
[[gnu::always_inline]] inline f32x16 floats_of(i32x16 a) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::f32x4>(a.part[i]); });
}
[[gnu::always_inline]] inline f32x16 to_float(i32x16 a) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return __builtin_convertvector(a.part[i], detail::f32x4); });
}
/// Rounds to the nearest integer, ties to even; |a| < 2^31.
[[gnu::always_inline]] inline i32x16 to_int(f32x16 a) {
  const f32x16 two23 = splat(8388608.f);
  return detail::each<i32x16>([&](int i) __attribute__((always_inline)) {
    const detail::i32x4 sign = detail::reinterpret<detail::i32x4>(a.part[i]) & static_cast<std::int32_t>(0x80000000u);
    const detail::f32x4 magic = detail::reinterpret<detail::f32x4>(detail::reinterpret<detail::i32x4>(two23.part[i]) | sign);
    detail::f32x4 r = a.part[i] + magic;
    r = r - magic;
    const detail::f32x4 magnitude = detail::reinterpret<detail::f32x4>(detail::reinterpret<detail::i32x4>(a.part[i]) & 0x7fffffff);
    return __builtin_convertvector(magnitude < two23.part[i] ? r : a.part[i], detail::i32x4);
  });
}

[[gnu::always_inline]] inline mask16 less(f32x16 a, f32x16 b) {
  return detail::each<mask16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(a.part[i] < b.part[i]); });
}
[[gnu::always_inline]] inline mask16 less_equal(f32x16 a, f32x16 b) {
  return detail::each<mask16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(a.part[i] <= b.part[i]); });
}
[[gnu::always_inline]] inline mask16 equal(f32x16 a, f32x16 b) {
  return detail::each<mask16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(a.part[i] == b.part[i]); });
}
[[gnu::always_inline]] inline mask16 is_nan(f32x16 a) {
  return detail::each<mask16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::i32x4>(a.part[i] != a.part[i]); });
}
[[gnu::always_inline]] inline f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) {
    return detail::reinterpret<detail::f32x4>((detail::reinterpret<detail::i32x4>(yes.part[i]) & m.part[i]) | (detail::reinterpret<detail::i32x4>(no.part[i]) & ~m.part[i]));
  });
}
/// 0 where the condition holds, v elsewhere.
[[gnu::always_inline]] inline f32x16 clear(mask16 m, f32x16 v) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return detail::reinterpret<detail::f32x4>(detail::reinterpret<detail::i32x4>(v.part[i]) & ~m.part[i]); });
}
/// Bit i is lane i.
[[gnu::always_inline]] inline std::uint32_t bits_of(mask16 m) {
  std::uint32_t bits = 0;
  for (unsigned i = 0; i < 16; ++i) bits |= static_cast<std::uint32_t>(m.part[i / 4][i % 4] != 0) << i;
  return bits;
}
[[gnu::always_inline]] inline mask16 mask_of(std::uint32_t bits) {
  mask16 m;
  for (unsigned i = 0; i < 16; ++i) m.part[i / 4][i % 4] = bits >> i & 1u ? -1 : 0;
  return m;
}

/// Lanes 2 i and 2 i + 1 change places.
[[gnu::always_inline]] inline f32x16 swap_pairs(f32x16 v) {
  return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return __builtin_shufflevector(v.part[i], v.part[i], 1, 0, 3, 2); });
}
/// Lane i of the result is lane i ^ n.
template <int n>
[[gnu::always_inline]] inline f32x16 exchange(f32x16 a) {
  static_assert(n == 8 || n == 4 || n == 2 || n == 1);
  if constexpr (n >= 4) return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return a.part[i ^ n / 4]; });
  else return detail::each<f32x16>([&](int i) __attribute__((always_inline)) { return __builtin_shufflevector(a.part[i], a.part[i], 0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n); });
}
[[gnu::always_inline]] inline float first_lane(f32x16 v) { return v.part[0][0]; }

}  // namespace heddle::simd::inline HEDDLE_ISA
