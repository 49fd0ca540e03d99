// The kernel of codecs of plain numbers (codec::f32, f16, bf16, fp8).
//
// Few queries: keys and values are widened in registers, once per block of six queries. Many: the tile is widened once to float runs, which the
// same products then read.
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
        wide_keys_(memory.take<float>(widens(capacity) ? static_cast<std::size_t>(tile_tokens) * static_cast<std::size_t>(head_dim) : 0)),
        wide_values_(memory.take<float>(widens(capacity) ? static_cast<std::size_t>(tile_tokens) * static_cast<std::size_t>(width_) : 0)) {}

  void begin(int queries, int, const Codec&) { query_block::begin(queries); }

  void pack_query(const float* q, int query, float scale) {
    float* to = query_ + static_cast<std::int64_t>(query) * head_dim_;
    for (int c = 0; c < head_dim_; ++c) to[c] = q[c] * scale;
  }

  void score(const tile& now, const tile* next, int first, int count, int runs) {
    line_walk ahead;
    if (next) ahead = {next->key, Codec::key_run_bytes(head_dim_)};
    if (!widens(count)) return score<element, false>(now.key, first, count, runs, ahead, static_cast<int>(sizeof(element)));
    widen_keys(now, runs);
    const std::size_t run = static_cast<std::size_t>(head_dim_) * 16;
    const std::byte* key[tile_runs];
    for (int r = 0; r < tile_runs; ++r) key[r] = reinterpret_cast<const std::byte*>(wide_keys_ + static_cast<std::size_t>(r) * run);
    score<float, true>(key, first, count, runs, ahead, 1);
  }

  void soften(const tile&, int first, int count) { exponentiate(first, count); }

  void weigh(const tile& now, const tile* next, int first, int count) {
    line_walk ahead;
    if (next) ahead = {next->value, Codec::value_run_bytes(width_)};
    if (!widens(count)) return weigh<element, false>({now.value, value_pitch(), 16 * sizeof(element)}, first, count, ahead, static_cast<int>(sizeof(element)));
    widen_values(now, first, count);
    const std::byte* value[tile_runs];
    for (int r = 0; r < tile_runs; ++r) value[r] = reinterpret_cast<const std::byte*>(wide_values_ + r * 16 * 16);
    weigh<float, true>({value, 16 * sizeof(float), tile_tokens * 16 * sizeof(float)}, first, count, ahead, 1);
  }

  void restore(const float* accumulated, float* out) const { std::memcpy(out, accumulated, static_cast<std::size_t>(width_) * sizeof(float)); }

 private:
  static constexpr int widened_from = 24;   // queries
  static bool widens(int count) { return count >= widened_from; }
  std::int64_t value_pitch() const { return static_cast<std::int64_t>(width_) * static_cast<std::int64_t>(sizeof(element)); }

  template <class E, bool many>
  void score(const std::byte* const* key, int first, int count, int runs, line_walk& ahead, int lines) {
    for_query_blocks<many>(first, count, [&]<int N>(int q) {
      score_queries<E, N>(query_ + static_cast<std::int64_t>(q) * head_dim_, head_dim_, key, runs, head_dim_, logits(q), ahead, lines * (lines > 1 ? tile_vectors<N> : 1));
    });
  }
  template <class E, bool many>
  void weigh(const value_rows& values, int first, int count, line_walk& ahead, int lines) {
    for_query_blocks<many>(first, count, [&]<int N>(int q) {
      weigh_queries<E, N>(logits(q), factor_ + q, live_ + q, values, output_ + static_cast<std::int64_t>(q) * width_, width_, ahead, lines);
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
