// Trajectory Dropout: the student is asked again with part of its own trajectory hidden, the teacher sees all of it. It strengthens corrections that
// a shared prefix weakens (prefix-induced supervision attenuation, PISA).
//
// A prompt of P tokens and a trajectory of T. Token i of the trajectory stays in the student's context with probability 1 - rate: b_i. The context of
// target j is the prompt and {i < j : b_i = 1}, at the original position ids or at consecutive ones. Rows:
//
//   student row r   logits behind the prompt and the first r kept tokens       r = 0 .. kept
//   teacher row j   logits behind the prompt and the first j tokens            j = 0 .. T - 1
//
// Supervised are the kept targets, or all of them: pair k compares student row student_rows[k] with teacher row teacher_rows[k], the latter also
// the target's index. Both increase; student rows strictly for kept targets, whose row k is the k-th; dropped targets share the row of the next kept one.
// With the engine: per_row(f, select_rows(student, rows.student_rows), select_rows(teacher, rows.teacher_rows)). A rate of 0 is the plain loss.
// Its gradients are those of pairs: with all_targets, those of pairs that share a student row belong to it together (add them).
// Token i is decided by the number of index i under purpose::dropout.
// Errors: rate outside [0, 1]; rate 1 without all_targets (no row would be left); negative lengths. A draw that keeps nothing leaves no pair, the loss
// of which is 0. Cost: T random numbers; allocates the tables. Source: Trajectory Dropout, its definition after the abstract.
//
//     const auto rows = heddle::distillation::drop_trajectory(prompt.size(), trajectory.size(), {.seed = 7, .request = item}, {.rate = 0.3});
//     for (std::size_t k = 0; k < rows.kept.size(); ++k) feed(trajectory[rows.kept[k]], rows.positions[k]);   // behind the prompt
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/random.hpp>
#include <heddle/distillation/detail/sequences.hpp>

#include <cstdint>

namespace heddle::distillation {

enum class position_ids : std::uint8_t {
  original,  ///< a kept token stays where it was
  compact,   ///< kept tokens follow one another
};

struct trajectory_dropout {
  double rate = 0.5;         ///< p, in [0, 1]
  bool all_targets = false;  ///< supervise dropped tokens too
  position_ids positions = position_ids::original;
};

}  // namespace heddle::distillation

namespace heddle::distillation::inline HEDDLE_ISA {

struct trajectory_rows {
  aligned_vector<std::int32_t> kept;       ///< tokens of the trajectory that the student reads, ascending
  aligned_vector<std::int32_t> positions;  ///< their position ids
  aligned_vector<std::int32_t> student_rows, teacher_rows;  ///< one entry per supervised target
};

inline trajectory_rows drop_trajectory(std::int64_t prompt, std::int64_t length, random_key key, const trajectory_dropout& options = {}) {
  require(prompt >= 0, "drop_trajectory: argument 'prompt' is ", prompt, "; expected 0 tokens or more");
  require(length >= 0, "drop_trajectory: argument 'length' is ", length, "; expected 0 tokens or more");
  detail::check_unit_interval("drop_trajectory", "rate", options.rate);
  require(options.rate < 1. || options.all_targets, "drop_trajectory: option 'rate' is 1 and 'all_targets' is false; no row would be supervised");
  trajectory_rows rows;
  key.purpose = purpose::dropout;
  for (std::int64_t j = 0; j < length; ++j) {
    key.index = static_cast<std::uint32_t>(j);
    const auto before = static_cast<std::int32_t>(rows.kept.size()), target = static_cast<std::int32_t>(j);
    const bool keep = options.rate < uniform(key);
    if (keep || options.all_targets) rows.student_rows.push_back(before), rows.teacher_rows.push_back(target);
    if (keep) rows.kept.push_back(target), rows.positions.push_back(static_cast<std::int32_t>(prompt) + (options.positions == position_ids::original ? target : before));
  }
  return rows;
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
