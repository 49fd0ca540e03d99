// Which (draft law, rule) pairs emit exactly the target's law.
//
//   lossless<law, Rule> = Rule::lossless<law>;  as a concept on rules: lossless_rule<Rule, law>
//
//                          greedy   match   token   block   k_seq   optimal   typical   saki
//   deterministic            x        x       x       x                                        a point mass is a known proposal
//   independent              x        x       x       x       x        x
//   without_replacement      x        x       x       x                x                       block: chains only, in every row of this table
//   several                  x        x       x                                                one row of laws per draft
//   pruned                   x        x       x                                                a sub-probability, and dropped drafts that are known
//   unpredictable            x        x                                                        no law describes what was drawn; a match never asks
//
// typical acceptance changes the law; saki emits a law between student and teacher. A rule that cannot verify a law at all (verifies<law>) does not compile
// with it. Conditions on the drafter (C1 - C7): draft_tree.hpp.
//
//     static_assert(heddle::lossless<heddle::draft_law::without_replacement, heddle::verify::token>);
//     static_assert(!heddle::lossless_rule<heddle::verify::typical, heddle::draft_law::independent>);
#pragma once
#include <heddle/speculative/draft_tree.hpp>

namespace heddle {

template <draft_law Law, class Rule>
inline constexpr bool lossless = Rule::template lossless<Law>;

template <class Rule, draft_law Law>
concept lossless_rule = lossless<Law, Rule>;

}  // namespace heddle
