// Repetition, presence and frequency penalties on the logits of tokens seen before.
//
//   z <- z / theta if z > 0 else z * theta          repetition, theta > 0 (Keskar et al. 2019)
//   z <- z - presence - frequency * n_v             n_v: how often token v was seen
//
// Seen: the last `penalty_window` tokens of the history (committed tokens, then the draft path), or all of them. -infinity stays. theta = 1 and
// zeros change no bit. A token of the history outside the vocabulary is an error. Float arithmetic, one rounding per step shown (the last line:
// (z - presence), then one fused multiply-add). Cost: O(history).
//
//     sampling::apply_penalties(logits, {committed, path}, {.repetition_penalty = 1.1f}, counts);    // counts: a zero per token
#pragma once
#include <heddle/core/simd.hpp>
#include <heddle/sampling/parameters.hpp>

#include <cstdint>
#include <span>

namespace heddle::sampling::inline HEDDLE_ISA {

inline bool has_penalties(const parameters& p) { return p.repetition_penalty != 1.f || p.presence_penalty != 0.f || p.frequency_penalty != 0.f; }

/// `counts` holds a zero per token and does again afterwards.
inline void apply_penalties(std::span<float> logits, const history& before, const parameters& p, std::int32_t* counts) {
  const std::int64_t n = before.size(), vocabulary = static_cast<std::int64_t>(logits.size());
  const std::int64_t first = p.penalty_window > 0 && p.penalty_window < n ? n - p.penalty_window : 0;
  for (std::int64_t i = first; i < n; ++i)
    require(before[i] >= 0 && before[i] < vocabulary, "sampling::apply_penalties: token ", i, " of the history is ", before[i], "; expected 0 to ", vocabulary - 1);
  for (std::int64_t i = first; i < n; ++i) ++counts[before[i]];
  for (std::int64_t i = first; i < n; ++i) {
    std::int32_t& count = counts[before[i]];
    if (count == 0) continue;  // done at its first occurrence
    float& z = logits[static_cast<std::size_t>(before[i])];
    z = z > 0.f ? z / p.repetition_penalty : z * p.repetition_penalty;
    z = simd::fma(-p.frequency_penalty, static_cast<float>(count), z - p.presence_penalty);
    count = 0;
  }
}

}  // namespace heddle::sampling::inline HEDDLE_ISA
