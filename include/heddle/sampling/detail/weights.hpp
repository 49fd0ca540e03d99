// Masses of tokens, as integers.
//
//   W_v = the integer nearest to 2^42 exp((z_v - max) / T),   p_v = W_v / sum W
//
// exp in double (core/math.hpp), so W is right to its last unit; sums of integers depend on no order, so host, device, any number of threads
// and any permutation of the vocabulary decide alike. Up to 2^21 tokens fit. A token below 2^-43 of the largest has mass 0.
#pragma once
#include <heddle/core/math.hpp>
#include <heddle/core/simd.hpp>

#include <bit>
#include <cstdint>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

inline constexpr std::int64_t largest_vocabulary = std::int64_t{1} << 21;
inline constexpr double unit_mass = 4398046511104.;          // 2^42: the mass of the largest logit
inline constexpr double to_nearest = 6755399441055744.;      // 1.5 * 2^52: adding it leaves the nearest integer in the low bits

struct softness {
  float max = 0.f;
  double inverse_temperature = 1.;
  /// (z - max) / T
  double operator()(float z) const { return (static_cast<double>(z) - static_cast<double>(max)) * inverse_temperature; }
  /// (z - max) / T + noise, the product not rounded
  double perturbed(float z, double noise) const { return math::fma(static_cast<double>(z) - static_cast<double>(max), inverse_temperature, noise); }
};

inline std::uint64_t mass(float z, const softness& soft) {
  return std::bit_cast<std::uint64_t>(math::exp(soft(z)) * unit_mass + to_nearest) - std::bit_cast<std::uint64_t>(to_nearest);
}

#if defined(__AVX2__) && defined(__FMA__)
/// mass() of four logits: the same operations.
[[gnu::always_inline]] inline __m256i mass4(__m128 z, __m256d max, __m256d inverse_temperature) {
  constexpr double inverse_factorial[] = {1. / 6227020800., 1. / 479001600., 1. / 39916800., 1. / 3628800., 1. / 362880., 1. / 40320., 1. / 5040., 1. / 720., 1. / 120., 1. / 24., 1. / 6., 1. / 2., 1., 1.};
  const __m256d magic = _mm256_set1_pd(to_nearest);
  __m256d x = _mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(z), max), inverse_temperature);
  x = _mm256_max_pd(x, _mm256_set1_pd(-700.));  // mass 0 either way
  const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(1.4426950408889634), magic), n = _mm256_sub_pd(shifted, magic);
  __m256d r = _mm256_fmadd_pd(n, _mm256_set1_pd(-6.93147180369123816490e-01), x);
  r = _mm256_fmadd_pd(n, _mm256_set1_pd(-1.90821492927058770002e-10), r);
  __m256d p = _mm256_set1_pd(inverse_factorial[0]);
  for (int i = 1; i < 14; ++i) p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(inverse_factorial[i]));
  const __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
  const __m256d power = _mm256_castsi256_pd(_mm256_add_epi64(exponent, _mm256_castpd_si256(_mm256_set1_pd(unit_mass))));
  return _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(_mm256_mul_pd(p, power), magic)), _mm256_castpd_si256(magic));
}
#endif

/// Masses of n logits; returns their sum.
inline std::uint64_t masses(const float* z, std::int64_t n, const softness& soft, std::uint64_t* out) {
  std::uint64_t total = 0;
  std::int64_t i = 0;
#if defined(__AVX2__) && defined(__FMA__)
  const __m256d max = _mm256_set1_pd(static_cast<double>(soft.max)), inverse = _mm256_set1_pd(soft.inverse_temperature);
  __m256i sum = _mm256_setzero_si256();
  for (; i + 4 <= n; i += 4) {
    const __m256i w = mass4(_mm_loadu_ps(z + i), max, inverse);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), w);
    sum = _mm256_add_epi64(sum, w);
  }
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  total = lanes[0] + lanes[1] + lanes[2] + lanes[3];
#endif
  for (; i < n; ++i) total += out[i] = mass(z[i], soft);
  return total;
}

/// The sum of the masses of n logits, in stretches that stay in the first-level cache.
inline std::uint64_t total_mass(const float* z, std::int64_t n, const softness& soft) {
  constexpr std::int64_t stretch = 512;
  std::uint64_t buffer[stretch], total = 0;
  for (std::int64_t i = 0; i < n; i += stretch) total += masses(z + i, n - i < stretch ? n - i : stretch, soft, buffer);
  return total;
}

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
