// Which sampled traces a model is fine-tuned on to reason briefly: the correct ones that are short enough.
//
// First stage of bootstrapped iterative self-reasoning (BIRD): several traces per question are sampled under an instruction to be brief, those with the right
// answer and at most `longest` tokens are kept and become targets under the plain prompt (response_rows.hpp). A question without such a trace is dropped.
// The second stage is on-policy reverse KL to the model itself under the instruction (divergence.hpp).
// correct, length [traces]; indptr [questions + 1], empty: one question. keep [traces] gets 1 or 0.
// Errors: sizes, a negative length or limit. Source: BIRD, after its abstract.
//
//     const auto kept = heddle::distillation::keep_concise(correct, length, 2048, keep, indptr);       // kept.traces, kept.questions
#pragma once
#include <heddle/distillation/detail/sequences.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

struct kept_traces {
  std::int64_t traces = 0, questions = 0, dropped_questions = 0;
};

inline namespace HEDDLE_ISA {

inline kept_traces keep_concise(std::span<const std::uint8_t> correct, std::span<const std::int64_t> length, std::int64_t longest, std::span<std::uint8_t> keep, std::span<const std::int32_t> indptr = {}) {
  const auto n = static_cast<std::int64_t>(correct.size());
  require(length.size() == correct.size(), "keep_concise: argument 'length' has ", length.size(), " traces; expected ", n);
  require(keep.size() == correct.size(), "keep_concise: argument 'keep' has ", keep.size(), " traces; expected ", n);
  require(longest >= 0, "keep_concise: argument 'longest' is ", longest, "; expected 0 tokens or more");
  detail::check_indptr("keep_concise", indptr, n);
  for (std::int64_t i = 0; i < n; ++i) require(length[detail::index(i)] >= 0, "keep_concise: argument 'length' is ", length[detail::index(i)], " at trace ", i, "; expected 0 tokens or more");
  kept_traces kept;
  detail::for_each_sequence(indptr, n, [&](std::int64_t first, std::int64_t end) {
    const std::int64_t before = kept.traces;
    for (std::int64_t i = first; i < end; ++i) kept.traces += keep[detail::index(i)] = correct[detail::index(i)] && length[detail::index(i)] <= longest;
    ++(kept.traces > before ? kept.questions : kept.dropped_questions);
  });
  return kept;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
