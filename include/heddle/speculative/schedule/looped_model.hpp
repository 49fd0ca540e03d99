// Looped transformers, as schedules see them: one shared block f runs T times over a token, and a head g reads every recurrence.
//
//   h_t^{(0)} = e(x_t),  h_t^{(r)} = f(h_t^{(r-1)}; KV^{(kappa(r))}_{<t}),  p_t^{(r)} = softmax(g(h_t^{(r)}) / temperature);   the target is p = p^{(T)}
//
// A cell (node, r) is one loop of one token: it computes h^{(r)}. Weights are the same for all cells, so cells of different tokens and depths share one
// batched call; that is what schedules live on.
//
//   m.loops()           T
//   m.advance(cells)    one call; logits [cells, V], host: row i = g(h of cell i) where cells[i].predicts, other rows are not read; valid until the next call.
//                       A node's loops come one per call, in order. Nodes before it, whose keys and values of recurrence `source` it reads, have made loop
//                       `depth` in an earlier call or make it in this one, earlier in the list (keys and values of recurrence r come from h^{(r-1)})
//   m.keep(node)        the node has made all T loops and is now part of the kept text; at that time it is the node that has parent -1
//   m.forget(node)      everything about the node is to be forgotten. Its number may come again as another node
//
// Sharing of keys and values between recurrences: kappa(r) <= r is the recurrence whose keys and values of earlier positions loop r reads; it is fixed and
// non-decreasing. Only recurrences in its image are stored and read: traffic and memory are |im kappa| / T of the whole. kappa defines a *different target*:
// plain decoding with the same kappa. A kappa that followed the schedule ("the latest recurrence there is") would make the text depend on the drafts.
//   empty list       kappa(r) = r: nothing is shared
//   shared_kv(T, s)  kappa(r) = the first of its stretch of s recurrences: T / s of them are stored
// Source: Wavefront Decoding (its own map is not published; schedule-independent ones keep exactness).
//
//     const auto kv_map = heddle::shared_kv(8, 4);                  // 1 1 1 1 5 5 5 5
//     const double traffic = heddle::kv_traffic(kv_map, 8);         // 1 / 4
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct loop_cell {
  std::int32_t node = 0;
  std::int32_t parent = -1;     ///< the node of the token before; -1: the kept text
  std::int32_t token = 0;
  std::int64_t position = 0;    ///< number of tokens before this one
  std::int32_t depth = 1;       ///< r = 1 .. T: the loop to make
  std::int32_t source = 1;      ///< kappa(r)
  bool predicts = false;
};

template <class M>
concept looped_model = requires(M& model, std::span<const loop_cell> cells, std::int32_t node) {
  { model.loops() } -> std::convertible_to<std::int32_t>;
  { model.advance(cells) } -> tensor_of<2>;
  model.keep(node);
  model.forget(node);
};

/// What was done: calls of the model, cells in them, tokens; drafts that were decided and those of them that were right.
struct loop_stats {
  std::int64_t calls = 0;
  std::int64_t cells = 0;
  std::int64_t emitted = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  std::int64_t paused = 0;         ///< cells that waited for a later call (loop_ahead.hpp)
  std::int64_t residual_fallback = 0;
  [[gnu::always_inline]] constexpr double agreement() const { return drafted ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0.; }
  [[gnu::always_inline]] constexpr double calls_per_token() const { return emitted ? static_cast<double>(calls) / static_cast<double>(emitted) : 0.; }
};

inline namespace HEDDLE_ISA {

inline void check_kv_map(const char* function, std::span<const std::int32_t> map, std::int32_t loops) {
  require(loops >= 1, function, ": the model makes ", loops, " loops; expected 1 or more");
  if (map.empty()) return;
  require(map.size() == static_cast<std::size_t>(loops), function, ": argument 'kv_map' has ", map.size(), " entries; expected one per loop, ", loops);
  for (std::size_t i = 0; i < map.size(); ++i) {
    const auto r = static_cast<std::int32_t>(i) + 1;
    require(map[i] >= 1 && map[i] <= r && (i == 0 || map[i] >= map[i - 1]), function, ": argument 'kv_map': loop ", r, " reads recurrence ", map[i], "; expected 1 to ", r, ", non-decreasing");
  }
}

/// kappa(r).
inline std::int32_t kv_source(std::span<const std::int32_t> map, std::int32_t r) { return map.empty() ? r : map[static_cast<std::size_t>(r) - 1]; }

/// |im kappa| / T.
inline double kv_traffic(std::span<const std::int32_t> map, std::int32_t loops) {
  check_kv_map("kv_traffic", map, loops);
  std::int32_t stored = 0;
  for (std::int32_t r = 1; r <= loops; ++r) stored += r == 1 || kv_source(map, r) != kv_source(map, r - 1);
  return static_cast<double>(stored) / static_cast<double>(loops);
}

inline aligned_vector<std::int32_t> shared_kv(std::int32_t loops, std::int32_t stretch) {
  require(loops >= 1, "shared_kv: argument 'loops' is ", loops, "; expected 1 or more");
  require(stretch >= 1, "shared_kv: argument 'stretch' is ", stretch, "; expected 1 or more");
  aligned_vector<std::int32_t> map;
  for (std::int32_t r = 0; r < loops; ++r) map.push_back(r - r % stretch + 1);
  return map;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
