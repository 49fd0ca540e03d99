// Token rejection sampling: accept what the proposal law got right, resample the rest.
//
// Chain (Leviathan et al. 2023, Chen et al. 2023), draft x ~ q, target p:
//   accept x iff u q(x) < p(x);  otherwise emit y ~ res(p, q) = (p - q)_+ / sum (p - q)_+ and stop.    P(accept) = 1 - TV(p, q)
// Siblings, in draw order, with p~ = p at first (SpecInfer, recursive rejection):
//   accept x^j iff u_j q^j(x^j) < p~(x^j);  otherwise p~ <- res(p~, q^j);  none accepted: emit y ~ p~
//   independent           q^j = q
//   several               q^j of that draft's own row (SpecInfer's multi-step sampling with several drafters)
//   without_replacement   q without x^1 .. x^{j-1}, renormalised (Sequoia)
//   pruned                q a, not renormalised; a dropped draft counts as a rejected one
// Deterministic siblings are point masses verified by one coin (EAGLE, SGLang's target-only sampling):
//   accept the first j with u < sum_{m <= j} p(x^m);  otherwise emit y ~ p without all of them, renormalised
// No children: y ~ p by the plain sampler. p is the chain's law at the node, q the row of proposal_laws, both in double. Lossless for every law but
// `unpredictable`, which does not compile. The comparison is strict: p(x) = 0 never accepts, p >= q > 0 always does.
//
// mode               a draft to which its own law gives probability 0 is an error before anything is decided (strict), or is rejected and has no other
//                    effect (lenient)
// count_every_slot   chains: the verdict's extension counts all slots whose own test u_i q_i(x_i) < p_i(x_i) passes, those after a rejection included,
//                    as if each were asked alone: how well drafter and target agree. Costs the rows behind the rejection; -1 where it is off. A row
//                    with a status other than ok counts as not accepted
// Keys: {seed, request, position of the decided token}; purpose::accept with the sibling's number as index, purpose::residual for y.
// sum (p - q)_+ = 0 at a rejection can only be rounding: y comes from p~ and residual_fallback counts it.
// The pieces are functions of their own (acceptance.hpp). Cost: one law per visited node, O(kept + row of q) per rejection.
//
//     const auto v = heddle::verify::token{.seed = 7}(tree, logits, policy, context, memory);
#pragma once
#include <heddle/speculative/detail/tree_walk.hpp>
#include <heddle/speculative/verify/acceptance.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

struct slot_count {
  std::int32_t slots_accepted = -1;  ///< slots whose own test passes, whatever happened before them
};

struct token {
  static constexpr const char* name = "verify::token";
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  strictness mode = strictness::strict;
  bool count_every_slot = false;

  template <draft_law Law>
  static constexpr bool lossless = Law != draft_law::unpredictable;
  template <draft_law Law>
  static constexpr bool verifies = Law != draft_law::unpredictable;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires(host_tensor<Logits> && verifies<Law>)
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

namespace detail::inline HEDDLE_ISA {

/// A row of the proposal, from which earlier siblings may have been removed.
template <class Draft>
class remaining_proposal {
 public:
  remaining_proposal(const Draft& draft, std::int32_t owner) : draft_(&draft), row_(draft.tree.laws.row_of[static_cast<std::size_t>(owner)]) {
    whole_ = unused_ = Draft::law == draft_law::pruned ? 1. : sum_of(draft.tree.laws, row_);
  }
  double probability(std::int32_t token) const {
    const double mass = entry_of(draft_->tree.laws, row_, token);
    return mass > 0. && unused_ > 0. ? mass / unused_ : 0.;
  }
  /// On the kept tokens; `first` .. `last`: the siblings that are removed, last not included.
  void project(std::span<const std::int32_t> kept, std::span<double> out, std::int32_t first, std::int32_t last) const {
    detail::project(kept, draft_->tree.laws, row_, out);
    for (double& q : out) q /= unused_;
    if constexpr (Draft::law == draft_law::without_replacement)
      for (std::int32_t c = first; c != last; c = draft_->memory.next_sibling(c))
        if (const std::size_t i = index_of(kept, token_of(*draft_, c)); i < kept.size()) out[i] = 0.;
  }
  /// Draws go on without this sibling; summed anew where the difference would be all rounding.
  void remove(std::int32_t first, std::int32_t sibling) {
    unused_ -= entry_of(draft_->tree.laws, row_, token_of(*draft_, sibling));
    if (unused_ > whole_ / 8.) return;
    unused_ = 0.;
    for_each_entry(draft_->tree.laws, row_, [&](std::int32_t v, float q) {
      bool removed = false;
      for (std::int32_t c = first; !removed; c = draft_->memory.next_sibling(c)) {
        removed = token_of(*draft_, c) == v;
        if (c == sibling) break;
      }
      unused_ += removed ? 0. : static_cast<double>(q);
    });
  }

