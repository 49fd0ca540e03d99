// On-policy distillation of a drafter without sequential rollouts (SpecOPD): branches that the drafter drew at anchors of a reference text, scored by the
// target in one pass, as one tree.
//
// Rows: the n reference tokens, then the branch tokens. The parent of a branch's first token is the reference row of its anchor a (the last token it has
// seen); a branch has K tokens wherever its anchor lies, also at the end of the text. Positions are depths. At each of A anchors there are R branches.
//
//   packed_branches   tokens, parents, positions [rows] for the target;  node_rows [A R K]: the row of branch token (a, b, i);  law_rows [A R K]: its parent's,
//                     whose output is the target's law p_i of that token;  branch_of [rows]: which branch a row is of, -1: reference
//   full attention    heddle::tree(parents): every row sees its ancestors and itself, stored one after another: a branch's bits are those of decoding it alone.
//                     Or ancestor_mask(): the same keys as bits for heddle::select(words, {.block_size = 1})
//   sparse attention  top_ancestors(): of the mask, the s highest scores of each row (ties: the earlier row). A selection that several rows share must not
//                     mix branches: such groups are runs of equal branch_of
//   recurrent layers  replay by parent: the state (and the convolution's inputs) of row u come from parents[u], which is earlier
//   loss              end_to_end_tv(drafter, distillation::select_rows(target, law_rows), K, gradient): rows of the drafter in the order of the drafts
//
// merge_prefixes: equal prefixes of the branches of an anchor share rows (a trie); node_rows and law_rows say which. sum_rows adds the gradients of rows that share one.
// R = 0: the reference alone, nothing to score. Errors: sizes, anchors outside the text, in any order and repeated is fine.
// Cost: n + A R K rows per pass for A R K supervised tokens; packing is linear, with merging O(A (R K)^2) at worst. Source: SpecOPD, after the abstract.
//
//     const auto packed = losses::pack_branches(reference, anchors, drafts, {.branches = 4, .slots = 7});
//     heddle::attend(q, heddle::dense(k, v) | heddle::tree(packed.parents), out, lse);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

struct packing_options {
  std::int64_t branches = 1;    ///< R, of each anchor
  std::int64_t slots = 0;       ///< K, tokens of a branch
  bool merge_prefixes = false;
};

