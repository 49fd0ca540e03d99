// Block verification of a chain: the longest prefix that can be accepted, decided jointly (Sun et al., ICLR 2025).
//
//   w_0 = 1,  w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i))                       how much of the prefix x_1 .. x_i the target still asks for
//   Z_i = sum_v (w_i p_{i+1}(v) - q_{i+1}(v))_+,   h_i = Z_i / (Z_i + 1 - w_i)  (1 if that is 0 / 0),   h_K = w_K
//   tau = max { i : u_i < h_i }, 0 if none: every slot is asked, a failed one ends nothing
//   emit x_1 .. x_tau, then y ~ p_{K+1} by the plain sampler if tau = K, else y with weights (w_tau p_{tau+1} - q_{tau+1})_+
//
// Accepts at least as many tokens as token rejection on every input, equally many at K = 1 and at temperature 0. Lossless. The slots' events are no
// maximal couplings: what needs those (saki.hpp) cannot use it. Deterministic drafts are point masses: Z_i = w_i (1 - p_{i+1}(x_{i+1})).
// Trees that branch are refused; a pruned draft has no law of its own to be judged by and does not compile.
//
// mode: as in token_rejection.hpp; a draft with q(x) = 0 has w = 0. Bad logits in any row that is read give their status.
// Keys: u_i has {seed, request, position of slot 1, purpose::accept, index i - 1}, y that of its own position, purpose::residual. Since tau depends on the
// numbers and drafts of all slots, those behind tau included, none of them may come again in the next round, which begins at another position. A drafter
// has to draw by such keys too (law_rows.hpp).
// Cost: one law per row until w is 0 (if all drafts are accepted one more, for y), kept for each tau so far; O(entries of q) per row, O(kept + entries)
// for y. A vanishing sum of weights for y can only be rounding: y comes from p_{tau+1}, residual_fallback counts it.
//
//     const auto v = heddle::verify::block{.seed = 7}(tree, logits, policy, context, memory);
#pragma once
#include <heddle/speculative/detail/tree_walk.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

struct block {
  static constexpr const char* name = "verify::block";
  static constexpr bool chains_only = true;
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  strictness mode = strictness::strict;

