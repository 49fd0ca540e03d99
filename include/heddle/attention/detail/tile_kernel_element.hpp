// The kernel of codecs of plain numbers (codec::f32, f16, bf16, fp8).
//
// Keys and values are widened in registers, once per block of six queries; more queries pass over a few runs of keys (panels of values) at a
// time, which stay in the first level cache. fp8 costs too much to widen often: from eight queries on a tile is widened once, to float runs. Float
// values of many queries are moved to panels of sixteen channels: their rows would compete for the same sets of the cache.
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
        wide_keys_(memory.take<float>(widens_keys(capacity) ? static_cast<std::size_t>(tile_tokens) * static_cast<std::size_t>(head_dim) : 0)),
        wide_values_(memory.take<float>(widens_values(capacity) ? static_cast<std::size_t>(tile_tokens) * static_cast<std::size_t>(width_) : 0)) {}

  void begin(int queries, int, const Codec&) { query_block::begin(queries); }

  void pack_query(const float* q, int query, float scale) {
    float* to = query_ + static_cast<std::int64_t>(query) * head_dim_;
    for (int c = 0; c < head_dim_; ++c) to[c] = q[c] * scale;
  }

  void score(const tile& now, const tile* next, int first, int count, int runs) {
    line_walk ahead;
    if (next) ahead = {next->key, Codec::key_run_bytes(head_dim_)};
    if constexpr (narrow) {
      if (widens_keys(count)) {
        widen_keys(now, runs);
        const std::byte* key[tile_runs];
        for (int r = 0; r < tile_runs; ++r) key[r] = reinterpret_cast<const std::byte*>(wide_keys_ + static_cast<std::int64_t>(r) * head_dim_ * 16);
        return score<float, true>(key, first, count, runs, ahead);
      }
    }
    score<element, false>(now.key, first, count, runs, ahead);
  }

  void soften(const tile&, int first, int count) { exponentiate(first, count); }

  void weigh(const tile& now, const tile* next, int first, int count) {
    line_walk ahead;
    if (next) ahead = {next->value, Codec::value_run_bytes(width_)};
    if constexpr (narrow || std::same_as<element, float>) {
      if (widens_values(count)) {
        widen_values(now, first, count);
        const std::byte* value[tile_runs];
        for (int r = 0; r < tile_runs; ++r) value[r] = reinterpret_cast<const std::byte*>(wide_values_ + r * 16 * 16);
        return weigh<float, true>({value, 16 * sizeof(float), tile_tokens * 16 * sizeof(float)}, first, count, ahead);
      }
    }
    weigh<element, false>({now.value, value_pitch(), 16 * sizeof(element)}, first, count, ahead);
  }

  void restore(const float* accumulated, float* out) const { std::memcpy(out, accumulated, static_cast<std::size_t>(width_) * sizeof(float)); }

 private:
  static constexpr bool narrow = sizeof(element) == 1;
  static bool widens_keys(int queries) { return narrow && queries >= 8; }
  static bool widens_values(int queries) { return (narrow && queries >= 8) || (std::same_as<element, float> && queries >= 24); }
  std::int64_t value_pitch() const { return static_cast<std::int64_t>(width_) * static_cast<std::int64_t>(sizeof(element)); }

  template <class E, bool many>
  void score(const std::byte* const* key, int first, int count, int runs, line_walk& ahead) {
    const int step = count > most_queries ? kept_vectors : tile_runs;
    for (int r = 0; r < runs; r += step)
      for_query_blocks<many>(first, count, [&]<int N>(int q) {
        score_queries<E, N>(query_ + static_cast<std::int64_t>(q) * head_dim_, head_dim_, key + r, runs - r < step ? runs - r : step, head_dim_, logits(q) + 16 * r, ahead,
                            count > most_queries ? 1 : static_cast<int>(sizeof(E)) * tile_vectors<N>);
      });
  }
  template <class E, bool many>
  void weigh(const value_rows& values, int first, int count, line_walk& ahead) {
    const std::int64_t step = count > most_queries ? 16 * kept_vectors : width_;
    for (std::int64_t c = 0; c < width_; c += step)
      for_query_blocks<many>(first, count, [&]<int N>(int q) {
        weigh_queries<E, N>(logits(q), factor_ + q, live_ + q, values, output_ + static_cast<std::int64_t>(q) * width_, width_, c, c + step < width_ ? c + step : width_, ahead,
                            count > most_queries ? 1 : static_cast<int>(sizeof(E)));
      });
  }
  [[gnu::noinline]] void widen_keys(const tile& now, int runs) {
    float* to = wide_keys_;
    for (int r = 0; r < runs; ++r) {
      const auto* from = reinterpret_cast<const element*>(now.key[r]);
      for (int c = 0; c < head_dim_; ++c, from += 16, to += 16) simd::store(to, codec::detail::load(from));
    }
  }
  // [width / 16][64][16]; rows that no query sees are left out: they may hold anything
  [[gnu::noinline]] void widen_values(const tile& now, int first, int count) {
    std::uint64_t any = 0;
    for (int q = first; q < first + count; ++q) any |= live_[q];
    for (; any; any &= any - 1) {
      const int j = std::countr_zero(any);
      const auto* from = reinterpret_cast<const element*>(now.value[j / 16] + (j % 16) * value_pitch());
      for (int c = 0; c < width_; c += 16) simd::store(wide_values_ + static_cast<std::int64_t>(c) * tile_tokens + j * 16, codec::detail::load(from + c));
    }
  }

  int head_dim_;
  float *query_, *wide_keys_, *wide_values_;
};

}  // namespace heddle::detail::inline HEDDLE_ISA
