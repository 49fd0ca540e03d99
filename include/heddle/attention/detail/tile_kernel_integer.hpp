// The kernel of integer codecs (codec::int8, int4): products of codes and integers, exact, so their order is free.
//
//   score    query q = a * integers, z = (sum of code * integer) * (a * scale of the key * softmax scale); lanes are keys
//   soften   weight times scale of its value = b * integers, b from the tile's own maximum: a tile whose weights are all small loses nothing
//   weigh    O = fma(sum of code * integer, b, O * alpha); lanes are channels. Hidden keys have integer 0
//
// Codes are stored with an offset; sums start at -zero_code * (sum of the integers), which takes it off again.
// A query that is not finite has a = NaN; a NaN scale of a live value makes b NaN.
#pragma once
#include <heddle/attention/detail/query_block.hpp>
#include <heddle/attention/detail/tile_ahead.hpp>
#include <heddle/cache/codec/integer_storage.hpp>
#include <heddle/core/detail/byte_products.hpp>

#include <bit>
#include <limits>

namespace heddle::detail::inline HEDDLE_ISA {

template <integer_storage Codec>
class tile_kernel<Codec> : public query_block {
  using query_products = byte_products<Codec::query_digits>;
  using weight_products = byte_products<Codec::weight_digits>;
  static constexpr int planes = Codec::planes, cell_rows = 4 / planes;   // cell rows of a value run

 public:
  tile_kernel(scratch_layout& memory, int capacity, int head_dim, int head_dim_v, std::int64_t chunks)
      : query_block(memory, capacity, Codec::value_width(head_dim_v), chunks),
        head_dim_(head_dim),
        cells_(Codec::key_cells(head_dim)),
        query_pitch_((cells_ * planes + 3) / 4 * 4 * query_products::words),
        query_(memory.take<std::uint32_t>(static_cast<std::size_t>(capacity) * static_cast<std::size_t>(query_pitch_))),
        weight_(memory.take<std::uint32_t>(static_cast<std::size_t>(capacity) * weight_pitch)),
        query_unit_(memory.take<float>(static_cast<std::size_t>(capacity))),
        weight_unit_(memory.take<float>(static_cast<std::size_t>(capacity))),
        query_offset_(memory.take<std::int32_t>(static_cast<std::size_t>(capacity))),
        weight_offset_(memory.take<std::int32_t>(static_cast<std::size_t>(capacity))) {}

  void begin(int queries, int, const Codec&) { query_block::begin(queries); }

  [[gnu::noinline]] void pack_query(const float* q, int query, float scale) {
    simd::f32x16 top = simd::splat(0.f), poison = simd::splat(0.f);
    for (int c = 0; c < head_dim_; c += 16) {
      const simd::f32x16 x = simd::load_first(q + c, head_dim_ - c);
      top = simd::max(simd::abs(x), top), poison = simd::fma(x, simd::splat(0.f), poison);
    }
    const grid g(largest_of(top), simd::bits_of(simd::is_nan(poison)) == 0, largest_query());
    simd::i32x16 sum = simd::splat(0);
    std::uint32_t* to = query_ + static_cast<std::int64_t>(query) * query_pitch_;
    for (int c = 0; c < cells_ * planes * 4; c += 16, to += 4 * query_products::words) {
      const simd::i32x16 x = c < head_dim_ ? g.round(simd::load_first(q + c, head_dim_ - c)) : simd::splat(0);
      sum = sum + x;
      query_products::pack(x, to);
    }
    query_unit_[query] = g.unit * scale;
    query_offset_[query] = -Codec::zero_code * sum_of(sum);
  }

  void score(const tile& now, const tile* next, int first, int count, int runs) {
    line_walk ahead = next ? line_walk(next->key, tile_runs, cells_ * 64) : line_walk(now.key);
    if (next)
      for (int r = 0; r < tile_runs; ++r) fetch<64>(reinterpret_cast<const std::byte*>(key_scales(*next, r)));
    for_blocks(first, count, [&]<int N>(int q, fetch_turn turn) { score_queries<N>(now, ahead, turn, q, runs); });
  }

