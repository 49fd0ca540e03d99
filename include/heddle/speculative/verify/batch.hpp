// Drafts of a whole batch, in padded arrays, for any rule.
//
//   draft_tokens  int32 [R, K]        the drafts of request r, then -1: a request has as many drafts as stand before its first -1; nothing behind is read
//   draft_laws    f32 [R, K, V]       row u: the law from which the children of node u were drawn (draft i is node i + 1; in a chain, row i is the law of
//                 or sparse_drafts    draft i). Rules that need a row for the last node (saki) take K + 1 rows. deterministic_drafts{}: none
//   logits        [R, K + 1, V]       row u: after node u
//   tokens        int32 [R, K + 1]    out: the emitted tokens, then -1
//   accepted      int32 [R]           out
//   parents       int32 [R, K]        option: parents of the drafts' nodes; without it every request is a chain
//
// Each request has its own rule (seed, request number) and chain, or all share one; its verdict is the one it would get alone. Requests that share a
// rule share its random numbers too: at equal positions they draw alike. Errors of arguments are thrown before anything is written. A request with
// bad logits gets a status, accepted 0 and -1 everywhere; the others are complete; on_bad_row = throw_error throws then.
// Sampled drafts are taken as independent; verify_batch<draft_law::without_replacement>(...) says otherwise.
// memory   one verify_workspace per worker, used by at most memory.size() workers of the executor at the same time; no other allocation, and none once
//          a batch of this size has been seen
// report   report(request, verdict), the last argument, sees each verdict whole (path, events, fallbacks), on the worker's thread, while it is valid
//
//     verify_batch(rules, draft_tokens, draft_laws, logits, chains, tokens, accepted, {.contexts = contexts, .memory = {&memory, 1}});
#pragma once
#include <heddle/core/share_items.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/detail/tree_walk.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle {

/// Stands for draft_laws of deterministic drafts.
struct deterministic_drafts {};

/// Laws as lists: row u of request r has the entries indptr[r * rows + u] .. indptr[r * rows + u + 1] - 1.
struct sparse_drafts {
  std::int64_t rows = 0;                     ///< per request, padding included
  std::span<const std::int64_t> indptr{};    ///< R * rows + 1
  std::span<const std::int32_t> tokens{};
  std::span<const float> probabilities{};
};

struct no_report {
  [[gnu::always_inline]] constexpr void operator()(std::int64_t, const auto&) const {}
};

template <memory_space Space>
struct verify_options;
template <>
struct verify_options<host> {
  std::span<const std::span<const std::int32_t>> contexts{};  ///< committed tokens per request, for chains that look at history; or
  std::span<const std::int64_t> positions{};                  ///< only their number; one of the two is needed
  tensor_view<const std::int32_t, 2> parents{};               ///< of draft trees
  std::span<heddle::status> status{};                         ///< one per request, or none
  heddle::on_bad_row on_bad_row = heddle::on_bad_row::report;
  std::span<verify_workspace> memory{};
  executor_ref executor{};
};

