// Paged decoding on a GPU: attention of a few query rows a sequence (decode and verification) over 16-bit caches, by tensor cores.
//
//   out = softmax(scale q k^T, causal, bottom-right aligned) v,   lse in natural log
//
// A block serves one KV head of one sequence: all its query heads and rows, in tiles of 16 queries, so K and V are read once. Four warps: while
// scoring, a warp owns 16 tokens of the tile; while accumulating, a slice of the channels; row maxima and weights cross through shared memory.
// A weight enters the second product as its value and its rounding error (two products), so the result has float accuracy.
//
// Order of one query's operations, by absolute position alone: tiles of 64 tokens, chunks of 512 from a fresh state, chunk states merged in the
// tree of their numbers. Hence bits do not depend on splits, rows of the call, page size or page order, and verify equals decode. Bits differ
// from the host's (base 2, tensor cores). A key that a row does not see never reaches it: tokens past the end are zero-filled; where a masked
// tile holds a value that is not finite it is redone row by row with hidden values cleared.
//
// Memory: K and V once; states of (head_dim + 2) floats per query and chunk are written and read again (0.8% of K and V at 4 queries).
// By arithmetic, registers and shared memory allow two blocks or more per multiprocessor; on sm_80 with 64 queries one.
#pragma once
#include <heddle/cuda/primitives.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::detail::inline HEDDLE_ISA {

namespace paged_decode {

inline constexpr int tile_tokens = 64, chunk_tokens = 512, chunk_tiles = chunk_tokens / tile_tokens, warps = 4, threads = 32 * warps;

struct strides {
  std::int64_t page, head, slot;
};
template <class T>
struct arguments {
  const T* q;                        // row r of the call, head h, at r * q_row + h * q_head
  const T *keys, *values;
  const std::int32_t *page_indices, *page_indptr, *lengths;
  const std::int32_t* q_indptr;      // null: `rows` rows for every sequence
  float *state_out, *state_max, *state_sum;   // [sequence][kv head][chunk][rows * group]([head_dim]); maxima in base 2
  std::int64_t q_row, q_head;
  strides key, value;
  int rows, group, num_kv_heads, page_size, chunks;   // rows, chunks: the most of any sequence
  float scale;
};

struct sequence {   // what one sequence asks for
  int first_row, rows, length;
};
/// Never longer than the states have room for.
template <class T>
HEDDLE_DEVICE sequence sequence_of(const arguments<T>& a, int index) {
  const int wanted = a.lengths[index], most = a.chunks * chunk_tokens, length = wanted < 0 ? 0 : wanted < most ? wanted : most;
  if (!a.q_indptr) return {index * a.rows, a.rows, length};
  return {a.q_indptr[index], a.q_indptr[index + 1] - a.q_indptr[index], length};
}

/// Visibility of the 64 tokens of a tile for a row of the call.
HEDDLE_DEVICE std::uint64_t visible_word(const sequence& s, int row, int tile) {
  const int n = s.length - s.rows + 1 + row - tile * tile_tokens;
  return n >= 64 ? ~0ull : n <= 0 ? 0ull : (1ull << n) - 1;
}

/// Byte offset of 16-byte chunk c of row r: eight rows of one chunk, and eight chunks of one row, lie in different banks.
template <int row_bytes>
HEDDLE_DEVICE int swizzled(int r, int c) {
  static_assert(row_bytes >= 128 && (row_bytes & (row_bytes - 1)) == 0);
  return r * row_bytes + ((c ^ (r & 7)) << 4);
}

template <int head_dim, int query_tiles>
struct layout {   // of shared memory, in bytes
  static constexpr int row = head_dim * 2, queries = query_tiles * 16, tile = tile_tokens * row, stage = 2 * tile, weights = queries * tile_tokens * 2;
  static constexpr bool weights_over_keys = 2 * weights <= tile;
  static constexpr int q = 0, offsets = queries * row, maxima = offsets + 2 * tile_tokens * 16, sums = maxima + queries * warps * 4, stages = sums + queries * warps * 4,
                       own_weights = stages + 2 * stage, bytes = own_weights + (weights_over_keys ? 0 : 2 * weights);
};

template <class T>
HEDDLE_DEVICE bool any_not_finite(const std::uint32_t (&r)[4]) {
  constexpr std::uint32_t exponent = std::is_same_v<T, bfloat16> ? 0x7F80u : 0x7C00u;
  bool found = false;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) found = found || (r[i] & exponent) == exponent || (r[i] & exponent << 16) == exponent << 16;
  return found;
}

