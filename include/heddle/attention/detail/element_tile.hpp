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

/// Sixteen cells as floats, in the order that is cheapest to widen; `ordered` puts lanes into their places, `shuffled` takes them out.
template <class E>
struct element_lanes {
  [[gnu::always_inline]] static simd::f32x16 load(const E* p) { return codec::detail::load(p); }
  [[gnu::always_inline]] static simd::f32x16 ordered(simd::f32x16 v) { return v; }
  [[gnu::always_inline]] static simd::f32x16 shuffled(simd::f32x16 v) { return v; }
};
#if defined(__AVX2__) && !defined(__AVX512F__)
// Odd cells of bfloat16 are the upper halves of words, even ones the lower: no unpacking. Lanes: 0 2 .. 14, 1 3 .. 15.
template <>
struct element_lanes<bfloat16> {
  [[gnu::always_inline]] static simd::f32x16 load(const bfloat16* p) {
    const __m256i cells = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(cells, 16)), _mm256_castsi256_ps(_mm256_and_si256(cells, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  [[gnu::always_inline]] static simd::f32x16 ordered(simd::f32x16 v) {
    const __m256 a = _mm256_unpacklo_ps(v.low, v.high), b = _mm256_unpackhi_ps(v.low, v.high);   // 0 1 2 3, 8 .. 11; 4 .. 7, 12 .. 15
    return {_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)};
  }
  [[gnu::always_inline]] static simd::f32x16 shuffled(simd::f32x16 v) {
    const __m256 a = _mm256_permute2f128_ps(v.low, v.high, 0x20), b = _mm256_permute2f128_ps(v.low, v.high, 0x31);   // 0 .. 3, 8 .. 11; 4 .. 7, 12 .. 15
    return {_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)};
  }
};
#endif

inline constexpr int most_queries = 6;   // of one register tile
/// Runs of keys, or panels of values, that stay in the first level cache while all queries pass over them.
inline constexpr int kept_vectors = simd::wide_registers ? 4 : 2;

/// Keeps a loaded vector that several queries use in its register; compilers would rather load it again as an operand of every product.
template <class E, int queries>
[[gnu::always_inline]] inline simd::f32x16 held(simd::f32x16 v) {
  if constexpr (queries > 1 && (queries != 3 || std::same_as<E, float>)) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(v.all));
#elif defined(__AVX2__)
    __asm__("" : "+x"(v.low), "+x"(v.high));
#endif
  }
  return v;
}
/// Three queries by two vectors leave no register to hold a broadcast: it is loaded again for each vector.
template <int queries>
inline constexpr bool reload_broadcast = !simd::wide_registers && queries == 3;
template <int queries>
[[gnu::always_inline]] inline simd::f32x16 broadcast(const float* p) {
  if constexpr (reload_broadcast<queries>) __asm__("" : "+r"(p));
  return simd::splat(*p);
}

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
    if constexpr (reload_broadcast<N>) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const simd::f32x16 x = held<E, N>(element_lanes<E>::load(k[r] + c * 16));
#pragma GCC unroll 6
        for (int g = 0; g < N; ++g) acc[g][r] = simd::fma(x, broadcast<N>(q + g * pitch + c), acc[g][r]);
      }
      return;
    }
    simd::f32x16 x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) x[r] = held<E, N>(element_lanes<E>::load(k[r] + c * 16));
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
    for (int v = 0; v < V; ++v) x[v] = held<E, N>(element_lanes<E>::load(reinterpret_cast<const E*>(row + v * values.panel)));
  };
  const auto add = [&](int g, int j, const simd::f32x16* x) __attribute__((always_inline)) {
    const simd::f32x16 w = simd::splat(weights[g * tile_tokens + j]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[g][v] = simd::fma(x[v], w, acc[g][v]);
  };
  const auto token = [&](const std::byte* row, int j) __attribute__((always_inline)) {
    if constexpr (reload_broadcast<N>) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const simd::f32x16 x = held<E, N>(element_lanes<E>::load(reinterpret_cast<const E*>(row + v * values.panel)));
#pragma GCC unroll 6
        for (int g = 0; g < N; ++g) acc[g][v] = simd::fma(x, broadcast<N>(weights + g * tile_tokens + j), acc[g][v]);
      }
      return;
    }
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

/// output[g] = output[g] * factor[g] + sum of weight * value over the live keys, for channels first .. end - 1 of N queries `width` floats apart.
template <class E, int N>
[[gnu::noinline]] void weigh_queries(const float* weights, const float* factor, const std::uint64_t* live, const value_rows& values, float* output, std::int64_t width, std::int64_t first, std::int64_t end,
                                     line_walk& ahead, int lines) {
  constexpr int V = tile_vectors<N>;
  std::int64_t c = first;
  for (; c + 16 * V <= end; c += 16 * V) weigh_panels<E, N, V>(weights, factor, live, values, c / 16 * values.panel, output + c, width, ahead, V * lines);
  if constexpr (V > 1)
    for (; c < end; c += 16) weigh_panels<E, N, 1>(weights, factor, live, values, c / 16 * values.panel, output + c, width, ahead, lines);
}

/// Calls f.operator()<n>(q) for blocks of at most six queries, as even as possible. Eight queries and more make blocks of four and more.
template <bool many, class F>
void for_query_blocks(int first, int count, F f) {
  for (int blocks = (count + most_queries - 1) / most_queries; blocks > 0; --blocks) {
    const int n = (count + blocks - 1) / blocks;
    if (n == 6) f.template operator()<6>(first);
    else if (n == 5) f.template operator()<5>(first);
    else if (n == 4) f.template operator()<4>(first);
    if constexpr (!many) {
      if (n == 3) f.template operator()<3>(first);
      else if (n == 2) f.template operator()<2>(first);
      else if (n == 1) f.template operator()<1>(first);
    }
    first += n, count -= n;
  }
}

}  // namespace heddle::detail::inline HEDDLE_ISA
