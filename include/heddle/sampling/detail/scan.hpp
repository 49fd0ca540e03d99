// Passes over a row of logits.
//
// scan      the largest logit of the row and of every block of 256, and whether there is a NaN: one read of the row
// first_at  the lowest token with that logit: one block
// collect   the tokens at or above a threshold, in order of ids: only the blocks that hold some
// coarse_sum, rough_sum  the mass of logits in float, within stated bounds; the finer one, and then exact integers (weights.hpp), decide where that is
//           too coarse
#pragma once
#include <heddle/core/simd.hpp>
#include <heddle/sampling/detail/weights.hpp>

#include <bit>
#include <cstdint>
#include <limits>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

inline constexpr std::int64_t block_tokens = 256;
constexpr std::int64_t blocks_of(std::int64_t n) { return (n + block_tokens - 1) / block_tokens; }
inline constexpr float impossible = -std::numeric_limits<float>::infinity();

/// The largest lane of a vector without NaN.
[[gnu::always_inline]] inline float largest_lane(simd::f32x16 v) {
#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  return simd::reduce_max(v);
#endif
}

struct scanned {
  float max = impossible;
  bool has_nan = false;
};

inline scanned scan(const float* z, std::int64_t n, float* block_max) {
  scanned row;
  simd::f32x16 sum = simd::splat(0.f);  // NaN once a logit is; other ways there (overflow, +infinity) are told apart below
  for (std::int64_t block = 0, at = 0; at < n; ++block, at += block_tokens) {
    const std::int64_t end = n - at < block_tokens ? n : at + block_tokens;
    simd::f32x16 a = simd::splat(impossible), b = a;
    std::int64_t i = at;
    for (; i + 64 <= end; i += 64) {
      const simd::f32x16 x = simd::load(z + i), y = simd::load(z + i + 16), u = simd::load(z + i + 32), v = simd::load(z + i + 48);
      a = simd::max(simd::max(x, u), a), b = simd::max(simd::max(y, v), b);
      sum = sum + ((x + y) + (u + v));
    }
    float top = largest_lane(simd::max(a, b));
    for (; i < end; ++i) {
      row.has_nan |= z[i] != z[i];
      if (z[i] > top) top = z[i];
    }
    block_max[block] = top;
    if (top > row.max) row.max = top;
  }
  if (simd::bits_of(simd::is_nan(sum)))
    for (std::int64_t i = 0; i < n; ++i) row.has_nan |= z[i] != z[i];
  return row;
}

/// The first of n values that equals `value`; n if none does.
inline std::int64_t first_equal(const float* values, std::int64_t n, float value) {
  const simd::f32x16 wanted = simd::splat(value);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    if (const std::uint32_t bits = simd::bits_of(simd::equal(wanted, simd::load(values + i)))) return i + std::countr_zero(bits);
  while (i < n && values[i] != value) ++i;
  return i;
}
inline std::int32_t first_at(const float* z, std::int64_t n, const float* block_max, float value) {
  const std::int64_t first = first_equal(block_max, blocks_of(n), value) * block_tokens;
  return static_cast<std::int32_t>(first + first_equal(z + first, n - first < block_tokens ? n - first : block_tokens, value));
}

/// Tokens and logits of { v : z_v >= threshold }, threshold > -infinity; returns their number. z may be `out`.
inline std::int64_t collect(const float* z, std::int64_t n, const float* block_max, float threshold, std::int32_t* ids, float* out) {
  std::int64_t count = 0;
  const simd::f32x16 limit = simd::splat(threshold);
  for (std::int64_t block = 0, at = 0; at < n; ++block, at += block_tokens) {
    if (!(block_max[block] >= threshold)) continue;
    const std::int64_t end = n - at < block_tokens ? n : at + block_tokens;
    std::int64_t i = at;
    for (; i + 16 <= end; i += 16)
      for (std::uint32_t bits = simd::bits_of(simd::less_equal(limit, simd::load(z + i))); bits; bits &= bits - 1) {
        const std::int64_t v = i + std::countr_zero(bits);
        ids[count] = static_cast<std::int32_t>(v), out[count++] = z[v];
      }
    for (; i < end; ++i)
      if (z[i] >= threshold) ids[count] = static_cast<std::int32_t>(i), out[count++] = z[i];
  }
  return count;
}

/// An interval for a sum of masses.
struct mass_bounds {
  double low, high;
};

