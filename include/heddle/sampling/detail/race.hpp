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

inline constexpr int racers = 32;  // tokens looked at together

#if defined(__AVX2__) && defined(__FMA__)
struct random_words {
  __m256i word[4];
};
/// random_block() of eight blocks: word[j] holds the j-th number of each.
[[gnu::always_inline]] inline random_words random_blocks(const random_key& key, __m256i block) {
  const auto multiply = [](__m256i c, std::uint32_t by, __m256i& high) __attribute__((always_inline)) {
    const __m256i m = _mm256_set1_epi32(static_cast<int>(by));
    const __m256i even = _mm256_mul_epu32(c, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(c, 32), m);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  };
  __m256i c0 = block, c1 = _mm256_set1_epi32(static_cast<int>(key.position)), c2 = _mm256_set1_epi32(static_cast<int>(key.request)), c3 = _mm256_set1_epi32(static_cast<int>(key.purpose));
  auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    __m256i high0, high1;
    const __m256i low0 = multiply(c0, 0xD2511F53u, high0), low1 = multiply(c2, 0xCD9E8D57u, high1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int>(k0))), c1 = low1;
    c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int>(k1))), c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
#endif

/// The random words of 32 tokens: random_bits() with the key's index set to each id.
inline void noise_of(const random_key& key, const std::int32_t* ids, std::uint32_t* words) {
#if defined(__AVX2__) && defined(__FMA__)
  auto* const out = reinterpret_cast<__m256i*>(words);
  if (ids[0] % 4 == 0 && ids[racers - 1] - ids[0] == racers - 1) {  // eight whole blocks
    const random_words w = random_blocks(key, _mm256_add_epi32(_mm256_set1_epi32(ids[0] / 4), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
    const __m256i a = _mm256_unpacklo_epi32(w.word[0], w.word[1]), b = _mm256_unpackhi_epi32(w.word[0], w.word[1]);
    const __m256i c = _mm256_unpacklo_epi32(w.word[2], w.word[3]), d = _mm256_unpackhi_epi32(w.word[2], w.word[3]);
    const __m256i first = _mm256_unpacklo_epi64(a, c), second = _mm256_unpackhi_epi64(a, c), third = _mm256_unpacklo_epi64(b, d), fourth = _mm256_unpackhi_epi64(b, d);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(first, second, 0x20)), _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(third, fourth, 0x20));
    _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(first, second, 0x31)), _mm256_storeu_si256(out + 3, _mm256_permute2x128_si256(third, fourth, 0x31));
    return;
  }
  for (int i = 0; i < racers / 8; ++i) {
    const __m256i id = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids) + i);
    const random_words w = random_blocks(key, _mm256_srli_epi32(id, 2));
    const auto choose = [](__m256i sign, __m256i no, __m256i yes) __attribute__((always_inline)) {
      return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(no), _mm256_castsi256_ps(yes), _mm256_castsi256_ps(sign)));
    };
    const __m256i odd = _mm256_slli_epi32(id, 31), upper = _mm256_slli_epi32(id, 30);  // their sign bits choose the word
    _mm256_storeu_si256(out + i, choose(upper, choose(odd, w.word[0], w.word[1]), choose(odd, w.word[2], w.word[3])));
  }
#else
  random_key token = key;
  for (int i = 0; i < racers; ++i) token.index = static_cast<std::uint32_t>(ids[i]), words[i] = random_bits(token);
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
  const auto consider = [&](std::int32_t token, float logit, std::uint32_t word) {
    const double score = soft.perturbed(logit, gumbel(word));
    if (score < best.score || (score == best.score && token >= best.token)) return;
    best = {token, logit, score};
    const double ratio = math::exp(-score) * 1.0001;
    per_weight = ratio < 1e38 ? static_cast<float>(ratio) : 1e38f;
  };
  for (std::int64_t i = 0; i < n; i += racers) {
    alignas(64) std::int32_t last_ids[racers];
    alignas(64) float last_logits[racers];
    alignas(64) std::uint32_t words[racers];
    const std::int32_t* id = ids + i;
    const float* logit = z + i;
    const int count = n - i < racers ? static_cast<int>(n - i) : racers;
    if (count < racers) {
      for (int j = 0; j < racers; ++j) last_ids[j] = id[j < count ? j : 0], last_logits[j] = logit[j < count ? j : 0];
      id = last_ids, logit = last_logits;
    }
    noise_of(key, id, words);
    if (i == 0) {  // a good first leader rules out most others
      int top = 0;
      for (int j = 1; j < count; ++j) top = logit[j] > logit[top] ? j : top;
      consider(id[top], logit[top], words[top]);
    }
    auto bits = static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
    if (filtered) {
      std::uint32_t possible = 0;
      for (int j = 0; j < racers; j += 16) {
        const simd::f32x16 bound = rough_weight(simd::load(logit + j), max, scale, lowest) * simd::splat(per_weight);
        const simd::i32x16 complement = simd::shift_right<1>(simd::load_words(words + j) ^ simd::splat(-1));  // (2^32 - 1 - k) / 2, rounded down
        possible |= simd::bits_of(simd::less_equal(simd::to_float(complement) * simd::splat(0x1p-31f), bound)) << j;
      }
      bits &= possible;
    }
    for (; bits; bits &= bits - 1) {
      const int j = std::countr_zero(bits);
      consider(id[j], logit[j], words[j]);
    }
  }
  return best;
}

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