 private:
  const Draft* draft_;
  std::int64_t row_;
  double whole_, unused_;
};

template <class Draft, class Chance>
decision decide_sampled(const Draft& draft, std::int32_t node, const sampling::law& target, std::int64_t at, Chance& chance, std::int32_t& fallbacks) {
  constexpr draft_law law = Draft::law;
  verify_workspace& memory = draft.memory;
  const std::size_t n = target.tokens.size();
  const std::span<double> p(memory.remaining(), n), q(memory.proposal(), n);
  const std::int32_t first = memory.first_child(node);
  bool rejected = false;
  const auto reject = [&](const auto& proposal, std::int32_t sibling) {
    if (!rejected) fill(target, p);
    rejected = true;
    proposal.project(target.tokens, q, first, sibling);
    fallbacks += subtract_proposal(p, q) <= 0.;
  };
  const auto emitted = [&] {
    if (!rejected) fill(target, p);
    return decision{.token = target.tokens[chance.pick(at, p)]};
  };
  if constexpr (law == draft_law::pruned)
    if (first < 0) {
      reject(remaining_proposal<Draft>(draft, node), -1);
      return emitted();
    }
  remaining_proposal<Draft> proposal(draft, law == draft_law::several ? first : node);
  std::uint32_t number = 0;
  for (std::int32_t child = first; child >= 0; child = memory.next_sibling(child), ++number) {
    const std::int32_t x = token_of(draft, child);
    if constexpr (law == draft_law::several)
      if (child != first) proposal = remaining_proposal<Draft>(draft, child);
    const double q_x = proposal.probability(x);
    if (q_x <= 0.) continue;  // lenient: the row cannot have drawn it
    const std::size_t i = index_of(target.tokens, x);
    const double p_x = i == n ? 0. : rejected ? p[i] : target.probability(i);
    if (chance.accept(at, number, p_x, q_x)) return {.child = child};
    reject(proposal, child);
    if constexpr (law == draft_law::without_replacement) proposal.remove(first, child);
  }
  return emitted();
}

template <class Draft, class Chance>
decision decide_deterministic(const Draft& draft, std::int32_t node, const sampling::law& target, std::int64_t at, Chance& chance, std::int32_t& fallbacks) {
  verify_workspace& memory = draft.memory;
  const std::size_t n = target.tokens.size();
  const auto for_each_child = [&](const auto& f) {
    std::size_t j = 0;
    for (std::int32_t child = memory.first_child(node); child >= 0; child = memory.next_sibling(child)) f(j++, child, index_of(target.tokens, token_of(draft, child)));
    return j;
  };
  double* const chances = memory.proposal();  // siblings differ, so there are at most as many as tokens
  const std::size_t count = for_each_child([&](std::size_t j, std::int32_t, std::size_t i) { chances[j] = i < n ? target.probability(i) : 0.; });
  const std::size_t winner = chance.first(at, {chances, count});
  if (winner < count) {
    std::int32_t child = memory.first_child(node);
    for (std::size_t j = 0; j < winner; ++j) child = memory.next_sibling(child);
    return {.child = child};
  }
  const std::span<double> p(memory.remaining(), n);
  fill(target, p);
  double rest = 0;
  for_each_child([&](std::size_t, std::int32_t, std::size_t i) { if (i < n) p[i] = 0.; });
  for (const double x : p) rest += x;
  if (rest <= 0.) ++fallbacks, fill(target, p);
  return {.token = target.tokens[chance.pick(at, p)]};
}

/// Accepted slots of a chain, each asked alone; those up to the first rejection are known.
template <class Draft, class Chance>
std::int32_t slots_accepted(const Draft& draft, std::int32_t accepted, Chance& chance) {
  const std::span<const std::int32_t> tokens = draft.tree.tokens;
  const auto drafts = static_cast<std::int32_t>(tokens.size()) - 1;
  std::int32_t count = accepted;
  for (std::int32_t node = accepted + 1; node < drafts; ++node) {
    const std::int64_t at = draft.position + node;
    const std::int32_t x = token_of(draft, node + 1);
    const sampling::law target = target_law(draft, node, {draft.committed, tokens.subspan(1, static_cast<std::size_t>(node))}, at, chance);
    if (target.status != heddle::status::ok) continue;
    const std::size_t i = index_of(target.tokens, x);
    const double p = i < target.tokens.size() ? target.probability(i) : 0.;
    double q = 1.;
    if constexpr (is_sampled(Draft::law)) q = remaining_proposal<Draft>(draft, Draft::law == draft_law::several ? node + 1 : node).probability(x);
    count += q > 0. && chance.accept(at, 0, p, q);
  }
  return count;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// The decision at one node; memory.reserve_laws() has been called.
template <class Draft, class Chance>
detail::decision decide_at(const token&, const Draft& draft, std::int32_t node, const sampling::history& before, std::int64_t at, Chance& chance, std::int32_t& fallbacks) {
  bool drafted = draft.memory.first_child(node) >= 0;
  if constexpr (Draft::law == draft_law::pruned) drafted = !draft.tree.laws.row_of.empty() && draft.tree.laws.row_of[static_cast<std::size_t>(node)] >= 0;
  if (!drafted) return detail::plain_token(draft, node, before, at, chance);
  const sampling::law target = detail::target_law(draft, node, before, at, chance);
  if (target.status != heddle::status::ok) return {.status = target.status};
  if constexpr (is_sampled(Draft::law))
    return detail::decide_sampled(draft, node, target, at, chance, fallbacks);
  else
    return detail::decide_deterministic(draft, node, target, at, chance, fallbacks);
}

template <class Draft, class Chance>
verdict<slot_count> walk(const token& rule, const Draft& draft, Chance& chance) {
  std::int32_t fallbacks = 0;
  draft.memory.reserve_laws();
  const verdict<> walked = detail::walk_tree(draft, [&](std::int32_t node, const sampling::history& before, std::int64_t at) { return decide_at(rule, draft, node, before, at, chance, fallbacks); });
  verdict<slot_count> result{walked.path, walked.tokens, walked.accepted, fallbacks, walked.status, {}};
  if (rule.count_every_slot && result.status == heddle::status::ok) result.extension.slots_accepted = detail::slots_accepted(draft, result.accepted, chance);
  return result;
}

template <class Draft>
void check_rule(const token& rule, const Draft& draft) {
  require(!rule.count_every_slot || detail::is_chain(draft.tree), "verify::token: parameter 'count_every_slot' is true and argument 'tree' branches; slots are counted on chains");
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