/// e^((z - max) / T) within 6e-6 of itself down to e^-20, within 1e-13 below; at least e^-60. Needs beyond_float() to be false.
[[gnu::always_inline]] inline simd::f32x16 rough_weight(simd::f32x16 z, simd::f32x16 max, simd::f32x16 scale, simd::f32x16 lowest) {
  const simd::f32x16 magic = simd::splat(12582912.f), d = simd::max(lowest, z - max);  // 1.5 * 2^23 rounds to the nearest integer
  const simd::f32x16 shifted = simd::fma(d, scale, magic), r = simd::fma(d, scale, magic - shifted);
  simd::f32x16 p = simd::splat(9.66636852e-03f);  // 2^r at the Chebyshev nodes of [-1/2, 1/2]: within 3.5e-06
  p = simd::fma(p, r, simd::splat(5.59219758e-02f));
  p = simd::fma(p, r, simd::splat(2.40223490e-01f));
  p = simd::fma(p, r, simd::splat(6.93121045e-01f));
  p = simd::fma(p, r, simd::splat(1.00000000e+00f));
  return simd::floats_of(simd::bits_of(p) + simd::shift_left<23>(simd::bits_of(shifted)));
}
inline bool beyond_float(const softness& soft) { return !(soft.inverse_temperature > 1e-30 && soft.inverse_temperature < 1e30); }

/// 2^n (1 + f) for e^((z - max) / T) = 2^(n + f): by a third of rough_weight's operations, at most 6.15% too large, at most 1e-5 too small.
[[gnu::always_inline]] inline simd::f32x16 coarse_weight(simd::f32x16 z, simd::f32x16 max, simd::f32x16 scale, simd::f32x16 lowest) {
  return simd::floats_of(simd::to_int(simd::fma(simd::max(lowest, z - max), scale, simd::splat(1065353216.f))));  // 127 * 2^23: the bits of 1
}

/// The sum of a weight over n logits. A lane adds 16 of them, the lanes join, and the sum goes on in double: within 1.3e-6 of the sum of the
/// weights themselves. `unit`: of the binary exponent.
template <class Weight>
double sum_of_weights(const float* z, std::int64_t n, const softness& soft, double unit, const Weight& weight) {
  const simd::f32x16 max = simd::splat(soft.max), scale = simd::splat(static_cast<float>(soft.inverse_temperature * 1.4426950408889634 * unit)), lowest = simd::splat(static_cast<float>(-60. / soft.inverse_temperature));
  double sum = 0;
  for (std::int64_t i = 0; i < n; i += 512) {
    simd::f32x16 a = simd::splat(0.f), b = a;
    const std::int64_t end = n - i < 512 ? n : i + 512;
    std::int64_t j = i;
    for (; j + 32 <= end; j += 32) {
      a = a + weight(simd::load(z + j), max, scale, lowest);
      b = b + weight(simd::load(z + j + 16), max, scale, lowest);
    }
    for (; j < end; j += 16) {
      alignas(64) float few[16];
      for (int k = 0; k < 16; ++k) few[k] = j + k < end ? z[j + k] : impossible;
      a = a + weight(simd::load(few), max, scale, lowest);
    }
    sum += static_cast<double>(simd::reduce_add(a + b));
  }
  return sum;
}
inline double rough_sum(const float* z, std::int64_t n, const softness& soft) {
  return sum_of_weights(z, n, soft, 1., [](auto... x) __attribute__((always_inline)) { return rough_weight(x...); });
}
inline double coarse_sum(const float* z, std::int64_t n, const softness& soft) {
  return sum_of_weights(z, n, soft, 8388608., [](auto... x) __attribute__((always_inline)) { return coarse_weight(x...); });
}

/// Bounds, in units of W, for the mass of a row without some of its tokens, from the rough (or coarse) sums of both. The same weights are in both, so
/// only the additions err on what is common; rounding W to integers moves at most half a unit per token.
inline mass_bounds difference(double whole, double part, std::int64_t n, double excess = 0.) {
  const double rest = whole > part ? whole - part : 0., slack = rest * 2e-5 + whole * 3e-6 + static_cast<double>(n) * 2e-13;
  return {(rest > slack ? rest - slack : 0.) / (1. + excess) * unit_mass, (rest + slack) * unit_mass};
}
inline constexpr double coarse_excess = 0.0615;

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
