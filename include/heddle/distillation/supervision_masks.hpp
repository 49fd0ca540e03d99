// Which rows of a trajectory are supervised: a prefix, a prefix or everything, or the few rows with the largest score.
//
//   prefix_mask            row i of a sequence is kept iff i < prefix; the rollout may stop there. A prefix beyond the end is the full loss
//   prefix_cost            sum min(T, prefix) / sum T: the share of rows that are rolled out and scored
//   prefix_or_trace_mask   UPFT: the first rows of most items (8 upwards suffice), the full trace of a random share of items; the loss is the plain NLL
//                          of one sample of the model itself, no label needed. Item s is decided by the number of index s under purpose::dropout
//   largest_scores_mask    the m = max(1, ceil(fraction T)) rows of each sequence with the largest score, of equal ones the first. T counts rows that
//                          `among` does not mask; a sequence without any keeps none. The score is a per-row divergence, |log t_x - log s_x| or an
//                          entropy; only its order matters. A NaN score is an error that names the row
//   intersect_masks, unite_masks   row by row
//
// Masks hold 0 or 1 and are constants of the loss: masked rows have gradient 0. Ragged batches as `indptr` [sequences + 1].
// Cost: O(N), largest_scores_mask O(N) expected, with 8 bytes per row of the longest sequence allocated.
// Sources: on-policy prefix distillation and very sparse token selection, after their abstracts; UPFT (unsupervised prefix fine-tuning, 2503.02875).
//
//     std::vector<std::uint8_t> mask(rows);
//     heddle::distillation::prefix_mask(mask, 256, indptr);
//     auto result = loss(student, teacher, reverse_kl{}, grad, {.mask = mask});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/random.hpp>
#include <heddle/distillation/detail/sequences.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace heddle::distillation::inline HEDDLE_ISA {

inline void prefix_mask(std::span<std::uint8_t> mask, std::int64_t prefix, std::span<const std::int32_t> indptr = {}) {
  require(prefix >= 0, "prefix_mask: argument 'prefix' is ", prefix, "; expected 0 rows or more");
  const auto n = static_cast<std::int64_t>(mask.size());
  detail::check_indptr("prefix_mask", indptr, n);
  detail::for_each_sequence(indptr, n, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i) mask[detail::index(i)] = i - first < prefix;
  });
}

inline double prefix_cost(std::span<const std::int64_t> lengths, std::int64_t prefix) {
  require(prefix >= 0, "prefix_cost: argument 'prefix' is ", prefix, "; expected 0 rows or more");
  double all = 0, rolled = 0;
  for (const std::int64_t length : lengths) {
    require(length >= 0, "prefix_cost: argument 'lengths' holds ", length, "; expected 0 rows or more");
    all += static_cast<double>(length), rolled += static_cast<double>(std::min(length, prefix));
  }
  return all > 0. ? rolled / all : 1.;
}

inline void prefix_or_trace_mask(std::span<std::uint8_t> mask, std::int64_t prefix, double full_share, random_key key, std::span<const std::int32_t> indptr = {}) {
  require(prefix >= 0, "prefix_or_trace_mask: argument 'prefix' is ", prefix, "; expected 0 rows or more");
  detail::check_unit_interval("prefix_or_trace_mask", "full_share", full_share);
  const auto n = static_cast<std::int64_t>(mask.size());
  detail::check_indptr("prefix_or_trace_mask", indptr, n);
  key.purpose = purpose::dropout, key.index = 0;
  detail::for_each_sequence(indptr, n, [&](std::int64_t first, std::int64_t end) {
    const bool full = uniform(key) < full_share;
    for (std::int64_t i = first; i < end; ++i) mask[detail::index(i)] = full || i - first < prefix;
    ++key.index;
  });
}

/// Returns the number of rows kept. `mask` may be the memory of `among`.
inline std::int64_t largest_scores_mask(std::span<const double> score, std::span<std::uint8_t> mask, double fraction, std::span<const std::uint8_t> among = {}, std::span<const std::int32_t> indptr = {}) {
  const auto n = static_cast<std::int64_t>(score.size());
  require(fraction > 0. && fraction <= 1., "largest_scores_mask: argument 'fraction' is ", fraction, "; expected more than 0, at most 1");
  require(mask.size() == score.size(), "largest_scores_mask: argument 'mask' has ", mask.size(), " rows; expected ", n);
  detail::check_mask("largest_scores_mask", among, n);
  detail::check_indptr("largest_scores_mask", indptr, n);
  for (std::int64_t i = 0; i < n; ++i)
    require(!detail::kept(among, i) || score[detail::index(i)] == score[detail::index(i)], "largest_scores_mask: argument 'score' is NaN at row ", i, "; expected numbers in the rows to choose from");
  std::int64_t kept = 0;
  aligned_vector<std::int64_t> rows;
  detail::for_each_sequence(indptr, n, [&](std::int64_t first, std::int64_t end) {
    rows.clear();
    for (std::int64_t i = first; i < end; ++i) {
      if (detail::kept(among, i)) rows.push_back(i);
      mask[detail::index(i)] = 0;
    }
    if (rows.empty()) return;
    const std::int64_t count = std::max(std::int64_t{1}, detail::share_of(fraction, static_cast<std::int64_t>(rows.size())));
    std::nth_element(rows.begin(), rows.begin() + (count - 1), rows.end(), [&](std::int64_t a, std::int64_t b) {
      const double x = score[detail::index(a)], y = score[detail::index(b)];
      return x > y || (x == y && a < b);
    });
    for (std::int64_t k = 0; k < count; ++k) mask[detail::index(rows[detail::index(k)])] = 1;
    kept += count;
  });
  return kept;
}

inline void intersect_masks(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, std::span<std::uint8_t> out) {
  require(a.size() == b.size() && b.size() == out.size(), "intersect_masks: masks of ", a.size(), ", ", b.size(), " and ", out.size(), " rows; expected equal sizes");
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] && b[i];
}

inline void unite_masks(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, std::span<std::uint8_t> out) {
  require(a.size() == b.size() && b.size() == out.size(), "unite_masks: masks of ", a.size(), ", ", b.size(), " and ", out.size(), " rows; expected equal sizes");
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = a[i] || b[i];
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
