// Attention over integer codecs: against the formula on decoded rows, bit for bit in every shape of call, and what must not leak.
#include "attention/fixture.hpp"

#include <heddle/attention/detail/tile_kernel.hpp>
#include <heddle/cache/codec/int4.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>

#include <algorithm>

using namespace attention_test;

namespace {

/// A pool with one sequence, in pages of which every byte was 0xff: all slots that are not written have NaN scales.
template <class Codec, class Layout = lane_layout>
struct poisoned_pool {
  page_pool_options options;
  aligned_vector<std::byte> memory;
  page_pool<Codec, Layout> pool;
  sequence_id id;
  poisoned_pool(const values<float>& k, const values<float>& v, int page_size = 64, unsigned seed = 1) : poisoned_pool(k.heads, k.dim, v.dim, page_size) {
    const sequence_id other = pool.new_sequence();
    std::minstd_rand rng(seed);
    for (std::int64_t done = 0; done < k.n;) {   // in pieces, so that pages of both sequences alternate
      const std::int64_t n = std::min<std::int64_t>(k.n - done, 1 + static_cast<std::int64_t>(rng() / 64 % 90));
      append(id, k, v, done, n), append(other, k, v, done, n / 2);
      done += n;
    }
  }
  poisoned_pool(std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t head_dim_v, int page_size)
      : options{.num_layers = 1, .num_pages = 2 * (2000 / page_size + 2), .page_size = page_size, .num_kv_heads = static_cast<int>(num_kv_heads), .head_dim = static_cast<int>(head_dim), .head_dim_v = static_cast<int>(head_dim_v)},
        memory(page_pool<Codec, Layout>::storage_bytes(options), std::byte{0xff}),
        pool(with_memory()),
        id(pool.new_sequence()) {}
  void append(sequence_id to, const values<float>& k, const values<float>& v, std::int64_t first, std::int64_t n) {
    pool.reserve(to, n);
    pool.write(to, 0, k.rows(first, n).view(), v.rows(first, n).view());
    pool.commit(to, n);
  }
  auto keys() const { return pool[id].layer(0); }

