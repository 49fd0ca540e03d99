// Drafts: what a drafter proposes, and by which law it drew them.
//
// Nodes are numbered so that parents come first. Node 0 is the last committed token (the root, parents[0] = -1); nodes 1 .. N are drafts, siblings in
// the order in which they were drawn. A chain has parents[u] = u - 1. N = 0 is legal: a plain decoding step.
//
// The law is part of the type, because it decides which verification is lossless (lossless.hpp):
//   deterministic        chosen by rule: greedy, retrieval. The proposal law of a draft is a point mass; siblings differ
//   independent          siblings are independent draws from the law of their parent's row (a chain: the usual sampled draft)
//   without_replacement  siblings are drawn one after the other from the law of their parent's row with the earlier ones removed
//   several              siblings are independent draws, each from a row of its own: several drafters propose at one node
//   pruned               at most one child, drawn from q and kept with a probability a(v) that was known before the draw: the parent's row is the
//                        sub-probability q a, taken as it stands. A node with a row and no child is one whose draft was dropped
//   unpredictable        anything else: drafts or tree shapes chosen by looking at the drawn tokens themselves
//
// Laws belong to parents: row_of[u] is the row of the law from which the children of node u were drawn (-1: no children); with `several`, row_of[u] is
// the row from which u itself was drawn. Rows may be shared, and are dense float[rows][V], or sparse lists of (token, probability) in any order, a
// token's entries adding up. But for `pruned` they need not sum to exactly 1; the law is row / sum.
//
// What makes a verification exact (conditions on the drafter; lossless.hpp says which rules then keep the target's law):
//   C1  the target's rows are those plain decoding would compute
//   C2  the row handed over is the conditional law of the draft given all drawn before it; what was chosen by rule is a point mass
//   C3  shapes, lengths and the choice of nodes to expand never look at the tokens they judge
//   C4  the verifier's random numbers are its own (purposes accept, residual and sample of core/random.hpp; a drafter has purpose::draft)
//   C5  deterministic drafts are verified as point masses: accepted with p(x), the residual is p without x
//   C6  a draft kept with a known probability a(v) is verified with q a (law `pruned`)
//   C7  match verification needs none of C2 - C6: it is exact for any candidates
//
//     const std::int32_t tokens[] = {42, 7, 9}, parents[] = {-1, 0, 1};
//     heddle::draft_tree<heddle::draft_law::deterministic> chain{tokens, parents};
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/tensor.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle {

enum class draft_law : std::uint8_t { deterministic, independent, without_replacement, unpredictable, several, pruned };
constexpr bool is_sampled(draft_law law) { return law != draft_law::deterministic && law != draft_law::unpredictable; }

/// The shape of a tree and its tokens: what a target model has to score.
struct token_tree {
  std::span<const std::int32_t> tokens{};
  std::span<const std::int32_t> parents{};
  std::span<const std::int32_t> depths{};   ///< 0 for the root; a node's position is that of the root plus its depth
};

/// Proposal laws, one row per parent that needs one. Either `dense`, or `indptr`, `tokens` and `probabilities` (row r: entries indptr[r] .. indptr[r + 1] - 1).
struct proposal_laws {
  std::span<const std::int32_t> row_of{};   ///< per node, the row its children (law `several`: it itself) were drawn from
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

/// What to do with a draft to which its own law gives probability 0: an error before anything is decided, or a rejection that changes nothing else.
enum class strictness : std::uint8_t { strict, lenient };

namespace detail::inline HEDDLE_ISA {

/// The nodes seen so far by (parent, key), for trees of up to `most` nodes: a hash table in place.
class sibling_table {
 public:
  static constexpr std::size_t most = 2048;
  explicit sibling_table(std::size_t nodes) : mask_(std::bit_ceil(2 * nodes) - 1) {
    for (std::size_t i = 0; i <= mask_; ++i) node_[i] = 0;
  }
  /// The earlier node for which equal(node), or `node` itself, which is put in.
  template <class Equal>
  std::size_t find_or_put(std::size_t node, std::int32_t parent, std::int32_t key, const Equal& equal) {
    std::uint64_t hash = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(parent)) << 32 | static_cast<std::uint32_t>(key)) * 0x9E3779B97F4A7C15u;
    for (hash >>= 32;; ++hash) {
      std::uint16_t& entry = node_[hash & mask_];
      if (entry == 0) return entry = static_cast<std::uint16_t>(node);
      if (equal(std::size_t{entry})) return entry;
    }
  }

 private:
  std::size_t mask_;
  std::uint16_t node_[2 * most];   // 0, the root, is no sibling: a free place
};

/// visit(earlier, node) for nodes with the same parent (and token). Linear in the nodes up to sibling_table::most.
template <bool same_token, class Visit>
void for_each_equal_sibling(std::span<const std::int32_t> tokens, std::span<const std::int32_t> parents, const Visit& visit) {
  const auto equal = [&](std::size_t a, std::size_t b) { return parents[a] == parents[b] && (!same_token || tokens[a] == tokens[b]); };
  if (tokens.size() > sibling_table::most) {
    for (std::size_t u = 1; u < tokens.size(); ++u)
      for (std::size_t other = 1; other < u; ++other)
        if (equal(other, u)) visit(other, u);
    return;
  }
  sibling_table seen(tokens.size());
  for (std::size_t u = 1; u < tokens.size(); ++u)
    if (const std::size_t other = seen.find_or_put(u, parents[u], same_token ? tokens[u] : 0, [&](std::size_t node) { return equal(node, u); }); other != u) visit(other, u);
}

}  // namespace detail::inline HEDDLE_ISA

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
  }
  if constexpr (Law == draft_law::deterministic || Law == draft_law::without_replacement || Law == draft_law::pruned)
    detail::for_each_equal_sibling<Law != draft_law::pruned>(tokens, parents, [&](std::size_t other, std::size_t u) {
      fail(function, ": argument 'tree': nodes ", other, " and ", u, " are children of node ", parents[u], Law == draft_law::pruned ? "; expected at most one child, here" : " with the same token ", tokens[u]);
    });
}

