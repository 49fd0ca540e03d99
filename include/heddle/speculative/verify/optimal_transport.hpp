// The best that any verifier of k sibling drafts can do, and for small vocabularies the verifier that does it.
//
// Accepting one of the drafts x^1 .. x^k is a transport plan between their law and the target p; the most mass it can move is
//   alpha* = 1 + min_H [ P(H) - Pr(all drafts lie in H) ]              (Hu et al., ICLR 2025)
// over sets H of tokens; Pr = Q(H)^k for independent drafts, a sum over ordered tuples for drafts without replacement. The minimum is attained on
// prefixes of the tokens by ascending p / q (tokens with q = 0 never help).
//
// optimal_acceptance   alpha*, k drafts from q. Independent: O(V log V). Without replacement: O(V^k), for small supports. Allocates
// optimal_plan         V <= 8: a maximal flow from the set of drafted tokens (what the drafts are, not their order, is all that matters) to the token
//                      accepted: accept_probability(set, v), and residual(v), the weights of the token emitted when none is
// optimal              the rule, for vocabularies of at most 8: an oracle to measure other rules by. Lossless for independent and without_replacement
// Laws on the same tokens, each with sum 1. mode and keys as in token_rejection.hpp, one coin per node.
//
//     const double bound = heddle::verify::optimal_acceptance(p, q, 2, heddle::draft_law::independent);    // (.6, .3, .1), (.2, .3, .5): 19/25
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/workspace.hpp>
#include <heddle/speculative/detail/tree_walk.hpp>
#include <heddle/speculative/verify/acceptance.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

struct optimal {
  static constexpr const char* name = "verify::optimal";
  static constexpr std::int64_t largest_vocabulary = 8;
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  strictness mode = strictness::strict;

  template <draft_law Law>
  static constexpr bool verifies = Law == draft_law::independent || Law == draft_law::without_replacement;
  template <draft_law Law>
  static constexpr bool lossless = verifies<Law>;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires(host_tensor<Logits> && verifies<Law>)
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

namespace detail::inline HEDDLE_ISA {

/// The probability that k draws without replacement all lie in `set`; those marked `used` are gone, and draws end with the support.
inline double all_in(std::span<const double> q, std::span<const std::size_t> set, std::span<bool> used, std::int32_t k) {
  if (k == 0) return 1.;
  double sum = 0, rest = 0;
  for (std::size_t v = 0; v < q.size(); ++v) rest += used[v] ? 0. : q[v];
  if (rest <= 0.) return 1.;
  for (const std::size_t v : set) {
    if (used[v] || q[v] <= 0.) continue;
    used[v] = true;
    sum += q[v] / rest * all_in(q, set, used, k - 1);
    used[v] = false;
  }
  return sum;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline void check_siblings(const char* function, std::int32_t k, draft_law law) {
  require(k >= 0, function, ": argument 'k' is ", k, "; expected 0 drafts or more");
  require(law == draft_law::independent || law == draft_law::without_replacement, function, ": argument 'law' is neither independent nor without_replacement");
}

inline double optimal_acceptance(std::span<const double> p, std::span<const double> q, std::int32_t k, draft_law law) {
  require_same_size("verify::optimal_acceptance", p, q);
  check_siblings("verify::optimal_acceptance", k, law);
  aligned_vector<std::size_t> order;
  for (std::size_t v = 0; v < q.size(); ++v)
    if (q[v] > 0.) order.push_back(v);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] * q[b] < p[b] * q[a]; });
  scratch flags("verify::optimal_acceptance", {}, q.size());
  const std::span<bool> used(reinterpret_cast<bool*>(flags.data()), q.size());
  for (bool& u : used) u = false;
  double best = 0, mass = 0, proposed = 0;
  for (std::size_t size = 1; size <= order.size(); ++size) {
    mass += p[order[size - 1]], proposed += q[order[size - 1]];
    double inside = 1.;
    if (law == draft_law::independent)
      for (std::int32_t j = 0; j < k; ++j) inside *= proposed;
    else
      inside = detail::all_in(q, std::span<const std::size_t>(order).first(size), used, k);
    best = mass - inside < best ? mass - inside : best;
  }
  return 1. + best;
}

class optimal_plan {
 public:
  static constexpr std::size_t most = static_cast<std::size_t>(optimal::largest_vocabulary);

  optimal_plan(std::span<const double> p, std::span<const double> q, std::int32_t k, draft_law law) : tokens_(p.size()) {
    require_same_size("verify::optimal_plan", p, q);
    check_siblings("verify::optimal_plan", k, law);
    require(p.size() <= most, "verify::optimal_plan: arguments 'p' and 'q' have ", p.size(), " tokens; expected at most ", most);
    draw(q, k, law == draft_law::without_replacement, 0, 1.);
    for (std::size_t set = 0; set < sets; ++set) supply_[set] = drafted_[set];
    for (std::size_t v = 0; v < tokens_; ++v) residual_[v] = p[v];
    while (augment()) {}
  }

  /// P(some draft is accepted)
  double acceptance() const {
    double sum = 0;
    for (std::size_t set = 1; set < sets; ++set)
      for (std::size_t v = 0; v < tokens_; ++v) sum += flow_[set][v];
    return sum;
  }
  /// P(v is accepted | the drafts are this set of tokens, bit v for token v)
  double accept_probability(std::uint32_t set, std::size_t v) const { return drafted_[set] > 0. ? flow_[set][v] / drafted_[set] : 0.; }
  /// The weight of v when no draft is accepted.
  double residual(std::size_t v) const { return residual_[v]; }

