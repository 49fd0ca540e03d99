// Is a lossless scheme lossless as implemented? Speculative outputs against plain ones, and the cause of every difference.
//
// A speculative run that differs from the plain one is either rounding (its logits were summed in another order, and two tokens were nearly tied) or a
// bug. Comparing texts cannot tell them apart; scoring the speculative output again with the sequential model can:
//
//   compare_runs        match, D = index of the first difference (the shorter end where one is a prefix of the other: an end token that only one run
//                       emitted counts there), the reference's margin z_top1 - z_top2 at D, also in units in the last place, and its perplexity
//                       exp(-mean log p(token)) over the reference's tokens
//   check_teacher_forced   every token given its predecessors: the argmax (ties to the lowest id), a near tie (margin to the argmax <= 2 ulp), or a bug
//   summarise           over prompts: match rate with its Wilson interval, hazard of divergence by position (D = t given no divergence before t), AUC of
//                       perplexity against match (chance that a differing prompt has the higher one, ties half)
//   mcnemar             two precisions on the same prompts: exact two-sided binomial p-value of the prompts on which just one of them matches
//
// A batch-invariant implementation matches always, in every precision. The task's score is another number and not computed here.
// mantissa_bits: of the type the logits were rounded to: 23 (f32), 10 (f16), 7 (bf16). One ulp at x: 2^(floor(log2 |x|) - mantissa_bits).
// Logits [tokens, V]: row i precedes token i, computed sequentially. Errors: shapes, tokens outside the vocabulary, NaN logits.
// Accumulator: double. Cost: one pass over the logits. Source: the exactness audit of Orthrus; its statistics are ours.
//
//     const auto check = audit::check_teacher_forced(logits, speculative, {.mantissa_bits = 7});
//     if (check.bugs > 0) report(check.first_bug);
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/sampling/row.hpp>
#include <heddle/speculative/audit/interval.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::audit {

struct exactness_options {
  int mantissa_bits = 23;
  double near_tie_ulps = 2;
};

struct run_comparison {
  bool match = true;
  std::int64_t first_difference = -1;  ///< D; -1 where the runs match
  double margin = 0;                   ///< of the reference at D; 0 where it has no token there
  double margin_ulps = 0;
  double perplexity = 1;               ///< of the reference
  std::int64_t length = 0;             ///< tokens of the reference
};

struct teacher_forced_check {
  std::int64_t exact = 0, near_ties = 0, bugs = 0;
  std::int64_t first_bug = -1;
  double widest_near_tie_ulps = 0;
};

struct exactness_summary {
  std::int64_t prompts = 0, matches = 0;
  interval wilson{};  ///< of the match rate, 95 %
  double auc = 0.5;   ///< 1/2 where all prompts match or none does
  [[gnu::always_inline]] constexpr double match_rate() const { return prompts ? static_cast<double>(matches) / static_cast<double>(prompts) : 0.; }
};

namespace detail::inline HEDDLE_ISA {

/// One unit in the last place at the magnitude of x.
inline double unit_in_last_place(double x, int mantissa_bits) {
  const double magnitude = x < 0 ? -x : x;
  if (magnitude == 0.) return 0x1p-126;
  const auto exponent = static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, magnitude) >> 52 & 0x7ff) - 1023 - mantissa_bits;
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// A logit of any type.
template <class T>
double number(T z) {
  if constexpr (std::is_same_v<std::remove_cv_t<T>, double>) return z;
  else return static_cast<double>(static_cast<float>(z));
}

