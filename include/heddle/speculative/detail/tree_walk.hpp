// What all rules share: their arguments, the checks, the walk from the root along accepted drafts, and a proposal row on the target's kept tokens.
//
// A rule is plain data (seed, request, its parameters) with
//   name, lossless<Law>, verifies<Law>, operator()             operator() is detail::decide
//   walk(rule, scored_draft, chance) -> verdict                the rule itself, for any source of chances (detail/chance.hpp)
//   mode, chains_only, laws_of_leaves, check_rule(rule, draft) where it needs them
// On a tree, walk_tree asks at each node about its children and, if none is accepted, for the token to emit, with the history of that node's own path.
#pragma once
#include <heddle/speculative/detail/chance.hpp>
#include <heddle/speculative/draft_tree.hpp>
#include <heddle/speculative/verdict.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

using heddle::strictness;

/// What a rule decides about.
template <draft_law Law, class Logits, class Chain>
struct scored_draft {
  static constexpr draft_law law = Law;
  const draft_tree<Law>& tree;
  Logits logits;                             ///< a view, [nodes, vocabulary]: row u follows node u
  const Chain& policy;
  std::span<const std::int32_t> committed;   ///< ends with the root's token; may be empty for chains that do not look at history
  std::int64_t position;                     ///< of the first token that is decided: the number of tokens before it
  verify_workspace& memory;
};

namespace detail::inline HEDDLE_ISA {

struct decision {
  std::int32_t child = -1;  // accepted, or
  std::int32_t token = -1;  // emitted
  heddle::status status = heddle::status::ok;
};

template <class Draft, class Decide>
verdict<> walk_tree(const Draft& draft, const Decide& decide) {
  verify_workspace& memory = draft.memory;
  memory.link(draft.tree.parents);
  std::int32_t* const path = memory.path();
  std::int32_t* const tokens = memory.tokens();
  std::size_t depth = 0;
  for (std::int32_t node = 0;;) {
    const decision next = decide(node, sampling::history{draft.committed, {tokens, depth}}, draft.position + static_cast<std::int64_t>(depth));
    if (next.status != heddle::status::ok) return {.status = next.status};
    if (next.child < 0) {
      tokens[depth] = next.token;
      return {.path = {path, depth}, .tokens = {tokens, depth + 1}, .accepted = static_cast<std::int32_t>(depth)};
    }
    node = path[depth] = next.child;
    tokens[depth++] = draft.tree.tokens[static_cast<std::size_t>(node)];
  }
}

template <class Draft, class Chance>
sampling::law target_law(const Draft& draft, std::int32_t node, const sampling::history& before, std::int64_t at, const Chance& chance) {
  return sampling::law_of(draft.logits[node], draft.policy, before, chance.at(at, purpose::sample, 0), draft.memory.row());
}

/// The token of plain sampling.
template <class Draft, class Chance>
decision plain_token(const Draft& draft, std::int32_t node, const sampling::history& before, std::int64_t at, Chance& chance) {
  const sampling::drawn y = chance.plain(at, draft.logits[node], draft.policy, before, draft.memory.row());
  return {.token = y.token, .status = y.status};
}

template <class Draft>
std::int32_t token_of(const Draft& draft, std::int32_t node) {
  return draft.tree.tokens[static_cast<std::size_t>(node)];
}

/// Where a token stands in an ascending list; its length if it does not.
inline std::size_t index_of(std::span<const std::int32_t> list, std::int32_t token) {
  std::size_t low = 0, high = list.size();
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (list[middle] < token)
      low = middle + 1;
    else
      high = middle;
  }
  return low < list.size() && list[low] == token ? low : list.size();
}