 private:
  static constexpr std::size_t sets = std::size_t{1} << most;

  void draw(std::span<const double> q, std::int32_t k, bool remove, std::uint32_t set, double probability) {
    double rest = 0;
    for (std::size_t v = 0; v < tokens_; ++v) rest += remove && (set >> v & 1u) ? 0. : q[v];
    if (k == 0 || rest <= 0.) {
      drafted_[set] += probability;
      return;
    }
    for (std::size_t v = 0; v < tokens_; ++v)
      if (q[v] > 0. && !(remove && (set >> v & 1u))) draw(q, k - 1, remove, set | 1u << v, probability * (q[v] / rest));
  }

  /// Moves mass along a shortest path from a set with supply to a token with demand, by way of flows that can be redirected; false if there is none.
  bool augment() {
    std::int32_t set_from[sets], token_from[most];   // -2: not reached, -1: a start
    std::uint32_t queue[sets];
    std::size_t head = 0, tail = 0;
    for (std::size_t set = 0; set < sets; ++set) {
      set_from[set] = -2;
      if (set > 0 && supply_[set] > 0.) set_from[set] = -1, queue[tail++] = static_cast<std::uint32_t>(set);
    }
    for (std::int32_t& from : token_from) from = -2;
    while (head < tail) {
      const std::uint32_t set = queue[head++];
      for (std::size_t v = 0; v < tokens_; ++v) {
        if (!(set >> v & 1u) || token_from[v] != -2) continue;
        token_from[v] = static_cast<std::int32_t>(set);
        if (residual_[v] > 0.) {
          push(v, set_from, token_from);
          return true;
        }
        for (std::size_t other = 1; other < sets; ++other)
          if (set_from[other] == -2 && flow_[other][v] > 0.) set_from[other] = static_cast<std::int32_t>(v), queue[tail++] = static_cast<std::uint32_t>(other);
      }
    }
    return false;
  }
  void push(std::size_t end, const std::int32_t* set_from, const std::int32_t* token_from) {
    double amount = residual_[end];
    const auto for_each_step = [&](const auto& forward, const auto& backward) {
      for (std::size_t v = end;;) {
        const auto set = static_cast<std::size_t>(token_from[v]);
        forward(set, v);
        if (set_from[set] < 0) return set;
        v = static_cast<std::size_t>(set_from[set]);
        backward(set, v);
      }
    };
    const std::size_t start = for_each_step([](std::size_t, std::size_t) {}, [&](std::size_t set, std::size_t v) { if (flow_[set][v] < amount) amount = flow_[set][v]; });
    if (supply_[start] < amount) amount = supply_[start];
    for_each_step([&](std::size_t set, std::size_t v) { flow_[set][v] += amount; }, [&](std::size_t set, std::size_t v) { flow_[set][v] -= amount; });
    supply_[start] -= amount, residual_[end] -= amount;
  }

  std::size_t tokens_;
  double drafted_[sets] = {}, supply_[sets] = {}, flow_[sets][most] = {}, residual_[most] = {};
};

template <class Draft>
void check_rule(const optimal&, const Draft& draft) {
  const std::int64_t vocabulary = draft.logits.extent(1);
  require(vocabulary <= optimal::largest_vocabulary, "verify::optimal: argument 'logits' has rows of ", vocabulary, "; the optimal plan is for vocabularies of at most ", optimal::largest_vocabulary);
}

template <class Draft, class Chance>
verdict<> walk(const optimal&, const Draft& draft, Chance& chance) {
  verify_workspace& memory = draft.memory;
  const auto vocabulary = static_cast<std::size_t>(memory.vocabulary());
  std::int32_t fallbacks = 0;
  verdict<> result = detail::walk_tree(draft, [&](std::int32_t node, const sampling::history& before, std::int64_t at) -> detail::decision {
    const std::int32_t first = memory.first_child(node);
    if (first < 0) return detail::plain_token(draft, node, before, at, chance);
    const sampling::law target = detail::target_law(draft, node, before, at, chance);
    if (target.status != heddle::status::ok) return {.status = target.status};
    double p[optimal_plan::most] = {}, q[optimal_plan::most] = {};
    for (std::size_t i = 0; i < target.tokens.size(); ++i) p[target.tokens[i]] = target.probability(i);
    const std::int64_t row = draft.tree.laws.row_of[static_cast<std::size_t>(node)];
    const double sum = sum_of(draft.tree.laws, row);
    for_each_entry(draft.tree.laws, row, [&](std::int32_t v, float x) { q[v] += static_cast<double>(x) / sum; });

    std::uint32_t set = 0;
    std::int32_t children = 0, child_of[optimal_plan::most];
    for (std::int32_t child = first; child >= 0; child = memory.next_sibling(child), ++children) {
      const std::int32_t x = detail::token_of(draft, child);
      if (!(set >> x & 1u)) child_of[x] = child;
      set |= 1u << x;
    }
    const optimal_plan plan({p, vocabulary}, {q, vocabulary}, children, Draft::law);
    double chances[optimal_plan::most], weights[optimal_plan::most], rest = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) chances[v] = plan.accept_probability(set, v), rest += weights[v] = plan.residual(v);
    const std::size_t winner = chance.first(at, {chances, vocabulary});
    if (winner < vocabulary) return {.child = child_of[winner]};
    if (rest <= 0.) {
      ++fallbacks;
      for (std::size_t v = 0; v < vocabulary; ++v) weights[v] = p[v];
    }
    return {.token = static_cast<std::int32_t>(chance.pick(at, {weights, vocabulary}))};
  });
  result.residual_fallback = fallbacks;
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
