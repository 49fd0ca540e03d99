// A batch of rows: one token each.
//
//   tokens[r] = sample_row(logits[r], chain of r, history of r, key of r)
//
// Every row has its own chain (or all share one), key and history, so greedy rows, different temperatures and seeds mix freely in a batch. A row's
// token depends on nothing else: not on the batch, its order, the executor or the workspace.
// logits [N, V] f32, f16 or bf16, any strides; tokens [N] int32. A row with bad values gets token -1 and a status; the others are complete, then
// on_bad_row = throw_error throws. Errors of shapes, parameters and histories are thrown before anything is written; what a function of a chain
// throws passes through, and then other rows may be unwritten.
// Workspace: sample_workspace_size, one share per worker; empty: allocated. Cost per row: see row.hpp.
//
//     sampling::sample(logits, chains, tokens, {.keys = keys, .status = status, .executor = team});
#pragma once
#include <heddle/core/share_items.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/core/workspace.hpp>
#include <heddle/sampling/row.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::sampling {

template <memory_space Space>
struct sample_options;
template <>
struct sample_options<host> {
  std::span<const random_key> keys{};      ///< one per row: seed, request, position (purpose and index are not read)
  std::span<const history> histories{};    ///< one per row, or none
  sampling::draw draw = sampling::draw::gumbel;
  std::span<heddle::status> status{};      ///< one per row, or none
  heddle::on_bad_row on_bad_row = heddle::on_bad_row::report;
  executor_ref executor{};
  std::span<std::byte> workspace{};
};

namespace detail::inline HEDDLE_ISA {
inline std::size_t worker_bytes(std::int64_t vocabulary, std::int64_t longest_history) {
  scratch_layout lengths;
  lengths.take<std::int32_t>(static_cast<std::size_t>(longest_history));
  return row_workspace::bytes(vocabulary) + lengths.bytes();
}
}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// `longest_history` counts for chains with DRY only.
inline std::size_t sample_workspace_size(std::int64_t rows, std::int64_t vocabulary, std::size_t concurrency, std::int64_t longest_history = 0) {
  const std::size_t workers = static_cast<std::size_t>(rows) < concurrency ? static_cast<std::size_t>(rows) : concurrency;
  return workers * detail::worker_bytes(vocabulary, longest_history) + scratch_alignment;
}

template <tensor_of<2> Logits, class Chain, tensor_of<1> Tokens>
  requires(host_tensor<Logits> && host_tensor<Tokens> && writable_tensor<Tokens>)
void sample(const Logits& logits, std::span<const Chain> chains, Tokens&& tokens, const sample_options<host>& options) {
  const auto rows = view_of(logits);
  const auto out = view_of(tokens);
  const std::int64_t n = rows.extent(0), vocabulary = rows.extent(1);
  const auto count = static_cast<std::size_t>(n);
  require_shape("sampling::sample", "tokens", out, extents{n});
  require(chains.size() == 1 || chains.size() == count, "sampling::sample: argument 'chains' has ", chains.size(), " entries; expected 1 or one per row, ", n);
  require(options.keys.size() == count, "sampling::sample: option 'keys' has ", options.keys.size(), " entries; expected one per row, ", n);
  require(options.histories.empty() || options.histories.size() == count, "sampling::sample: option 'histories' has ", options.histories.size(), " entries; expected none or one per row, ", n);
  require(options.status.empty() || options.status.size() == count, "sampling::sample: option 'status' has ", options.status.size(), " entries; expected none or one per row, ", n);
  const auto chain_of = [&](std::size_t r) -> const Chain& { return chains[chains.size() == 1 ? 0 : r]; };
  std::int64_t longest = 0;
  for (std::size_t r = 0; r < options.histories.size(); ++r) {
    const history& before = options.histories[r];
    const parameters& p = chain_of(r).parameters();
    if (has_dry(p) && before.size() > longest) longest = before.size();
    if (has_penalties(p) || has_dry(p))
      for (std::int64_t i = 0; i < before.size(); ++i)
        require(before[i] >= 0 && before[i] < vocabulary, "sampling::sample: option 'histories': token ", i, " of row ", r, " is ", before[i], "; expected 0 to ", vocabulary - 1);
  }
  if (n == 0) return;

  const std::size_t concurrency = options.executor.concurrency(), workers = count < concurrency ? count : concurrency;
  scratch memory("sampling::sample", options.workspace, sample_workspace_size(n, vocabulary, concurrency, longest) - scratch_alignment);
  const std::size_t share = detail::worker_bytes(vocabulary, longest), row_bytes = row_workspace::bytes(vocabulary);
  shared_index next(0), first_bad(n);
  options.executor.bulk(workers, [&](std::size_t worker) {
    std::byte* const own = memory.data() + worker * share;
    row_workspace scratch_of_worker(own, vocabulary, {reinterpret_cast<std::int32_t*>(own + row_bytes), static_cast<std::size_t>(longest)});
    for (std::int64_t row; (row = next.advance()) < n;) {
      const auto r = static_cast<std::size_t>(row);
      random_key key = options.keys[r];
      key.purpose = purpose::sample;
      const drawn result = sample_row(rows[row], chain_of(r), options.histories.empty() ? history{} : options.histories[r], key, scratch_of_worker, options.draw);
      *out.at(row) = result.token;
      if (!options.status.empty()) options.status[r] = result.status;
      if (result.status != heddle::status::ok) first_bad.lower(row);
    }
  });
  if (options.on_bad_row == heddle::on_bad_row::throw_error && first_bad.load() < n) fail("sampling::sample: argument 'logits': row ", first_bad.load(), " holds NaN or +infinity, or nothing above -infinity");
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::sampling
