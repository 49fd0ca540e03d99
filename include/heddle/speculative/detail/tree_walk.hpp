// The walk from the root along accepted drafts, common to all rules.
//
// At each node the rule decides about its children and, if none is accepted, the token to emit: decide(node, before, position) with the
// history of that node's own path. The walk ends with that token.
#pragma once
#include <heddle/speculative/draft_tree.hpp>
#include <heddle/speculative/verdict.hpp>

#include <cstdint>
#include <span>

namespace heddle::verify::detail::inline HEDDLE_ISA {

struct decision {
  std::int32_t child = -1;  // accepted, or
  std::int32_t token = -1;  // emitted
  heddle::status status = heddle::status::ok;
};

template <draft_law Law, class Decide>
verdict<> walk_tree(const draft_tree<Law>& tree, std::span<const std::int32_t> committed, std::int64_t position, verify_workspace& memory, const Decide& decide) {
  memory.link(tree.parents);
  std::int32_t* const path = memory.path();
  std::int32_t* const tokens = memory.tokens();
  std::size_t depth = 0;
  for (std::int32_t node = 0;;) {
    const decision next = decide(node, sampling::history{committed, {tokens, depth}}, position + static_cast<std::int64_t>(depth));
    if (next.status != heddle::status::ok) return {.status = next.status};
    if (next.child < 0) {
      tokens[depth] = next.token;
      return {.path = {path, depth}, .tokens = {tokens, depth + 1}, .accepted = static_cast<std::int32_t>(depth)};
    }
    node = path[depth] = next.child;
    tokens[depth++] = tree.tokens[static_cast<std::size_t>(node)];
  }
}

template <draft_law Law, class Logits>
void check_call(const char* function, const draft_tree<Law>& tree, const Logits& logits, std::span<const std::int32_t> committed, std::int64_t vocabulary) {
  require(logits.extent(1) == vocabulary, function, ": argument 'logits' has rows of ", logits.extent(1), "; the workspace is for a vocabulary of ", vocabulary);
  check(function, tree, logits.extent(1));
  require(logits.extent(0) >= static_cast<std::int64_t>(tree.tokens.size()), function, ": argument 'logits' has ", logits.extent(0), " rows; expected one per node, ", tree.tokens.size());
  require(committed.empty() || committed.back() == tree.tokens[0], function, ": argument 'tree': the root is ", tree.tokens[0], "; the last committed token is ", committed.empty() ? -1 : committed.back());
}

}  // namespace heddle::verify::detail::inline HEDDLE_ISA