inline namespace HEDDLE_ISA {

template <draft_law Sampled = draft_law::independent, class Rule, tensor_of<2> Drafts, class Laws, tensor_of<3> Logits, class Chain, tensor_of<2> Tokens, tensor_of<1> Accepted, class Report = no_report>
void verify_batch(std::span<const Rule> rules, const Drafts& draft_tokens, const Laws& draft_laws, const Logits& logits, std::span<const Chain> chains, Tokens&& tokens, Accepted&& accepted, const verify_options<host>& options, Report&& report = {}) {
  constexpr bool sparse = std::is_same_v<Laws, sparse_drafts>, sampled = !std::is_same_v<Laws, deterministic_drafts>;
  constexpr draft_law law = sampled ? Sampled : draft_law::deterministic;
  static_assert(law != draft_law::pruned && law != draft_law::several, "in padded arrays a dropped draft and its row, or rows per draft, cannot be told apart");
  static_assert(Rule::template verifies<law>, "this rule does not verify drafts of this law");
  constexpr std::int64_t extra_row = requires { Rule::laws_of_leaves; };
  const auto drafts = view_of(draft_tokens);
  const auto rows = view_of(logits);
  const auto out = view_of(tokens);
  const auto out_accepted = view_of(accepted);
  const std::int64_t n = drafts.extent(0), longest = drafts.extent(1), vocabulary = rows.extent(2);
  const auto count = static_cast<std::size_t>(n);
  constexpr const char* name = "verify_batch";
  require_shape(name, "logits", rows, extents{n, longest + 1, -1});
  require_shape(name, "tokens", out, extents{n, longest + 1});
  require_shape(name, "accepted", out_accepted, extents{n});
  if constexpr (sparse) {
    require(draft_laws.rows >= longest + extra_row, name, ": argument 'draft_laws' has ", draft_laws.rows, " rows per request; expected ", longest + extra_row);
    require(static_cast<std::int64_t>(draft_laws.indptr.size()) == n * draft_laws.rows + 1, name, ": argument 'draft_laws': 'indptr' has ", draft_laws.indptr.size(), " entries; expected ", n * draft_laws.rows + 1);
  } else if constexpr (sampled) {
    const auto laws = view_of(draft_laws);
    require_shape(name, "draft_laws", laws, extents{n, -1, vocabulary});
    require(laws.extent(1) == longest + extra_row || laws.extent(1) == longest + 1, name, ": argument 'draft_laws' has ", laws.extent(1), " rows per request; expected ", longest + extra_row);
  }
  require(rules.size() == 1 || rules.size() == count, name, ": argument 'rules' has ", rules.size(), " entries; expected 1 or one per request, ", n);
  require(chains.size() == 1 || chains.size() == count, name, ": argument 'chains' has ", chains.size(), " entries; expected 1 or one per request, ", n);
  require(options.contexts.size() == count || (options.contexts.empty() && options.positions.size() == count), name, ": options 'contexts' and 'positions' have ", options.contexts.size(), " and ", options.positions.size(), " entries; expected one of them to have one per request, ", n);
  require(options.status.empty() || options.status.size() == count, name, ": option 'status' has ", options.status.size(), " entries; expected none or one per request, ", n);
  if (options.parents.data()) require_shape(name, "parents", options.parents, extents{n, longest});
  require(!options.memory.empty(), name, ": option 'memory' is empty; expected at least one verify_workspace");
  for (std::size_t i = 0; i < options.memory.size(); ++i)
    require(options.memory[i].vocabulary() == vocabulary, name, ": option 'memory': workspace ", i, " is for a vocabulary of ", options.memory[i].vocabulary(), "; expected ", vocabulary, ", as in logits");
  if (n == 0) return;

  const auto width = static_cast<std::size_t>(longest + 1);
  std::int32_t* const lists = options.memory[0].lists(count * (3 * width + 1));
  const std::span<std::int32_t> nodes(lists, count * width), parents(lists + count * width, count * width), row_of(lists + 2 * count * width, count * width), lengths(lists + 3 * count * width, count);
  const auto tree_of = [&](std::size_t r) {
    const std::size_t size = static_cast<std::size_t>(lengths[r]) + 1;
    draft_tree<law> tree{nodes.subspan(r * width, size), parents.subspan(r * width, size)};
    if constexpr (sampled) {
      const std::int64_t used = lengths[r] + extra_row;
      tree.laws.row_of = row_of.subspan(r * width, size);
      if constexpr (sparse) {
        tree.laws.indptr = draft_laws.indptr.subspan(r * static_cast<std::size_t>(draft_laws.rows), static_cast<std::size_t>(used) + 1);
        tree.laws.tokens = draft_laws.tokens, tree.laws.probabilities = draft_laws.probabilities;
      } else {
        const auto laws = view_of(draft_laws)[static_cast<std::int64_t>(r)].slice(0, used);
        tree.laws.dense = {laws.data(), laws.shape(), laws.strides()};
      }
    }
    return tree;
  };
  const auto context_of = [&](std::size_t r) { return options.contexts.empty() ? std::span<const std::int32_t>{} : options.contexts[r]; };
  const auto rule_of = [&](std::size_t r) -> const Rule& { return rules[rules.size() == 1 ? 0 : r]; };
  const auto chain_of = [&](std::size_t r) -> const Chain& { return chains[chains.size() == 1 ? 0 : r]; };
  const auto draft_of = [&](const draft_tree<law>& tree, std::size_t r, verify_workspace& memory) {
    const auto request_rows = rows[static_cast<std::int64_t>(r)];
    const std::int64_t position = options.contexts.empty() ? options.positions[r] : static_cast<std::int64_t>(options.contexts[r].size());
    return verify::scored_draft<law, std::remove_cv_t<decltype(request_rows)>, Chain>{tree, request_rows, chain_of(r), context_of(r), position, memory};
  };
  for (std::size_t r = 0; r < count; ++r) {
    const auto request = static_cast<std::int64_t>(r);
    std::int32_t* const own = nodes.data() + r * width;
    std::int32_t* const own_parents = parents.data() + r * width;
    own[0] = context_of(r).empty() ? 0 : context_of(r).back(), own_parents[0] = -1, lengths[r] = 0;
    for (std::int64_t i = 0; i < longest && drafts(request, i) != -1; ++i) {
      const std::int32_t node = ++lengths[r];
      own[node] = drafts(request, i), own_parents[node] = options.parents.data() ? options.parents(request, i) : node - 1;
    }
    for (std::int32_t u = 0; u <= lengths[r]; ++u) row_of[r * width + static_cast<std::size_t>(u)] = u < lengths[r] + extra_row ? u : -1;
    const auto tree = tree_of(r);
    verify::detail::check_draft(rule_of(r), draft_of(tree, r, options.memory[0]));
    if (const sampling::parameters& p = chain_of(r).parameters(); sampling::has_penalties(p) || sampling::has_dry(p))
      for (std::size_t i = 0; i < context_of(r).size(); ++i)
        require(context_of(r)[i] >= 0 && context_of(r)[i] < vocabulary, name, ": option 'contexts': token ", i, " of request ", r, " is ", context_of(r)[i], "; expected 0 to ", vocabulary - 1);
  }

  const std::size_t workers = options.memory.size() < count ? options.memory.size() : count;
  const auto requests = static_cast<std::int64_t>(count);
  shared_index first_bad(requests);
  share_items(options.executor, workers, requests, [&](std::size_t worker, std::int64_t request) {
    const auto r = static_cast<std::size_t>(request);
    const auto tree = tree_of(r);
    auto chance = verify::detail::chance_of(rule_of(r));
    const auto decided = walk(rule_of(r), draft_of(tree, r, options.memory[worker]), chance);
    for (std::int64_t i = 0; i <= longest; ++i) out(request, i) = i < static_cast<std::int64_t>(decided.tokens.size()) ? decided.tokens[static_cast<std::size_t>(i)] : -1;
    out_accepted(request) = decided.accepted;
    if (!options.status.empty()) options.status[r] = decided.status;
    if (decided.status != status::ok) first_bad.lower(request);
    report(request, decided);
  });
  if (options.on_bad_row == heddle::on_bad_row::throw_error && first_bad.load() < requests) fail(name, ": argument 'logits': request ", first_bad.load(), " has a row with NaN or +infinity, or nothing above -infinity");
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
