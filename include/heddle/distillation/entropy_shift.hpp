// Leaves out rows where a teacher with feedback in its context merely sharpens the student.
//
//   e_i = H(s_i) - H(t_i)                 positive: the teacher is sharper than the student; negative: it spreads
//   kept: e_i <= Q_share(e)               Q: the lower empirical quantile over the valid rows, the value of rank ceil(share n)
//
// Exactly ceil(share n) rows are kept when no values are equal; rows equal to the quantile are all kept, and those beyond the rank reported as `ties`.
// keep_sharpening = true turns the sign of e: then rows where the teacher spreads are left out.
// Valid are unmasked rows of finite logits; rows with bad values are left out.
//
//   entropies            row functional of k rows for measure(): H of each, in the pass that normalises the rows plus one
//   entropy_shift_mask   from the logits (options.temperature for both), or from entropies that are known already
// Errors: share outside (0, 1], sizes, NaN among valid entropies. Cost: two reads of both rows; O(N log N). Source: entropy-shift masking, after its abstract;
// the sign is our reading.
//
//     std::vector<std::uint8_t> mask(rows);
//     heddle::distillation::entropy_shift_mask(student, teacher, mask, {.share = 0.8});
//     auto result = loss(student, teacher, forward_kl{}, grad, {.mask = mask});
#pragma once
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/per_row.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace heddle::distillation {

struct entropy_shift_options {
  double share = 0.8;              ///< of the valid rows, in (0, 1]
  bool keep_sharpening = false;
  std::span<const std::uint8_t> mask{};
};

struct entropy_shift_result {
  std::int64_t valid = 0, kept = 0, ties = 0;   ///< ties: rows kept beyond ceil(share valid)
  double threshold = 0;                         ///< the quantile
};

inline namespace HEDDLE_ISA {

struct entropies {
  template <class Row, class... Distribution>
  auto operator()(Row& row, Distribution... p) const {
    return terms(row.entropy(p)...);
  }
};

inline entropy_shift_result entropy_shift_mask(std::span<const double> student_entropy, std::span<const double> teacher_entropy, std::span<std::uint8_t> keep, const entropy_shift_options& options = {}) {
  const auto n = static_cast<std::int64_t>(student_entropy.size());
  require(static_cast<std::int64_t>(teacher_entropy.size()) == n, "entropy_shift_mask: argument 'teacher_entropy' has ", teacher_entropy.size(), " rows; expected ", n);
  require(static_cast<std::int64_t>(keep.size()) == n, "entropy_shift_mask: argument 'keep' has ", keep.size(), " rows; expected ", n);
  require(options.share > 0. && options.share <= 1., "entropy_shift_mask: option 'share' is ", options.share, "; expected more than 0, at most 1");
  detail::check_mask("entropy_shift_mask", options.mask, n);
  const auto shift = [&](std::int64_t i) { return (options.keep_sharpening ? -1. : 1.) * (student_entropy[detail::index(i)] - teacher_entropy[detail::index(i)]); };
  aligned_vector<double> sorted;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!detail::kept(options.mask, i)) continue;
    require(detail::finite(shift(i)), "entropy_shift_mask: an entropy of row ", i, " is not finite; expected numbers in valid rows");
    sorted.push_back(shift(i));
  }
  entropy_shift_result result{.valid = static_cast<std::int64_t>(sorted.size())};
  if (!sorted.empty()) {
    const auto rank = detail::share_of(options.share, result.valid);
    std::nth_element(sorted.begin(), sorted.begin() + (rank - 1), sorted.end());
    result.threshold = sorted[detail::index(rank - 1)], result.ties = -rank;
  }
  for (std::int64_t i = 0; i < n; ++i) result.kept += keep[detail::index(i)] = detail::kept(options.mask, i) && shift(i) <= result.threshold;
  result.ties += result.kept;
  return result;
}

template <class Student, class Teacher>
entropy_shift_result entropy_shift_mask(const Student& student, const Teacher& teacher, std::span<std::uint8_t> keep, entropy_shift_options options = {}, row_options rows = {}) {
  const auto n = static_cast<std::int64_t>(keep.size());
  detail::check_mask("entropy_shift_mask", options.mask, n);
  require(rows.mask.empty(), "entropy_shift_mask: option 'mask' of the rows; expected it among entropy_shift_options");
  rows.mask = options.mask;
  aligned_vector<double> both(2 * keep.size()), s(keep.size()), t(keep.size());
  const auto status = measure(entropies{}, rows, tensor_view{both.data(), extents{n, 2}}, student, teacher);
  aligned_vector<std::uint8_t> valid(keep.size());
  for (std::size_t i = 0; i < keep.size(); ++i) {
    valid[i] = detail::kept(options.mask, static_cast<std::int64_t>(i)) && status[i] == heddle::status::ok;
    s[i] = both[2 * i], t[i] = both[2 * i + 1];
  }
  options.mask = valid;
  return entropy_shift_mask(std::span<const double>(s), std::span<const double>(t), keep, options);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
