// Typical acceptance (Medusa, Cai et al. 2024): drafts that are probable enough for how sure the target is. Not lossless: it changes the law.
//
//   accept x iff p(x) > min(epsilon, delta e^{-H(p)}),   H(p) = -sum_v p(v) ln p(v)
//   of all paths of accepted drafts the longest; of those the one with the largest sum of ln p; of those the lowest last node
//   then one token by the plain sampler
//
// p is the chain's law at the draft's parent, with the history of its own path. The root is the last committed token and always kept. At temperature 0
// this is greedy verification. Any draft law; none of it is read. lossless<law> is false: a loop that asks for losslessness refuses this rule.
// Cost: one law per node that is reached and has children.
//
//     const auto v = heddle::verify::typical{.seed = 7}(tree, logits, policy, context, memory);
#pragma once
#include <heddle/core/math.hpp>
#include <heddle/speculative/detail/tree_walk.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

struct typical {
  static constexpr const char* name = "verify::typical";
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  double epsilon = 0.09;  ///< in (0, 1]
  double delta = 0.3;     ///< above 0; sqrt(epsilon) by default

  template <draft_law>
  static constexpr bool lossless = false;
  template <draft_law>
  static constexpr bool verifies = true;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires host_tensor<Logits>
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

namespace detail {
struct typical_node {
  double score;         // sum of ln p along the path
  std::int32_t depth;   // -1: not accepted
};
}  // namespace detail

inline namespace HEDDLE_ISA {

inline double entropy(const sampling::law& target) {
  double sum = 0;
  for (std::size_t i = 0; i < target.tokens.size(); ++i)
    if (const double p = target.probability(i); p > 0.) sum -= p * math::log(p);
  return sum;
}

/// What a draft's probability has to exceed.
inline double typical_threshold(double epsilon, double delta, double entropy) {
  const double relative = delta * math::exp(-entropy);
  return relative < epsilon ? relative : epsilon;
}

template <class Draft>
void check_rule(const typical& rule, const Draft&) {
  require(rule.epsilon > 0. && rule.epsilon <= 1., "verify::typical: parameter 'epsilon' is ", rule.epsilon, "; expected more than 0, at most 1");
  require(rule.delta > 0. && rule.delta - rule.delta == 0., "verify::typical: parameter 'delta' is ", rule.delta, "; expected a positive number");
}

template <class Draft, class Chance>
verdict<> walk(const typical& rule, const Draft& draft, Chance& chance) {
  verify_workspace& memory = draft.memory;
  memory.link(draft.tree.parents);
  const std::span<const std::int32_t> parents = draft.tree.parents;
  auto* const nodes = memory.template records<detail::typical_node>(parents.size());
  std::int32_t* const path = memory.path();
  std::int32_t* const tokens = memory.tokens();
  const auto lead_to = [&](std::int32_t node) {
    const auto depth = static_cast<std::size_t>(nodes[node].depth);
    std::size_t i = depth;
    for (std::int32_t u = node; u > 0; u = parents[static_cast<std::size_t>(u)]) path[--i] = u, tokens[i] = detail::token_of(draft, u);
    return sampling::history{draft.committed, {tokens, depth}};
  };

  nodes[0] = {0., 0};
  for (std::size_t u = 1; u < parents.size(); ++u) nodes[u] = {0., -1};
  std::int32_t best = 0;
  for (std::int32_t u = 0; u < static_cast<std::int32_t>(parents.size()); ++u) {
    const detail::typical_node here = nodes[u];
    if (here.depth < 0) continue;
    if (here.depth > nodes[best].depth || (here.depth == nodes[best].depth && here.score > nodes[best].score)) best = u;
    if (memory.first_child(u) < 0) continue;
    const sampling::law target = detail::target_law(draft, u, lead_to(u), draft.position + here.depth, chance);
    if (target.status != heddle::status::ok) return {.status = target.status};
    const double threshold = typical_threshold(rule.epsilon, rule.delta, entropy(target));
    for (std::int32_t child = memory.first_child(u); child >= 0; child = memory.next_sibling(child)) {
      const std::size_t i = detail::index_of(target.tokens, detail::token_of(draft, child));
      const double p = i < target.tokens.size() ? target.probability(i) : 0.;
      if (p > threshold) nodes[child] = {here.score + math::log(p), here.depth + 1};
    }
  }
  const std::int32_t depth = nodes[best].depth;
  const detail::decision last = detail::plain_token(draft, best, lead_to(best), draft.position + depth, chance);
  if (last.status != heddle::status::ok) return {.status = last.status};
  tokens[depth] = last.token;
  const auto length = static_cast<std::size_t>(depth);
  return {.path = {path, length}, .tokens = {tokens, length + 1}, .accepted = depth};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
