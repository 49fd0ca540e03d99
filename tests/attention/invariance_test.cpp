// Bits of a row depend on the row and the keys it sees, on nothing else: rows of the call, batch mates, page size and order, layout, threads, splits.
#include "attention/filled_pool.hpp"

#include <numeric>

using namespace attention_test;

namespace {

TEST(Invariance, PoolOfF16) { expect_invariant<codec::f16>(); }

TEST(Invariance, OneQueryHeadAloneAndInItsGroup) {
  const result all = run(q, dense(k.view(), v.view()) | causal(), dim_v);
  for (int h = 0; h < num_qo_heads; ++h) {
    values<float> one(rows, 1, dim), k1(length, 1, dim), v1(length, 1, dim_v);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < dim; ++c) one.at(r, 0, c) = static_cast<float>(q(r, h, c));
    for (int t = 0; t < length; ++t) {
      for (int c = 0; c < dim; ++c) k1.at(t, 0, c) = static_cast<float>(k(t, h / 4, c));
      for (int c = 0; c < dim_v; ++c) v1.at(t, 0, c) = static_cast<float>(v(t, h / 4, c));
    }
    const result r1 = run(one, dense(k1.view(), v1.view()) | causal(), dim_v);
    for (int r = 0; r < rows; ++r) {
      EXPECT_EQ(r1.lse(r, 0, 0), all.lse(r, h, 0));
      for (int c = 0; c < dim_v; ++c) EXPECT_EQ(r1.out(r, 0, c), all.out(r, h, c));
    }
  }
}

TEST(Invariance, PrefillInPiecesEqualsPrefillAtOnce) {
  const int n = 700;
  const values<float> prompt(n, num_qo_heads, dim, 8);
  const auto keys_of = [&](int tokens) { return k.rows(0, tokens); };
  const values<float> vs = v.rows(0, n), ks = keys_of(n);
  const result once = run(prompt, dense(ks.view(), vs.view()) | causal(), dim_v);
  for (const int piece : {1, 13, 64, 100, 511}) {
    for (int first = piece == 1 ? 505 : 0; first < (piece == 1 ? 520 : n); first += piece) {
      const int m = std::min(piece, n - first);
      const values<float> kp = k.rows(0, first + m), vp = v.rows(0, first + m);
      EXPECT_TRUE(same_bits(once.rows(first, m), run(prompt.rows(first, m), dense(kp.view(), vp.view()) | causal(), dim_v))) << "pieces of " << piece << " at " << first;
    }
  }
}

TEST(Invariance, HiddenTilesAndChunksAreSkippedWithoutTrace) {
  const std::vector<std::uint64_t> every(rows * 27, ~std::uint64_t{0});
  const auto source = dense(k.view(), v.view());
  EXPECT_TRUE(same_bits(run(q, source | causal() | select(tensor_view{every.data(), extents{rows, 27}}), dim_v), run(q, source | causal(), dim_v)));
  // a window that leaves only the last chunks equals the same keys behind garbage
  values<float> k2 = k, v2 = v;
  for (int t = 0; t < length - rows - 300; ++t)
    for (int h = 0; h < num_kv_heads; ++h)
      for (int c = 0; c < dim; ++c) k2.at(t, h, c) = v2.at(t, h, c) = quiet_nan;
  thread_team team{2};
  EXPECT_TRUE(same_bits(run(q, source | causal() | window(300), dim_v), run(q, dense(k2.view(), v2.view()) | causal() | window(300), dim_v, {.executor = team})));
}

// known fault 13: slots that were never written hold NaN
TEST(Invariance, UnusedSlotsNeverLeak) {
  using pool_type = page_pool<codec::f32>;
  const page_pool_options shape{.num_layers = 1, .num_pages = 4, .page_size = 16, .num_kv_heads = 1, .head_dim = 3};
  aligned_vector<std::byte> storage(pool_type::storage_bytes(shape), std::byte{0xff});
  page_pool_options options = shape;
  options.storage = storage;
  pool_type pool{options};
  const sequence_id id = pool.new_sequence();
  const values<float> q1(1, 1, 3, 1), k1(1, 1, 3, 2);
  values<float> v1(1, 1, 3);
  v1.at(0, 0, 0) = 5.f;
  pool.reserve(id, 1);
  pool.write(id, 0, k1.view(), v1.view());
  const result r = run(q1, pool[id].layer(0) | causal(), 3);
  EXPECT_EQ(r.out.data, (std::vector<float>{5.f, 0.f, 0.f}));
  EXPECT_NEAR(r.lse.data[0], dot(q1, 0, 0, k1, 0, 0), 1e-6);

  std::vector<float> pages_k(3 * 4 * 3, quiet_nan), pages_v(3 * 4 * 3, quiet_nan);   // three pages of four slots, rows of three
  const std::vector<std::int32_t> indices{2}, indptr{0, 1}, lengths{1};
  for (int c = 0; c < 3; ++c) pages_k[static_cast<std::size_t>(2 * 12 + c)] = static_cast<float>(k1(0, 0, c)), pages_v[static_cast<std::size_t>(2 * 12 + c)] = static_cast<float>(v1(0, 0, c));
  const extents<4> page_shape{3, 1, 4, 3};
  const paged_rows<float> foreign(tensor_view<const float, 4>(pages_k.data(), page_shape), tensor_view<const float, 4>(pages_v.data(), page_shape), tensor_view{indices.data(), extents{1}}, tensor_view{indptr.data(), extents{2}},
                                  tensor_view{lengths.data(), extents{1}});
  EXPECT_TRUE(same_bits(r, run(q1, foreign | causal(), 3)));
}

