// The two products of attention over one tile of plain numbers, for one to six queries in registers.
//
//   score_queries       logit = fma chain over channels; lanes are keys
//   weigh_queries       O = fma(p_j, v_j, ...) for j ascending; lanes are channels
//
// How many queries, keys and channels share registers decides speed only: a query's chain is the same in every shape.
#pragma once
#include <heddle/attention/detail/query_block.hpp>
#include <heddle/cache/codec/detail/cells.hpp>

#include <bit>
#include <concepts>

namespace heddle::detail::inline HEDDLE_ISA {

/// Walks through the lines of the next tile's keys or values, a few at a time. Into the second level: a tile is as large as the first.
class line_walk {
 public:
  line_walk() = default;
  line_walk(const std::byte* const* runs, std::size_t run_bytes) : at_(runs[0]), runs_(runs), run_bytes_(run_bytes), left_(run_bytes) {}
  [[gnu::always_inline]] void touch(int lines) {
    for (; lines > 0 && left_ != 0; --lines) {
      __builtin_prefetch(at_, 0, 2);
      at_ += 64, left_ -= 64;
      if (left_ == 0 && ++run_ < tile_runs) at_ = runs_[run_], left_ = run_bytes_;
    }
  }
  [[gnu::always_inline]] bool done() const { return left_ == 0; }

 private:
  const std::byte* at_ = nullptr;
  const std::byte* const* runs_ = nullptr;
  std::size_t run_bytes_ = 0, left_ = 0;
  int run_ = 0;
};

/// Sixteen cells as floats, in the order that is cheapest to widen; `ordered` puts lanes into their places.
template <class E>
struct element_lanes {
  [[gnu::always_inline]] static simd::f32x16 load(const E* p) { return codec::detail::load(p); }
  [[gnu::always_inline]] static simd::f32x16 ordered(simd::f32x16 v) { return v; }
  [[gnu::always_inline]] static simd::f32x16 shuffled(simd::f32x16 v) { return v; }
};

inline constexpr int most_queries = 6;   // of one register tile
/// Vectors of sixteen lanes per query, so that the accumulators fit and enough chains run side by side.
template <int queries>
inline constexpr int tile_vectors = simd::wide_registers ? 4 : queries == 1 ? 4 : queries <= 3 ? 2 : 1;

template <class E, int N, int R>
[[gnu::always_inline]] inline void score_runs(const float* q, std::int64_t pitch, const std::byte* const* key, int head_dim, float* logits, line_walk& ahead, int lines) {
  const E* k[R];
  simd::f32x16 acc[N][R];
  for (int r = 0; r < R; ++r) k[r] = reinterpret_cast<const E*>(key[r]);
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[g][r] = simd::splat(0.f);
  const auto channel = [&](int c) __attribute__((always_inline)) {
    simd::f32x16 x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) x[r] = element_lanes<E>::load(k[r] + c * 16);
#pragma GCC unroll 6
    for (int g = 0; g < N; ++g) {
      const simd::f32x16 z = simd::splat(q[g * pitch + c]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[g][r] = simd::fma(x[r], z, acc[g][r]);
    }
  };
  int c = 0;
  for (; c + 4 <= head_dim; c += 4) {
    ahead.touch(lines);
    channel(c), channel(c + 1), channel(c + 2), channel(c + 3);
  }
  for (; c < head_dim; ++c) channel(c);
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) simd::store(logits + g * tile_tokens + 16 * r, element_lanes<E>::ordered(acc[g][r]));
}

/// logits[g][64] of N queries, `pitch` floats apart, against `runs` runs of keys.
template <class E, int N>
[[gnu::noinline]] void score_queries(const float* q, std::int64_t pitch, const std::byte* const* key, int runs, int head_dim, float* logits, line_walk& ahead, int lines) {
  constexpr int R = tile_vectors<N>;
  for (int r = 0; r < runs; r += R) score_runs<E, N, R>(q, pitch, key + r, head_dim, logits + 16 * r, ahead, lines);
}

