// What a request asks of the sampler.
//
// A row of logits z becomes a law p in a fixed order, the same everywhere in the library (speculative verification included):
//
//   penalties -> transform -> constraint -> temperature -> truncation -> draw          p = softmax(z / T) after temperature
//
// The truncations top-k, top-p, min-p and typical are conditions on that same p, not on one another's renormalised result: a token is kept if
// every one of them keeps it, in whatever order they are written; XTC then removes from the kept ones. The most probable token (the lowest id
// of several) stays when nothing else would. A temperature of 0 is greedy: the lowest id of the largest logit, truncations skipped.
//
// parameters  one request's numbers; a batch has one each (chain.hpp puts them and the user's own stages together)
// history     the tokens before the one that is being decided: those committed, then those of the draft path
// draw        how a token is drawn from the kept law
// drawn       the result for one row
//
//     const sampling::parameters asked{.temperature = 0.8f, .top_k = 50, .top_p = 0.95f};
//     sampling::check("serve", asked);                                 // throws, naming the parameter
//     const sampling::chain policy{asked};
#pragma once
#include <heddle/core/error.hpp>

#include <cstdint>
#include <span>

namespace heddle::sampling {

struct parameters {
  float temperature = 1.f;              ///< T >= 0
  std::int32_t top_k = 0;               ///< the k largest (equal logits: lower ids first); 0: off
  float top_p = 1.f;                    ///< v with sum_{p_u > p_v} p_u < top_p, equal ones together; >= 1: off; <= 0: the most probable token only
  float min_p = 0.f;                    ///< p_v >= min_p * max p, in [0, 1]
  float typical_p = 1.f;                ///< v with sum_{c_u < c_v} p_u < typical_p, c_v = |-ln p_v - entropy|, in (0, 1]
  float repetition_penalty = 1.f;       ///< theta > 0 on seen tokens: z / theta where z > 0, else z * theta
  float presence_penalty = 0.f;         ///< subtracted from seen tokens
  float frequency_penalty = 0.f;        ///< subtracted as often as the token was seen
  std::int32_t penalty_window = 0;      ///< only the last tokens of the history count as seen; 0: all
  float dry_multiplier = 0.f;           ///< DRY (dry.hpp): strength, 0: off
  float dry_base = 1.75f;               ///< >= 1
  std::int32_t dry_allowed_length = 2;  ///< >= 1: repeats shorter than that are free
  std::span<const std::int32_t> dry_breakers{};  ///< tokens that no repeat crosses
  float xtc_probability = 0.f;          ///< XTC: the chance that all tokens with p >= xtc_threshold but the least probable are removed
  float xtc_threshold = 0.1f;           ///< above 1/2: off
};

struct history {
  std::span<const std::int32_t> committed{};
  std::span<const std::int32_t> path{};
  [[gnu::always_inline]] constexpr std::int64_t size() const { return static_cast<std::int64_t>(committed.size() + path.size()); }
  [[gnu::always_inline]] constexpr std::int32_t operator[](std::int64_t i) const {
    const auto n = static_cast<std::int64_t>(committed.size());
    return i < n ? committed.data()[i] : path.data()[i - n];
  }
};

enum class draw : std::uint8_t {
  gumbel,       ///< argmax of x_v + G_v: the noise of a token depends on its id, not on which others are kept
  inverse_cdf,  ///< the first token, in order of ids, at which the cumulative mass exceeds u times the total
};

struct drawn {
  std::int32_t token = -1;  ///< -1 unless status is ok
  heddle::status status = heddle::status::ok;
};

inline namespace HEDDLE_ISA {

/// Throws unless every parameter lies in its range.
inline void check(const char* function, const parameters& p) {
  const auto finite = [](float x) { return x - x == 0.f; };
  require(finite(p.temperature) && p.temperature >= 0.f, function, ": parameter 'temperature' is ", double{p.temperature}, "; expected 0 (greedy) or a positive number");
  require(p.top_k >= 0, function, ": parameter 'top_k' is ", p.top_k, "; expected 0 (off) or more");
  require(p.top_p == p.top_p, function, ": parameter 'top_p' is NaN; expected a number, 1 or more for off");
  require(p.min_p >= 0.f && p.min_p <= 1.f, function, ": parameter 'min_p' is ", double{p.min_p}, "; expected 0 (off) to 1");
  require(p.typical_p > 0.f && p.typical_p <= 1.f, function, ": parameter 'typical_p' is ", double{p.typical_p}, "; expected more than 0, at most 1 (off)");
  require(finite(p.repetition_penalty) && p.repetition_penalty > 0.f, function, ": parameter 'repetition_penalty' is ", double{p.repetition_penalty}, "; expected a positive number, 1 for off");
  require(finite(p.presence_penalty), function, ": parameter 'presence_penalty' is ", double{p.presence_penalty}, "; expected a finite number");
  require(finite(p.frequency_penalty), function, ": parameter 'frequency_penalty' is ", double{p.frequency_penalty}, "; expected a finite number");
  require(p.penalty_window >= 0, function, ": parameter 'penalty_window' is ", p.penalty_window, "; expected 0 (the whole history) or more");
  require(finite(p.dry_multiplier) && p.dry_multiplier >= 0.f, function, ": parameter 'dry_multiplier' is ", double{p.dry_multiplier}, "; expected 0 (off) or a positive number");
  require(finite(p.dry_base) && p.dry_base >= 1.f, function, ": parameter 'dry_base' is ", double{p.dry_base}, "; expected 1 or more");
  require(p.dry_allowed_length >= 1, function, ": parameter 'dry_allowed_length' is ", p.dry_allowed_length, "; expected 1 or more");
  require(p.xtc_probability == p.xtc_probability, function, ": parameter 'xtc_probability' is NaN; expected a number, 0 or less for off");
  require(p.xtc_threshold >= 0.f, function, ": parameter 'xtc_threshold' is ", double{p.xtc_threshold}, "; expected 0 or more, above 1/2 for off");
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::sampling
