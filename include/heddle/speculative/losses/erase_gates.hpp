// How far a corpus text is what the target itself would have written: gates on the slots of a block, for corpora that are not the target's.
//
//   soft_gate   g_k = prod_{j < k} p(x_{a+j} | x_{<a+j})       the target's probabilities of the corpus tokens
//   hard_gate   g_k = prod_{j < k} [x_{a+j} is the target's most likely token]
// for the slots k = 1 .. K of the block with anchor a. Slots that were not scored count as 1. Gates start at 1, lie in [0, 1] and never increase. In place is
// allowed for soft_gate. They multiply the weights of a loss.
// Errors: sizes, probabilities of scored slots outside [0, 1]. Cost O(K). Source: public reference code of ALR and IRA.
//
//     losses::soft_gate(probabilities, scored, gates);
//     losses::hard_gate(corpus_tokens, greedy_tokens, scored, gates);
#pragma once
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses::inline HEDDLE_ISA {

/// scored empty: all are.
inline void soft_gate(std::span<const double> probabilities, std::span<const std::uint8_t> scored, std::span<double> gates) {
  const char* const function = "losses::soft_gate";
  require(probabilities.size() == gates.size(), function, ": argument 'probabilities' has ", probabilities.size(), " entries; expected ", gates.size());
  require(scored.empty() || scored.size() == gates.size(), function, ": argument 'scored' has ", scored.size(), " entries; expected none or ", gates.size());
  for (std::size_t k = 0; k < gates.size(); ++k)
    require((!scored.empty() && !scored[k]) || (probabilities[k] >= 0. && probabilities[k] <= 1.), function, ": argument 'probabilities': entry ", k, " is ", probabilities[k], "; expected 0 to 1");
  double reached = 1;
  for (std::size_t k = 0; k < gates.size(); ++k) {
    const double p = scored.empty() || scored[k] ? probabilities[k] : 1.;
    gates[k] = reached, reached *= p;
  }
}

inline void hard_gate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> greedy, std::span<const std::uint8_t> scored, std::span<double> gates) {
  const char* const function = "losses::hard_gate";
  require(tokens.size() == gates.size(), function, ": argument 'tokens' has ", tokens.size(), " entries; expected ", gates.size());
  require(greedy.size() == gates.size(), function, ": argument 'greedy' has ", greedy.size(), " entries; expected ", gates.size());
  require(scored.empty() || scored.size() == gates.size(), function, ": argument 'scored' has ", scored.size(), " entries; expected none or ", gates.size());
  double reached = 1;
  for (std::size_t k = 0; k < gates.size(); ++k) {
    gates[k] = reached;
    if ((scored.empty() || scored[k]) && tokens[k] != greedy[k]) reached = 0;
  }
}

}  // namespace heddle::losses::inline HEDDLE_ISA
