// What trees over block drafters need of the drafter's logits: the best tokens of each slot and their log-probabilities.
//
//   m_j = softmax(U_j / T),   U [K, V];   per slot the first `width` tokens by (logit descending, id ascending), log m_j of those, the entropy of m_j
//
// A token at -infinity has probability 0 and never enters: a slot may list fewer than `width`. A NaN, +infinity or a slot without any finite logit is an
// error that names the slot, before anything is returned.
// Log-probabilities are (z - max) / T - ln sum in double; the sum is of float exponentials, so that they are within 1.1e-4 of exact, off by the same
// for all tokens of a slot (1e-5 where no single token has most of the mass); none is above 0.
// The same bits for every row position, batch and thread; float32 rows in place, others and strided ones through a copy.
// Cost: each row is read once from memory (maximum and sum of a block of 256 logits follow each other in the innermost cache), then the blocks that
// hold the best tokens once more; without fused multiply-add in hardware, rows with |max| / T above 88 are summed by the definition, in double.
// Scratch: 8 V bytes.
//
//     heddle::slot_ranker ranker;
//     const heddle::slot_ranking best = ranker.rank(logits, 64);
//     best.tokens_of(0)[0];                                            // the most probable token of the first slot
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/sampling/detail/scan.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace heddle {

/// Valid until the ranker is used again.
struct slot_ranking {
  std::int32_t width = 0;
  std::span<const std::int32_t> counts{};     ///< [K] tokens listed, width at most
  std::span<const std::int32_t> tokens{};     ///< [K][width], best first
  std::span<const double> log_probs{};        ///< [K][width]
  std::span<const double> entropies{};        ///< [K], nats, of the whole slot, if they were asked for

  [[gnu::always_inline]] constexpr std::int32_t num_slots() const { return static_cast<std::int32_t>(counts.size()); }
  [[gnu::always_inline]] constexpr std::span<const std::int32_t> tokens_of(std::int32_t slot) const { return tokens.subspan(offset(slot), count(slot)); }
  [[gnu::always_inline]] constexpr std::span<const double> log_probs_of(std::int32_t slot) const { return log_probs.subspan(offset(slot), count(slot)); }

 private:
  [[gnu::always_inline]] constexpr std::size_t count(std::int32_t slot) const { return static_cast<std::size_t>(counts[static_cast<std::size_t>(slot)]); }
  [[gnu::always_inline]] constexpr std::size_t offset(std::int32_t slot) const { return static_cast<std::size_t>(slot) * static_cast<std::size_t>(width); }
};

namespace detail::inline HEDDLE_ISA {

struct row_summary {
  heddle::status status = heddle::status::ok;
  float max = 0.f;
  double log_sum = 0.;   // ln sum e^((z - max) / T)
  double entropy = 0.;
};

/// The definition in double: for rows that are bad or beyond the range of the fast path.
inline row_summary summarise_slowly(const float* z, std::int64_t n, double inverse_temperature, float* block_max) {
  const sampling::detail::scanned row = sampling::detail::scan(z, n, block_max);
  if (row.has_nan) return {.status = heddle::status::nan_logit};
  if (row.max == simd::infinity) return {.status = heddle::status::inf_logit};
  if (row.max == -simd::infinity) return {.status = heddle::status::empty_support};
  double sum = 0., moment = 0.;
  for (std::int64_t i = 0; i < n; ++i)
    if (const double x = (static_cast<double>(z[i]) - static_cast<double>(row.max)) * inverse_temperature; x > -700.) {
      const double w = math::exp(x);
      sum += w, moment = math::fma(w, x, moment);
    }
  return {.max = row.max, .log_sum = math::log(sum), .entropy = math::log(sum) - moment / sum};
}

/// Sums of w = weight_unit 2^(t - base) and of w (t - base) over logits z, t = z log2(e) / T, down to 2^-100; the largest logit, and that of every block. Either
/// sum is NaN if a logit is NaN or infinite. base: an integer no further than 2^20 from 0 and no more than 2^6 below the largest t.
/// The cubic for 2^r on [-1/2, 1/2] is a product, (r + b)((r + 1)^2 + d) / weight_unit within 9.6e-5, the errors cancelling on average: one
/// multiplication less than Horner's rule, and its additions run beside the multiplications.
inline constexpr double weight_unit = 17.744902978017432;
struct stretch_sums {
  float max, mass, moment;
};
template <bool with_moment>
[[gnu::always_inline]] inline stretch_sums sum_stretch(const float* z, std::int64_t n, float scale, float base, float* block_max) {
  constexpr std::int64_t ahead = 1024;
  const simd::f32x16 to_t = simd::splat(scale), lowest = simd::splat((base - 100.f) / scale), magic = simd::splat(12582912.f - base), one_above = simd::splat(12582913.f - base);   // 1.5 * 2^23 rounds to integers
  simd::f32x16 mass = simd::splat(0.f), moment = mass;
  float top = sampling::detail::impossible;
  for (std::int64_t first = 0; first < n; first += sampling::detail::block_tokens) {
    const std::int64_t last = n - first < sampling::detail::block_tokens ? n : first + sampling::detail::block_tokens;
    simd::f32x16 max = simd::splat(sampling::detail::impossible);
    const auto add = [&](simd::f32x16 x) __attribute__((always_inline)) {
      max = simd::max(x, max);
      const simd::f32x16 y = simd::max(lowest, x), shifted = simd::fma(y, to_t, magic), one_more = simd::fma(y, to_t, one_above - shifted);   // r + 1
      simd::f32x16 w = (one_more + simd::splat(1.31126578f)) * simd::fma(one_more, one_more, simd::splat(6.67683644f));
      w = simd::floats_of(simd::bits_of(w) + simd::shift_left<23>(simd::bits_of(shifted)));
      mass = mass + w;
      if constexpr (with_moment) moment = simd::fma(w, simd::fma(y, to_t, simd::splat(-base)), moment);
    };
    std::int64_t i = first;
    for (; i + 16 <= last; i += 16) {
      __builtin_prefetch(z + i + ahead);
      add(simd::load(z + i));
    }
    if (i < last) {
      alignas(64) float few[16];
      for (int k = 0; k < 16; ++k) few[k] = i + k < last ? z[i + k] : sampling::detail::impossible;
      add(simd::load(few));
    }
    const float block_top = sampling::detail::largest_lane(max);
    *block_max++ = block_top;
    if (block_top > top) top = block_top;
  }
  return {top, simd::reduce_add(mass), simd::reduce_add(moment)};
}

/// Maximum, log-sum and (if asked for) entropy of a row in one read of it; the largest logit of every block.
template <bool with_entropy>
row_summary summarise(const float* z, std::int64_t n, double inverse_temperature, float* block_max) {
  constexpr std::int64_t stretch = 8 * sampling::detail::block_tokens;
  constexpr double log_2 = 0.693147180559945309;
#if defined(__FMA__) || defined(__ARM_NEON)
  constexpr double largest_base = 1048576.;
#else
  constexpr double largest_base = 128.;   // t is rounded before anything is taken from it
#endif
  const auto scale = static_cast<float>(inverse_temperature / log_2);
  const auto per_logit = static_cast<double>(scale);   // as the weights have it: otherwise large logits would shift them against the maximum
  float max = sampling::detail::impossible;
  double base = 0., sum = 0., moment = 0.;
  bool has_base = false;
  for (std::int64_t at = 0; at < n; at += stretch) {
    const std::int64_t length = n - at < stretch ? n - at : stretch;
    float* const maxima = block_max + at / sampling::detail::block_tokens;
    stretch_sums s{};
    if (has_base) s = sum_stretch<with_entropy>(z + at, length, scale, static_cast<float>(base), maxima);
    if (!has_base || static_cast<double>(s.max) * per_logit > base + 64.) {   // at the beginning, and where the row rises by more than 2^64
      s.max = sampling::detail::scan(z + at, length, maxima).max;
      if (s.max == sampling::detail::impossible) continue;
      const double exponent = static_cast<double>(s.max) * per_logit;
      if (!(exponent < largest_base && exponent > -largest_base)) return summarise_slowly(z, n, inverse_temperature, block_max);
      const double raised = static_cast<double>(static_cast<std::int64_t>(exponent)), factor = has_base ? math::exp((base - raised) * log_2) : 0.;
      moment = has_base ? factor * (moment + sum * (base - raised)) : 0.;
      sum *= factor, base = raised, has_base = true;
      s = sum_stretch<with_entropy>(z + at, length, scale, static_cast<float>(base), maxima);
    }
    if (s.mass != s.mass) return summarise_slowly(z, n, inverse_temperature, block_max);
    sum += static_cast<double>(s.mass), moment += static_cast<double>(s.moment);
    if (s.max > max) max = s.max;
  }
  if (!has_base) return summarise_slowly(z, n, inverse_temperature, block_max);
  const double log_sum = math::log(sum / weight_unit);   // to the base above; the caller's is the maximum
  return {.max = max, .log_sum = log_sum + (base - static_cast<double>(max) * per_logit) * log_2, .entropy = with_entropy ? log_sum - moment / sum * log_2 : 0.};
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

class slot_ranker {
 public:
  template <tensor_of<2> Logits>
    requires host_tensor<Logits>
  slot_ranking rank(const Logits& logits, std::int32_t width, double temperature = 1., bool with_entropies = false) {
    const auto u = view_of(logits);
    const std::int64_t slots = u.extent(0), vocabulary = u.extent(1);
    require(vocabulary > 0 && vocabulary <= sampling::detail::largest_vocabulary, "slot_ranker: argument 'logits' has rows of ", vocabulary, "; expected 1 to ", sampling::detail::largest_vocabulary);
    require(width >= 1, "slot_ranker: argument 'width' is ", width, "; expected 1 or more");
    require(temperature >= 1e-6 && temperature <= 1e6, "slot_ranker: argument 'temperature' is ", temperature, "; expected 1e-6 to 1e6");
    width_ = static_cast<std::int32_t>(std::min<std::int64_t>(width, vocabulary));
    resize(static_cast<std::size_t>(slots), static_cast<std::size_t>(vocabulary));
    for (std::int64_t slot = 0; slot < slots; ++slot) rank_slot(contiguous(u[slot]), vocabulary, static_cast<std::size_t>(slot), 1. / temperature, with_entropies);
    return {width_, counts_, tokens_, log_probs_, with_entropies ? std::span<const double>(entropies_) : std::span<const double>{}};
  }

 private:
  void resize(std::size_t slots, std::size_t vocabulary) {
    counts_.resize(slots), entropies_.resize(slots);
    tokens_.resize(slots * static_cast<std::size_t>(width_)), log_probs_.resize(tokens_.size());
    block_max_.resize(static_cast<std::size_t>(sampling::detail::blocks_of(static_cast<std::int64_t>(vocabulary))));
    blocks_.resize(block_max_.size());
    if (order_.size() < vocabulary) order_.resize(vocabulary);
  }

  template <class Element>
  const float* contiguous(const tensor_view<Element, 1>& row) {
    if constexpr (std::is_same_v<std::remove_cv_t<Element>, float>)
      if (row.stride(0) == 1) return row.data();
    row_.resize(static_cast<std::size_t>(row.extent(0)));
    for (std::int64_t i = 0; i < row.extent(0); ++i) row_[static_cast<std::size_t>(i)] = static_cast<float>(row(i));
    return row_.data();
  }

  void rank_slot(const float* z, std::int64_t n, std::size_t slot, double inverse_temperature, bool with_entropy) {
    const detail::row_summary row = with_entropy ? detail::summarise<true>(z, n, inverse_temperature, block_max_.data()) : detail::summarise<false>(z, n, inverse_temperature, block_max_.data());
    require(row.status == status::ok, "slot_ranker: argument 'logits': row ", slot, ": ", name_of(row.status));
    std::int64_t found = collect(z, n, floor(z, n));
    if (found < width_) found = collect(z, n, std::numeric_limits<float>::lowest());
    const std::int64_t kept = std::min<std::int64_t>(found, width_);
    if (found > 2 * kept) std::nth_element(order_.begin(), order_.begin() + kept, order_.begin() + found), found = kept;
    std::sort(order_.begin(), order_.begin() + found);

    counts_[slot] = static_cast<std::int32_t>(kept), entropies_[slot] = row.entropy > 0. ? row.entropy : 0.;
    for (std::int64_t i = 0; i < kept; ++i) {
      const auto at = slot * static_cast<std::size_t>(width_) + static_cast<std::size_t>(i);
      tokens_[at] = static_cast<std::int32_t>(order_[static_cast<std::size_t>(i)] & 0xffffffffu);
      const double log_prob = (static_cast<double>(z[tokens_[at]]) - static_cast<double>(row.max)) * inverse_temperature - row.log_sum;
      log_probs_[at] = log_prob < 0. ? log_prob : 0.;
    }
  }

  /// A logit that `width` tokens reach, few more if there are enough blocks: from the block maxima, or else from a sample of the row.
  float floor(const float* z, std::int64_t n) {
    if (block_max_.size() < static_cast<std::size_t>(width_)) {
      const std::int64_t stride = n / static_cast<std::int64_t>(sample_size) + 1, rank = width_ / stride * 5 / 4 + 16;
      sample_.clear();
      for (std::int64_t i = 0; i < n; i += stride) sample_.push_back(z[i]);
      return reached_by(sample_, rank);
    }
    return reached_by(block_max_, width_);
  }
  /// A value that at least `count` of the values reach, and at most count / 8 more unless many are equal; the lowest number if there are fewer.
  static float reached_by(const aligned_vector<float>& values, std::int64_t count) {
    constexpr float lowest = std::numeric_limits<float>::lowest();
    const auto number_from = [&](float limit) {
      std::int32_t number = 0;
      for (const float x : values) number += x >= limit;
      return std::int64_t{number};
    };
    float high = lowest, low = std::numeric_limits<float>::max();
    for (const float x : values)
      if (x > sampling::detail::impossible) high = x > high ? x : high, low = x < low ? x : low;
    if (number_from(low) < count) return lowest;
    for (int step = 0; step < 24; ++step) {
      const float middle = low * 0.5f + high * 0.5f;
      const std::int64_t number = number_from(middle);
      (number >= count ? low : high) = middle;
      if (number >= count && number <= count + count / 8) break;
    }
    return low;
  }

  /// Puts the keys of { v : z_v >= threshold } into order_; their number. The next blocks are on their way to the cache meanwhile.
  std::int64_t collect(const float* z, std::int64_t n, float threshold) {
    constexpr std::int64_t block_tokens = sampling::detail::block_tokens, line = 64 / sizeof(float), ahead = 2;
    std::int64_t listed = 0, count = 0;
    for (std::size_t block = 0; block < block_max_.size(); ++block) {
      blocks_[static_cast<std::size_t>(listed)] = static_cast<std::int64_t>(block) * block_tokens;
      listed += block_max_[block] >= threshold;
    }
    const auto prefetch = [&](std::int64_t index) {
      if (index >= listed) return;
      const float* const block = z + blocks_[static_cast<std::size_t>(index)];
      for (std::int64_t i = 0; i < block_tokens; i += line) __builtin_prefetch(block + i);
    };
    for (std::int64_t index = 0; index < ahead; ++index) prefetch(index);
    const simd::f32x16 limit = simd::splat(threshold);
    for (std::int64_t index = 0; index < listed; ++index) {
      prefetch(index + ahead);
      std::int64_t i = blocks_[static_cast<std::size_t>(index)];
      const std::int64_t end = n - i < block_tokens ? n : i + block_tokens;
      for (; i + 64 <= end; i += 64) {
        const simd::f32x16 a = simd::load(z + i), b = simd::load(z + i + 16), c = simd::load(z + i + 32), d = simd::load(z + i + 48);
        if (!simd::bits_of(simd::less_equal(limit, simd::max(simd::max(a, b), simd::max(c, d))))) continue;
        std::uint64_t bits = simd::bits_of(simd::less_equal(limit, a)) | std::uint64_t{simd::bits_of(simd::less_equal(limit, b))} << 16 |
                             std::uint64_t{simd::bits_of(simd::less_equal(limit, c))} << 32 | std::uint64_t{simd::bits_of(simd::less_equal(limit, d))} << 48;
        for (; bits; bits &= bits - 1) put(z, i + std::countr_zero(bits), count);
      }
      for (; i < end; ++i)
        if (z[i] >= threshold) put(z, i, count);
    }
    return count;
  }
  void put(const float* z, std::int64_t v, std::int64_t& count) { order_[static_cast<std::size_t>(count++)] = key(z[v], static_cast<std::int32_t>(v)); }

  /// Ascending by (logit descending, id ascending).
  static std::uint64_t key(float logit, std::int32_t id) {
    const auto bits = std::bit_cast<std::uint32_t>(logit + 0.f);   // -0 is 0
    const std::uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<std::uint64_t>(~ascending) << 32 | static_cast<std::uint32_t>(id);
  }

  static constexpr std::size_t sample_size = 4096;
  std::int32_t width_ = 0;
  aligned_vector<std::int32_t> counts_, tokens_;
  aligned_vector<double> log_probs_, entropies_;
  aligned_vector<float> block_max_, sample_, row_;
  aligned_vector<std::int64_t> blocks_;   // where the blocks begin that may hold a token
  aligned_vector<std::uint64_t> order_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
