// Passes over a row of logits.
//
// scan      the largest logit of the row and of every block of 512, and whether there is a NaN: one read of the row
// first_at  the lowest token with that logit: one block
// collect   the tokens at or above a threshold, in order of ids: only the blocks that hold some
// rest_of   the mass of the tokens below a threshold, in float, within `rest_error`; exact integers (weights.hpp) decide where that is too coarse
#pragma once
#include <heddle/core/simd.hpp>
#include <heddle/sampling/detail/weights.hpp>

#include <bit>
#include <cstdint>
#include <limits>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

inline constexpr std::int64_t block_tokens = 512;
constexpr std::int64_t blocks_of(std::int64_t n) { return (n + block_tokens - 1) / block_tokens; }
inline constexpr float impossible = -std::numeric_limits<float>::infinity();

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
    float top = simd::reduce_max(simd::max(a, b));
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

inline std::int32_t first_at(const float* z, const float* block_max, float value) {
  std::int64_t block = 0;
  while (block_max[block] != value) ++block;
  std::int64_t i = block * block_tokens;
  while (z[i] != value) ++i;
  return static_cast<std::int32_t>(i);
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

/// e^((z - max) / T) relative to max, within 3e-6 for weights above 1e-9.
[[gnu::always_inline]] inline simd::f32x16 rough_weight(simd::f32x16 z, simd::f32x16 max, simd::f32x16 scale, simd::f32x16 lowest) {
  const simd::f32x16 magic = simd::splat(12582912.f), d = simd::max(lowest, z - max);  // 1.5 * 2^23 rounds to the nearest integer
  const simd::f32x16 shifted = simd::fma(d, scale, magic), r = simd::fma(d, scale, magic - shifted);
  simd::f32x16 p = simd::splat(1.33988e-3f);  // 2^r, |r| <= 1/2
  p = simd::fma(p, r, simd::splat(9.61844e-3f));
  p = simd::fma(p, r, simd::splat(5.550331e-2f));
  p = simd::fma(p, r, simd::splat(2.4022651e-1f));
  p = simd::fma(p, r, simd::splat(6.9314718e-1f));
  p = simd::fma(p, r, simd::splat(1.f));
  return simd::floats_of(simd::bits_of(p) + simd::shift_left<23>(simd::bits_of(shifted)));
}

/// Mass of { v : z_v < threshold }, in units of W.
///
/// The float weights are right within 6e-6 relatively where they exceed e^-20 of the largest logit and within 1e-13 absolutely elsewhere; a lane adds 16 of them before
/// the sum goes on in double (2e-6); rounding W to integers adds at most 1/2 per token.
inline mass_bounds rest_of(const float* z, std::int64_t n, float threshold, const softness& soft) {
  if (!(soft.inverse_temperature > 1e-30 && soft.inverse_temperature < 1e30)) {  // beyond float
    std::uint64_t exact = 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (z[i] < threshold) exact += mass(z[i], soft);
    return {static_cast<double>(exact), static_cast<double>(exact)};
  }
  const simd::f32x16 limit = simd::splat(threshold), max = simd::splat(soft.max), scale = simd::splat(static_cast<float>(soft.inverse_temperature * 1.4426950408889634));
  const simd::f32x16 lowest = simd::splat(static_cast<float>(-60. / soft.inverse_temperature)), zero = simd::splat(0.f);
  double sum = 0;
  std::int64_t i = 0;
  for (; i + 512 <= n; i += 512) {
    simd::f32x16 a = zero, b = zero;
    for (std::int64_t j = i; j < i + 512; j += 32) {
      const simd::f32x16 x = simd::load(z + j), y = simd::load(z + j + 16);
      a = a + simd::select(simd::less(x, limit), rough_weight(x, max, scale, lowest), zero);
      b = b + simd::select(simd::less(y, limit), rough_weight(y, max, scale, lowest), zero);
    }
    sum += static_cast<double>(simd::reduce_add(a + b));
  }
  for (; i < n; ++i)
    if (z[i] < threshold) sum += math::exp(soft(z[i]));
  const double slack = sum * 1e-5 + static_cast<double>(n) * 2e-13;
  return {(sum > slack ? sum - slack : 0.) * unit_mass, (sum + slack) * unit_mass};
}

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
