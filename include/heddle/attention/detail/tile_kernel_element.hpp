// The kernel of codecs of plain numbers (codec::f32, f16, bf16, fp8).
//
// Keys and values are widened in registers, once per block of six queries; more queries pass over a few runs of keys (panels of values) at a
// time, which stay in the first level cache. fp8 costs too much to widen often: from eight queries on a tile is widened once, to float runs.
#pragma once
#include <heddle/attention/detail/element_tile.hpp>
#include <heddle/cache/codec/codec.hpp>

namespace heddle::detail::inline HEDDLE_ISA {

template <element_storage Codec>
class tile_kernel<Codec> : public query_block {
  using element = typename Codec::element;

 public:
  tile_kernel(scratch_layout& memory, int capacity, int head_dim, int head_dim_v, std::int64_t chunks)
      : query_block(memory, capacity, (head_dim_v + 15) / 16 * 16, chunks),
        head_dim_(head_dim),
        query_(memory.take<float>(static_cast<std::size_t>(capacity) * static_cast<std::size_t>(head_dim))),
        wide_(memory.take<float>(widens(capacity) ? static_cast<std::size_t>(tile_tokens) * static_cast<std::size_t>(head_dim > width_ ? head_dim : width_) : 0)) {}

  void begin(int queries, int, const Codec&) { query_block::begin(queries); }

  void pack_query(const float* q, int query, float scale) {
    float* to = query_ + static_cast<std::int64_t>(query) * head_dim_;
    for (int c = 0; c < head_dim_; ++c) to[c] = q[c] * scale;
  }

  void score(const tile& now, const tile* next, int first, int count, int runs) {
    line_walk ahead = next ? line_walk(next->key, tile_runs, 16 * head_dim_ * std::int64_t{sizeof(element)}) : line_walk(now.key);
    if constexpr (narrow) {
      if (widens(count)) {
        widen_keys(now, ahead, runs);
        const std::byte* key[tile_runs];
        for (int r = 0; r < tile_runs; ++r) key[r] = reinterpret_cast<const std::byte*>(wide_ + static_cast<std::int64_t>(r) * head_dim_ * 16);
        line_walk here(key);
        return score<float, true>(key, here, first, count, runs);
      }
    }
    score<element, false>(now.key, ahead, first, count, runs);
  }

  void soften(const tile&, int first, int count) { exponentiate(first, count); }

  void weigh(const tile& now, const tile* next, int first, int count) {
    line_walk ahead = next ? line_walk(next->value, tile_runs, 16 * width_ * std::int64_t{sizeof(element)}) : line_walk(now.value);
    if constexpr (narrow) {
      if (widens(count)) {
        widen_values(now, ahead, first, count);
        const std::byte* value[tile_runs];
        for (int r = 0; r < tile_runs; ++r) value[r] = reinterpret_cast<const std::byte*>(wide_ + static_cast<std::int64_t>(r) * width_ * 16);
        line_walk here(value);
        return weigh<float, true>(value, here, first, count);
      }
    }
    weigh<element, false>(now.value, ahead, first, count);
  }

  void restore(const float* accumulated, float* out) const { std::memcpy(out, accumulated, static_cast<std::size_t>(width_) * sizeof(float)); }

 private:
  static constexpr bool narrow = sizeof(element) == 1;
  static bool widens(int queries) { return narrow && queries >= 8; }

  template <class E, bool many>
  void score(const std::byte* const* key, line_walk& ahead, int first, int count, int runs) {
    const int step = count > most_queries ? kept_vectors : tile_runs;
    for (int r = 0; r < runs; r += step)
      for_query_blocks<many>(first, count, [&]<int N>(int q, fetch_turn turn) {
        score_queries<E, N>(query_ + static_cast<std::int64_t>(q) * head_dim_, head_dim_, key, ahead, turn, r, r + step < runs ? r + step : runs, head_dim_, logits(q));
      });
  }
  template <class E, bool many>
  void weigh(const std::byte* const* value, line_walk& ahead, int first, int count) {
    const std::int64_t step = count > most_queries ? 16 * kept_vectors : width_;
    for (std::int64_t c = 0; c < width_; c += step)
      for_query_blocks<many>(first, count, [&]<int N>(int q, fetch_turn turn) {
        weigh_queries<E, N>(logits(q), factor_ + q, live_ + q, value, ahead, turn, output_ + static_cast<std::int64_t>(q) * width_, width_, c, c + step < width_ ? c + step : width_);
      });
  }
  [[gnu::noinline]] void widen_keys(const tile& now, line_walk& ahead, int runs) {
    constexpr int bytes = 16 * sizeof(element);
    float* to = wide_;
    for (int r = 0; r < runs; ++r) {
      const auto* from = reinterpret_cast<const element*>(now.key[r]);
      for (int c = 0; c < head_dim_; ++c, from += 16, to += 16) {
        fetch<bytes>(ahead.take(bytes));
        simd::store(to, codec::detail::load(from));
      }
    }
  }
  // tokens that no query sees are left out: they may hold anything
  [[gnu::noinline]] void widen_values(const tile& now, line_walk& ahead, int first, int count) {
    constexpr int bytes = 16 * sizeof(element);
    std::uint64_t any = 0;
    for (int q = first; q < first + count; ++q) any |= live_[q];
    for (; any; any &= any - 1) {
      const int j = std::countr_zero(any), r = j / 16;
      float* to = wide_ + static_cast<std::int64_t>(r) * width_ * 16;
      for (int c = j % 16 * 16; c < width_ * 16; c += 256) {
        fetch<bytes>(ahead.take(bytes));
        simd::store(to + c, codec::detail::load(reinterpret_cast<const element*>(now.value[r]) + c));
      }
    }
  }

  int head_dim_;
  float *query_, *wide_;
};

}  // namespace heddle::detail::inline HEDDLE_ISA