template <class T, int head_dim, int query_tiles>
__global__ void __launch_bounds__(threads, query_tiles == 1 ? 3 : 2) kernel(arguments<T> a) {
  using namespace cuda;
  using memory = layout<head_dim, query_tiles>;
  constexpr int pairs = head_dim / 16, my_pairs = pairs / warps, tiles_out = 2 * my_pairs, row_chunks = head_dim / 8;
  static_assert(my_pairs >= 1);
  unsigned char* shared = shared_memory();
  const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3, matrix = lane >> 3, matrix_row = lane & 7;
  const int blocks_of_queries = (a.rows * a.group + memory::queries - 1) / memory::queries;
  const int kv_head = static_cast<int>(blockIdx.y) / blocks_of_queries, first_query = static_cast<int>(blockIdx.y) % blocks_of_queries * memory::queries, index = static_cast<int>(blockIdx.z);
  const sequence s = sequence_of(a, index);
  const int queries = (s.rows < a.rows ? s.rows : a.rows) * a.group, total_chunks = (s.length + chunk_tokens - 1) / chunk_tokens, splits = static_cast<int>(gridDim.x);
  const int per_split = (total_chunks + splits - 1) / splits, total_tiles = (s.length + tile_tokens - 1) / tile_tokens;
  const int first_tile = static_cast<int>(blockIdx.x) * per_split * chunk_tiles, wanted = first_tile + per_split * chunk_tiles, last_tile = wanted < total_tiles ? wanted : total_tiles;
  if (first_tile >= last_tile || first_query >= queries) return;

  for (int i = tid; i < memory::queries * row_chunks; i += threads) {   // queries, zeros past the last one
    const int r = i / row_chunks, c = i % row_chunks, query = first_query + r;
    uint4 x = {0, 0, 0, 0};
    if (query < queries) x = load16(a.q + (s.first_row + query / a.group) * a.q_row + (kv_head * a.group + query % a.group) * a.q_head + c * 8);
    store16(shared + memory::q + swizzled<memory::row>(r, c), x);
  }

  // Thread i < 64 looks up the page of token i two tiles ahead and publishes where its rows lie one tile ahead.
  const std::int32_t* pages = a.page_indices + a.page_indptr[index];
  auto* offsets = reinterpret_cast<std::int64_t*>(shared + memory::offsets);   // [stage][token]{key, value}
  const auto page_of = [&](int tile) {
    const int token = tile * tile_tokens + tid;
    return tid < tile_tokens && tile < last_tile && token < s.length ? static_cast<int>(pages[token / a.page_size]) : -1;
  };
  const auto publish = [&](int tile, int page) {
    if (tid >= tile_tokens) return;
    const int slot = (tile * tile_tokens + tid) % a.page_size;
    std::int64_t* to = offsets + ((tile & 1) * tile_tokens + tid) * 2;
    to[0] = page < 0 ? -1 : page * a.key.page + kv_head * a.key.head + slot * a.key.slot;
    to[1] = page < 0 ? -1 : page * a.value.page + kv_head * a.value.head + slot * a.value.slot;
  };
  const auto load = [&](int tile) {
    const int keys = memory::stages + (tile & 1) * memory::stage, values = keys + memory::tile;
    constexpr int step = threads / row_chunks;   // a multiple of eight: the swizzle of a thread is one number
    static_assert(step % 8 == 0 && tile_tokens % step == 0);
    const int row = tid / row_chunks, c = tid % row_chunks, to = swizzled<memory::row>(row, c);
    HEDDLE_UNROLL
    for (int i = 0; i < tile_tokens / step; ++i) {
      const std::int64_t* from = offsets + ((tile & 1) * tile_tokens + row + i * step) * 2;
      const std::int64_t k = from[0], v = from[1];
      copy_async_16(keys + to + i * step * memory::row, a.keys + (k < 0 ? 0 : k) + c * 8, k >= 0);
      copy_async_16(values + to + i * step * memory::row, a.values + (v < 0 ? 0 : v) + c * 8, v >= 0);
    }
  };

  // Where a lane reads its fragments: its own offset, an exclusive or for the chunk pair, the rest is immediate.
  const int lane_q = swizzled<memory::row>((matrix & 1) * 8 + matrix_row, matrix >> 1), lane_k = swizzled<memory::row>((matrix >> 1) * 8 + matrix_row, matrix & 1);
  const int lane_v = lane_q, lane_w = swizzled<128>((matrix & 1) * 8 + matrix_row, matrix >> 1);
  auto* maxima = reinterpret_cast<float*>(shared + memory::maxima);   // [query][warp]
  auto* sums = reinterpret_cast<float*>(shared + memory::sums);       // [query][group of 16 tokens]
  const auto row_of = [&](int query) { return (query < queries ? query : queries - 1) / a.group; };
  const float scale = a.scale * 1.4426950408889634f;
  float out[query_tiles][tiles_out][4] = {}, top[query_tiles][2], sum[query_tiles][2] = {};
  HEDDLE_UNROLL
  for (int m = 0; m < query_tiles; ++m) top[m][0] = top[m][1] = minus_infinity;

  publish(first_tile, page_of(first_tile));
  int page = page_of(first_tile + 1);
  __syncthreads();
  load(first_tile);
  copy_async_commit();

  for (int tile = first_tile; tile < last_tile; ++tile) {
    if (tile + 1 < last_tile) publish(tile + 1, page);
    page = page_of(tile + 2);
    copy_async_wait<0>();
    __syncthreads();   // this tile is there, the addresses of the next one are, and the other stage is free
    if (tile + 1 < last_tile) load(tile + 1);
    copy_async_commit();
    const int keys = memory::stages + (tile & 1) * memory::stage, values = keys + memory::tile, weights = memory::weights_over_keys ? keys : memory::own_weights;

    float z[query_tiles][2][4] = {};   // logits of all queries for this warp's 16 tokens
    HEDDLE_UNROLL
    for (int p = 0; p < pairs; ++p) {
      std::uint32_t k[4];
      load_matrix_x4(k, keys + warp * 16 * memory::row + (lane_k ^ p * 32));
      HEDDLE_UNROLL
      for (int m = 0; m < query_tiles; ++m) {
        std::uint32_t q[4];
        load_matrix_x4(q, memory::q + m * 16 * memory::row + (lane_q ^ p * 32));
        const std::uint32_t low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
        multiply_m16n8k16<T>(z[m][0], q, low);
        multiply_m16n8k16<T>(z[m][1], q, high);
      }
    }
    const bool whole = (tile + 1) * tile_tokens <= s.length - s.rows + 1;   // every row sees all of it
    HEDDLE_UNROLL
    for (int m = 0; m < query_tiles; ++m)
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const std::uint64_t visible = whole ? ~0ull : visible_word(s, row_of(first_query + m * 16 + g + 8 * h), tile) >> (warp * 16 + 2 * t);
        float largest = minus_infinity;
        HEDDLE_UNROLL
        for (int n = 0; n < 2; ++n)
          HEDDLE_UNROLL
          for (int i = 0; i < 2; ++i) {
            float& x = z[m][n][2 * h + i];
            x = visible >> (n * 8 + i) & 1 ? x * scale : minus_infinity;
            largest = max(largest, x);
          }
        largest = max(largest, __shfl_xor_sync(all_lanes, largest, 1));
        largest = max(largest, __shfl_xor_sync(all_lanes, largest, 2));
        if (t == 0) maxima[(m * 16 + g + 8 * h) * warps + warp] = largest;
      }
    __syncthreads();   // maxima are there, and the keys are done with
    HEDDLE_UNROLL
    for (int m = 0; m < query_tiles; ++m)
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint4 x = load16(maxima + (m * 16 + g + 8 * h) * warps);
        const float largest = max(max(top[m][h], max(float_of(x.x), float_of(x.y))), max(float_of(x.z), float_of(x.w)));
        const float base = largest == minus_infinity ? 0.f : largest, shrink = exp2(top[m][h] - base);
        top[m][h] = largest;
        float added = 0.f;
        HEDDLE_UNROLL
        for (int n = 0; n < 2; ++n) {
          const float p0 = exp2(z[m][n][2 * h] - base), p1 = exp2(z[m][n][2 * h + 1] - base);
          added = added + p0 + p1;
          const int to = weights + (m * 16 + g + 8 * h) * 128 + (((warp * 2 + n) ^ g) << 4) + t * 4;
          const std::uint32_t rounded = pack<T>(p0, p1);
          float r0, r1;
          unpack<T>(rounded, r0, r1);
          *reinterpret_cast<std::uint32_t*>(shared + to) = rounded;
          *reinterpret_cast<std::uint32_t*>(shared + to + memory::weights) = pack<T>(p0 - r0, p1 - r1);
        }
        sum[m][h] = fma(sum[m][h], shrink, added);
        HEDDLE_UNROLL
        for (int n = 0; n < tiles_out; ++n) out[m][n][2 * h] *= shrink, out[m][n][2 * h + 1] *= shrink;
      }
    __syncthreads();   // weights are there

    HEDDLE_UNROLL
    for (int x = 0; x < 4; ++x) {   // 16 tokens
      std::uint32_t w[query_tiles][2][4];
      HEDDLE_UNROLL
      for (int m = 0; m < query_tiles; ++m)
        HEDDLE_UNROLL
        for (int term = 0; term < 2; ++term) load_matrix_x4(w[m][term], weights + term * memory::weights + m * 16 * 128 + (lane_w ^ x * 32));
      HEDDLE_UNROLL
      for (int p = 0; p < my_pairs; ++p) {
        std::uint32_t v[4];
        load_matrix_x4_transposed(v, values + x * 16 * memory::row + (lane_v ^ (warp * my_pairs + p) * 32));
        const auto accumulate = [&](float (&to)[4], int m, std::uint32_t v0, std::uint32_t v1) {
          const std::uint32_t b[2] = {v0, v1};
          multiply_m16n8k16<T>(to, w[m][0], b);
          multiply_m16n8k16<T>(to, w[m][1], b);
        };
        // a hidden key has weight 0, and 0 times a value is 0 unless the value is infinite or NaN
        const bool careful = !whole && __any_sync(all_lanes, any_not_finite<T>(v));
        if (!careful) {
          HEDDLE_UNROLL
          for (int n = 0; n < 2; ++n)
            HEDDLE_UNROLL
            for (int m = 0; m < query_tiles; ++m) accumulate(out[m][2 * p + n], m, v[2 * n], v[2 * n + 1]);
        } else {
          HEDDLE_UNROLL
          for (int m = 0; m < query_tiles; ++m)
            HEDDLE_NO_UNROLL
            for (int i = 0; i < 16; ++i) {
              const std::uint64_t visible = visible_word(s, row_of(first_query + m * 16 + i), tile) >> (x * 16 + 2 * t);
              const std::uint32_t low = (visible & 1 ? 0xFFFFu : 0u) | (visible & 2 ? 0xFFFF0000u : 0u), high = (visible >> 8 & 1 ? 0xFFFFu : 0u) | (visible >> 8 & 2 ? 0xFFFF0000u : 0u);
              HEDDLE_UNROLL
              for (int n = 0; n < 2; ++n) {
                float(&e)[4] = out[m][2 * p + n];
                float one[4] = {e[0], e[1], e[2], e[3]};
                accumulate(one, m, v[2 * n] & low, v[2 * n + 1] & high);
                if (g == i) e[0] = one[0], e[1] = one[1];
                if (g + 8 == i) e[2] = one[2], e[3] = one[3];
              }
            }
        }
      }
    }

    if (tile % chunk_tiles != chunk_tiles - 1 && tile + 1 != last_tile) continue;
    // the chunk is complete: write its state, open a fresh one
    const std::int64_t state = ((static_cast<std::int64_t>(index) * a.num_kv_heads + kv_head) * a.chunks + tile / chunk_tiles) * a.rows * a.group;
    HEDDLE_UNROLL
    for (int m = 0; m < query_tiles; ++m)
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int query = first_query + m * 16 + g + 8 * h;
        float l = sum[m][h];
        l += __shfl_xor_sync(all_lanes, l, 1);
        l += __shfl_xor_sync(all_lanes, l, 2);
        if (t == 0) sums[(m * 16 + g + 8 * h) * warps + warp] = l;
        if (query < queries) {
          float* to = a.state_out + (state + query) * head_dim + warp * (head_dim / warps) + 2 * t;
          HEDDLE_UNROLL
          for (int n = 0; n < tiles_out; ++n) store8(to + n * 8, {bits_of(out[m][n][2 * h]), bits_of(out[m][n][2 * h + 1])});
          if (t == 0 && warp == 0) a.state_max[state + query] = top[m][h];
        }
        top[m][h] = minus_infinity, sum[m][h] = 0.f;
        HEDDLE_UNROLL
        for (int n = 0; n < tiles_out; ++n) out[m][n][2 * h] = out[m][n][2 * h + 1] = 0.f;
      }
    __syncthreads();   // sums of the four warps are there
    for (int i = tid; i < memory::queries && first_query + i < queries; i += threads) a.state_sum[state + first_query + i] = sums[i * 4] + sums[i * 4 + 1] + sums[i * 4 + 2] + sums[i * 4 + 3];
  }
  copy_async_wait<0>();
}