 private:
  page_pool_options with_memory() {
    page_pool_options o = options;
    o.storage = memory;
    return o;
  }
};

values<float> normal(std::int64_t n, std::int64_t heads, std::int64_t dim, unsigned seed) {
  values<float> x(n, heads, dim);
  std::mt19937 rng(seed);
  std::normal_distribution<float> one;
  for (float& f : x.data) f = one(rng);
  return x;
}

/// Every row as the codec gives it back.
template <class Codec>
values<float> decoded(const values<float>& x, bool key) {
  values<float> y(x.n, x.heads, x.dim);
  const int d = static_cast<int>(x.dim);
  aligned_vector<std::byte> run(key ? Codec::key_run_bytes(d) : Codec::value_run_bytes(d));
  for (std::size_t i = 0; i < x.data.size(); i += static_cast<std::size_t>(d)) {
    if (key) Codec::encode_keys(&x.data[i], 0, 1, d, run.data(), 3), Codec::decode_key(run.data(), 3, d, &y.data[i]);
    else Codec::encode_values(&x.data[i], 0, 1, d, run.data(), 3), Codec::decode_value(run.data(), 3, d, &y.data[i]);
  }
  return y;
}

template <class Visible>
reference::softmax_state row_of(const values<float>& q, const values<float>& k, const values<float>& v, std::int64_t r, std::int64_t h, Visible visible) {
  const std::int64_t g = h / (q.heads / k.heads);
  return reference::attention(k.n, v.dim, [&](std::int64_t j) { return visible(j) ? dot(q, r, h, k, j, g) : hidden; }, [&](std::int64_t j, std::int64_t c) { return v(j, g, c); });
}

/// Relative 2-norm of the error of all outputs, and the largest error of an lse, relative to 1 + |lse|.
struct distance {
  double out = 0, lse = 0;
};
template <class Reference>
distance distance_of(const result& got, Reference expected) {
  double error = 0, norm = 0;
  distance d;
  for (std::int64_t r = 0; r < got.out.n; ++r)
    for (std::int64_t h = 0; h < got.out.heads; ++h) {
      const reference::softmax_state s = expected(r, h);
      d.lse = std::fmax(d.lse, std::fabs(got.lse(r, h, 0) - s.lse) / (1 + std::fabs(s.lse)));
      for (std::int64_t c = 0; c < got.out.dim; ++c) {
        const double x = got.out(r, h, c), y = s.out[static_cast<std::size_t>(c)];
        error += (x - y) * (x - y), norm += y * y;
      }
    }
  d.out = std::sqrt(error / norm);
  return d;
}

struct shape {
  int rows, keys, num_qo_heads, num_kv_heads, head_dim, head_dim_v;
};
// ratios 1, 3, 4, 7, 8; widths odd and no multiple of 16; tile and chunk boundaries
const shape shapes[] = {{1, 1, 1, 1, 1, 1},      {1, 64, 3, 1, 64, 64},   {1, 65, 7, 1, 7, 5},   {2, 513, 8, 2, 128, 128}, {3, 600, 8, 1, 40, 24},
                        {5, 130, 4, 4, 33, 80}, {17, 77, 14, 2, 80, 96}, {9, 1100, 6, 2, 20, 12}, {70, 90, 4, 1, 24, 31}};

template <class Codec>
inline constexpr double tolerance = Codec::query_digits == 2 && Codec::weight_digits == 2 ? 1e-3 : 4e-2;

template <class Codec>
class Integer : public testing::Test {};
using codecs = testing::Types<codec::int8<>, codec::int8_fast, codec::int4<>>;
TYPED_TEST_SUITE(Integer, codecs);

static_assert(detail::kernel_of<detail::tile_kernel<codec::int8<>>, codec::int8<>>);
static_assert(detail::kernel_of<detail::tile_kernel<codec::int4<>>, codec::int4<>>, "four bits need no change of the slot");

template <class Codec>
void expect_formula_on_decoded_rows() {
  for (const shape& s : shapes) {
    const values<float> q = normal(s.rows, s.num_qo_heads, s.head_dim, 1), k = normal(s.keys, s.num_kv_heads, s.head_dim, 2), v = normal(s.keys, s.num_kv_heads, s.head_dim_v, 3);
    const poisoned_pool<Codec> cache(k, v);
    const values<float> kd = decoded<Codec>(k, true), vd = decoded<Codec>(v, false);
    const distance d = distance_of(run(q, cache.keys() | causal(), s.head_dim_v), [&](std::int64_t r, std::int64_t h) { return row_of(q, kd, vd, r, h, [&](std::int64_t j) { return j <= r + s.keys - s.rows; }); });
    EXPECT_LE(d.out, tolerance<Codec>) << s.rows << "x" << s.keys << " d " << s.head_dim;
    EXPECT_LE(d.lse, tolerance<Codec>) << s.rows << "x" << s.keys << " d " << s.head_dim;
  }
}
TYPED_TEST(Integer, EqualsTheFormulaOnDecodedRows) { expect_formula_on_decoded_rows<TypeParam>(); }
TEST(IntegerPrecise, EqualsTheFormulaOnDecodedRows) { expect_formula_on_decoded_rows<codec::int4_precise>(); }

// With one key the lse is its logit: the bound that int8.hpp states.
TYPED_TEST(Integer, ErrorOfALogitIsBoundedByTheLargestQuery) {
  constexpr double largest_integer = TypeParam::query_digits == 2 ? 16256 : 127;
  for (const int dim : {1, 6, 64, 200}) {
    const values<float> q = normal(1, 50, dim, 4), k = normal(1, 1, dim, 5), v = normal(1, 1, 8, 6);
    const poisoned_pool<TypeParam> cache(k, v);
    const values<float> kd = decoded<TypeParam>(k, true);
    const result got = run(q, cache.keys(), 8);
    double norm = 0;
    for (int c = 0; c < dim; ++c) norm += std::fabs(kd(0, 0, c));
    for (int h = 0; h < 50; ++h) {
      double top = 0;
      for (int c = 0; c < dim; ++c) top = std::fmax(top, std::fabs(q(0, h, c)));
      const double exact = dot(q, 0, h, kd, 0, 0), bound = top * norm / (2 * largest_integer) / std::sqrt(static_cast<double>(dim));
      EXPECT_LE(std::fabs(got.lse(0, h, 0) - exact), bound * (1 + 1e-4) + 2e-6 * std::fabs(exact)) << dim;
    }
  }
}

TYPED_TEST(Integer, BitsDependOnTheRowAndItsKeysOnly) {
  constexpr int length = 1190, rows = 21, dim = 40, dim_v = 24, q_heads = 6, kv_heads = 2;
  const values<float> q = normal(rows, q_heads, dim, 1), k = normal(length, kv_heads, dim, 2), v = normal(length, kv_heads, dim_v, 3);
  const poisoned_pool<TypeParam> base(k, v, 16);
  const result expected = run(q, base.keys() | causal(), dim_v);
  for (const int page_size : {32, 64, 512}) EXPECT_TRUE(same_bits(expected, run(q, poisoned_pool<TypeParam>(k, v, page_size, 7).keys() | causal(), dim_v))) << page_size;
  for (const int page_size : {1, 7}) EXPECT_TRUE(same_bits(expected, run(q, poisoned_pool<TypeParam, row_layout>(k, v, page_size, 8).keys() | causal(), dim_v))) << page_size;
  for (const std::size_t threads : {2u, 5u}) {
    thread_team team{threads};
    EXPECT_TRUE(same_bits(expected, run(q, base.keys() | causal(), dim_v, {.executor = team}))) << threads;
  }
  for (int r = 0; r < rows; ++r) {   // verification equals decoding
    const std::int64_t seen = length - rows + r + 1;
    const poisoned_pool<TypeParam> before(k.rows(0, seen), v.rows(0, seen), 32);
    EXPECT_TRUE(same_bits(expected.rows(r, 1), run(q.rows(r, 1), before.keys() | causal(), dim_v))) << "row " << r;
  }
}

// A query whose keys of a tile are all hidden shares registers with queries that see it.
TYPED_TEST(Integer, QueriesThatSeeNothingOfATileKeepTheirBits) {
  constexpr int length = 300, rows = 9, dim = 32;
  const values<float> q = normal(rows, 4, dim, 1), k = normal(length, 1, dim, 2), v = normal(length, 1, dim, 3);
  const poisoned_pool<TypeParam> cache(k, v);
  for (const int w : {1, 5, 66}) {
    const result all = run(q, cache.keys() | causal() | window(w), dim);
    for (int r = 0; r < rows; ++r) {
      const std::int64_t seen = length - rows + r + 1;
      const poisoned_pool<TypeParam> before(k.rows(0, seen), v.rows(0, seen));
      EXPECT_TRUE(same_bits(all.rows(r, 1), run(q.rows(r, 1), before.keys() | causal() | window(w), dim))) << "window " << w << " row " << r;
    }
  }
}

// Rows of a tree equal sequential decoding of their paths; compacting the accepted path changes no bit.
TYPED_TEST(Integer, TreesAndCompaction) {
  constexpr int dim = 24, q_heads = 6, kv_heads = 2;
  const std::vector<std::int32_t> parents{-1, 0, 0, 1, -1, 2, 5, 5, 3, 7}, path{0, 2, 5, 7, 9};
  for (const int committed : {10, 61, 505}) {
    const int nodes = static_cast<int>(parents.size());
    const values<float> q = normal(nodes, q_heads, dim, 1), k = normal(committed + nodes, kv_heads, dim, 2), v = normal(committed + nodes, kv_heads, dim, 3);
    poisoned_pool<TypeParam> cache(k.rows(0, committed), v.rows(0, committed));
    cache.pool.reserve(cache.id, nodes);
    cache.pool.write(cache.id, 0, k.rows(committed, nodes).view(), v.rows(committed, nodes).view());
    const result verified = run(q, cache.keys() | tree(parents), dim);
    cache.pool.compact(cache.id, path);

    poisoned_pool<TypeParam> plain(k.rows(0, committed), v.rows(0, committed), 32);
    for (std::size_t i = 0; i < path.size(); ++i) {
      plain.append(plain.id, k, v, committed + path[i], 1);
      EXPECT_TRUE(same_bits(verified.rows(path[i], 1), run(q.rows(path[i], 1), plain.keys() | causal(), dim))) << "committed " << committed << " node " << path[i];
    }
    const values<float> next = normal(1, q_heads, dim, 9);
    EXPECT_TRUE(same_bits(run(next, cache.keys(), dim), run(next, plain.keys(), dim))) << "after compaction, committed " << committed;
  }
}

TYPED_TEST(Integer, NonFiniteRowsReachExactlyTheQueriesThatSeeThem) {
  constexpr int rows = 12, keys = 100, seen_from = 5, dim = 20;
  const values<float> q0 = normal(rows, 4, dim, 1), k0 = normal(keys, 2, dim, 2), v0 = normal(keys, 2, dim, 3);
  const result clean = run(q0, poisoned_pool<TypeParam>(k0, v0).keys() | causal(), dim);
  for (const float bad : {quiet_nan, infinity})
    for (const bool key : {true, false}) {
      values<float> k = k0, v = v0;
      (key ? k : v).at(keys - rows + seen_from, 1, 7) = bad;   // KV head 1 only
      const result r = run(q0, poisoned_pool<TypeParam>(k, v).keys() | causal(), dim);
      for (int i = 0; i < rows; ++i)
        for (int h = 0; h < 4; ++h)
          for (int c = 0; c < dim; ++c) {
            if (h < 2 || i < seen_from) EXPECT_EQ(r.out(i, h, c), clean.out(i, h, c));
            else EXPECT_TRUE(std::isnan(r.out(i, h, c)));
          }
      // a window that has passed the bad token
      const result late = run(q0, poisoned_pool<TypeParam>(k, v).keys() | causal() | window(4), dim);
      for (const float x : late.rows(seen_from + 4, rows - seen_from - 4).out.data) EXPECT_TRUE(std::isfinite(x));
    }
  values<float> q = q0;
  q.at(3, 1, 0) = quiet_nan, q.at(4, 2, dim - 1) = infinity;
  const result r = run(q, poisoned_pool<TypeParam>(k0, v0).keys() | causal(), dim);
  for (int i = 0; i < rows; ++i)
    for (int h = 0; h < 4; ++h) EXPECT_EQ(std::isnan(r.out(i, h, 0)), (i == 3 && h == 1) || (i == 4 && h == 2));
}

// Known fault 69 and its kind: tiles and chunks without mass.
TYPED_TEST(Integer, TilesWithoutMassAreEmptyStates) {
  constexpr int keys = 600, dim = 16;
  values<float> q = normal(1, 2, dim, 1), k = normal(keys, 1, dim, 2), v = normal(keys, 1, dim, 3);
  const auto check = [&](auto pipe, auto visible, const char* what) {
    const poisoned_pool<TypeParam> cache(k, v);
    const values<float> kd = decoded<TypeParam>(k, true), vd = decoded<TypeParam>(v, false);
    const distance d = distance_of(run(q, pipe(cache.keys()), dim), [&](std::int64_t r, std::int64_t h) { return row_of(q, kd, vd, r, h, visible); });
    EXPECT_LE(d.out, tolerance<TypeParam>) << what;
    EXPECT_LE(d.lse, tolerance<TypeParam>) << what;
  };
  check([](const auto& s) { return s | causal() | window(keys - 512); }, [](std::int64_t j) { return j >= 512; }, "hidden");
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < dim; ++c) q.at(0, h, c) = static_cast<float>(std::fabs(q(0, h, c)) + 0.1);
  for (int j = 0; j < 512; ++j)
    for (int c = 0; c < dim; ++c) k.at(j, 0, c) = -1e30f;
  check([](const auto& s) { return s | causal(); }, [](std::int64_t) { return true; }, "far below");
  for (int j = 512; j < keys; ++j)
    for (int c = 0; c < dim; ++c) k.at(j, 0, c) = k.at(j, 0, c) - 1000.f;   // every logit far below zero
  check([](const auto& s) { return s | causal(); }, [](std::int64_t) { return true; }, "all far below zero");
  v = values<float>(keys, 1, dim);
  const poisoned_pool<TypeParam> zeros(k, v);
  EXPECT_EQ(run(q, zeros.keys(), dim).out.data, (std::vector<float>(2 * dim, 0.f)));
}

