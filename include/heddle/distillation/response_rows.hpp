// A response behind a prompt as rows of a loss: the prompt can be exchanged or get a context in front, the response stays.
//
//   tokens = context, prompt, response;   row i holds the logits behind token i and predicts targets[i] = tokens[i + 1]
//   mask is 1 on the rows that predict the response, first_row .. first_row + response - 1, and 0 on those of context and prompt
//
// Response row k under one prompt and under another are rows first_row + k of each: logits.slice(rows.first_row, rows.count) of both are comparable.
// Uses: fine-tuning responses written under an instruction ("be brief") under the plain prompt, and comparing a student under the plain prompt with itself
// under the instruction (BIRD); NLL of a response given documents, whose own tokens are no targets (context-grounded training, CINGS).
// Errors: context and prompt both empty (nothing predicts the first token). An empty response has no supervised row.
// Cost: O(tokens), allocates the tables.
//
//     const auto rows = heddle::distillation::anchor_response(prompt, response);
//     // feed rows.tokens; the loss is nll{rows.targets} with {.mask = rows.mask}
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation::inline HEDDLE_ISA {

struct response_rows {
  aligned_vector<std::int32_t> tokens;   ///< [rows + 1]
  aligned_vector<std::int32_t> targets;  ///< [rows]
  aligned_vector<std::uint8_t> mask;     ///< [rows]
  std::int64_t first_row = 0, count = 0;
};

inline response_rows anchor_response(std::span<const std::int32_t> prompt, std::span<const std::int32_t> response, std::span<const std::int32_t> context = {}) {
  require(!prompt.empty() || !context.empty(), "anchor_response: argument 'prompt' is empty; expected at least one token before the response");
  response_rows rows;
  rows.tokens.reserve(context.size() + prompt.size() + response.size());
  for (const auto part : {context, prompt, response}) rows.tokens.insert(rows.tokens.end(), part.begin(), part.end());
  rows.targets.assign(rows.tokens.begin() + 1, rows.tokens.end());
  rows.count = static_cast<std::int64_t>(response.size());
  rows.first_row = static_cast<std::int64_t>(rows.targets.size()) - rows.count;
  rows.mask.assign(rows.targets.size(), 1);
  for (std::int64_t i = 0; i < rows.first_row; ++i) rows.mask[static_cast<std::size_t>(i)] = 0;
  return rows;
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
