// Match verification: draw the target's token, accept the draft that equals it.
//
//   y = the token the plain sampler draws at this node (sampling::sample_row with the key {seed, request, position}); walk on while a child is y
//
// The emitted tokens are those of plain sampling under the same key, token for token, at any temperature, with any chain (penalties and
// constraints see the node's own path), for every drafter, tree and draft length (Leviathan et al. 2023 name the coupling; keyed noise makes it
// an identity). Lossless for every draft law. P(accept) = sum_v of the target's probabilities of the drafted children.
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
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  sampling::draw draw = sampling::draw::gumbel;

  template <draft_law>
  static constexpr bool lossless = true;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires host_tensor<Logits>
  verdict<> operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const;

  /// What operator() does after check(): the two halves, for calls that check a whole batch first.
  template <draft_law Law, class Logits, class Chain>
  verdict<> walk(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const;
  template <draft_law Law, class Logits, class Chain>
  void check(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, std::int64_t vocabulary) const;
};

struct greedy {
  template <draft_law>
  static constexpr bool lossless = true;

  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires host_tensor<Logits>
  verdict<> operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const;
  template <draft_law Law, class Logits, class Chain>
  verdict<> walk(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const;
  template <draft_law Law, class Logits, class Chain>
  void check(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, std::int64_t vocabulary) const;
};

namespace detail::inline HEDDLE_ISA {

template <draft_law Law, class Logits, class Chain>
verdict<> match_walk(const match& rule, const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) {
  if (position < 0) position = static_cast<std::int64_t>(committed.size());
  return walk_tree(tree, committed, position, memory, [&](std::int32_t node, const sampling::history& before, std::int64_t at) -> decision {
    const random_key key{.seed = rule.seed, .request = rule.request, .position = static_cast<std::uint32_t>(at)};
    const sampling::drawn y = sampling::sample_row(logits[node], policy, before, key, memory.row(), rule.draw);
    if (y.status != heddle::status::ok) return {.status = y.status};
    for (std::int32_t child = memory.first_child(node); child >= 0; child = memory.next_sibling(child))
      if (tree.tokens[static_cast<std::size_t>(child)] == y.token) return {.child = child};
    return {.token = y.token};
  });
}

template <class Chain>
void require_greedy(const Chain& policy) {
  require(policy.parameters().temperature == 0.f, "verify::greedy: the chain's temperature is ", double{policy.parameters().temperature}, "; expected 0 (verify::match and verify::token are for other temperatures)");
}

}  // namespace detail::inline HEDDLE_ISA

template <draft_law Law, class Logits, class Chain>
[[gnu::always_inline]] inline void match::check(const draft_tree<Law>& tree, const Logits& logits, const Chain&, std::span<const std::int32_t> committed, std::int64_t vocabulary) const {
  detail::check_call("verify::match", tree, logits, committed, vocabulary);
}
template <draft_law Law, class Logits, class Chain>
[[gnu::always_inline]] inline verdict<> match::walk(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const {
  return detail::match_walk(*this, tree, logits, policy, committed, memory, position);
}
template <draft_law Law, tensor_of<2> Logits, class Chain>
  requires host_tensor<Logits>
[[gnu::always_inline]] inline verdict<> match::operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const {
  check(tree, view_of(logits), policy, committed, memory.vocabulary());
  return walk(tree, view_of(logits), policy, committed, memory, position);
}

template <draft_law Law, class Logits, class Chain>
[[gnu::always_inline]] inline void greedy::check(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, std::int64_t vocabulary) const {
  detail::require_greedy(policy);
  detail::check_call("verify::greedy", tree, logits, committed, vocabulary);
}
template <draft_law Law, class Logits, class Chain>
[[gnu::always_inline]] inline verdict<> greedy::walk(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const {
  return detail::match_walk(match{}, tree, logits, policy, committed, memory, position);
}
template <draft_law Law, tensor_of<2> Logits, class Chain>
  requires host_tensor<Logits>
[[gnu::always_inline]] inline verdict<> greedy::operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const {
  check(tree, view_of(logits), policy, committed, memory.vocabulary());
  return walk(tree, view_of(logits), policy, committed, memory, position);
}

}  // namespace heddle::verify