// Values of very different size in one tile: weights go by weight times scale, not by weight alone.
TYPED_TEST(Integer, SmallWeightsOfLargeValuesCount) {
  constexpr int keys = 64, dim = 16;
  const values<float> q = normal(1, 1, dim, 1);
  values<float> k = normal(keys, 1, dim, 2), v = normal(keys, 1, dim, 3);
  for (int c = 0; c < dim; ++c) v.at(9, 0, c) = static_cast<float>(v(9, 0, c) * 1e6), k.at(9, 0, c) = static_cast<float>(-3 * q(0, 0, c));
  const poisoned_pool<TypeParam> cache(k, v);
  const values<float> kd = decoded<TypeParam>(k, true), vd = decoded<TypeParam>(v, false);
  const distance d = distance_of(run(q, cache.keys(), dim), [&](std::int64_t r, std::int64_t h) { return row_of(q, kd, vd, r, h, [](std::int64_t) { return true; }); });
  EXPECT_LE(d.out, 2 * tolerance<TypeParam>);
}

// Rows longer than sums of two-digit integers could hold at full range.
TEST(IntegerLongRows, SumsStayExact) {
  constexpr int dim = 2500;
  values<float> q(1, 2, dim), k(3, 1, dim), v = normal(3, 1, 16, 3);
  for (float& x : q.data) x = 1.f;
  for (int c = 0; c < dim; ++c) q.at(0, 1, c) = -1.f;
  for (int c = 0; c < dim; ++c) k.at(0, 0, c) = 1.f, k.at(1, 0, c) = -1.f, k.at(2, 0, c) = 0.98f;
  const poisoned_pool<codec::int8<>> cache(k, v);
  const values<float> kd = decoded<codec::int8<>>(k, true), vd = decoded<codec::int8<>>(v, false);
  const distance d = distance_of(run(q, cache.keys(), 16), [&](std::int64_t r, std::int64_t h) { return row_of(q, kd, vd, r, h, [](std::int64_t) { return true; }); });
  EXPECT_LE(d.out, 1e-3);
  EXPECT_LE(d.lse, 1e-3);
}

}  // namespace
