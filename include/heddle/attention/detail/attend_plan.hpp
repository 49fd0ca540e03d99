// How a call of attend() is cut into pieces for threads, and what memory it takes. Nothing here changes a bit of the result.
#pragma once
#include <heddle/attention/detail/key_fold.hpp>
#include <heddle/core/share_items.hpp>


namespace heddle::detail::inline HEDDLE_ISA {

inline constexpr int queries_per_block = 64;
inline constexpr std::int64_t pieces_per_worker = 4;   // where there are fewer, keys are split as well

/// Rows in blocks; a unit is a block and a KV head, a piece is an aligned range of chunks of one part of a unit.
struct attend_plan {
  int rows_per_block = 1, capacity = 1;      // capacity: queries
  std::int64_t blocks = 0, units = 0;
  std::int64_t range = 0;                    // chunks per piece; 0: units are not split
  std::int64_t pieces = 1;                   // per unit
  std::int64_t workers = 1;

  std::int64_t state_floats(const attend_call& call) const { return static_cast<std::int64_t>(capacity) * (call.width() + 2); }
};

inline std::int64_t chunks_of(std::int64_t tokens) { return (tokens + chunk_tokens - 1) / chunk_tokens; }
inline std::int64_t pieces_of(std::int64_t chunks, std::int64_t range) { return chunks == 0 ? 0 : (chunks + range - 1) / range; }

/// chunks: of the longest sequence of every key source.
inline attend_plan plan_of(const attend_call& call, std::span<const std::int64_t> chunks) {
  attend_plan plan;
  plan.rows_per_block = call.group >= queries_per_block ? 1 : queries_per_block / call.group;
  std::int64_t most = 1;
  for (std::int64_t s = 0; s < call.sequences; ++s) {
    const std::int64_t rows = call.rows_of(s);
    plan.blocks += (rows + plan.rows_per_block - 1) / plan.rows_per_block;
    if (rows > most) most = rows;
  }
  if (most < plan.rows_per_block) plan.rows_per_block = static_cast<int>(most);
  plan.capacity = plan.rows_per_block * call.group;
  plan.units = plan.blocks * call.num_kv_heads;
  const auto concurrency = static_cast<std::int64_t>(call.executor.concurrency());
  std::int64_t total = 0;
  for (const std::int64_t c : chunks) total += c;
  if (concurrency > 1 && plan.units > 0 && plan.units < pieces_per_worker * concurrency && total > 1) {
    const std::int64_t splits = (pieces_per_worker * concurrency + plan.units - 1) / plan.units;
    plan.range = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((total + splits - 1) / splits)));
    plan.pieces = 0;
    for (const std::int64_t c : chunks) plan.pieces += pieces_of(c, plan.range);
    if (plan.pieces <= 1) plan.range = 0, plan.pieces = 1;
  }
  const std::int64_t items = plan.units * plan.pieces;
  plan.workers = items < concurrency ? items : concurrency;
  return plan;
}

inline void fill_blocks(const attend_call& call, const attend_plan& plan, row_block* blocks) {
  for (std::int64_t s = 0; s < call.sequences; ++s) {
    const std::int64_t rows = call.rows_of(s);
    for (std::int64_t r = 0; r < rows; r += plan.rows_per_block) {
      const std::int64_t n = rows - r < plan.rows_per_block ? rows - r : plan.rows_per_block;
      *blocks++ = {s, call.first_row(s) + r, static_cast<std::int32_t>(r), static_cast<std::int32_t>(n), static_cast<std::int32_t>(rows)};
    }
  }
}

/// Depths of the nodes of draft trees; parents come before their children.
inline void fill_depths(const attend_call& call, std::span<const std::int32_t> parents, std::int32_t* depth) {
  for (std::int64_t s = 0; s < call.sequences; ++s) {
    const std::int64_t first = call.first_row(s), rows = call.rows_of(s);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int32_t p = parents[static_cast<std::size_t>(first + r)];
      depth[first + r] = p < 0 ? 0 : depth[first + p] + 1;
    }
  }
}
inline void require_tree(const attend_call& call, std::span<const std::int32_t> parents) {
  require(parents.size() == static_cast<std::size_t>(call.rows), "tree: argument 'parents' has ", parents.size(), " entries; expected one for each of ", call.rows, " rows");
  for (std::int64_t s = 0; s < call.sequences; ++s)
    for (std::int64_t r = 0; r < call.rows_of(s); ++r) {
      const std::int32_t p = parents[static_cast<std::size_t>(call.first_row(s) + r)];
      require(p >= -1 && p < r, "tree: argument 'parents': node ", r, " of sequence ", s, " has parent ", p, "; expected -1 or a node before it");
    }
}

/// The state of a unit, joined from its parts.
struct joined_state {
  state_block total, part;
  joined_state(scratch_layout& memory, const attend_call& call, int capacity) {
    for (state_block* s : {&total, &part}) {
      const auto n = static_cast<std::size_t>(capacity);
      *s = {memory.take<float>(n), memory.take<float>(n), memory.take<float>(n * static_cast<std::size_t>(call.width()))};
    }
  }
  void clear(int queries) const {
    for (int q = 0; q < queries; ++q) total.sum[q] = 0.f, total.maximum[q] = -simd::infinity;
  }
};

/// Adds ready states to a joined state.
inline void join_source(const state_source& source, const attend_call& call, const row_block& block, int kv_head, const joined_state& state) {
  for (int q = 0; q < block.rows * call.group; ++q) {
    const std::int64_t row = block.first + q / call.group, head = kv_head * call.group + q % call.group;
    const float lse = source.lse(row, head);
    state.part.maximum[q] = lse, state.part.sum[q] = lse == -simd::infinity ? 0.f : 1.f;
    float* to = state.part.output + static_cast<std::int64_t>(q) * call.width();
    for (int c = 0; c < call.width(); ++c) to[c] = c < call.head_dim_v ? source.out(row, head, c) : 0.f;
  }
  join_states(state.total, state.part, block.rows * call.group, call.width());
}

}  // namespace heddle::detail::inline HEDDLE_ISA
