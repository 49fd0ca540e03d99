// Random spans left out of a training sequence: SpanDrop, and its beta-Bernoulli form, which keeps the whole sequence likely.
//
//   Bernoulli        every span is dropped with probability `rate`
//   beta-Bernoulli   pi ~ Beta(a, b) once per sequence, a = concentration, b = a (1 - rate) / rate; then every span is dropped with probability pi
//
// Of n spans the second drops a beta-binomial number: mean n rate, variance n rate (1 - rate) (a + b + n) / (a + b + 1), and none at all with
// probability prod_{i<n} (b + i) / (a + b + i), more than (1 - rate)^n for n >= 2. It tends to the first for a large concentration.
// Protected spans are never dropped and change nothing for the others.
// Random numbers: span i is decided by the number of index i under purpose::dropout, pi by those under purpose::dropout_rate; seed, request and
// position are the caller's. Beta through two Gamma variates in the log domain (Marsaglia and Tsang, ACM TOMS 2000), so any concentration will do.
// Errors: rate outside [0, 1], a concentration that is negative or NaN, a table of another size.
// Cost: one random number per span. Source: SpanDrop, its definition after the abstract.
//
//     std::vector<std::uint8_t> keep(spans), tokens(length);
//     heddle::distillation::drop_spans(keep, {.seed = 7, .request = item}, {.rate = 0.1, .concentration = 1});
//     heddle::distillation::spans_to_tokens(boundaries, keep, tokens);        // boundaries [spans + 1]: the first token of each span, and the end
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/distillation/detail/sequences.hpp>

#include <cmath>
#include <cstdint>
#include <span>

namespace heddle::distillation {

struct span_dropout {
  double rate = 0.1;         ///< p, in [0, 1]
  double concentration = 0;  ///< a of the Beta law; 0: Bernoulli
  std::span<const std::uint8_t> protected_spans{};  ///< not 0: never dropped; empty: none
};

}  // namespace heddle::distillation

namespace heddle::distillation::detail::inline HEDDLE_ISA {

/// ln of a Gamma(shape, 1) variate. Attempt k reads block `first_block + k` of the key.
inline double log_gamma_variate(double shape, const random_key& key, std::uint32_t first_block) {
  const double larger = shape < 1. ? shape + 1. : shape, d = larger - 1. / 3., c = 1. / std::sqrt(9. * d);
  for (std::uint32_t block = first_block;; ++block) {
    const random_words words = random_block(key, block);
    const double normal = std::sqrt(-2. * math::log(to_uniform(words[0]))) * math::sincos(6.283185307179586 * to_uniform(words[1])).cosine;
    const double root = 1. + c * normal;
    if (root <= 0.) continue;
    const double v = root * root * root, log_v = 3. * math::log(root);
    if (math::log(to_uniform(words[2])) >= 0.5 * normal * normal + d * (1. - v + log_v)) continue;
    return math::log(d) + log_v + (shape < 1. ? math::log(to_uniform(words[3])) / shape : 0.);
  }
}

inline void check_span_dropout(const char* function, const span_dropout& options) {
  check_unit_interval(function, "rate", options.rate);
  require(options.concentration >= 0., function, ": option 'concentration' is ", options.concentration, "; expected 0 (Bernoulli) or a positive number");
}

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

/// The probability with which each span of one sequence is dropped: `rate`, or a draw from the Beta law around it.
inline double draw_rate(random_key key, const span_dropout& options) {
  detail::check_span_dropout("draw_rate", options);
  const double a = options.concentration, p = options.rate;
  if (a == 0. || p == 0. || p == 1. || !detail::finite(a) || !detail::finite(a * (1. - p) / p)) return p;
  key.purpose = purpose::dropout_rate;
  const double dropped = detail::log_gamma_variate(a, key, 0), left = detail::log_gamma_variate(a * (1. - p) / p, key, 1u << 31);
  if (dropped == left && !detail::finite(left)) return uniform(key) < p ? 1. : 0.;   // both underflowed: the limit, all spans or none
  return 1. / (1. + math::exp(left - dropped));
}

/// keep[i] = 1 where span i stays, else 0. Returns how many stay.
inline std::int64_t drop_spans(std::span<std::uint8_t> keep, random_key key, const span_dropout& options = {}) {
  detail::check_span_dropout("drop_spans", options);
  require(options.protected_spans.empty() || options.protected_spans.size() == keep.size(), "drop_spans: option 'protected_spans' has ", options.protected_spans.size(), " spans; expected ", keep.size(), " or none");
  const double rate = draw_rate(key, options);
  key.purpose = purpose::dropout;
  std::int64_t kept = 0;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    key.index = static_cast<std::uint32_t>(i);
    const bool is_protected = !options.protected_spans.empty() && options.protected_spans[i];
    keep[i] = is_protected || rate < uniform(key);
    kept += keep[i];
  }
  return kept;
}

/// The probability that nothing is dropped from `spans` unprotected spans.
inline double keep_all_probability(std::int64_t spans, const span_dropout& options) {
  detail::check_span_dropout("keep_all_probability", options);
  require(spans >= 0, "keep_all_probability: argument 'spans' is ", spans, "; expected 0 or more");
  const double a = options.concentration, p = options.rate, b = a * (1. - p) / p;
  const bool bernoulli = a == 0. || p == 0. || !detail::finite(a) || !detail::finite(b);
  double probability = 1;
  for (std::int64_t i = 0; i < spans; ++i) probability *= bernoulli ? 1. - p : (b + static_cast<double>(i)) / (a + b + static_cast<double>(i));
  return probability;
}

/// token_keep[t] = keep of the span that holds token t; boundaries [spans + 1] run from 0 to the number of tokens.
inline void spans_to_tokens(std::span<const std::int32_t> boundaries, std::span<const std::uint8_t> keep, std::span<std::uint8_t> token_keep) {
  require(boundaries.size() == keep.size() + 1, "spans_to_tokens: argument 'boundaries' has ", boundaries.size(), " entries; expected one more than spans, ", keep.size() + 1);
  detail::check_indptr("spans_to_tokens", boundaries, static_cast<std::int64_t>(token_keep.size()));
  for (std::size_t i = 0; i < keep.size(); ++i)
    for (std::int64_t t = boundaries[i]; t < boundaries[i + 1]; ++t) token_keep[detail::index(t)] = keep[i];
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