/// One warp per query: merges its chunk states in the tree of their numbers, a binary counter held in registers.
template <class T, class Out, int head_dim>
__global__ void __launch_bounds__(threads) merge_chunks(arguments<T> a, Out* out, std::int64_t out_row, std::int64_t out_head, float* lse, std::int64_t lse_row, std::int64_t lse_head, int total) {
  using namespace cuda;
  constexpr int channels = head_dim / 32, levels = 16;   // 65,536 chunks, 33 million tokens
  struct state {
    float m, l, o[channels];
  };
  const auto join = [](const state& x, const state& y) {   // y covers later tokens; an empty state is the identity
    if (y.l == 0.f) return x;
    if (x.l == 0.f) return y;
    const float m = max(x.m, y.m), shrink_x = exp2(x.m - m), shrink_y = exp2(y.m - m);
    state r;
    r.m = m, r.l = fma(y.l, shrink_y, x.l * shrink_x);
    HEDDLE_UNROLL
    for (int c = 0; c < channels; ++c) r.o[c] = fma(y.o[c], shrink_y, x.o[c] * shrink_x);
    return r;
  };
  const int lane = static_cast<int>(threadIdx.x) & 31, item = static_cast<int>(blockIdx.x) * warps + (static_cast<int>(threadIdx.x) >> 5), most_queries = a.rows * a.group;
  if (item >= total) return;   // whole warps
  const int query = item % most_queries, kv_head = item / most_queries % a.num_kv_heads, index = item / most_queries / a.num_kv_heads;
  const sequence s = sequence_of(a, index);
  if (query >= s.rows * a.group) return;   // a.rows bounds it too
  const int n = (s.length + chunk_tokens - 1) / chunk_tokens;
  const std::int64_t base = (static_cast<std::int64_t>(index) * a.num_kv_heads + kv_head) * a.chunks * most_queries + query;
  const state none{minus_infinity, 0.f, {}};
  state level[levels];
  HEDDLE_UNROLL
  for (int i = 0; i < levels; ++i) level[i] = none;
  for (int chunk = 0; chunk < n; ++chunk) {
    const std::int64_t at = base + static_cast<std::int64_t>(chunk) * most_queries;
    state x;
    x.m = a.state_max[at], x.l = a.state_sum[at];
    const float* o = a.state_out + at * head_dim + lane * channels;
    if constexpr (channels == 4) {
      const uint4 v = load16(o);
      x.o[0] = float_of(v.x), x.o[1] = float_of(v.y), x.o[2] = float_of(v.z), x.o[3] = float_of(v.w);
    } else {
      const uint2 v = load8(o);
      x.o[0] = float_of(v.x), x.o[1] = float_of(v.y);
    }
    bool carried = true;
    HEDDLE_UNROLL
    for (int i = 0; i < levels; ++i)
      if (carried) {
        if (chunk >> i & 1) x = join(level[i], x);
        else level[i] = x, carried = false;
      }
  }
  state x = none;
  HEDDLE_UNROLL
  for (int i = 0; i < levels; ++i)
    if (n >> i & 1) x = join(level[i], x);
  if (a.lengths[index] > a.chunks * chunk_tokens) x.m = x.l = __builtin_nanf("");   // more than the states have room for: not a result
  const float inverse = x.l == 0.f ? 0.f : 1.f / x.l;
  const int row = s.first_row + query / a.group, head = kv_head * a.group + query % a.group;
  HEDDLE_UNROLL
  for (int c = 0; c < channels; ++c) out[row * out_row + head * out_head + lane * channels + c] = static_cast<Out>(x.l == 0.f ? 0.f : x.o[c] * inverse);
  if (lane == 0) lse[row * lse_row + head * lse_head] = x.l == 0.f ? minus_infinity : (x.m + log2(x.l)) * 0.6931471805599453f;
}

