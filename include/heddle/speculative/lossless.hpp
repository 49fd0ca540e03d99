// Which (draft law, rule) pairs emit exactly the target's law.
//
//   lossless<law, Rule> = Rule::lossless<law>
//
//                          greedy   match   token
//   deterministic            x        x       x       a point mass is a known proposal
//   independent              x        x       x
//   without_replacement      x        x       x
//   unpredictable            x        x       -       no proposal law describes what was drawn; a match never asks for one
//
// Conditions on the drafter (C1-C4): the target's rows are those plain decoding would use; the proposal law handed over is the conditional law given
// everything drawn before; tree shapes are decided without looking at the tokens they judge; the drafter's noise (purpose::draft) is its own.
#pragma once
#include <heddle/speculative/draft_tree.hpp>

namespace heddle {

template <draft_law Law, class Rule>
inline constexpr bool lossless = Rule::template lossless<Law>;

}  // namespace heddle
