// Unlearning where it matters: the first tokens of each sensitive interval, and of those only the reference's k best (PALU).
//
//   on the first n rows of a sensitive interval    gamma L_f,   L_f = 1/k sum over K of (z_j - mean z)^2        K = top-k of the reference's logits
//                                                  dL_f / dz_v = 2/k [(z_v - mean z) 1[v in K] - 1/V sum over K of (z_j - mean z)]
//   on rows that are not sensitive                 alpha KL(s || s_ref)
//   on the other sensitive rows                    nothing
//
// L_f flattens: it is 0 iff the k logits equal the mean of the row, and the variance of the row for k >= V. z are the logits themselves, not divided by the temperature;
// the KL is. Sensitive intervals are maximal runs of sensitive rows within a sequence; interval_heads marks their first n rows (n <= 0: all).
// A loss on data to retain is a call of its own (sampled_token.hpp, nll), scaled by its weights.
// A logit of -infinity on a flattened row has no mean: status infinite_divergence. Errors: k < 1, gamma or alpha negative, sizes.
// Cost: flattened rows three reads of the student, one of the reference; others as reverse KL. Source: PALU.
//
//     interval_heads(sensitive, 4, heads, indptr);
//     loss(student, reference, local_unlearning{.heads = heads, .sensitive = sensitive, .k = 20}, grad);
#pragma once
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/per_row.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation::inline HEDDLE_ISA {

/// heads[i] = 1 on the first n rows of each run of sensitive rows.
inline void interval_heads(std::span<const std::uint8_t> sensitive, std::int64_t n, std::span<std::uint8_t> heads, std::span<const std::int32_t> indptr = {}) {
  const auto rows = static_cast<std::int64_t>(sensitive.size());
  require(heads.size() == sensitive.size(), "interval_heads: argument 'heads' has ", heads.size(), " rows; expected ", rows);
  detail::check_indptr("interval_heads", indptr, rows);
  detail::for_each_sequence(indptr, rows, [&](std::int64_t first, std::int64_t end) {
    std::int64_t run = 0;
    for (std::int64_t i = first; i < end; ++i) {
      run = sensitive[detail::index(i)] ? run + 1 : 0;
      heads[detail::index(i)] = run > 0 && (n <= 0 || run <= n);
    }
  });
}

struct local_unlearning {
  std::span<const std::uint8_t> heads, sensitive;
  std::int64_t k = 20;
  double gamma = 1, alpha = 1;

  static constexpr bool pair_moments = true;
  std::int64_t selected_columns() const { return k; }
  void check(const call_shape& shape) const {
    for (const auto flags : {heads, sensitive})
      require(static_cast<std::int64_t>(flags.size()) == shape.rows, "local_unlearning: arguments 'heads' and 'sensitive' have ", heads.size(), " and ", sensitive.size(), " rows; expected ", shape.rows);
    require(k >= 1, "local_unlearning: option 'k' is ", k, "; expected 1 or more");
    for (const double c : {gamma, alpha}) require(detail::finite(c) && c >= 0., "local_unlearning: option 'gamma' or 'alpha' is ", c, "; expected 0 or more");
  }
  template <class Row, class S, class Reference>
  auto operator()(Row& row, S s, Reference reference) const {
    const bool head = heads.data()[row.index()] != 0, flatten = head && gamma > 0, retain = !head && sensitive.data()[row.index()] == 0 && alpha > 0;
    const double tau = s.temperature(), vocabulary = static_cast<double>(row.vocabulary());
    // z_v - mean z = tau (ln s_v - mean ln s)
    const double mean = flatten ? row.sum([=](auto v) { return s(v).log; }) / vocabulary : 0;
    const std::span<const std::int32_t> best = flatten ? row.top_k(reference, k) : std::span<const std::int32_t>{};
    const auto deviation = [=](auto v) { return static_cast<double>(s(v).log) - mean; };
    double sum = 0, squares = 0;
    for (const std::int32_t j : best) sum += deviation(row.at(j)), squares += deviation(row.at(j)) * deviation(row.at(j));
    const double scale = flatten ? gamma * tau * tau / static_cast<double>(best.size()) : 0, common = -2 * scale * sum / vocabulary;
    const double kl = retain ? row.kl(s, reference) : 0, a = alpha;
    return outcome{flatten ? scale * squares : retain ? a * kl : 0,
                   gradient{[=](auto v) {
                              using number = typename decltype(v)::number;
                              return retain ? a * weigh(s(v), log_ratio(s(v), reference(v)) - kl) : number(common);
                            },
                            at(best, [=](auto v, std::int64_t) { return 2 * scale * deviation(v); })}};
  }
};

}  // namespace heddle::distillation::inline HEDDLE_ISA