inline namespace HEDDLE_ISA {

struct packed_branches {
  aligned_vector<std::int32_t> tokens, parents, positions, branch_of;
  aligned_vector<std::int32_t> node_rows, law_rows;
  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// drafts [A, R, K]; anchors are rows of the reference.
inline packed_branches pack_branches(std::span<const std::int32_t> reference, std::span<const std::int32_t> anchors, std::span<const std::int32_t> drafts, const packing_options& options) {
  const char* const function = "losses::pack_branches";
  require(options.branches >= 0, function, ": option 'branches' is ", options.branches, "; expected 0 or more");
  require(options.slots >= 0, function, ": option 'slots' is ", options.slots, "; expected 0 or more");
  const auto count = static_cast<std::int64_t>(anchors.size()) * options.branches * options.slots;
  require(static_cast<std::int64_t>(drafts.size()) == count, function, ": argument 'drafts' has ", drafts.size(), " tokens; expected one per anchor, branch and slot, ", count);
  for (std::size_t a = 0; a < anchors.size(); ++a)
    require(anchors[a] >= 0 && anchors[a] < static_cast<std::int64_t>(reference.size()), function, ": argument 'anchors': entry ", a, " is ", anchors[a], "; expected 0 to ", static_cast<std::int64_t>(reference.size()) - 1);

  packed_branches packed;
  const auto add = [&](std::int32_t token, std::int32_t parent, std::int32_t branch) {
    packed.tokens.push_back(token), packed.parents.push_back(parent), packed.branch_of.push_back(branch);
    packed.positions.push_back(parent < 0 ? 0 : packed.positions[static_cast<std::size_t>(parent)] + 1);
    return static_cast<std::int32_t>(packed.tokens.size()) - 1;
  };
  for (const std::int32_t token : reference) add(token, static_cast<std::int32_t>(packed.tokens.size()) - 1, -1);
  std::size_t next = 0;
  std::int32_t branch = 0;
  for (const std::int32_t anchor : anchors) {
    const std::size_t first = packed.tokens.size();   // of this anchor's rows
    const auto find = [&](std::int32_t token, std::int32_t parent) {
      for (std::size_t u = first; u < packed.tokens.size(); ++u)
        if (packed.tokens[u] == token && packed.parents[u] == parent) return static_cast<std::int32_t>(u);
      return std::int32_t{-1};
    };
    for (std::int64_t b = 0; b < options.branches; ++b, ++branch) {
      std::int32_t parent = anchor;
      for (std::int64_t i = 0; i < options.slots; ++i) {
        const std::int32_t token = drafts[next++], twin = options.merge_prefixes ? find(token, parent) : -1;
        packed.law_rows.push_back(parent);
        packed.node_rows.push_back(parent = twin >= 0 ? twin : add(token, parent, branch));
      }
    }
  }
  return packed;
}

/// words [rows, ceil(rows / 64)], all of them written: bit v of row u is set where v is u or an ancestor of u.
inline void ancestor_mask(std::span<const std::int32_t> parents, const tensor_view<std::uint64_t, 2>& words) {
  const auto rows = static_cast<std::int64_t>(parents.size());
  require_shape("losses::ancestor_mask", "words", words, extents{rows, (rows + 63) / 64});
  for (std::int64_t u = 0; u < rows; ++u) {
    const std::int32_t parent = parents[static_cast<std::size_t>(u)];
    require(parent >= -1 && parent < u, "losses::ancestor_mask: argument 'parents': entry ", u, " is ", parent, "; expected -1 or an earlier row");
  }
  for (std::int64_t u = 0; u < rows; ++u) {
    const std::int32_t parent = parents[static_cast<std::size_t>(u)];
    for (std::int64_t w = 0; w < words.extent(1); ++w) words(u, w) = parent < 0 ? 0 : words(parent, w);
    words(u, u / 64) |= std::uint64_t{1} << (u % 64);
  }
}

/// Clears all bits of each row but those of its `count` highest scores [rows, keys].
inline void top_ancestors(const tensor_view<std::uint64_t, 2>& words, const tensor_view<const float, 2>& scores, std::int64_t count) {
  require(count >= 1, "losses::top_ancestors: argument 'count' is ", count, "; expected at least 1");
  require_shape("losses::top_ancestors", "scores", scores, extents<2>{words.extent(0), -1});
  require((scores.extent(1) + 63) / 64 == words.extent(1), "losses::top_ancestors: argument 'scores' has ", scores.extent(1), " columns; expected as many as fit ", words.extent(1), " words");
  aligned_vector<std::int32_t> seen;
  for (std::int64_t u = 0; u < words.extent(0); ++u) {
    seen.clear();
    for (std::int64_t v = 0; v < scores.extent(1); ++v)
      if (words(u, v / 64) >> (v % 64) & 1) seen.push_back(static_cast<std::int32_t>(v));
    if (static_cast<std::int64_t>(seen.size()) <= count) continue;
    for (const std::int32_t v : seen) require(scores(u, v) == scores(u, v), "losses::top_ancestors: argument 'scores': row ", u, ", column ", v, " is NaN");
    std::nth_element(seen.begin(), seen.begin() + count, seen.end(), [&](std::int32_t a, std::int32_t b) { return scores(u, a) != scores(u, b) ? scores(u, a) > scores(u, b) : a < b; });
    for (std::size_t i = static_cast<std::size_t>(count); i < seen.size(); ++i) words(u, seen[i] / 64) &= ~(std::uint64_t{1} << (seen[i] % 64));
  }
}

/// out[map[i]] += rows[i], in the order of i.
template <tensor_of<2> Rows, tensor_of<2> Out>
void sum_rows(const Rows& rows, std::span<const std::int32_t> map, const Out& out) {
  const auto from = view_of(rows);
  const auto to = view_of(out);
  require(static_cast<std::int64_t>(map.size()) == from.extent(0), "losses::sum_rows: argument 'map' has ", map.size(), " entries; expected one per row, ", from.extent(0));
  require_shape("losses::sum_rows", "out", to, extents<2>{-1, from.extent(1)});
  for (std::size_t i = 0; i < map.size(); ++i) require(map[i] >= 0 && map[i] < to.extent(0), "losses::sum_rows: argument 'map': entry ", i, " is ", map[i], "; expected 0 to ", to.extent(0) - 1);
  for (std::int64_t i = 0; i < from.extent(0); ++i)
    for (std::int64_t c = 0; c < from.extent(1); ++c) to(map[static_cast<std::size_t>(i)], c) += from(i, c);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
