#pragma once
// A pool filled with known rows, and the law that every codec must keep: bits of a row depend on the row and the keys it sees, on nothing else.
#include "attention/fixture.hpp"

#include <heddle/cache/page_pool.hpp>

namespace attention_test {

inline constexpr int length = 1700, rows = 26, num_qo_heads = 8, num_kv_heads = 2, dim = 24, dim_v = 40;
inline const values<float> q(rows, num_qo_heads, dim, 1), k(length, num_kv_heads, dim, 2), v(length, num_kv_heads, dim_v, 3);

template <class Codec, class Layout>
struct filled_pool {
  page_pool<Codec, Layout> pool;
  sequence_id id;
  /// Pages of the sequence lie in a scattered order, between those of another.
  filled_pool(int page_size, unsigned seed, int tokens = length)
      : pool({.num_layers = 1, .num_pages = 2 * (length / page_size + 2), .page_size = page_size, .num_kv_heads = num_kv_heads, .head_dim = dim, .head_dim_v = dim_v}), id(pool.new_sequence()) {
    const sequence_id other = pool.new_sequence();
    std::minstd_rand rng(seed);
    for (int done = 0; done < tokens;) {
      const int n = std::min<int>(tokens - done, 1 + static_cast<int>(rng() / 64 % 90));
      write(id, done, n), write(other, done, n / 2);
      done += n;
    }
  }
  void write(sequence_id to, int first, int n) {
    pool.reserve(to, n);
    pool.write(to, 0, k.rows(first, n).view(), v.rows(first, n).view());
    pool.commit(to, n);
  }
  auto keys() const { return pool[id].layer(0); }
};

/// Pages, layouts, threads, splits and rows of the call.
template <class Codec>
void expect_invariant() {
  const filled_pool<Codec, lane_layout> base(16, 1);
  const result expected = run(q, base.keys() | causal(), dim_v);
  for (const int page_size : {32, 48, 64, 512}) {
    const filled_pool<Codec, lane_layout> other(page_size, static_cast<unsigned>(page_size));
    EXPECT_TRUE(same_bits(expected, run(q, other.keys() | causal(), dim_v))) << "pages of " << page_size;
  }
  for (const int page_size : {1, 7, 64}) {
    const filled_pool<Codec, row_layout> other(page_size, static_cast<unsigned>(page_size));
    EXPECT_TRUE(same_bits(expected, run(q, other.keys() | causal(), dim_v))) << "rows in pages of " << page_size;
  }
  for (const std::size_t threads : {2u, 3u, 8u}) {
    thread_team team{threads};
    EXPECT_TRUE(same_bits(expected, run(q, base.keys() | causal(), dim_v, {.executor = team}))) << threads << " threads";
  }
  thread_team team{2};
  for (int r = 0; r < rows; ++r) {   // verification equals decoding
    const filled_pool<Codec, lane_layout> before(32, 3, length - rows + r + 1);
    EXPECT_TRUE(same_bits(expected.rows(r, 1), run(q.rows(r, 1), before.keys(), dim_v, {.executor = team}))) << "row " << r;
  }
  for (const int n : {1, 2, 3, 5, 11, 25}) EXPECT_TRUE(same_bits(expected.rows(rows - n, n), run(q.rows(rows - n, n), base.keys() | causal(), dim_v))) << "the last " << n << " rows";
}

}  // namespace attention_test