  [[gnu::noinline]] void soften(const tile& now, int first, int count) {
    exponentiate(first, count);
    constexpr float limit = static_cast<float>(largest_integer<Codec::weight_digits>);
    for (int q = first; q < first + count; ++q) {
      simd::f32x16 w[tile_runs], top = simd::splat(0.f), total = simd::splat(0.f);
      for (int r = 0; r < tile_runs; ++r) {
        w[r] = simd::product(simd::load(logits(q) + 16 * r), simd::load(value_scales(now, r)));
        const auto live = static_cast<std::uint32_t>(live_[q] >> (16 * r)) & 0xffffu;
        if (live != 0xffffu) w[r] = simd::select(simd::mask_of(live), w[r], simd::splat(0.f));   // the scale of a hidden value may be NaN
        top = simd::max(w[r], top), total = total + w[r];
      }
      const grid g(largest_of(top), simd::bits_of(simd::less(total, simd::splat(simd::infinity))) == 0xffffu, limit);
      simd::i32x16 sum = simd::splat(0);
      for (int r = 0; r < tile_runs; ++r) {
        const simd::i32x16 x = g.round(w[r]);
        sum = sum + x;
        weight_products::pack(x, weight_ + q * weight_pitch + 4 * r * weight_products::words);
      }
      weight_unit_[q] = g.unit;
      weight_offset_[q] = -Codec::zero_code * sum_of(sum);
    }
  }

  void weigh(const tile& now, const tile* next, int first, int count) {
    line_walk ahead = next ? line_walk(next->value, tile_runs, cell_rows * width_ * 4) : line_walk(now.value);
    if (next)
      for (int r = 0; r < tile_runs; ++r) fetch<64>(reinterpret_cast<const std::byte*>(value_scales(*next, r)));
    for_blocks(first, count, [&]<int N>(int q, fetch_turn turn) {
      std::uint64_t any = 0;
      bool all = true;
      for (int n = 0; n < N; ++n) any |= live_[q + n], all = all && live_[q + n] != 0;
      const int runs = (64 - std::countl_zero(any) + 15) / 16;
      if (all) return weigh_queries<N>(now, ahead, turn, q, runs);
      for (int n = 0; n < N; ++n)
        if (live_[q + n] != 0) weigh_queries<1>(now, ahead, turn, q + n, runs);
    });
  }

  void restore(const float* accumulated, float* out) const { std::memcpy(out, accumulated, static_cast<std::size_t>(width_) * sizeof(float)); }

 private:
  static constexpr std::int64_t weight_pitch = tile_tokens / 4 * weight_products::words;

  /// Numbers of magnitude up to `top` as integers up to `limit`: x is about unit * round(x).
  struct grid {
    float unit, inverse;
    grid(float top, bool finite, float limit)
        : unit(!finite ? std::numeric_limits<float>::quiet_NaN() : top < 0x1p-100f ? 0.f : top / limit), inverse(!finite || top < 0x1p-100f ? 0.f : limit / top) {}
    [[gnu::always_inline]] simd::i32x16 round(simd::f32x16 x) const { return inverse == 0.f ? simd::splat(0) : simd::to_int(x * simd::splat(inverse)); }
  };

  /// Sums of products with keys stay below 2^31 in magnitude for rows of any length.
  float largest_query() const {
    const std::int64_t most = std::numeric_limits<std::int32_t>::max() / (static_cast<std::int64_t>(Codec::zero_code) * head_dim_);
    return static_cast<float>(most < largest_integer<Codec::query_digits> ? most : largest_integer<Codec::query_digits>);
  }
  const float* key_scales(const tile& t, int run) const { return reinterpret_cast<const float*>(t.key[run] + static_cast<std::int64_t>(cells_) * 64); }
  const float* value_scales(const tile& t, int run) const { return reinterpret_cast<const float*>(t.value[run] + static_cast<std::int64_t>(cell_rows) * width_ * 4); }

