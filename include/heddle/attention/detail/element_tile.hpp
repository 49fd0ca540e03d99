// The two products of attention over one tile of plain numbers, for one to six queries in registers.
//
//   score_queries       logit = fma chain over channels; lanes are keys
//   weigh_queries       O = fma(p_j, v_j, ...) for j ascending; lanes are channels
//
// How many queries, keys and channels share registers decides speed only: a query's chain is the same in every shape.
#pragma once
#include <heddle/attention/detail/query_block.hpp>
#include <heddle/attention/detail/tile_ahead.hpp>
#include <heddle/cache/codec/detail/cells.hpp>

#include <bit>
#include <concepts>

namespace heddle::detail::inline HEDDLE_ISA {

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

/// sum = fma(a, b, sum) of one of the registers that hold sixteen lanes, in place: compilers that may choose another register run out of them and spill.
#if defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr int register_parts = 2;
template <int part>
[[gnu::always_inline]] inline void accumulate(simd::f32x16& sum, simd::f32x16 a, simd::f32x16 b) {
  if constexpr (part == 0) __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(sum.low) : "x"(a.low), "x"(b.low));
  else __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(sum.high) : "x"(a.high), "x"(b.high));
}
#else
inline constexpr int register_parts = 1;
template <int part>
[[gnu::always_inline]] inline void accumulate(simd::f32x16& sum, simd::f32x16 a, simd::f32x16 b) { sum = simd::fma(a, b, sum); }
#endif
[[gnu::always_inline]] inline void accumulate(simd::f32x16& sum, simd::f32x16 a, simd::f32x16 b) {
  accumulate<0>(sum, a, b);
  if constexpr (register_parts == 2) accumulate<1>(sum, a, b);
}
/// Keeps a loaded vector in its register; compilers would rather load it again for every product.
[[gnu::always_inline]] inline simd::f32x16 held(simd::f32x16 v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v.all));
#elif defined(__AVX2__)
  __asm__("" : "+x"(v.low), "+x"(v.high));
#endif
  return v;
}
/// One number in all lanes: one register, where a vector of sixteen lanes takes two.
[[gnu::always_inline]] inline simd::f32x16 held_splat(const float* p) {
  simd::f32x16 v = simd::splat(*p);
#if defined(__AVX2__) && !defined(__AVX512F__)
  __asm__("" : "+x"(v.low));
  v.high = v.low;
#endif
  return v;
}

/// sum[g][r] += x[r] * y[g], where load(r) is x[r] and factor(g) points to y[g]. The fewer of them stay in registers.
template <int N, int R, class Load, class Factor>
[[gnu::always_inline]] inline void add_products(simd::f32x16 (&sum)[N][R], Load load, Factor factor) {
  if constexpr (N < 4) {
    simd::f32x16 y[N];
#pragma GCC unroll 4
    for (int g = 0; g < N; ++g) y[g] = held_splat(factor(g));
    const auto add = [&]<int part>() __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const simd::f32x16 x = load(r);
#pragma GCC unroll 4
        for (int g = 0; g < N; ++g) accumulate<part>(sum[g][r], x, y[g]);
      }
    };
    add.template operator()<0>();
    if constexpr (register_parts == 2) add.template operator()<1>();
  } else {
    simd::f32x16 x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) x[r] = held(load(r));
#pragma GCC unroll 6
    for (int g = 0; g < N; ++g) {
      const simd::f32x16 y = simd::splat(*factor(g));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) accumulate(sum[g][r], x[r], y);
    }
  }
}

/// Vectors of sixteen lanes per query, so that the accumulators fit and enough chains run side by side.
template <int queries>
inline constexpr int tile_vectors = simd::wide_registers ? 4 : queries == 1 ? 4 : queries <= 3 ? 2 : 1;

template <class E, int N, int R>
[[gnu::always_inline]] inline void score_runs(const float* q, std::int64_t pitch, const std::byte* const* key, line_walk& ahead, int head_dim, float* logits) {
  const E* k[R];
  simd::f32x16 sum[N][R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) k[r] = reinterpret_cast<const E*>(key[r]);
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[g][r] = simd::splat(0.f);
  const auto channel = [&](int c) __attribute__((always_inline)) {
    add_products(sum, [&](int r) __attribute__((always_inline)) { return element_lanes<E>::load(k[r] + c * 16); }, [&](int g) __attribute__((always_inline)) { return q + g * pitch + c; });
  };
  int c = 0;
#pragma GCC unroll 4
  for (int part = 1; part <= R; ++part) {   // of the channels; the next tile's runs one after the other
    const std::byte* later = ahead.take(head_dim * 16 * static_cast<int>(sizeof(E)));
    for (const int end = head_dim * part / R; c + 4 <= end; c += 4, later += R * 64 * sizeof(E)) {
      fetch<R * 64 * sizeof(E)>(later);
      channel(c), channel(c + 1), channel(c + 2), channel(c + 3);
    }
  }
  for (; c < head_dim; ++c) channel(c);
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) simd::store(logits + g * tile_tokens + 16 * r, element_lanes<E>::ordered(sum[g][r]));
}

