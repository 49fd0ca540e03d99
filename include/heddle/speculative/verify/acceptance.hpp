// How often drafts are accepted, and what a rejection leaves: the formulas that the rules are made of, on plain arrays.
//
// One slot, target p and proposal q on the same tokens (each sums to 1):
//   accept_probability(p, q)   min(1, p / q), for the drafted token
//   subtract_proposal(p, q)    p <- res(p, q) = (p - q)_+ / sum (p - q)_+
// P(accept) of the couplings of a slot, from weakest to strongest:
//   match_acceptance           sum_v p q                                        match verification of an independent draft
//   gumbel_acceptance          sum_v 1 / sum_u max(p_u / p_v, q_u / q_v)        match verification of a drafter that reuses the noise;
//                              at least (1 - TV) / (1 + TV)
//   maximal_acceptance         sum_v min(p, q) = 1 - TV(p, q)                   token rejection
// k siblings at a node:
//   recursive_acceptance       1 - prod_j (1 - sum_v min(p_j, q)),  p_1 = p, p_{j+1} = res(p_j, q)      independent draws
//   (deterministic siblings: the sum of their p; K-SEQ and the optimum: k_seq.hpp, optimal_transport.hpp)
// Chains whose slots are accepted with probability alpha, independently:
//   mean_accepted_tokens       E[L] + 1 = (1 - alpha^{K+1}) / (1 - alpha)       tokens per target pass, the last one included
// All in double, sums in the order of tokens. Cost: O(V); gumbel_acceptance sorts, O(V log V), and allocates.
// Sources: Leviathan et al. 2023; Daliri et al. 2024 (Gumbel coupling); Miao et al. 2023 (SpecInfer).
//
//     const double alpha = heddle::verify::maximal_acceptance(p, q);      // (.6, .3, .1), (.2, .3, .5): .6
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify::inline HEDDLE_ISA {

/// min(1, p / q); 0 where p is 0 or q is.
inline double accept_probability(double p, double q) { return p <= 0. || q <= 0. ? 0. : p >= q ? 1. : p / q; }

/// p <- (p - q)_+ / sum (p - q)_+. Returns the sum; if that is 0, p is left alone.
inline double subtract_proposal(std::span<double> p, std::span<const double> q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] > q[i] ? p[i] - q[i] : 0.;
  if (sum > 0.)
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = (p[i] > q[i] ? p[i] - q[i] : 0.) / sum;
  return sum;
}

inline void require_same_size(const char* function, std::span<const double> p, std::span<const double> q) {
  require(p.size() == q.size(), function, ": arguments 'p' and 'q' have ", p.size(), " and ", q.size(), " entries; expected laws on the same tokens");
}

inline double match_acceptance(std::span<const double> p, std::span<const double> q) {
  require_same_size("verify::match_acceptance", p, q);
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += p[v] * q[v];
  return sum;
}

inline double maximal_acceptance(std::span<const double> p, std::span<const double> q) {
  require_same_size("verify::maximal_acceptance", p, q);
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += p[v] < q[v] ? p[v] : q[v];
  return sum;
}

/// With tokens by descending p / q, max(p_u / p_v, q_u / q_v) is the first for u before v and the second after it.
inline double gumbel_acceptance(std::span<const double> p, std::span<const double> q) {
  require_same_size("verify::gumbel_acceptance", p, q);
  aligned_vector<std::size_t> common;   // tokens that both can draw
  double only_p = 0, only_q = 0;
  for (std::size_t v = 0; v < p.size(); ++v)
    if (p[v] > 0. && q[v] > 0.)
      common.push_back(v);
    else
      only_p += p[v], only_q += q[v];
  std::sort(common.begin(), common.end(), [&](std::size_t a, std::size_t b) { return p[a] * q[b] > p[b] * q[a]; });
  double before = only_p, after = only_q, sum = 0;
  for (const std::size_t v : common) after += q[v];
  for (const std::size_t v : common) {
    before += p[v], after -= q[v];
    sum += 1. / (before / p[v] + (after > 0. ? after : 0.) / q[v]);
  }
  return sum;
}

/// k independent siblings; `remaining` (as many entries as p) is left with the law of the token emitted when none is accepted.
inline double recursive_acceptance(std::span<const double> p, std::span<const double> q, std::int32_t k, std::span<double> remaining) {
  require_same_size("verify::recursive_acceptance", p, q);
  require_same_size("verify::recursive_acceptance", p, remaining);
  for (std::size_t v = 0; v < p.size(); ++v) remaining[v] = p[v];
  double none = 1;
  for (std::int32_t j = 0; j < k; ++j) {
    none *= 1. - maximal_acceptance(remaining, q);
    if (subtract_proposal(remaining, q) <= 0.) return 1.;
  }
  return 1. - none;
}

inline double mean_accepted_tokens(double alpha, std::int32_t drafts) {
  double tokens = 1, power = 1;
  for (std::int32_t i = 0; i < drafts; ++i) tokens += power *= alpha;
  return tokens;
}

}  // namespace heddle::verify::inline HEDDLE_ISA