/// Bytes of the chunk states of a call.
inline std::size_t state_bytes(std::int64_t sequences, int num_kv_heads, int rows, int group, int head_dim, std::int64_t chunks) {
  return static_cast<std::size_t>(sequences * num_kv_heads * chunks * rows * group * (head_dim + 2)) * sizeof(float);
}

/// Places the states in `memory` (16-byte aligned, state_bytes) and launches both kernels. `splits` blocks share a sequence and KV head.
template <class T, class Out, int head_dim>
void launch(arguments<T> a, std::byte* memory, std::int64_t sequences, int splits, Out* out, std::int64_t out_row, std::int64_t out_head, float* lse, std::int64_t lse_row, std::int64_t lse_head, cuda::stream on) {
  const int queries = a.rows * a.group;
  const std::int64_t states = sequences * a.num_kv_heads * a.chunks * queries;
  if (states == 0 && queries * sequences == 0) return;
  a.state_out = reinterpret_cast<float*>(memory), a.state_max = a.state_out + states * head_dim, a.state_sum = a.state_max + states;
  const auto decode = [&]<int query_tiles>() {
    using memory_of = layout<head_dim, query_tiles>;
    const int blocks = a.num_kv_heads * ((queries + memory_of::queries - 1) / memory_of::queries);
    cuda::launch("attend", dim3(static_cast<unsigned>(splits), static_cast<unsigned>(blocks), static_cast<unsigned>(sequences)), dim3(threads), memory_of::bytes, on, kernel<T, head_dim, query_tiles>, a);
  };
  if (a.chunks > 0) queries <= 16 ? decode.template operator()<1>() : queries <= 32 ? decode.template operator()<2>() : decode.template operator()<4>();
  const auto total = static_cast<int>(sequences * a.num_kv_heads * queries);
  cuda::launch("attend", dim3(static_cast<unsigned>((total + warps - 1) / warps)), dim3(threads), 0, on, merge_chunks<T, Out, head_dim>, a, out, out_row, out_head, lse, lse_row, lse_head, total);
}

}  // namespace paged_decode
}  // namespace heddle::detail::inline HEDDLE_ISA