/// logits[g][64] of N queries, `pitch` floats apart, against runs first .. end - 1 of keys; fetches those of `next` on its turns.
template <class E, int N>
[[gnu::noinline]] void score_queries(const float* q, std::int64_t pitch, const std::byte* const* key, line_walk& next, fetch_turn turn, int first, int end, int head_dim, float* logits) {
  constexpr int R = tile_vectors<N>;
  line_walk ahead = next, here(key);
  for (int r = first; r < end; r += R) score_runs<E, N, R>(q, pitch, key + r, turn(r / R) ? ahead : here, head_dim, logits + 16 * r);
  next = ahead;
}

template <class E, int N, int V>
[[gnu::always_inline]] inline void weigh_panels(const float* weights, const float* factor, const std::uint64_t* live, const std::byte* const* value, line_walk& ahead, std::int64_t first, float* output, std::int64_t width) {
  constexpr int row = 16 * sizeof(E), panel = 16 * row;
  simd::f32x16 sum[N][V];
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[g][v] = element_lanes<E>::shuffled(simd::load(output + g * width + 16 * v) * simd::splat(factor[g]));
  const auto load = [](const std::byte* p, int v) __attribute__((always_inline)) { return element_lanes<E>::load(reinterpret_cast<const E*>(p + v * panel)); };
  const auto token = [&](const std::byte* p, int j) __attribute__((always_inline)) {
    add_products(sum, [&](int v) __attribute__((always_inline)) { return load(p, v); }, [&](int g) __attribute__((always_inline)) { return weights + g * tile_tokens + j; });
  };
  const std::int64_t offset = first * row;
  std::uint64_t all = ~std::uint64_t{0}, any = 0;
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g) all &= live[g], any |= live[g];
  if (all == ~std::uint64_t{0}) {
    for (int r = 0; r < tile_runs; ++r) {
      const std::byte *p = value[r] + offset, *later = ahead.take(V * panel);
      for (int j = 16 * r; j < 16 * r + 16; j += 4, p += 4 * row, later += 4 * row * V) {
        fetch<4 * row * V>(later);
        token(p, j), token(p + row, j + 1), token(p + 2 * row, j + 2), token(p + 3 * row, j + 3);
      }
    }
  } else {
    for (std::uint64_t left = any; left; left &= left - 1) {
      const int j = std::countr_zero(left);
      const std::byte* p = value[j / 16] + offset + (j % 16) * row;
      fetch<row * V>(ahead.take(row * V));
      if (all >> j & 1) {
        token(p, j);
        continue;
      }
      simd::f32x16 x[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) x[v] = load(p, v);
#pragma GCC unroll 6
      for (int g = 0; g < N; ++g)
        if (live[g] >> j & 1)
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) accumulate(sum[g][v], x[v], simd::splat(weights[g * tile_tokens + j]));
    }
  }
#pragma GCC unroll 6
  for (int g = 0; g < N; ++g)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) simd::store(output + g * width + 16 * v, element_lanes<E>::ordered(sum[g][v]));
}

/// output[g] = output[g] * factor[g] + sum of weight * value over the live keys, for channels first .. end - 1 of N queries `width` floats apart;
/// fetches the values of `next` on its turns.
template <class E, int N>
[[gnu::noinline]] void weigh_queries(const float* weights, const float* factor, const std::uint64_t* live, const std::byte* const* value, line_walk& next, fetch_turn turn, float* output, std::int64_t width,
                                     std::int64_t first, std::int64_t end) {
  constexpr int V = tile_vectors<N>;
  line_walk ahead = next, here(value);
  std::int64_t c = first;
  for (; c + 16 * V <= end; c += 16 * V) weigh_panels<E, N, V>(weights, factor, live, value, turn(c / (16 * V)) ? ahead : here, c, output + c, width);
  if constexpr (V > 1)
    for (; c < end; c += 16) weigh_panels<E, N, 1>(weights, factor, live, value, turn(c / 16) ? ahead : here, c, output + c, width);
  next = ahead;
}

/// Calls f.operator()<n>(q, turn) for blocks of at most six queries, as even as possible. Eight queries and more make blocks of four and more.
template <bool many, class F>
void for_query_blocks(int first, int count, F f) {
  const int blocks = (count + most_queries - 1) / most_queries;
  for (int block = 0; block < blocks; ++block) {
    const int n = (count + blocks - block - 1) / (blocks - block);
    const fetch_turn turn(block, blocks);
    if (n == 6) f.template operator()<6>(first, turn);
    else if (n == 5) f.template operator()<5>(first, turn);
    else if (n == 4) f.template operator()<4>(first, turn);
    if constexpr (!many) {
      if (n == 3) f.template operator()<3>(first, turn);
      else if (n == 2) f.template operator()<2>(first, turn);
      else if (n == 1) f.template operator()<1>(first, turn);
    }
    first += n, count -= n;
  }
}

}  // namespace heddle::detail::inline HEDDLE_ISA
