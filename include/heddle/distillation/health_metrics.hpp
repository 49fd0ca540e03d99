// How a batch of distillation is doing: the numbers that tell a collapse early.
//
//   row_health          row functional of student and teacher for measure(): ln t_x - ln s_x of the sampled token (0 without tokens), TV, KL(t || s), KL(s || t),
//                       H(s), H(t), and 1 where both have the same most likely token (ties: the lowest id)
//   squared_norm        row functional of a matrix of gradients: the sum of squares of a row; of two matrices: of their difference
//   summarise           mean, extremes and quantiles of per-row values, and the share of infinite ones, which the others leave out
//   health_of           all of that for unmasked rows of finite logits, and the shares of rows with an infinite KL and with equal argmax
//   gradient_rms        root mean square of each row of a gradient; the change of a gradient when a prefix is dropped is that of a difference
//   kept_share          share of rows that a mask keeps; also of corrected tokens (interpolation.hpp). Coverage of ESCD: summarise(its coverages)
//
// Quantiles are lower empirical ones: the value of rank ceil(q n). Everything is computed from sorted values: permuting the rows changes no bit.
// Nothing to summarise: zeros and count 0. A NaN value is an error that names the row.
// Cost: three reads of both rows; O(N log N).
//
//     const auto health = heddle::distillation::health_of(student, teacher, {.tokens = sampled, .rows = {.temperature = 1, .executor = team}});
//     log(health.log_ratio.median, health.reverse_kl.mean, health.same_argmax_share);
#pragma once
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/per_row.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace heddle::distillation {

/// Of the finite values.
struct summary {
  double mean = 0, minimum = 0, low = 0, median = 0, high = 0, maximum = 0;   ///< low, high: quantiles 0.05 and 0.95
  double infinite_share = 0;                                                  ///< of all values
  std::int64_t count = 0;                                                     ///< all values
};

struct health {
  summary log_ratio, total_variation, forward_kl, reverse_kl, student_entropy, teacher_entropy;
  double infinite_kl_share = 0;      ///< rows where either KL is +infinity
  double same_argmax_share = 0;
  std::int64_t rows = 0, bad_rows = 0;   ///< unmasked rows that are counted, and those whose logits are bad
};

struct health_options {
  std::span<const std::int32_t> tokens{};   ///< sampled tokens [N]; empty: no log_ratio
  row_options rows{};
};

inline namespace HEDDLE_ISA {

struct row_health {
  std::span<const std::int32_t> tokens{};
  static constexpr bool pair_moments = true;
  static constexpr int num_terms = 7;

  void check(const call_shape& shape) const {
    if (!tokens.empty()) check_tokens("row_health", "tokens", tokens, shape);
  }
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const std::int64_t x = tokens.empty() ? 0 : tokens.data()[row.index()];
    const double ratio = tokens.empty() || s.log_prob(x) == t.log_prob(x) ? 0 : t.log_prob(x) - s.log_prob(x);
    return terms(ratio, row.tv(s, t), row.kl(t, s), row.kl(s, t), row.entropy(s), row.entropy(t), row.argmax(s) == row.argmax(t) ? 1. : 0.);
  }
};

struct squared_norm {
  template <class Row, class G>
  auto operator()(Row& row, G gradient) const {
    return terms(row.sum([=](auto v) { return gradient.logit(v) * gradient.logit(v); }));
  }
  template <class Row, class G, class H>
  auto operator()(Row& row, G gradient, H other) const {
    return terms(row.sum([=](auto v) {
      const auto difference = gradient.logit(v) - other.logit(v);
      return difference * difference;
    }));
  }
};

/// Rows with `keep` 0 are left out.
inline summary summarise(std::span<const double> values, std::span<const std::uint8_t> keep = {}) {
  const auto n = static_cast<std::int64_t>(values.size());
  detail::check_mask("summarise", keep, n);
  aligned_vector<double> sorted;
  summary result;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!detail::kept(keep, i)) continue;
    const double x = values[detail::index(i)];
    require(x == x, "summarise: argument 'values' is NaN at row ", i, "; expected numbers");
    ++result.count;
    if (detail::finite(x)) sorted.push_back(x);
  }
  const auto finite = static_cast<std::int64_t>(sorted.size());
  if (result.count > 0) result.infinite_share = static_cast<double>(result.count - finite) / static_cast<double>(result.count);
  if (finite == 0) return result;
  std::sort(sorted.begin(), sorted.end());
  for (const double x : sorted) result.mean += x;
  result.mean /= static_cast<double>(finite);
  const auto quantile = [&](double q) { return sorted[detail::index(std::max(std::int64_t{1}, detail::share_of(q, finite)) - 1)]; };
  result.minimum = sorted.front(), result.low = quantile(0.05), result.median = quantile(0.5), result.high = quantile(0.95), result.maximum = sorted.back();
  return result;
}

template <class Student, class Teacher>
health health_of(const Student& student, const Teacher& teacher, const health_options& options = {}) {
  const row_health functional{options.tokens};
  const std::int64_t n = detail::input_of(student).source.rows;
  constexpr int columns = row_health::num_terms;
  aligned_vector<double> measured(detail::index(n * columns)), column(detail::index(n));
  const auto status = measure(functional, options.rows, tensor_view{measured.data(), extents{n, columns}}, student, teacher);
  health result;
  aligned_vector<std::uint8_t> keep(detail::index(n));
  std::int64_t infinite = 0, same = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!detail::kept(options.rows.mask, i)) continue;
    if (status[detail::index(i)] != heddle::status::ok) {
      ++result.bad_rows;
      continue;
    }
    const double* const row = measured.data() + i * columns;
    keep[detail::index(i)] = 1, ++result.rows;
    infinite += row[2] == math::infinity || row[3] == math::infinity;
    same += row[6] != 0;
  }
  summary* const summaries[] = {&result.log_ratio, &result.total_variation, &result.forward_kl, &result.reverse_kl, &result.student_entropy, &result.teacher_entropy};
  for (int c = 0; c < columns - 1; ++c) {
    for (std::int64_t i = 0; i < n; ++i) column[detail::index(i)] = measured[detail::index(i * columns + c)];
    *summaries[c] = summarise(column, keep);
  }
  if (result.rows > 0) result.infinite_kl_share = static_cast<double>(infinite) / static_cast<double>(result.rows), result.same_argmax_share = static_cast<double>(same) / static_cast<double>(result.rows);
  return result;
}

/// out[i] = sqrt(sum of squares / V) of row i of a gradient, or of the difference of two. Rows with NaN or infinity give that status and 0.
template <class... Gradients>
  requires(sizeof...(Gradients) == 1 || sizeof...(Gradients) == 2)
aligned_vector<heddle::status> gradient_rms(std::span<double> out, const row_options& options, const Gradients&... gradients) {
  const detail::row_input inputs[] = {detail::input_of(gradients)...};
  auto status = measure(squared_norm{}, options, tensor_view{out.data(), extents{static_cast<std::int64_t>(out.size()), 1}}, gradients...);
  for (double& x : out) x = std::sqrt(x / static_cast<double>(inputs[0].source.width));
  return status;
}

inline double kept_share(std::span<const std::uint8_t> mask) {
  std::int64_t kept = 0;
  for (const std::uint8_t m : mask) kept += m != 0;
  return mask.empty() ? 0. : static_cast<double>(kept) / static_cast<double>(mask.size());
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