TEST(Invariance, ForeignPagesOfEverySizeAndOrder) {
  const result expected = run(q, dense(k.view(), v.view()) | causal(), dim_v);
  for (const int page_size : {1, 3, 16, 100}) {
    const int pages = (length + page_size - 1) / page_size;
    std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::minstd_rand(5));
    std::vector<float> pk(static_cast<std::size_t>(pages * num_kv_heads * page_size * dim), quiet_nan), pv(static_cast<std::size_t>(pages * num_kv_heads * page_size * dim_v), quiet_nan);
    const tensor_view kp{pk.data(), extents{pages, num_kv_heads, page_size, dim}}, vp{pv.data(), extents{pages, num_kv_heads, page_size, dim_v}};
    for (int t = 0; t < length; ++t)
      for (int h = 0; h < num_kv_heads; ++h) {
        const int p = table[static_cast<std::size_t>(t / page_size)];
        for (int c = 0; c < dim; ++c) kp(p, h, t % page_size, c) = static_cast<float>(k(t, h, c));
        for (int c = 0; c < dim_v; ++c) vp(p, h, t % page_size, c) = static_cast<float>(v(t, h, c));
      }
    const std::vector<std::int32_t> indptr{0, pages}, lengths{length};
    const paged_rows<float> foreign(kp, vp, tensor_view{table.data(), extents{pages}}, tensor_view{indptr.data(), extents{2}}, tensor_view{lengths.data(), extents{1}});
    EXPECT_TRUE(same_bits(expected, run(q, foreign | causal(), dim_v))) << "pages of " << page_size;
  }
}

TEST(PagedRows, TablesAreChecked) {
  const std::vector<float> memory(4 * 2 * 8);
  const tensor_view pages{memory.data(), extents{4, 1, 2, 8}};
  const auto make = [&](std::vector<std::int32_t> indices, std::vector<std::int32_t> indptr, std::vector<std::int32_t> lengths) {
    paged_rows<float>(pages, pages, tensor_view<const std::int32_t, 1>{indices.data(), extents{indices.size()}}, tensor_view<const std::int32_t, 1>{indptr.data(), extents{indptr.size()}},
                      tensor_view<const std::int32_t, 1>{lengths.data(), extents{lengths.size()}});
  };
  EXPECT_EQ(message_of([&] { make({3, 0, 1}, {0, 2, 3}, {3, 2}); }), "no error");
  EXPECT_ERROR(make({3, 4, 1}, {0, 2, 3}, {3, 2}), "'page_indices': entry 1 is 4; expected a page below 4");
  EXPECT_ERROR(make({3, -1, 1}, {0, 2, 3}, {3, 2}), "'page_indices': entry 1 is -1");
  EXPECT_ERROR(make({3, 0, 1}, {0, 2, 3}, {5, 2}), "sequence 0 has 5 tokens; expected 0 to 4");
  EXPECT_ERROR(make({3, 0, 1}, {0, 2, 1}, {3, 2}), "'page_indptr'");
  EXPECT_ERROR(make({3, 0, 1}, {0, 3}, {3, 2}), "'page_indptr': extent 0 is 2; expected 3");
}

// After eviction, causality goes by index and the window by position.
TEST(Positions, WindowAfterEviction) {
  filled_pool<codec::f32, lane_layout> f(16, 1, 300);
  std::vector<std::int32_t> kept;
  for (int t = 0; t < 300; ++t)
    if (t % 3 != 1) kept.push_back(t);
  f.pool.gather(f.id, kept);
  const std::int64_t n = static_cast<std::int64_t>(kept.size());
  const values<float> last = q.rows(0, 4);
  f.pool.reserve(f.id, 4);
  f.pool.write(f.id, 0, k.rows(300, 4).view(), v.rows(300, 4).view());
  for (int i = 0; i < 4; ++i) kept.push_back(300 + i);
  expect_near(run(last, f.keys() | causal() | window(100), dim_v), [&](std::int64_t r, std::int64_t h) {
    return reference::attention(n + 4, dim_v, [&](std::int64_t j) {
      const std::int32_t position = kept[static_cast<std::size_t>(j)];
      return j <= n + r && position > 300 + r - 100 ? dot(last, r, h, k, position, h / 4) : hidden;
    }, [&](std::int64_t j, std::int64_t c) { return v(kept[static_cast<std::size_t>(j)], h / 4, c); });
  }, 2, 1e-5, "window by position");
}

TEST(Positions, WindowsOverAnyIntegers) {
  constexpr std::int32_t lowest = std::numeric_limits<std::int32_t>::min(), highest = std::numeric_limits<std::int32_t>::max();
  const std::int32_t some[] = {lowest, lowest + 1, -1000, -3, -1, 0, 1, 2, 100, highest - 1, highest};
  std::vector<std::int32_t> positions(64);
  for (std::size_t j = 0; j < 64; ++j) positions[j] = some[j * 7 % std::size(some)];
  for (const std::int64_t width : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1001}, std::int64_t{highest}, (std::int64_t{1} << 32) - 1, std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()})
    for (const std::int32_t position : some) {
      const std::uint64_t word = window{width}.visible_positions(positions.data(), position);
      for (std::size_t j = 0; j < 64; ++j) EXPECT_EQ(word >> j & 1, std::int64_t{position} - positions[j] < width) << "key at " << positions[j] << ", row at " << position << ", window " << width;
    }
}

}  // namespace