  template <class F>
  static void for_blocks(int first, int count, F f) {
    fetch_turn turn(0, (count + 3) / 4);
    for (; count >= 4; first += 4, count -= 4, ++turn.block) f.template operator()<4>(first, turn);
    if (count == 3) f.template operator()<3>(first, turn);
    if (count == 2) f.template operator()<2>(first, turn);
    if (count == 1) f.template operator()<1>(first, turn);
  }

  template <int N>
  [[gnu::noinline]] void score_queries(const tile& now, line_walk& next, fetch_turn turn, int q, int runs) {
    line_walk ahead = next, here(now.key);
    const std::uint32_t* integers = query_ + static_cast<std::int64_t>(q) * query_pitch_;
    const std::int64_t pitch = query_pitch_;
    for (int r = 0; r < runs; ++r) {
      typename query_products::sums sum[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[n] = query_products::start(query_offset_[q + n]);
      const std::byte *key = now.key[r], *later = (turn(r) ? ahead : here).take(cells_ * 64);
      const std::uint32_t* x = integers;
      for (int i = 0; i < cells_; ++i, x += planes * query_products::words) {
        const simd::i32x16 cell = simd::load_words(key + i * 64);
        fetch<64>(later + i * 64);
        add_planes<query_products, N>(sum, cell, x, pitch);
      }
      const simd::f32x16 scale = simd::load(key_scales(now, r));
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) simd::store(logits(q + n) + 16 * r, simd::to_float(query_products::total(sum[n])) * (scale * simd::splat(query_unit_[q + n])));
    }
    next = ahead;
  }

  template <int N>
  [[gnu::noinline]] void weigh_queries(const tile& now, line_walk& next, fetch_turn turn, int q, int runs) {
    line_walk ahead = next, here(now.value);
    for (int c = 0; c < width_; c += 16) {
      typename weight_products::sums sum[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[n] = weight_products::start(weight_offset_[q + n]);
      const std::uint32_t* x = weight_ + q * weight_pitch;
      for (int r = 0; r < runs; ++r) {
        const std::byte *value = now.value[r] + c * 4, *later = (turn(c / 16) ? ahead : here).take(cell_rows * 64);
        for (int i = 0; i < cell_rows; ++i, x += planes * weight_products::words) {
          const simd::i32x16 cell = simd::load_words(value + static_cast<std::int64_t>(i) * width_ * 4);
          fetch<64>(later + i * 64);
          add_planes<weight_products, N>(sum, cell, x, weight_pitch);
        }
      }
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        float* o = output_ + static_cast<std::int64_t>(q + n) * width_ + c;
        simd::store(o, simd::fma(simd::to_float(weight_products::total(sum[n])), simd::splat(weight_unit_[q + n]), simd::load(o) * simd::splat(factor_[q + n])));
      }
    }
    next = ahead;
  }

  /// Adds one cell of all lanes, times the integers of N queries `pitch` words apart.
  template <class Products, int N>
  [[gnu::always_inline]] static void add_planes(typename Products::sums* sum, simd::i32x16 cell, const std::uint32_t* x, std::int64_t pitch) {
    const auto low = Products::template open<Codec::code_bits, 0>(cell);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) Products::add(sum[n], low, x + n * pitch);
    if constexpr (planes == 2) {
      const auto high = Products::template open<Codec::code_bits, 1>(cell);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) Products::add(sum[n], high, x + n * pitch + Products::words);
    }
  }

  int head_dim_, cells_;
  std::int64_t query_pitch_;
  std::uint32_t *query_, *weight_;                  // [query][channel / 4][words], [query][token / 4][words]
  float *query_unit_, *weight_unit_;                // a * softmax scale, b
  std::int32_t *query_offset_, *weight_offset_;     // where sums start
};

}  // namespace heddle::detail::inline HEDDLE_ISA
