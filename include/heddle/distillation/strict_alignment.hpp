// Distillation across tokenizers where both agree on a token.
//
//   K = the k most probable student tokens of the shared vocabulary;  s^, t^ = s and t renormalised on K (t at each token's partner)
//   strict loss R = sum_K s^ (ln s^ - ln t^)           gradient s^ (ln s^ - ln t^ - R) / temperature on K, 0 elsewhere
//   span loss = mean over mismatch groups of (sum ln S - sum ln T)^2, S and T the realised tokens of the group on either side
//
// shared_selection    K of every row, from the student's logits (equal logits: lower ids first; k above the shared vocabulary: all of it) and the partners
// strict_alignment    the strict loss, a row functional of student [N, V_s] and teacher [N, V_t]; mask and teacher rows: strict_rows of token_alignment.hpp
// span_loss           value, and what `nll` rows need as upstream; groups with an infinite log-probability add 0 and are counted
// gradient_agreement  cosine and norm ratio of two gradients: does a span term pull with the strict one
// A token of K without mass in the teacher: status infinite_divergence. NaN and +infinity: per_row.hpp; selection rows that hold them select anything.
// Errors: k < 1, widths other than the vocabularies', sizes. The selection must outlive the functional. Deterministic.
// Cost: selection O(|shared|) per row, 8 k bytes; loss one scan of each row, k exponentials; gradient: one pass of zeros.
// Source: strict 1:1 groups and top-16 supervision for cross-tokenizer on-policy distillation.
//
//     const shared_selection chosen{shared, student, 16, partners.mask};
//     const auto result = loss(student, select_rows(teacher, partners.teacher_row), strict_alignment{chosen}, gradient, {.mask = partners.mask});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/distillation/byte_vocabulary.hpp>
#include <heddle/distillation/detail/selection.hpp>
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/per_row.hpp>
#include <heddle/distillation/token_alignment.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

struct span_loss_result {
  double value = 0;
  std::int64_t groups = 0;            ///< mismatch groups
  std::int64_t infinite_groups = 0;   ///< of them, left out of the value
};

struct agreement {
  double cosine = 0;       ///< 0 where one gradient is zero
  double norm_ratio = 0;   ///< ||b|| / ||a||
};

