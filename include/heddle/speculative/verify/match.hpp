// Match verification: draw the target's token, accept the draft that equals it.
//
//   y = the token the plain sampler draws at this node (sampling::sample_row with the key {seed, request, position}); walk on while a child is y
//
// The emitted tokens are those of plain sampling under the same key, token for token, at any temperature, with any chain (penalties and
// constraints see the node's own path), for every drafter, tree and draft length (Leviathan et al. 2023 name the coupling; keyed noise makes it
// an identity). Lossless for every draft law. P(accept) = sum_v of the target's probabilities of the drafted children.
// A drafter that draws by the same rule with the same key (seed, request, position, purpose::sample) agrees more often: that is the keyed Gumbel
// coupling (acceptance.hpp compares the three). It need not keep its noise to itself, because the output is a function of the noise alone.
// position = number of tokens before the one decided. Cost: one row decision per accepted draft and one more.
//
// greedy is the same at temperature 0, and refuses others: L = max{ l : x_i = argmax p_i for i <= l }.
//
//     const auto v = heddle::verify::match{.seed = 7}(tree, logits, policy, context, memory);
#pragma once
#include <heddle/speculative/detail/tree_walk.hpp>

#include <cstdint>
#include <span>

namespace heddle::verify {

struct match {
  static constexpr const char* name = "verify::match";
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  sampling::draw draw = sampling::draw::gumbel;

  template <draft_law>
  static constexpr bool lossless = true;
  template <draft_law>
  static constexpr bool verifies = true;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires host_tensor<Logits>
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

struct greedy {
  static constexpr const char* name = "verify::greedy";

  template <draft_law>
  static constexpr bool lossless = true;
  template <draft_law>
  static constexpr bool verifies = true;

  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires host_tensor<Logits>
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

inline namespace HEDDLE_ISA {

/// The decision at one node.
template <class Draft, class Chance>
detail::decision decide_at(const match& rule, const Draft& draft, std::int32_t node, const sampling::history& before, std::int64_t at, Chance& chance, std::int32_t& /*fallbacks*/) {
  verify_workspace& memory = draft.memory;
  const sampling::drawn y = chance.plain(at, draft.logits[node], draft.policy, before, memory.row(), rule.draw);
  if (y.status != heddle::status::ok) return {.status = y.status};
  for (std::int32_t child = memory.first_child(node); child >= 0; child = memory.next_sibling(child))
    if (detail::token_of(draft, child) == y.token) return {.child = child};
  return {.token = y.token};
}
template <class Draft, class Chance>
detail::decision decide_at(const greedy&, const Draft& draft, std::int32_t node, const sampling::history& before, std::int64_t at, Chance& chance, std::int32_t& fallbacks) {
  return decide_at(match{}, draft, node, before, at, chance, fallbacks);
}

template <class Draft, class Chance>
verdict<> walk(const match& rule, const Draft& draft, Chance& chance) {
  std::int32_t fallbacks = 0;
  return detail::walk_tree(draft, [&](std::int32_t node, const sampling::history& before, std::int64_t at) { return decide_at(rule, draft, node, before, at, chance, fallbacks); });
}

template <class Draft, class Chance>
verdict<> walk(const greedy&, const Draft& draft, Chance& chance) {
  return walk(match{}, draft, chance);
}

template <class Draft>
void check_rule(const greedy&, const Draft& draft) {
  const float temperature = draft.policy.parameters().temperature;
  require(temperature == 0.f, "verify::greedy: the chain's temperature is ", double{temperature}, "; expected 0 (verify::match and verify::token are for other temperatures)");
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
