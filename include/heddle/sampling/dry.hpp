// DRY: a penalty on the token that would continue a repeat (p-e-w 2024).
//
//   l(v) = the longest L such that the last L tokens of the history equal the L tokens before an earlier occurrence of v, no breaker among them
//   z_v <- z_v - multiplier * base^(l(v) - allowed)      where l(v) >= allowed
//
// One Z-function of the reversed history: O(history). The subtrahend is at most 1e30, so a finite logit stays finite in effect; -infinity
// stays. A token of the history outside the vocabulary is an error.
//
//     sampling::apply_dry(logits, {committed, path}, {.dry_multiplier = 0.8f}, counts, lengths);    // counts: a zero per token
#pragma once
#include <heddle/core/math.hpp>
#include <heddle/sampling/parameters.hpp>

#include <cstdint>
#include <span>

namespace heddle::sampling::inline HEDDLE_ISA {

inline bool has_dry(const parameters& p) { return p.dry_multiplier > 0.f; }

/// `longest` holds a zero per token and does again afterwards; `match` holds history.size() integers.
inline void apply_dry(std::span<float> logits, const history& before, const parameters& p, std::int32_t* longest, std::int32_t* match) {
  const std::int64_t n = before.size(), vocabulary = static_cast<std::int64_t>(logits.size());
  const auto reversed = [&](std::int64_t i) { return before[n - 1 - i]; };
  const auto is_breaker = [&](std::int32_t token) {
    for (const std::int32_t breaker : p.dry_breakers)
      if (token == breaker) return true;
    return false;
  };
  for (std::int64_t i = 0; i < n; ++i)
    require(before[i] >= 0 && before[i] < vocabulary, "sampling::apply_dry: token ", i, " of the history is ", before[i], "; expected 0 to ", vocabulary - 1);
  std::int64_t reach = 0;  // a repeat longer than this would contain a breaker
  while (reach < n && !is_breaker(reversed(reach))) ++reach;

  // match[i]: common prefix of the reversed history and its suffix at i; [left, right) is the match found furthest to the right
  std::int64_t left = 0, right = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    std::int64_t length = 0;
    if (i < right) length = match[i - left] < right - i ? match[i - left] : right - i;
    while (i + length < n && reversed(length) == reversed(i + length)) ++length;
    match[i] = static_cast<std::int32_t>(length);
    if (i + length > right) left = i, right = i + length;
    const std::int64_t repeat = length < reach ? length : reach;
    std::int32_t& best = longest[reversed(i - 1)];
    if (repeat > best) best = static_cast<std::int32_t>(repeat);
  }
  for (std::int64_t i = 1; i < n; ++i) {
    std::int32_t& best = longest[reversed(i - 1)];
    if (best >= p.dry_allowed_length) {
      const double penalty = double{p.dry_multiplier} * math::exp(static_cast<double>(best - p.dry_allowed_length) * math::log(double{p.dry_base}));
      logits[static_cast<std::size_t>(reversed(i - 1))] -= static_cast<float>(penalty < 1e30 ? penalty : 1e30);
    }
    best = 0;
  }
}

}  // namespace heddle::sampling::inline HEDDLE_ISA
