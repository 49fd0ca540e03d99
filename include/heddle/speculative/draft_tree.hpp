// Drafts: what a drafter proposes, and by which law it drew them.
//
// Nodes are numbered so that parents come first. Node 0 is the last committed token (the root, parents[0] = -1); nodes 1 .. N are drafts, siblings in
// the order in which they were drawn. A chain has parents[u] = u - 1. N = 0 is legal: a plain decoding step.
//
// The law is part of the type, because it decides which verification is lossless (lossless.hpp):
//   deterministic        chosen by rule: greedy, retrieval. The proposal law of a draft is a point mass; siblings differ
//   independent          siblings are independent draws from the law of their parent's row (a chain: the usual sampled draft)
//   without_replacement  siblings are drawn one after the other from the law of their parent's row with the earlier ones removed
//   unpredictable        anything else: drafts or tree shapes chosen by looking at the drawn tokens themselves
//
// Laws belong to parents: row_of[u] is the row of the law from which the children of node u were drawn (-1: no children). Rows may be shared, and are
// dense float[rows][V], or sparse lists of (token, probability). They need not sum to exactly 1; the law is row / sum.
//
//     const std::int32_t tokens[] = {42, 7, 9}, parents[] = {-1, 0, 1};
//     heddle::draft_tree<heddle::draft_law::deterministic> chain{tokens, parents};
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/tensor.hpp>

#include <cstdint>
#include <span>

namespace heddle {

enum class draft_law : std::uint8_t { deterministic, independent, without_replacement, unpredictable };
constexpr bool is_sampled(draft_law law) { return law == draft_law::independent || law == draft_law::without_replacement; }

/// The shape of a tree and its tokens: what a target model has to score.
struct token_tree {
  std::span<const std::int32_t> tokens{};
  std::span<const std::int32_t> parents{};
  std::span<const std::int32_t> depths{};   ///< 0 for the root; a node's position is that of the root plus its depth
};

/// Proposal laws, one row per parent that needs one. Either `dense`, or `indptr`, `tokens` and `probabilities` (row r: entries indptr[r] .. indptr[r + 1] - 1).
struct proposal_laws {
  std::span<const std::int32_t> row_of{};   ///< per node, the row its children were drawn from
  tensor_view<const float, 2> dense{};
  std::span<const std::int64_t> indptr{};
  std::span<const std::int32_t> tokens{};
  std::span<const float> probabilities{};
  [[gnu::always_inline]] constexpr std::int64_t num_rows() const { return dense.data() ? dense.extent(0) : indptr.empty() ? 0 : static_cast<std::int64_t>(indptr.size()) - 1; }
};

template <draft_law Law>
struct draft_tree {
  static constexpr draft_law law = Law;
  std::span<const std::int32_t> tokens{};
  std::span<const std::int32_t> parents{};
};
template <draft_law Law>
  requires(is_sampled(Law))
struct draft_tree<Law> {
  static constexpr draft_law law = Law;
  std::span<const std::int32_t> tokens{};
  std::span<const std::int32_t> parents{};
  proposal_laws laws{};
};

inline namespace HEDDLE_ISA {

/// Throws unless the tree is well formed: sizes, parents before children, tokens of the vocabulary, no equal siblings where the law excludes them.
template <draft_law Law>
void check(const char* function, const draft_tree<Law>& tree, std::int64_t vocabulary) {
  const std::span<const std::int32_t> tokens = tree.tokens, parents = tree.parents;
  require(!tokens.empty(), function, ": argument 'tree' has no nodes; expected the last committed token as node 0");
  require(tokens.size() == parents.size(), function, ": argument 'tree' has ", tokens.size(), " tokens and ", parents.size(), " parents");
  for (std::size_t u = 0; u < tokens.size(); ++u) {
    const auto node = static_cast<std::int32_t>(u);
    require(u == 0 ? parents[u] == -1 : parents[u] >= 0 && parents[u] < node, function, ": argument 'tree': parent of node ", node, " is ", parents[u], "; expected ", u == 0 ? "-1 for the root" : "an earlier node");
    require(tokens[u] >= 0 && tokens[u] < vocabulary, function, ": argument 'tree': token of node ", node, " is ", tokens[u], "; expected 0 to ", vocabulary - 1);
    if constexpr (Law == draft_law::deterministic || Law == draft_law::without_replacement)
      for (std::size_t other = u; other-- > 1;)
        require(parents[other] != parents[u] || tokens[other] != tokens[u], function, ": argument 'tree': nodes ", other, " and ", node, " are children of node ", parents[u], " with the same token ", tokens[u]);
  }
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