struct top_two {
  std::int32_t token = -1;
  double first = -math::infinity, second = -math::infinity;
};
template <class Logits>
top_two find_top_two(const char* function, const Logits& logits, std::int64_t row) {
  top_two top;
  for (std::int64_t v = 0; v < logits.extent(1); ++v) {
    const auto z = number(logits(row, v));
    require(z == z, function, ": argument 'logits': row ", row, ", column ", v, " is NaN");
    if (z > top.first || top.token < 0) top.second = top.first, top.first = z, top.token = static_cast<std::int32_t>(v);
    else if (z > top.second) top.second = z;
  }
  return top;
}
template <class Logits>
void check_scored(const char* function, const char* argument, const Logits& logits, std::span<const std::int32_t> tokens) {
  require(logits.extent(0) == static_cast<std::int64_t>(tokens.size()), function, ": argument 'logits' has ", logits.extent(0), " rows; expected one per token, ", tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    require(tokens[i] >= 0 && tokens[i] < logits.extent(1), function, ": argument '", argument, "': entry ", i, " is ", tokens[i], "; expected 0 to ", logits.extent(1) - 1);
}
inline void check_precision(const char* function, const exactness_options& o) {
  require(o.mantissa_bits >= 0 && o.mantissa_bits <= 52, function, ": option 'mantissa_bits' is ", o.mantissa_bits, "; expected 23 (f32), 10 (f16) or 7 (bf16)");
  require(o.near_tie_ulps >= 0., function, ": option 'near_tie_ulps' is ", o.near_tie_ulps, "; expected 0 or more");
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// reference_logits: row i precedes reference[i].
template <tensor_of<2> Logits>
  requires host_tensor<Logits>
run_comparison compare_runs(std::span<const std::int32_t> reference, std::span<const std::int32_t> speculative, const Logits& reference_logits, const exactness_options& options = {}) {
  const auto logits = view_of(reference_logits);
  detail::check_precision("audit::compare_runs", options);
  detail::check_scored("audit::compare_runs", "reference", logits, reference);
  run_comparison result{.length = static_cast<std::int64_t>(reference.size())};
  std::size_t same = 0;
  while (same < reference.size() && same < speculative.size() && reference[same] == speculative[same]) ++same;
  result.match = same == reference.size() && same == speculative.size();
  double log_prob = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const detail::top_two top = detail::find_top_two("audit::compare_runs", logits, row);
    log_prob += sampling::log_prob(logits[row], reference[i]);
    if (!result.match && i == same) result.margin = top.first - top.second, result.margin_ulps = result.margin / detail::unit_in_last_place(top.first, options.mantissa_bits);
  }
  if (!result.match) result.first_difference = static_cast<std::int64_t>(same);
  if (!reference.empty()) result.perplexity = math::exp(-log_prob / static_cast<double>(reference.size()));
  return result;
}

template <tensor_of<2> Logits>
  requires host_tensor<Logits>
teacher_forced_check check_teacher_forced(const Logits& sequential_logits, std::span<const std::int32_t> speculative, const exactness_options& options = {}) {
  const auto logits = view_of(sequential_logits);
  detail::check_precision("audit::check_teacher_forced", options);
  detail::check_scored("audit::check_teacher_forced", "speculative", logits, speculative);
  teacher_forced_check check;
  for (std::size_t i = 0; i < speculative.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const detail::top_two top = detail::find_top_two("audit::check_teacher_forced", logits, row);
    if (speculative[i] == top.token) {
      ++check.exact;
      continue;
    }
    const double ulps = (top.first - detail::number(logits(row, speculative[i]))) / detail::unit_in_last_place(top.first, options.mantissa_bits);
    if (ulps <= options.near_tie_ulps) {
      ++check.near_ties, check.widest_near_tie_ulps = std::max(check.widest_near_tie_ulps, ulps);
    } else if (++check.bugs == 1) {
      check.first_bug = row;
    }
  }
  return check;
}

/// hazard [T], T the longest run that is wanted: entry t is the share of the runs without a difference before t, and with a token there, that differ at t.
inline exactness_summary summarise(std::span<const run_comparison> runs, std::span<double> hazard = {}) {
  exactness_summary s{.prompts = static_cast<std::int64_t>(runs.size())};
  double pairs = 0, ordered = 0;
  for (const run_comparison& run : runs) {
    s.matches += run.match;
    if (run.match) continue;
    for (const run_comparison& other : runs)
      if (other.match) pairs += 1, ordered += run.perplexity > other.perplexity ? 1. : run.perplexity == other.perplexity ? 0.5 : 0.;
  }
  s.wilson = wilson_interval(s.matches, s.prompts);
  if (pairs > 0.) s.auc = ordered / pairs;
  for (std::size_t t = 0; t < hazard.size(); ++t) {
    const auto at = static_cast<std::int64_t>(t);
    double exposed = 0, differ = 0;
    for (const run_comparison& run : runs) {
      const bool still_equal = run.match || run.first_difference >= at;
      exposed += still_equal && (run.length > at || run.first_difference == at), differ += !run.match && run.first_difference == at;
    }
    hazard[t] = exposed > 0. ? differ / exposed : 0.;
  }
  return s;
}

/// The two lists are of the same prompts.
inline double mcnemar(std::span<const run_comparison> a, std::span<const run_comparison> b) {
  require(a.size() == b.size(), "audit::mcnemar: arguments 'a' and 'b' have ", a.size(), " and ", b.size(), " entries; expected the same prompts");
  std::int64_t only_a = 0, only_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) only_a += a[i].match && !b[i].match, only_b += b[i].match && !a[i].match;
  return sign_test(only_a, only_b);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::audit