/// f(index in kept, mass) for every kept token to which the row gives a mass. `scratch`: a number per kept token.
template <class F>
void for_each_common(std::span<const std::int32_t> kept, const proposal_laws& laws, std::int64_t row, double* scratch, const F& f) {
  if (laws.dense.data()) {
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (const float q = *laws.dense.at(row, kept[i]); q > 0.f) f(i, static_cast<double>(q));
    return;
  }
  const auto visit = [&](const auto& g) {
    for_each_entry(laws, row, [&](std::int32_t token, float q) {
      if (const std::size_t i = index_of(kept, token); i < kept.size()) g(i, static_cast<double>(q));
    });
  };
  visit([&](std::size_t i, double) { scratch[i] = 0.; });
  visit([&](std::size_t i, double q) { scratch[i] += q; });
  visit([&](std::size_t i, double) {  // a token may have several entries: f sees their sum once
    const double q = scratch[i];
    scratch[i] = 0.;
    if (q > 0.) f(i, q);
  });
}

/// The row's masses on the kept tokens.
inline void project(std::span<const std::int32_t> kept, const proposal_laws& laws, std::int64_t row, std::span<double> out) {
  for (double& q : out) q = 0.;
  if (laws.dense.data()) {
    for (std::size_t i = 0; i < kept.size(); ++i) out[i] = static_cast<double>(*laws.dense.at(row, kept[i]));
  } else {
    for_each_entry(laws, row, [&](std::int32_t token, float q) {
      if (const std::size_t i = index_of(kept, token); i < kept.size()) out[i] += static_cast<double>(q);
    });
  }
}

inline void fill(const sampling::law& target, std::span<double> p) {
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = target.probability(i);
}

template <class Tree>
bool is_chain(const Tree& tree) {
  for (std::size_t u = 1; u < tree.parents.size(); ++u)
    if (tree.parents[u] != static_cast<std::int32_t>(u) - 1) return false;
  return true;
}

/// Everything that can be wrong with a call, before anything is decided.
template <class Rule, class Draft>
void check_draft(const Rule& rule, const Draft& draft) {
  constexpr draft_law law = Draft::law;
  constexpr const char* name = Rule::name;
  const auto& tree = draft.tree;
  const std::int64_t vocabulary = draft.memory.vocabulary();
  require(draft.logits.extent(1) == vocabulary, name, ": argument 'logits' has rows of ", draft.logits.extent(1), "; the workspace is for a vocabulary of ", vocabulary);
  heddle::check(name, tree, vocabulary);
  require(draft.logits.extent(0) >= static_cast<std::int64_t>(tree.tokens.size()), name, ": argument 'logits' has ", draft.logits.extent(0), " rows; expected one per node, ", tree.tokens.size());
  require(draft.committed.empty() || draft.committed.back() == tree.tokens[0], name, ": argument 'tree': the root is ", tree.tokens[0], "; the last committed token is ", draft.committed.empty() ? -1 : draft.committed.back());
  if constexpr (requires { Rule::chains_only; }) require(is_chain(tree), name, ": argument 'tree' branches; this rule verifies chains only");
  if constexpr (requires { rule.mode; } && is_sampled(law)) {
    constexpr bool every_node = requires { Rule::laws_of_leaves; };
    check_laws(name, tree, vocabulary, rule.mode, every_node);
  }
  if constexpr (requires { check_rule(rule, draft); }) check_rule(rule, draft);
}

template <class Rule>
keyed_chance chance_of(const Rule& rule) {
  if constexpr (requires { rule.seed; })
    return {{.seed = rule.seed, .request = rule.request}};
  else
    return {};
}

template <class Rule, draft_law Law, class Logits, class Chain>
auto decide(const Rule& rule, const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) {
  const scored_draft<Law, Logits, Chain> draft{tree, logits, policy, committed, position < 0 ? static_cast<std::int64_t>(committed.size()) : position, memory};
  check_draft(rule, draft);
  keyed_chance chance = chance_of(rule);
  return walk(rule, draft, chance);
}

}  // namespace detail::inline HEDDLE_ISA
}  // namespace heddle::verify