/// Where the values of a tile lie: row j at row[j / 16] + (j % 16) * stride, sixteen channels every `panel` bytes.
struct value_rows {
  const std::byte* const* row;
  std::int64_t stride, panel;
};

template <class E, int N, int V>
[[gnu::always_inline]] inline void weigh_panels(const float* weights, const float* factor, const std::uint64_t* live, const value_rows& values, std::int64_t offset, float* output, std::int64_t width, line_walk& ahead, int lines) {
  simd::f32x16 acc[N][V];
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[g][v] = element_lanes<E>::shuffled(simd::load(output + g * width + 16 * v) * simd::splat(factor[g]));
  const auto load = [&](const std::byte* row, simd::f32x16* x) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) x[v] = element_lanes<E>::load(reinterpret_cast<const E*>(row + v * values.panel));
  };
  const auto add = [&](int g, int j, const simd::f32x16* x) __attribute__((always_inline)) {
    const simd::f32x16 w = simd::splat(weights[g * tile_tokens + j]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[g][v] = simd::fma(x[v], w, acc[g][v]);
  };
  const auto token = [&](const std::byte* row, int j) __attribute__((always_inline)) {
    simd::f32x16 x[V];
    load(row, x);
#pragma GCC unroll 6
    for (int g = 0; g < N; ++g) add(g, j, x);
  };
  std::uint64_t all = ~std::uint64_t{0}, any = 0;
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g) all &= live[g], any |= live[g];
  if (all == ~std::uint64_t{0}) {
    for (int r = 0; r < tile_runs; ++r) {
      const std::byte* row = values.row[r] + offset;
      for (int j = 16 * r; j < 16 * r + 16; j += 4, row += 4 * values.stride) {
        ahead.touch(lines);
        token(row, j), token(row + values.stride, j + 1), token(row + 2 * values.stride, j + 2), token(row + 3 * values.stride, j + 3);
      }
    }
  } else {
    for (std::uint64_t left = any; left; left &= left - 1) {
      const int j = std::countr_zero(left);
      const std::byte* row = values.row[j / 16] + offset + (j % 16) * values.stride;
      ahead.touch(1);
      if (all >> j & 1) {
        token(row, j);
        continue;
      }
      simd::f32x16 x[V];
      load(row, x);
#pragma GCC unroll 6
      for (int g = 0; g < N; ++g)
        if (live[g] >> j & 1) add(g, j, x);
    }
  }
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) simd::store(output + g * width + 16 * v, element_lanes<E>::ordered(acc[g][v]));
}

/// output[g] = output[g] * factor[g] + sum of weight * value over the live keys, for N queries `width` floats apart.
template <class E, int N>
[[gnu::noinline]] void weigh_queries(const float* weights, const float* factor, const std::uint64_t* live, const value_rows& values, float* output, std::int64_t width, line_walk& ahead, int lines) {
  constexpr int V = tile_vectors<N>;
  std::int64_t c = 0;
  for (; c + 16 * V <= width; c += 16 * V) weigh_panels<E, N, V>(weights, factor, live, values, c / 16 * values.panel, output + c, width, ahead, V * lines);
  if constexpr (V > 1)
    for (; c < width; c += 16) weigh_panels<E, N, 1>(weights, factor, live, values, c / 16 * values.panel, output + c, width, ahead, lines);
}

/// Calls f.operator()<n>(q) for blocks of at most six queries, as even as possible.
template <class F>
void for_query_blocks(int first, int count, F f) {
  for (int blocks = (count + most_queries - 1) / most_queries; blocks > 0; --blocks) {
    const int n = (count + blocks - 1) / blocks;
    switch (n) {
      case 1: f.template operator()<1>(first); break;
      case 2: f.template operator()<2>(first); break;
      case 3: f.template operator()<3>(first); break;
      case 4: f.template operator()<4>(first); break;
      case 5: f.template operator()<5>(first); break;
      default: f.template operator()<6>(first);
    }
    first += n, count -= n;
  }
}

}  // namespace heddle::detail::inline HEDDLE_ISA
