// What trees over block drafters need of the drafter's logits: the best tokens of each slot and their log-probabilities.
//
//   m_j = softmax(U_j / T),   U [K, V];   per slot the first `width` tokens by (logit descending, id ascending), log m_j of those, the entropy of m_j
//
// A token at -infinity has probability 0 and never enters: a slot may list fewer than `width`. A NaN, +infinity or a slot without any finite logit is an
// error that names the slot, before anything is returned.
// Log-probabilities are (z - max) / T - ln sum in double; the sum is of float exponentials, so that they are within 1e-5 of exact; none is above 0.
// The same bits for every row position, batch and thread; float32 rows in place, others and strided ones through a copy.
// Cost: each row is read once from memory (maximum and sum of a block of 256 logits follow each other in the innermost cache), then the blocks that
// hold the best tokens once more. Scratch: 16 V bytes.
//
//     heddle::slot_ranker ranker;
//     const heddle::slot_ranking best = ranker.rank(logits, 64);
//     best.tokens_of(0)[0];                                            // the most probable token of the first slot
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/sampling/detail/scan.hpp>
#include <heddle/sampling/detail/selection.hpp>

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
  std::span<const double> entropies{};        ///< [K], nats, of the whole slot

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

/// Maximum, log-sum and entropy of a row in one read of it; the largest logit of every block.
inline row_summary summarise(const float* z, std::int64_t n, double inverse_temperature, float* block_max) {
  namespace row = sampling::detail;
  const simd::f32x16 log2_scale = simd::splat(static_cast<float>(inverse_temperature * 1.4426950408889634)), lowest = simd::splat(static_cast<float>(-60. / inverse_temperature));
  row_summary result{.max = row::impossible};
  double sum = 0., moment = 0.;   // of w = e^((z - max) / T) and of w (z - max)
  bool has_nan = false;
  for (std::int64_t block = 0, at = 0; at < n; ++block, at += row::block_tokens) {
    const std::int64_t length = n - at < row::block_tokens ? n - at : row::block_tokens;
    const row::scanned scanned = row::scan(z + at, length, block_max + block);
    has_nan |= scanned.has_nan;
    const float top = scanned.max;
    if (top == row::impossible) continue;
    if (top > result.max) {
      const double shift = static_cast<double>(result.max) - static_cast<double>(top), factor = sum > 0. ? math::exp(shift * inverse_temperature) : 0.;
      if (sum > 0.) moment = factor * math::fma(shift, sum, moment);
      sum *= factor;
      result.max = top;
    }
    const simd::f32x16 max = simd::splat(result.max);
    simd::f32x16 w = simd::splat(0.f), w2 = w, m = w, m2 = w;
    std::int64_t i = at;
    const auto add = [&](simd::f32x16 x, simd::f32x16& mass, simd::f32x16& first) __attribute__((always_inline)) {
      const simd::f32x16 weight = row::rough_weight(x, max, log2_scale, lowest);
      mass = mass + weight, first = simd::fma(weight, simd::max(lowest, x - max), first);
    };
    for (; i + 32 <= at + length; i += 32) add(simd::load(z + i), w, m), add(simd::load(z + i + 16), w2, m2);
    for (; i < at + length; i += 16) {
      alignas(64) float few[16];
      for (int k = 0; k < 16; ++k) few[k] = i + k < at + length ? z[i + k] : row::impossible;
      add(simd::load(few), w, m);
    }
    sum += static_cast<double>(simd::reduce_add(w + w2)), moment += static_cast<double>(simd::reduce_add(m + m2));
  }
  if (has_nan)
    result.status = heddle::status::nan_logit;
  else if (result.max == std::numeric_limits<float>::infinity())
    result.status = heddle::status::inf_logit;
  else if (result.max == row::impossible)
    result.status = heddle::status::empty_support;
  else
    result.log_sum = math::log(sum), result.entropy = result.log_sum - moment / sum * inverse_temperature;
  return result;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

class slot_ranker {
 public:
  template <tensor_of<2> Logits>
    requires host_tensor<Logits>
  slot_ranking rank(const Logits& logits, std::int32_t width, double temperature = 1.) {
    const auto u = view_of(logits);
    const std::int64_t slots = u.extent(0), vocabulary = u.extent(1);
    require(vocabulary > 0 && vocabulary <= sampling::detail::largest_vocabulary, "slot_ranker: argument 'logits' has rows of ", vocabulary, "; expected 1 to ", sampling::detail::largest_vocabulary);
    require(width >= 1, "slot_ranker: argument 'width' is ", width, "; expected 1 or more");
    require(temperature >= 1e-6 && temperature <= 1e6, "slot_ranker: argument 'temperature' is ", temperature, "; expected 1e-6 to 1e6");
    width_ = static_cast<std::int32_t>(std::min<std::int64_t>(width, vocabulary));
    resize(static_cast<std::size_t>(slots), static_cast<std::size_t>(vocabulary));
    for (std::int64_t slot = 0; slot < slots; ++slot) rank_slot(contiguous(u[slot]), vocabulary, static_cast<std::size_t>(slot), 1. / temperature);
    return {width_, counts_, tokens_, log_probs_, entropies_};
  }

 private:
  void resize(std::size_t slots, std::size_t vocabulary) {
    counts_.resize(slots), entropies_.resize(slots);
    tokens_.resize(slots * static_cast<std::size_t>(width_)), log_probs_.resize(tokens_.size());
    block_max_.resize(static_cast<std::size_t>(sampling::detail::blocks_of(static_cast<std::int64_t>(vocabulary))));
    sample_.resize(std::max(block_max_.size(), sample_size + 1));
    if (ids_.size() < vocabulary) ids_.resize(vocabulary), logits_.resize(vocabulary), order_.resize(vocabulary);
  }

  template <class Element>
  const float* contiguous(const tensor_view<Element, 1>& row) {
    if constexpr (std::is_same_v<std::remove_cv_t<Element>, float>)
      if (row.stride(0) == 1) return row.data();
    row_.resize(static_cast<std::size_t>(row.extent(0)));
    for (std::int64_t i = 0; i < row.extent(0); ++i) row_[static_cast<std::size_t>(i)] = static_cast<float>(row(i));
    return row_.data();
  }

  void rank_slot(const float* z, std::int64_t n, std::size_t slot, double inverse_temperature) {
    const detail::row_summary row = detail::summarise(z, n, inverse_temperature, block_max_.data());
    require(row.status == status::ok, "slot_ranker: argument 'logits': row ", slot, ": ", name_of(row.status));
    std::int64_t found = sampling::detail::collect(z, n, block_max_.data(), floor(z, n), ids_.data(), logits_.data());
    if (found < width_) found = sampling::detail::collect(z, n, block_max_.data(), std::numeric_limits<float>::lowest(), ids_.data(), logits_.data());

    for (std::int64_t i = 0; i < found; ++i) order_[static_cast<std::size_t>(i)] = key(logits_[static_cast<std::size_t>(i)], ids_[static_cast<std::size_t>(i)]);
    const std::int64_t kept = std::min<std::int64_t>(found, width_);
    if (kept < found) std::nth_element(order_.begin(), order_.begin() + kept, order_.begin() + found);
    std::sort(order_.begin(), order_.begin() + kept);

    counts_[slot] = static_cast<std::int32_t>(kept), entropies_[slot] = row.entropy > 0. ? row.entropy : 0.;
    for (std::int64_t i = 0; i < kept; ++i) {
      const auto at = slot * static_cast<std::size_t>(width_) + static_cast<std::size_t>(i);
      tokens_[at] = static_cast<std::int32_t>(order_[static_cast<std::size_t>(i)] & 0xffffffffu);
      const double log_prob = (static_cast<double>(z[tokens_[at]]) - static_cast<double>(row.max)) * inverse_temperature - row.log_sum;
      log_probs_[at] = log_prob < 0. ? log_prob : 0.;
    }
  }

  /// A logit that `width` tokens reach, or nearly so: from the block maxima, or from a sample where there are too few blocks.
  float floor(const float* z, std::int64_t n) {
    std::int64_t m = 0;
    for (const float top : block_max_)
      if (top > sampling::detail::impossible) sample_[static_cast<std::size_t>(m++)] = top;
    std::int64_t rank = width_;
    if (rank > m) {
      const std::int64_t stride = n / static_cast<std::int64_t>(sample_size) + 1;
      m = 0;
      for (std::int64_t i = 0; i < n; i += stride)
        if (z[i] > sampling::detail::impossible) sample_[static_cast<std::size_t>(m++)] = z[i];
      rank = rank / stride * 5 / 4 + 16;
    }
    return m > rank || rank == width_ ? sampling::detail::weighted_threshold(sample_.data(), sampling::detail::unit_weights{}, m, static_cast<double>(rank)) : std::numeric_limits<float>::lowest();
  }

  /// Ascending by (logit descending, id ascending).
  static std::uint64_t key(float logit, std::int32_t id) {
    const auto bits = std::bit_cast<std::uint32_t>(logit + 0.f);   // -0 is 0
    const std::uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return static_cast<std::uint64_t>(~ascending) << 32 | static_cast<std::uint32_t>(id);
  }

  static constexpr std::size_t sample_size = 4096;
  std::int32_t width_ = 0;
  aligned_vector<std::int32_t> counts_, tokens_, ids_;
  aligned_vector<double> log_probs_, entropies_;
  aligned_vector<float> block_max_, sample_, logits_, row_;
  aligned_vector<std::uint64_t> order_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
