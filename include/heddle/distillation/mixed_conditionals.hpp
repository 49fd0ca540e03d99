// Targets that a model writes itself, close to its own distribution: a mixture of what it says without and with the fact in view (MixSD).
//
// For every token a coin is thrown: with probability `naive_share` the token comes from the naive conditional p(. | x, y_<), else from the expert p(. | x+, y_<),
// whose prompt x+ contains the fact; both continue the same mixed prefix y_<. The law of a token is naive_share p_naive + (1 - naive_share) p_expert.
// Tokens are drawn by sampling::sample_row with the caller's chain, so temperature 0 is the argmax, and everything a sampler can do is available.
// A target that `accept` refuses (the answer in it is not the truth) is written again with other random numbers, up to `attempts` times.
// Train on the plain NLL of the accepted targets. Recommended shares: 0.3 to 0.5; 0 and 1 are one conditional alone, bit for bit.
//
//   naive, expert   callables: span of the tokens of the target so far -> the row of logits behind them (rank 1, valid until the next call). Only the chosen
//                   one is called for a token, so a model with a cache catches up on what the other wrote
//   accept          callable: span of the tokens of a target -> bool
//   key             token i has position key.position + i; its coin is purpose::mixture, its draw purpose::sample. Attempt a > 0 has a seed derived from both
//
// A row with NaN, +infinity or nothing above -infinity ends the call with that status and no tokens. Errors: naive_share outside [0, 1], counts below 1.
// Source: MixSD (mixed self-distillation).
//
//     auto target = heddle::distillation::mix_conditionals(naive, expert, policy, {.seed = 7}, has_the_answer, memory, {.naive_share = 0.4, .end_tokens = eos});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/random.hpp>
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/sampling/row.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace heddle::distillation {

struct mixture_options {
  double naive_share = 0.4;
  std::int64_t max_tokens = 256;
  std::int64_t attempts = 4;                       ///< targets written at most
  std::span<const std::int32_t> end_tokens{};      ///< end a target and belong to it
};

inline namespace HEDDLE_ISA {

struct mixed_target {
  aligned_vector<std::int32_t> tokens{};
  aligned_vector<std::uint8_t> from_naive{};         ///< 1 where the coin chose the naive conditional
  std::int64_t attempts = 0;
  bool accepted = false;                           ///< if not, the tokens are those of the last attempt
  heddle::status status = heddle::status::ok;
};

/// Whether the naive conditional decides the token of this key.
inline bool naive_decides(random_key key, double naive_share) {
  key.purpose = purpose::mixture, key.index = 0;
  return uniform(key) < naive_share;
}

template <class Naive, class Expert, class Chain, class Accept>
mixed_target mix_conditionals(Naive&& naive, Expert&& expert, const Chain& policy, const random_key& key, Accept&& accept, sampling::row_workspace& memory, const mixture_options& options = {}) {
  detail::check_unit_interval("mix_conditionals", "naive_share", options.naive_share);
  require(options.max_tokens >= 1, "mix_conditionals: option 'max_tokens' is ", options.max_tokens, "; expected 1 or more");
  require(options.attempts >= 1, "mix_conditionals: option 'attempts' is ", options.attempts, "; expected 1 or more");
  mixed_target target;
  random_key coins = key;
  coins.purpose = purpose::mixture;
  while (!target.accepted && target.attempts < options.attempts) {
    random_key own = key;
    if (target.attempts > 0) {
      const random_words words = random_block(coins, static_cast<std::uint32_t>(target.attempts));
      own.seed = std::uint64_t{words[0]} << 32 | words[1];
    }
    target.tokens.clear(), target.from_naive.clear();
    for (bool ended = false; !ended && static_cast<std::int64_t>(target.tokens.size()) < options.max_tokens; ++own.position) {
      const std::span<const std::int32_t> prefix = target.tokens;
      const bool from_naive = naive_decides(own, options.naive_share);
      const auto draw = [&](const auto& row) { return sampling::sample_row(row, policy, {{}, prefix}, own, memory); };
      const sampling::drawn next = from_naive ? draw(naive(prefix)) : draw(expert(prefix));
      if (next.status != status::ok) return {.attempts = target.attempts + 1, .status = next.status};
      target.tokens.push_back(next.token), target.from_naive.push_back(from_naive);
      ended = std::find(options.end_tokens.begin(), options.end_tokens.end(), next.token) != options.end_tokens.end();
    }
    ++target.attempts;
    target.accepted = accept(std::span<const std::int32_t>(target.tokens));
  }
  return target;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
