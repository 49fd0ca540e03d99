// Two tokenizations of one text, cut where both have a token boundary.
//
// Group: advance the side whose current token ends first; close when both end at the same byte. A group of one token on each side is *strict*: both
// models predicted the same bytes from the same bytes. All others are mismatch groups.
//
// Input: for each side the end of every token in bytes from the beginning of the text, not falling; both sides end at the same byte. Tokens of
// width zero at the end (end markers) belong to no group; others belong to the group in which they lie, and one on each side at the same place form a
// strict group. Errors: offsets that fall or are negative, texts of different length. Deterministic. Cost: O(n_s + n_t), 32 bytes per group.
// Row i of a model's logits is the one that predicts its token i.
//
// strict_rows      which student rows are in strict groups, and the teacher row of each
// partial_events   for every student row the bytes emitted since the last common boundary, and the teacher row at that boundary
//
//     const auto groups = heddle::distillation::align(student_ends, teacher_ends);
//     const auto rows = heddle::distillation::strict_rows(groups, student_ends.size());
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::distillation {

struct alignment_group {
  std::int32_t student_first, student_count, teacher_first, teacher_count;   ///< tokens
  std::int64_t begin, end;                                                   ///< bytes
  [[gnu::always_inline]] constexpr bool strict() const { return student_count == 1 && teacher_count == 1; }
};

/// The bytes [begin, end) that the student has emitted since the boundary before teacher row `teacher_row`; -1: the row is in no group.
struct partial_event {
  std::int32_t teacher_row = -1;
  std::int64_t begin = 0, end = 0;
};

namespace detail::inline HEDDLE_ISA {

inline void check_ends(const char* argument, std::span<const std::int64_t> ends) {
  require(ends.size() <= 0x7fffffff, "align: argument '", argument, "' has ", ends.size(), " tokens; expected at most 2^31 - 1");
  for (std::size_t i = 0; i < ends.size(); ++i)
    require(ends[i] >= (i ? ends[i - 1] : 0), "align: argument '", argument, "': token ", i, " ends at ", ends[i], "; expected at least ", i ? ends[i - 1] : 0);
}
inline std::size_t without_trailing_empty(std::span<const std::int64_t> ends) {
  std::size_t n = ends.size();
  while (n > 0 && ends[n - 1] == (n > 1 ? ends[n - 2] : 0)) --n;
  return n;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline aligned_vector<alignment_group> align(std::span<const std::int64_t> student_ends, std::span<const std::int64_t> teacher_ends) {
  detail::check_ends("student_ends", student_ends);
  detail::check_ends("teacher_ends", teacher_ends);
  const std::int64_t student_bytes = student_ends.empty() ? 0 : student_ends.back(), teacher_bytes = teacher_ends.empty() ? 0 : teacher_ends.back();
  require(student_bytes == teacher_bytes, "align: argument 'teacher_ends' covers ", teacher_bytes, " bytes; expected those of 'student_ends', ", student_bytes);
  const std::size_t n = detail::without_trailing_empty(student_ends), m = detail::without_trailing_empty(teacher_ends);
  aligned_vector<alignment_group> groups;
  groups.reserve(n < m ? n : m);
  std::int64_t begin = 0;
  for (std::size_t i = 0, j = 0; i < n;) {   // bytes are left on one side exactly when they are on the other
    const std::size_t first = i, teacher_first = j;
    std::int64_t end = student_ends[i++], teacher_end = teacher_ends[j++];
    while (end != teacher_end)
      if (end < teacher_end) end = student_ends[i++];
      else teacher_end = teacher_ends[j++];
    groups.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(i - first), static_cast<std::int32_t>(teacher_first), static_cast<std::int32_t>(j - teacher_first), begin, end});
    begin = end;
  }
  return groups;
}

/// mask[i] = 1 where student row i is in a strict group, then teacher_row[i] is its partner; elsewhere teacher_row[i] = 0 and means nothing.
struct row_partners {
  aligned_vector<std::uint8_t> mask;
  aligned_vector<std::int32_t> teacher_row;
};

inline row_partners strict_rows(std::span<const alignment_group> groups, std::size_t student_tokens) {
  row_partners rows{aligned_vector<std::uint8_t>(student_tokens), aligned_vector<std::int32_t>(student_tokens)};
  for (const alignment_group& group : groups) {
    const auto i = static_cast<std::size_t>(group.student_first);
    require(i < student_tokens, "strict_rows: argument 'student_tokens' is ", student_tokens, "; expected more than ", i, ", a token of a group");
    if (group.strict()) rows.mask[i] = 1, rows.teacher_row[i] = group.teacher_first;
  }
  return rows;
}

inline aligned_vector<partial_event> partial_events(std::span<const alignment_group> groups, std::span<const std::int64_t> student_ends) {
  aligned_vector<partial_event> events(student_ends.size());
  for (const alignment_group& group : groups) {
    const auto first = static_cast<std::size_t>(group.student_first), last = first + static_cast<std::size_t>(group.student_count);
    require(last <= student_ends.size(), "partial_events: argument 'student_ends' has ", student_ends.size(), " tokens; expected at least ", last, ", those of the groups");
    for (std::size_t i = first; i < last; ++i) events[i] = {group.teacher_first, group.begin, i == first ? group.begin : student_ends[i - 1]};
  }
  return events;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