  template <draft_law Law>
  static constexpr bool verifies = Law != draft_law::unpredictable && Law != draft_law::pruned && Law != draft_law::several;
  template <draft_law Law>
  static constexpr bool lossless = verifies<Law>;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires(host_tensor<Logits> && verifies<Law>)
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

inline namespace HEDDLE_ISA {

/// w_i from w_{i-1}; 0 where p or q is.
inline double block_weight(double weight, double p, double q) {
  if (p <= 0. || q <= 0.) return 0.;
  const double next = weight * p / q;
  return next < 1. ? next : 1.;
}

/// h_i from Z_i and w_i.
inline double block_acceptance(double excess, double weight) {
  const double denominator = excess + (1. - weight);
  return denominator > 0. ? excess / denominator : 1.;
}

/// Z = sum_v (w p(v) - q(v))_+
inline double block_excess(double weight, std::span<const double> p, std::span<const double> q) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += weight * p[v] > q[v] ? weight * p[v] - q[v] : 0.;
  return sum;
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// The law of the draft after a node of a chain, against the target's law there.
template <class Draft>
class slot {
 public:
  slot(const Draft& draft, std::int32_t node, const sampling::law& target) : draft_(draft), target_(target), node_(node) {
    if constexpr (is_sampled(Draft::law)) row_ = draft.tree.laws.row_of[static_cast<std::size_t>(node)], sum_ = sum_of(draft.tree.laws, row_);
  }
  double next_weight(double weight) const {
    const std::int32_t x = token_of(draft_, node_ + 1);
    const std::size_t i = index_of(target_.tokens, x);
    double q = 1.;
    if constexpr (is_sampled(Draft::law)) q = entry_of(draft_.tree.laws, row_, x) / sum_;
    return i < target_.tokens.size() ? block_weight(weight, target_.probability(i), q) : 0.;
  }
  /// block_excess on the kept tokens: those without proposal together, exactly, since masses are integers.
  double excess(double weight) const {
    std::uint64_t shared = 0;
    double sum = 0;
    for_each([&](std::size_t i, double q) {
      const double p = weight * target_.probability(i);
      shared += target_.masses[i], sum += p > q ? p - q : 0.;
    });
    return weight * (static_cast<double>(target_.total - shared) / static_cast<double>(target_.total)) + sum;
  }
  /// The weights of the token after the accepted prefix; their sum.
  double residual(double weight, std::span<double> out) const {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = weight * target_.probability(i);
    for_each([&](std::size_t i, double q) { out[i] = out[i] > q ? out[i] - q : 0.; });
    double sum = 0;
    for (const double x : out) sum += x;
    return sum;
  }

 private:
  /// f(index, q) for the kept tokens that the draft's law can draw.
  template <class F>
  void for_each(const F& f) const {
    if constexpr (is_sampled(Draft::law)) {
      for_each_common(target_.tokens, draft_.tree.laws, row_, draft_.memory.proposal(), [&](std::size_t i, double mass) { f(i, mass / sum_); });
    } else {
      const std::size_t i = index_of(target_.tokens, token_of(draft_, node_ + 1));
      if (i < target_.tokens.size()) f(i, 1.);
    }
  }
  const Draft& draft_;
  const sampling::law& target_;
  std::int32_t node_;
  std::int64_t row_ = 0;
  double sum_ = 1.;
};

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <class Draft, class Chance>
verdict<> walk(const block&, const Draft& draft, Chance& chance) {
  verify_workspace& memory = draft.memory;
  const std::span<const std::int32_t> nodes = draft.tree.tokens;
  const auto drafts = static_cast<std::int32_t>(nodes.size()) - 1;
  memory.link(draft.tree.parents), memory.reserve_laws();
  const auto before = [&](std::int32_t node) { return sampling::history{draft.committed, nodes.subspan(1, static_cast<std::size_t>(node))}; };
  const auto position = [&](std::int32_t node) { return draft.position + node; };   // of the token after the node

  std::int32_t accepted = 0, node = 0;
  double weight = 1., accepted_weight = 1.;
  sampling::law after_accepted;
  for (; node < drafts && weight > 0.; ++node) {
    const sampling::law target = detail::target_law(draft, node, before(node), position(node), chance);
    if (target.status != heddle::status::ok) return {.status = target.status};
    const detail::slot<Draft> next(draft, node, target);
    if (node == 0 || chance.accept(draft.position, static_cast<std::uint32_t>(node - 1), block_acceptance(next.excess(weight), weight), 1.)) accepted = node, accepted_weight = weight, after_accepted = memory.keep(target);
    weight = next.next_weight(weight);
  }
  if (drafts > 0 && node == drafts && chance.accept(draft.position, static_cast<std::uint32_t>(drafts - 1), weight, 1.)) accepted = drafts;

  detail::decision last;
  std::int32_t fallbacks = 0;
  if (accepted == drafts) {
    last = detail::plain_token(draft, accepted, before(accepted), position(accepted), chance);
    if (last.status != heddle::status::ok) return {.status = last.status};
  } else {
    const std::span<double> weights(memory.remaining(), after_accepted.tokens.size());
    if (detail::slot<Draft>(draft, accepted, after_accepted).residual(accepted_weight, weights) <= 0.) ++fallbacks, detail::fill(after_accepted, weights);
    last.token = after_accepted.tokens[chance.pick(position(accepted), weights)];
  }
  std::int32_t* const path = memory.path();
  std::int32_t* const tokens = memory.tokens();
  for (std::int32_t i = 0; i < accepted; ++i) path[i] = i + 1, tokens[i] = nodes[static_cast<std::size_t>(i) + 1];
  tokens[accepted] = last.token;
  const auto length = static_cast<std::size_t>(accepted);
  return {.path = {path, length}, .tokens = {tokens, length + 1}, .accepted = accepted, .residual_fallback = fallbacks};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