inline namespace HEDDLE_ISA {

class shared_selection {
 public:
  template <matrix Student>
    requires host_tensor<Student>
  shared_selection(const shared_vocabulary& shared, const Student& student, std::int64_t k = 16, std::span<const std::uint8_t> mask = {}) : student_size_(shared.student_size()), teacher_size_(shared.teacher_size()), k_(k < shared.size() ? k : shared.size()) {
    const auto logits = view_of(student);
    require(k > 0, "shared_selection: argument 'k' is ", k, "; expected 1 or more");
    require(logits.extent(1) == shared.student_size(), "shared_selection: argument 'student': extent 1 is ", logits.extent(1), "; expected the student's vocabulary, ", shared.student_size());
    detail::check_mask("shared_selection", mask, logits.extent(0));
    rows_ = logits.extent(0);
    columns_.resize(static_cast<std::size_t>(rows_ * k_)), partners_.resize(columns_.size());
    aligned_vector<double> values(static_cast<std::size_t>(k_));
    const auto pairs = shared.pairs();
    for (std::int64_t i = 0; i < rows_; ++i) {
      if (!detail::kept(mask, i)) continue;
      std::int32_t* const chosen = columns_.data() + i * k_;
      detail::best_k<double> best(values.data(), chosen, k_);   // of indices into the pairs, which ascend with the student's ids
      for (std::size_t p = 0; p < pairs.size(); ++p) best.offer(static_cast<double>(logits(i, pairs[p].student)), static_cast<std::int32_t>(p));
      detail::sort_by_index(chosen, values.data(), k_);
      for (std::int64_t j = 0; j < k_; ++j) {
        const token_pair& pair = pairs[static_cast<std::size_t>(chosen[j])];
        chosen[j] = pair.student, partners_[static_cast<std::size_t>(i * k_ + j)] = pair.teacher;
      }
    }
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t k() const { return k_; }
  std::int64_t student_size() const { return student_size_; }
  std::int64_t teacher_size() const { return teacher_size_; }
  /// Ascending student tokens of row i, and their partners.
  std::span<const std::int32_t> columns(std::int64_t i) const { return {columns_.data() + i * k_, static_cast<std::size_t>(k_)}; }
  std::span<const std::int32_t> partners(std::int64_t i) const { return {partners_.data() + i * k_, static_cast<std::size_t>(k_)}; }

 private:
  std::int64_t student_size_, teacher_size_, k_, rows_ = 0;
  aligned_vector<std::int32_t> columns_, partners_;
};

struct strict_alignment {
  static constexpr bool separate_vocabularies = true;
  const shared_selection& selection;

  void check(const call_shape& shape) const {
    require(shape.rows == selection.rows(), "strict_alignment: argument 'selection' has ", selection.rows(), " rows; expected one per row of logits, ", shape.rows);
    require(shape.vocabulary == selection.student_size(), "strict_alignment: argument 'selection' is of a student vocabulary of ", selection.student_size(), " tokens; expected ", shape.vocabulary);
    require(shape.teacher_vocabulary == selection.teacher_size(), "strict_alignment: argument 'selection' is of a teacher vocabulary of ", selection.teacher_size(), " tokens; expected ", shape.teacher_vocabulary);
  }
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const auto columns = selection.columns(row.index()), partners = selection.partners(row.index());
    const double student_mass = log_mass(s, columns), teacher_mass = log_mass(t, partners);
    // a token without mass on the student's side adds nothing; the ratio is infinite where the teacher has none
    const auto student_log = [=](std::int64_t column) { return s.log_prob(column) - student_mass; };
    const auto log_quotient = [=](std::int64_t column, std::int64_t j) { return student_log(column) - (t.log_prob(partners[static_cast<std::size_t>(j)]) - teacher_mass); };
    double value = 0;
    for (std::size_t j = 0; j < columns.size(); ++j)
      if (s.log_prob(columns[j]) > -math::infinity) value += math::exp(student_log(columns[j])) * log_quotient(columns[j], static_cast<std::int64_t>(j));
    return outcome{value < 0 ? 0 : value, gradient{zero{}, at(columns, [=](auto v, std::int64_t j) {
      return s.log_prob(v.column) > -math::infinity ? math::exp(student_log(v.column)) * (log_quotient(v.column, j) - value) : 0;
    })}};
  }

 private:
  template <class P>
  static double log_mass(const P& p, std::span<const std::int32_t> columns) {
    double max = -math::infinity, sum = 0;
    for (const std::int32_t column : columns)
      if (const double x = p.log_prob(column); x > max) max = x;
    if (max == -math::infinity) return max;
    for (const std::int32_t column : columns) sum += math::exp(p.log_prob(column) - max);
    return max + math::log(sum);
  }
};

/// `student_nll`, `teacher_log_probs`: -ln S and ln T of every token. upstream[i] = d value / d student_nll[i], 0 outside mismatch groups.
inline span_loss_result span_loss(std::span<const alignment_group> groups, std::span<const double> student_nll, std::span<const double> teacher_log_probs, std::span<double> upstream) {
  require(upstream.size() == student_nll.size(), "span_loss: argument 'upstream' has ", upstream.size(), " entries; expected one per student token, ", student_nll.size());
  span_loss_result result;
  for (const alignment_group& group : groups) {
    result.groups += !group.strict();
    require(static_cast<std::size_t>(group.student_first + group.student_count) <= student_nll.size(), "span_loss: argument 'student_nll' has ", student_nll.size(), " entries; expected one for every token of the groups");
    require(static_cast<std::size_t>(group.teacher_first + group.teacher_count) <= teacher_log_probs.size(), "span_loss: argument 'teacher_log_probs' has ", teacher_log_probs.size(), " entries; expected one for every token of the groups");
  }
  for (double& u : upstream) u = 0;
  for (const alignment_group& group : groups) {
    if (group.strict()) continue;
    double difference = 0;   // sum ln S - sum ln T
    for (std::int32_t j = 0; j < group.student_count; ++j) difference -= student_nll[static_cast<std::size_t>(group.student_first + j)];
    for (std::int32_t j = 0; j < group.teacher_count; ++j) difference -= teacher_log_probs[static_cast<std::size_t>(group.teacher_first + j)];
    if (!(difference - difference == 0)) {
      ++result.infinite_groups;
      continue;
    }
    result.value += difference * difference / static_cast<double>(result.groups);
    for (std::int32_t j = 0; j < group.student_count; ++j) upstream[static_cast<std::size_t>(group.student_first + j)] = -2 * difference / static_cast<double>(result.groups);
  }
  return result;
}

template <matrix A, matrix B>
  requires(host_tensor<A> && host_tensor<B>)
agreement gradient_agreement(const A& first, const B& second) {
  const auto a = view_of(first);
  const auto b = view_of(second);
  require_shape("gradient_agreement", "second", b, a.shape());
  double aa = 0, ab = 0, bb = 0;
  for (std::int64_t i = 0; i < a.extent(0); ++i)
    for (std::int64_t c = 0; c < a.extent(1); ++c) {
      const auto x = static_cast<double>(a(i, c)), y = static_cast<double>(b(i, c));
      aa = math::fma(x, x, aa), ab = math::fma(x, y, ab), bb = math::fma(y, y, bb);
    }
  return {aa > 0 && bb > 0 ? ab / __builtin_sqrt(aa * bb) : 0, aa > 0 ? __builtin_sqrt(bb / aa) : bb > 0 ? math::infinity : 0};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
