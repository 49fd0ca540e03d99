// A trajectory that the teacher repairs from its first failure on, with tokens the student could have written (TRD).
//
// The original is kept before the failing index f, from there on tokens are drawn from
//
//   q proportional to t_v 1[s_v >= eta max s]          t: the teacher's law, s: the student's, both behind the refined prefix
//
// so the continuation is the teacher's inside the support of the policy. eta = 0: q = t; eta = 1: the student's best token alone. Where t has no mass on
// those tokens, the student's best one (the lowest id of several) is taken and counted. f = length: the original, unchanged.
// The loss is forward KL over the whole vocabulary on the refined trajectory (divergence.hpp), on rows f and after, or on all of them.
//
//   first_failure      the first row whose divergence exceeds a threshold, else their number; f may as well come from a verifier
//   refined_token      one draw from q
//   refine_trajectory  the loop; student and teacher: callables, span of the trajectory so far -> row of logits behind it (rank 1, valid until the next call)
//   refinement_mask    1 from row f on, before it 1 or 0
//
// q is sampled by sampling::sample_row: `teacher` holds the parameters of its chain (temperature, truncations) and the restriction is a stage before the temperature.
// A bad row (NaN, +infinity; no finite logit in the student's) gives that status and no token. Token i has position key.position + i - f.
// Errors: eta outside [0, 1], temperatures, indices outside the trajectory, a NaN divergence.
// Source: TRD (trajectory refinement); the splice is defined after its abstract.
//
//     const auto f = heddle::distillation::first_failure(rows.values(), 2.0);
//     const auto refined = heddle::distillation::refine_trajectory(original, f, student, teacher, {.seed = 7}, memory, {.eta = 0.05});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/random.hpp>
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/sampling/row.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle::distillation {

struct refinement_options {
  double eta = 0.05;                               ///< share of the student's largest probability that a token needs, in [0, 1]
  double student_temperature = 1;
  sampling::parameters teacher{};
  std::int64_t max_tokens = 256;                   ///< of the refined trajectory, the kept part included
  std::span<const std::int32_t> end_tokens{};      ///< end the trajectory and belong to it
};

struct refined_draw {
  std::int32_t token = -1;
  bool fallback = false;                           ///< the student's best token, for want of a common one
  heddle::status status = heddle::status::ok;
};

inline namespace HEDDLE_ISA {

struct refined_trajectory {
  aligned_vector<std::int32_t> tokens{};
  std::int64_t first_refined = 0, fallbacks = 0;
  heddle::status status = heddle::status::ok;
};

inline std::int64_t first_failure(std::span<const double> divergence, double threshold) {
  require(threshold == threshold, "first_failure: argument 'threshold' is NaN; expected a number");
  const auto n = static_cast<std::int64_t>(divergence.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = divergence[detail::index(i)];
    require(d == d, "first_failure: argument 'divergence' is NaN at row ", i, "; expected numbers");
    if (d > threshold) return i;
  }
  return n;
}

inline void refinement_mask(std::span<std::uint8_t> mask, std::int64_t first_refined, bool keep_prefix = false) {
  const auto n = static_cast<std::int64_t>(mask.size());
  require(first_refined >= 0 && first_refined <= n, "refinement_mask: argument 'first_refined' is ", first_refined, "; expected 0 to ", n);
  for (std::int64_t i = 0; i < n; ++i) mask[detail::index(i)] = keep_prefix || i >= first_refined;
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {
inline void check_refinement(const char* function, const refinement_options& options) {
  check_unit_interval(function, "eta", options.eta);
  require(finite(options.student_temperature) && options.student_temperature > 0., function, ": option 'student_temperature' is ", options.student_temperature, "; expected a positive number");
}
}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <tensor_of<1> Student, tensor_of<1> Teacher>
  requires same_space<Student, Teacher> && host_tensor<Student>
refined_draw refined_token(const Student& student, const Teacher& teacher, const sampling::history& before, const random_key& key, sampling::row_workspace& memory, const refinement_options& options = {}) {
  detail::check_refinement("refined_token", options);
  const auto policy = view_of(student);
  require_shape("refined_token", "teacher", view_of(teacher), policy.shape());
  const sampling::drawn best = sampling::sample_row(student, sampling::chain{sampling::temperature(0.f)}, {}, key, memory);
  if (best.status != status::ok) return {.status = best.status};
  const double least = static_cast<double>(policy(best.token)) + options.student_temperature * math::log(options.eta);
  const auto inside_support = [&](std::span<float> logits, const sampling::history&) {
    for (std::size_t v = 0; v < logits.size(); ++v)
      if (static_cast<double>(policy(static_cast<std::int64_t>(v))) < least && logits[v] < std::numeric_limits<float>::infinity()) logits[v] = -std::numeric_limits<float>::infinity();
  };
  const sampling::drawn next = sampling::sample_row(teacher, sampling::chain{options.teacher, sampling::transform(inside_support)}, before, key, memory);
  if (next.status == status::empty_support) return {best.token, true};
  return {next.token, false, next.status};
}

template <class Student, class Teacher>
refined_trajectory refine_trajectory(std::span<const std::int32_t> original, std::int64_t first_failure, Student&& student, Teacher&& teacher, random_key key, sampling::row_workspace& memory, const refinement_options& options = {}) {
  detail::check_refinement("refine_trajectory", options);
  const auto length = static_cast<std::int64_t>(original.size());
  require(first_failure >= 0 && first_failure <= length, "refine_trajectory: argument 'first_failure' is ", first_failure, "; expected 0 to ", length);
  refined_trajectory refined;
  refined.tokens.assign(original.begin(), original.begin() + first_failure);
  refined.first_refined = first_failure;
  for (bool ended = first_failure == length; !ended && static_cast<std::int64_t>(refined.tokens.size()) < options.max_tokens; ++key.position) {
    const std::span<const std::int32_t> prefix = refined.tokens;
    const refined_draw next = refined_token(student(prefix), teacher(prefix), {{}, prefix}, key, memory, options);
    if (next.status != status::ok) return {.first_refined = first_failure, .status = next.status};
    refined.tokens.push_back(next.token);
    refined.fallbacks += next.fallback;
    ended = std::find(options.end_tokens.begin(), options.end_tokens.end(), next.token) != options.end_tokens.end();
  }
  return refined;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