/// Entries of one row of proposal_laws: f(token, probability).
template <class F>
void for_each_entry(const proposal_laws& laws, std::int64_t row, const F& f) {
  if (laws.dense.data()) {
    const float* const entries = laws.dense.at(row, 0);
    const std::int64_t stride = laws.dense.stride(1), vocabulary = laws.dense.extent(1);
    if (stride == 1)
      for (std::int64_t v = 0; v < vocabulary; ++v) f(static_cast<std::int32_t>(v), entries[v]);
    else
      for (std::int64_t v = 0; v < vocabulary; ++v) f(static_cast<std::int32_t>(v), entries[v * stride]);
  } else {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t i = laws.indptr[r]; i < laws.indptr[r + 1]; ++i) f(laws.tokens[static_cast<std::size_t>(i)], laws.probabilities[static_cast<std::size_t>(i)]);
  }
}

/// The sum of a row, in double, eight partial sums in the order of entries.
inline double sum_of(const proposal_laws& laws, std::int64_t row) {
  double sums[8] = {};
  std::size_t i = 0;
  for_each_entry(laws, row, [&](std::int32_t, float q) { sums[i++ % 8] += static_cast<double>(q); });
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/// The entry of one token, not normalised.
inline double entry_of(const proposal_laws& laws, std::int64_t row, std::int32_t token) {
  if (laws.dense.data()) return static_cast<double>(*laws.dense.at(row, token));
  double q = 0;
  for_each_entry(laws, row, [&](std::int32_t v, float x) { q += v == token ? static_cast<double>(x) : 0.; });
  return q;
}

/// Throws unless every node that needs a row has one, every row is a law, and (strict) every draft has a chance under its own. `every_node`: leaves need
/// a row as well.
template <draft_law Law>
  requires(is_sampled(Law))
void check_laws(const char* function, const draft_tree<Law>& tree, std::int64_t vocabulary, strictness mode, bool every_node = false) {
  const proposal_laws& laws = tree.laws;
  const std::int64_t rows = laws.num_rows();
  const std::size_t nodes = tree.tokens.size();
  if (nodes > 1 || every_node || !laws.row_of.empty()) require(laws.row_of.size() == nodes, function, ": argument 'draft laws': 'row_of' has ", laws.row_of.size(), " entries; expected one per node, ", nodes);
  if (laws.dense.data()) require_shape(function, "draft laws", laws.dense, extents{-1, vocabulary});
  if (!laws.dense.data() && rows > 0) {
    require(laws.tokens.size() == laws.probabilities.size(), function, ": argument 'draft laws' has ", laws.tokens.size(), " tokens and ", laws.probabilities.size(), " probabilities");
    for (std::size_t r = 0; r + 1 < laws.indptr.size(); ++r)
      require(laws.indptr[r] >= 0 && laws.indptr[r] <= laws.indptr[r + 1] && laws.indptr[r + 1] <= static_cast<std::int64_t>(laws.tokens.size()), function, ": argument 'draft laws': 'indptr' entry ", r + 1, " is ", laws.indptr[r + 1], "; expected a non-decreasing list that ends within ", laws.tokens.size(), " entries");
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    bool valid = true;
    const auto is_valid = [&](std::int32_t v, float q) { return (v >= 0) & (v < vocabulary) & (q >= 0.f) & (q <= std::numeric_limits<float>::max()); };
    for_each_entry(laws, r, [&](std::int32_t v, float q) { valid &= is_valid(v, q); });
    if (!valid)
      for_each_entry(laws, r, [&](std::int32_t v, float q) {
        require(v >= 0 && v < vocabulary, function, ": argument 'draft laws': row ", r, " has the token ", v, "; expected 0 to ", vocabulary - 1);
        require(is_valid(v, q), function, ": argument 'draft laws': row ", r, " gives the token ", v, " probability ", double{q}, "; expected a finite number, 0 or more");
      });
    const double sum = sum_of(laws, r);
    if constexpr (Law == draft_law::pruned)
      require(sum <= 1.0001, function, ": argument 'draft laws': row ", r, " sums to ", sum, "; expected at most 1, the probability that a draft is kept");
    else
      require(sum > 0., function, ": argument 'draft laws': row ", r, " has no positive probability");
  }
  if (laws.row_of.empty()) return;
  for (std::size_t u = 0; u < nodes && (every_node || Law == draft_law::pruned); ++u)
    require(laws.row_of[u] < rows && (laws.row_of[u] >= 0 || !every_node), function, ": argument 'draft laws': node ", u, " has row ", laws.row_of[u], "; expected ", every_node ? "0 to " : "-1 to ", rows - 1);
  for (std::size_t u = 1; u < nodes; ++u) {
    const std::size_t owner = Law == draft_law::several ? u : static_cast<std::size_t>(tree.parents[u]);
    const std::int32_t row = laws.row_of[owner];
    require(row >= 0 && row < rows, function, ": argument 'draft laws': node ", owner, Law == draft_law::several ? " was drawn from" : " has children and", " row ", row, "; expected 0 to ", rows - 1);
    if (mode == strictness::strict) require(entry_of(laws, row, tree.tokens[u]) > 0., function, ": argument 'draft laws': row ", row, " gives the drafted token ", tree.tokens[u], " probability 0");
  }
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
