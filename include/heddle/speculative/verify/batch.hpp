// Chains of drafts of a whole batch, in padded arrays.
//
//   draft_tokens  int32 [R, K]        the drafts of request r, then -1: a request has as many drafts as stand before its first -1; nothing behind is read
//   logits        [R, K + 1, V]       row i: after i drafts
//   draft_laws    f32 [R, K, V]       row i: the law of draft i. Absent: the drafts are deterministic
//   tokens        int32 [R, K + 1]    out: the emitted tokens, then -1
//   accepted      int32 [R]           out
//
// Each request has its own rule (seed, request number) and chain, or all share one; its verdict is the one it would get alone. Requests that share a
// rule share its random numbers too: at equal positions they draw alike. Errors are thrown before anything is written. A request with bad logits
// gets a status, accepted 0 and -1 everywhere; the others are complete.
// `memory`: one verify_workspace per worker, used by at most memory.size() workers of the executor at the same time.
//
//     verify_batch(rules, draft_tokens, draft_laws, logits, chains, tokens, accepted, {.contexts = contexts, .memory = {&memory, 1}});
#pragma once
#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/draft_tree.hpp>
#include <heddle/speculative/verdict.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle {

/// Stands for draft_laws of deterministic drafts.
struct deterministic_drafts {};

template <memory_space Space>
struct verify_options;
template <>
struct verify_options<host> {
  std::span<const std::span<const std::int32_t>> contexts{};  ///< committed tokens per request, for chains that look at history; or
  std::span<const std::int64_t> positions{};                  ///< only their number; one of the two is needed
  std::span<heddle::status> status{};                         ///< one per request, or none
  heddle::on_bad_row on_bad_row = heddle::on_bad_row::report;
  std::span<verify_workspace> memory{};
  executor_ref executor{};
};

inline namespace HEDDLE_ISA {

template <class Rule, tensor_of<2> Drafts, class Laws, tensor_of<3> Logits, class Chain, tensor_of<2> Tokens, tensor_of<1> Accepted>
void verify_batch(std::span<const Rule> rules, const Drafts& draft_tokens, const Laws& draft_laws, const Logits& logits, std::span<const Chain> chains, Tokens&& tokens, Accepted&& accepted, const verify_options<host>& options) {
  constexpr bool sampled = !std::is_same_v<Laws, deterministic_drafts>;
  constexpr draft_law law = sampled ? draft_law::independent : draft_law::deterministic;
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
  if constexpr (sampled) require_shape(name, "draft_laws", view_of(draft_laws), extents{n, longest, vocabulary});
  require(rules.size() == 1 || rules.size() == count, name, ": argument 'rules' has ", rules.size(), " entries; expected 1 or one per request, ", n);
  require(chains.size() == 1 || chains.size() == count, name, ": argument 'chains' has ", chains.size(), " entries; expected 1 or one per request, ", n);
  require(options.contexts.size() == count || (options.contexts.empty() && options.positions.size() == count), name, ": options 'contexts' and 'positions' have ", options.contexts.size(), " and ", options.positions.size(), " entries; expected one of them to have one per request, ", n);
  require(options.status.empty() || options.status.size() == count, name, ": option 'status' has ", options.status.size(), " entries; expected none or one per request, ", n);
  require(!options.memory.empty(), name, ": option 'memory' is empty; expected at least one verify_workspace");
  for (std::size_t i = 0; i < options.memory.size(); ++i)
    require(options.memory[i].vocabulary() == vocabulary, name, ": option 'memory': workspace ", i, " is for a vocabulary of ", options.memory[i].vocabulary(), "; expected ", vocabulary, ", as in logits");
  if (n == 0) return;

  // chains as trees: request r uses the first nodes of row r
  const auto width = static_cast<std::size_t>(longest + 1);
  aligned_vector<std::int32_t> nodes(count * width), parents(width), row_of(width), lengths(count);
  for (std::size_t i = 0; i < width; ++i) parents[i] = static_cast<std::int32_t>(i) - 1, row_of[i] = static_cast<std::int32_t>(i);
  const auto tree_of = [&](std::size_t r) {
    const std::size_t size = static_cast<std::size_t>(lengths[r]) + 1;
    draft_tree<law> tree{std::span<const std::int32_t>(nodes).subspan(r * width, size), std::span<const std::int32_t>(parents).first(size)};
    if constexpr (sampled) {
      const auto laws = view_of(draft_laws)[static_cast<std::int64_t>(r)].slice(0, lengths[r]);
      tree.laws = {.row_of = std::span<const std::int32_t>(row_of).first(size), .dense = {laws.data(), laws.shape(), laws.strides()}};
    }
    return tree;
  };
  const auto context_of = [&](std::size_t r) { return options.contexts.empty() ? std::span<const std::int32_t>{} : options.contexts[r]; };
  const auto rule_of = [&](std::size_t r) -> const Rule& { return rules[rules.size() == 1 ? 0 : r]; };
  const auto chain_of = [&](std::size_t r) -> const Chain& { return chains[chains.size() == 1 ? 0 : r]; };
  for (std::size_t r = 0; r < count; ++r) {
    std::int32_t* const own = nodes.data() + r * width;
    own[0] = context_of(r).empty() ? 0 : context_of(r).back();
    for (std::int64_t i = 0; i < longest && drafts(static_cast<std::int64_t>(r), i) != -1; ++i) own[++lengths[r]] = drafts(static_cast<std::int64_t>(r), i);
    rule_of(r).check(tree_of(r), rows[static_cast<std::int64_t>(r)], chain_of(r), context_of(r), vocabulary);
    if (const sampling::parameters& p = chain_of(r).parameters(); sampling::has_penalties(p) || sampling::has_dry(p))
      for (std::size_t i = 0; i < context_of(r).size(); ++i)
        require(context_of(r)[i] >= 0 && context_of(r)[i] < vocabulary, name, ": option 'contexts': token ", i, " of request ", r, " is ", context_of(r)[i], "; expected 0 to ", vocabulary - 1);
  }

  const std::size_t workers = options.memory.size() < count ? options.memory.size() : count;
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> bad_request{-1};
  options.executor.bulk(workers, [&](std::size_t worker) {
    for (std::size_t r; (r = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      const auto request = static_cast<std::int64_t>(r);
      const std::int64_t position = options.contexts.empty() ? options.positions[r] : static_cast<std::int64_t>(options.contexts[r].size());
      const auto decided = rule_of(r).walk(tree_of(r), rows[request], chain_of(r), context_of(r), options.memory[worker], position);
      for (std::int64_t i = 0; i <= longest; ++i) out(request, i) = i < static_cast<std::int64_t>(decided.tokens.size()) ? decided.tokens[static_cast<std::size_t>(i)] : -1;
      out_accepted(request) = decided.accepted;
      if (!options.status.empty()) options.status[r] = decided.status;
      if (decided.status != status::ok) bad_request.store(request);
    }
  });
  if (options.on_bad_row == heddle::on_bad_row::throw_error && bad_request.load() >= 0) fail(name, ": argument 'logits': request ", bad_request.load(), " has a row with NaN or +infinity, or nothing above -infinity");
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
