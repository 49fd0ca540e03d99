// Gumbel-max over a list of tokens.
//
//   argmax_v (x_v + G_v),   x_v = (z_v - max) / T,   G_v = -ln(-ln u_v),   u_v keyed by the token's id
//
// Scores are double; equal ones go to the lowest id. Most tokens are ruled out without a logarithm: v beats the best score s so far only if
// -ln u_v < e^{x_v - s}, and 1 - u <= -ln u, so a token with 1 - u_v above a float bound on the right-hand side cannot win.
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/sampling/detail/scan.hpp>

#include <cstdint>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

/// The random words of sixteen tokens: random_bits() with the key's index set to each id.
inline void noise_of(const random_key& key, const std::int32_t* ids, std::uint32_t* words) {
#if defined(__AVX2__) && defined(__FMA__)
  const auto multiply = [](__m256i c, std::uint32_t by, __m256i& high) __attribute__((always_inline)) {
    const __m256i m = _mm256_set1_epi32(static_cast<int>(by));
    const __m256i even = _mm256_mul_epu32(c, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(c, 32), m);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  };
  for (int half = 0; half < 16; half += 8) {
    const __m256i id = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + half));
    __m256i c0 = _mm256_srli_epi32(id, 2), c1 = _mm256_set1_epi32(static_cast<int>(key.position)), c2 = _mm256_set1_epi32(static_cast<int>(key.request)), c3 = _mm256_set1_epi32(static_cast<int>(key.purpose));
    auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      __m256i high0, high1;
      const __m256i low0 = multiply(c0, 0xD2511F53u, high0), low1 = multiply(c2, 0xCD9E8D57u, high1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int>(k0))), c1 = low1;
      c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int>(k1))), c3 = low0;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const __m256i odd = _mm256_slli_epi32(id, 31), upper = _mm256_slli_epi32(id, 30);  // their sign bits choose the word
    const auto choose = [](__m256i sign, __m256i no, __m256i yes) __attribute__((always_inline)) {
      return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(no), _mm256_castsi256_ps(yes), _mm256_castsi256_ps(sign)));
    };
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + half), choose(upper, choose(odd, c0, c1), choose(odd, c2, c3)));
  }
#else
  random_key token = key;
  for (int i = 0; i < 16; ++i) token.index = static_cast<std::uint32_t>(ids[i]), words[i] = random_bits(token);
#endif
}

struct leader {
  std::int32_t token = -1;
  float logit = impossible;
  double score = -std::numeric_limits<double>::infinity();
};

inline leader race(const std::int32_t* ids, const float* z, std::int64_t n, const softness& soft, const random_key& key) {
  const bool filtered = soft.inverse_temperature > 1e-30 && soft.inverse_temperature < 1e30;  // else the bound would leave the range of float
  const simd::f32x16 max = simd::splat(soft.max), scale = simd::splat(static_cast<float>(soft.inverse_temperature * 1.4426950408889634)), lowest = simd::splat(static_cast<float>(-60. / soft.inverse_temperature));
  leader best;
  float per_weight = simd::infinity;  // e^{-s}, rounded up
  for (std::int64_t i = 0; i < n; i += 16) {
    alignas(64) std::int32_t id[16] = {};
    alignas(64) float logit[16];
    alignas(64) std::uint32_t words[16];
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    for (int j = 0; j < 16; ++j) id[j] = ids[i + (j < count ? j : 0)], logit[j] = z[i + (j < count ? j : 0)];
    noise_of(key, id, words);
    std::uint32_t bits = (1u << count) - 1u;
    if (filtered) {
      const simd::f32x16 bound = rough_weight(simd::load(logit), max, scale, lowest) * simd::splat(per_weight);
      const simd::i32x16 complement = simd::shift_right<1>(simd::load_words(words) ^ simd::splat(-1));  // (2^32 - 1 - k) / 2, rounded down
      bits &= simd::bits_of(simd::less_equal(simd::to_float(complement) * simd::splat(0x1p-31f), bound));
    }
    for (; bits; bits &= bits - 1) {
      const int j = std::countr_zero(bits);
      const double score = soft.perturbed(logit[j], gumbel(words[j]));
      if (score > best.score || (score == best.score && id[j] < best.token)) {
        best = {id[j], logit[j], score};
        const double ratio = math::exp(-score) * 1.0001;
        per_weight = ratio < 1e38 ? static_cast<float>(ratio) : 1e38f;
      }
    }
  }
  return best;
}

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
