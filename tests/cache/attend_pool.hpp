#pragma once
// Attention over a page pool, for any codec: what is stored decides, never how. Typed tests over codecs:
//
//     INSTANTIATE_TYPED_TEST_SUITE_P(Element, attend_pool, codecs);
#include <heddle/attention/attend.hpp>
#include <heddle/cache/page_pool.hpp>
#include <heddle/core/thread_team.hpp>

#include "../support/reference/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace attend_pool_test {

using namespace heddle;

inline constexpr int layers = 2, layer = 1, kv_heads = 2, group = 3, dim = 40, dim_v = 24;
using numbers = std::vector<float>;

inline numbers random_numbers(std::size_t n, unsigned seed) {
  std::minstd_rand engine(seed + 99);
  std::normal_distribution<float> normal;
  numbers x(n);
  for (float& v : x) v = normal(engine);
  return x;
}

// The text: key, value and query of every token.
struct text {
  std::int64_t tokens;
  numbers k, v, q;
  explicit text(int n, unsigned seed = 1)
      : tokens(n),
        k(random_numbers(static_cast<std::size_t>(n * kv_heads * dim), seed)),
        v(random_numbers(static_cast<std::size_t>(n * kv_heads * dim_v), seed + 1)),
        q(random_numbers(static_cast<std::size_t>(n * kv_heads * group * dim), seed + 2)) {}
  template <class I>
  static numbers pick(const numbers& from, const std::vector<I>& tokens, std::size_t width) {
    numbers r;
    for (const I t : tokens)
      r.insert(r.end(), from.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * width),
               from.begin() + static_cast<std::ptrdiff_t>((static_cast<std::size_t>(t) + 1) * width));
    return r;
  }
};

inline std::vector<int> range(int first, int last) {
  std::vector<int> r(static_cast<std::size_t>(last - first));
  std::iota(r.begin(), r.end(), first);
  return r;
}

template <class Pool>
void put(Pool& pool, sequence_id s, const text& t, const std::vector<int>& tokens, std::span<const std::int32_t> positions = {}) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  pool.reserve(s, n, positions);
  for (int l = 0; l < layers; ++l) {
    numbers k = text::pick(t.k, tokens, kv_heads * dim), v = text::pick(t.v, tokens, kv_heads * dim_v);
    if (l != layer)
      for (float& x : k) x = -x;  // other layers hold something else
    pool.write(s, l, tensor_view{k.data(), extents{n, kv_heads, dim}}, tensor_view{v.data(), extents{n, kv_heads, dim_v}});
  }
}
template <class Pool>
void append(Pool& pool, sequence_id s, const text& t, const std::vector<int>& tokens) {
  put(pool, s, t, tokens);
  pool.commit(s);
}

// Rows of `out` and lse side by side, to compare bit for bit.
struct result {
  std::int64_t rows;
  numbers out, lse;
  explicit result(std::int64_t n)
      : rows(n),
        out(static_cast<std::size_t>(n * kv_heads * group * dim_v), -7.f),
        lse(static_cast<std::size_t>(n * kv_heads * group), -7.f) {}
  result row(std::int64_t i) const {
    result r(1);
    std::copy_n(out.begin() + i * kv_heads * group * dim_v, r.out.size(), r.out.begin());
    std::copy_n(lse.begin() + i * kv_heads * group, r.lse.size(), r.lse.begin());
    return r;
  }
  friend bool operator==(const result& a, const result& b) {
    return a.rows == b.rows && std::memcmp(a.out.data(), b.out.data(), a.out.size() * 4) == 0 &&
           std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * 4) == 0;
  }
};
inline void PrintTo(const result& r, std::ostream* os) { *os << r.rows << " rows, first " << r.out[0]; }

template <class Keys>
result attend_rows(const Keys& keys, const text& t, const std::vector<int>& tokens, const attend_options<host>& options = {}) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const numbers q = text::pick(t.q, tokens, kv_heads * group * dim);
  result r(n);
  attend(tensor_view{q.data(), extents{n, kv_heads * group, dim}}, keys, tensor_view{r.out.data(), extents{n, kv_heads * group, dim_v}},
         tensor_view{r.lse.data(), extents{n, kv_heads * group}}, options);
  return r;
}

inline page_pool_options geometry(int page_size, std::int64_t tokens) {
  return {.num_layers = layers,
          .num_pages = tokens / page_size + 4,
          .page_size = page_size,
          .num_kv_heads = kv_heads,
          .head_dim = dim,
          .head_dim_v = dim_v};
}

// Page memory that starts out as NaN in every type.
class nan_memory {
 public:
  explicit nan_memory(std::size_t n) : bytes_(n, std::byte{0xff}) {}
  std::span<std::byte> span() { return {bytes_.data(), bytes_.size()}; }

 private:
  aligned_vector<std::byte> bytes_;
};

// The last `rows` rows of a text of `tokens` tokens, whose pages lie among those of another sequence in falling order.
template <class Pool>
result scattered(int page_size, const text& t, int tokens, int rows) {
  page_pool_options o = geometry(page_size, 2 * tokens + 2 * page_size);
  nan_memory memory(Pool::storage_bytes(o));
  o.storage = memory.span();
  Pool pool(o);
  const sequence_id other = pool.new_sequence(), filler = pool.new_sequence(), s = pool.new_sequence();
  append(pool, filler, t, range(0, tokens));
  pool.free(filler);  // pages come back in falling order
  for (int done = 0, n; done < tokens - rows; done += n) {
    n = std::min(37, tokens - rows - done);
    append(pool, s, t, range(done, done + n));
    if (done < tokens / 2) append(pool, other, t, range(done, done + n / 2));
  }
  put(pool, s, t, range(tokens - rows, tokens));
  return attend_rows(pool[s].layer(layer) | causal(), t, range(tokens - rows, tokens));
}

}  // namespace attend_pool_test

template <class Codec>
class attend_pool : public testing::Test {
 public:
  using lanes = heddle::page_pool<Codec>;
  using records = heddle::page_pool<Codec, heddle::row_layout>;
  static lanes pool(int page_size, std::int64_t tokens) { return lanes(attend_pool_test::geometry(page_size, tokens)); }
};
TYPED_TEST_SUITE_P(attend_pool);

TYPED_TEST_P(attend_pool, equals_attention_on_what_is_stored) {
  using namespace attend_pool_test;
  const text t(150);
  auto pool = this->pool(32, 150);
  const auto s = pool.new_sequence();
  append(pool, s, t, range(0, 140));
  put(pool, s, t, range(140, 150));
  const result got = attend_rows(pool[s].layer(layer) | causal(), t, range(140, 150));
  numbers k(150 * kv_heads * dim), v(150 * kv_heads * dim_v);
  pool.read(s, layer, 0, {k.data(), heddle::extents{150, kv_heads, dim}}, {v.data(), heddle::extents{150, kv_heads, dim_v}});
  double error = 0, norm = 0, lse_error = 0;
  for (std::size_t row = 0; row < 10; ++row)
    for (std::size_t h = 0; h < kv_heads * group; ++h) {
      const auto expected = reference::attention(
          static_cast<std::int64_t>(141 + row), dim_v,
          [&](std::int64_t j) {
            double z = 0;
            for (std::size_t c = 0; c < dim; ++c)
              z += static_cast<double>(t.q[((140 + row) * kv_heads * group + h) * dim + c]) *
                   static_cast<double>(k[(static_cast<std::size_t>(j) * kv_heads + h / group) * dim + c]);
            return z / std::sqrt(static_cast<double>(dim));
          },
          [&](std::int64_t j, std::int64_t c) {
            return static_cast<double>(v[(static_cast<std::size_t>(j) * kv_heads + h / group) * dim_v + static_cast<std::size_t>(c)]);
          });
      for (std::size_t c = 0; c < dim_v; ++c) {
        const double x = static_cast<double>(got.out[(row * kv_heads * group + h) * dim_v + c]) - expected.out[c];
        error += x * x, norm += expected.out[c] * expected.out[c];
      }
      lse_error = std::max(lse_error, std::abs(static_cast<double>(got.lse[row * kv_heads * group + h]) - expected.lse));
    }
  const double tolerance = heddle::element_storage<TypeParam> ? 1e-6 : 1e-3;
  EXPECT_LT(std::sqrt(error / norm), tolerance);
  EXPECT_LT(lse_error, tolerance);
}

TYPED_TEST_P(attend_pool, page_size_order_and_layout_do_not_matter) {
  using namespace attend_pool_test;
  const text t(600);
  for (const auto& [tokens, rows] : {std::pair{600, 1}, std::pair{577, 9}, std::pair{70, 70}, std::pair{17, 3}}) {
    auto pool = this->pool(64, tokens);
    const auto s = pool.new_sequence();
    append(pool, s, t, range(0, tokens));
    const result expected = attend_rows(pool[s].layer(layer) | heddle::causal(), t, range(tokens - rows, tokens));
    for (const float x : expected.out) ASSERT_TRUE(std::isfinite(x));
    for (const int page_size : {16, 48, 256})
      EXPECT_EQ(scattered<typename TestFixture::lanes>(page_size, t, tokens, rows), expected) << "lanes, page_size " << page_size;
    for (const int page_size : {1, 3, 16, 64})
      EXPECT_EQ(scattered<typename TestFixture::records>(page_size, t, tokens, rows), expected) << "records, page_size " << page_size;
    heddle::thread_team team(3);
    EXPECT_EQ(attend_rows(pool[s].layer(layer) | heddle::causal(), t, range(tokens - rows, tokens), {.executor = team}), expected);
  }
}

TYPED_TEST_P(attend_pool, decoding_verification_and_prefill_agree) {
  using namespace attend_pool_test;
  const text t(90);
  auto pool = this->pool(16, 300);
  const auto one = pool.new_sequence(), whole = pool.new_sequence(), verified = pool.new_sequence();
  put(pool, whole, t, range(0, 90));
  const result prefill = attend_rows(pool[whole].layer(layer) | causal(), t, range(0, 90));
  append(pool, verified, t, range(0, 55));
  for (int i = 0; i < 90; ++i) {
    put(pool, one, t, {i});
    ASSERT_EQ(attend_rows(pool[one].layer(layer) | causal(), t, {i}), prefill.row(i)) << "decoding token " << i;
    pool.commit(one);
  }
  put(pool, verified, t, range(55, 71));
  const result chunk = attend_rows(pool[verified].layer(layer) | causal(), t, range(55, 71));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(chunk.row(i), prefill.row(55 + i)) << "verifying token " << 55 + i;
}

TYPED_TEST_P(attend_pool, a_batch_of_forks_equals_each_alone) {
  using namespace attend_pool_test;
  const text t(120);
  auto pool = this->pool(32, 400);
  const auto a = pool.new_sequence();
  append(pool, a, t, range(0, 75));
  const auto b = pool.fork(a), c = pool.fork(a, 40);
  put(pool, a, t, range(75, 78));
  put(pool, b, t, range(90, 91));
  put(pool, c, t, range(100, 105));
  const std::vector<heddle::sequence_id> ids = {c, a, b};
  const std::vector<std::int32_t> indptr = {0, 5, 8, 9};
  std::vector<int> rows = range(100, 105);
  for (const int i : {75, 76, 77, 90}) rows.push_back(i);
  const result together = attend_rows(pool[ids].layer(layer) | causal(), t, rows, {.q_indptr = indptr});
  const auto check = [&](int prefix, int first, int n, int row) {
    auto alone = this->pool(64, 200);
    const auto s = alone.new_sequence();
    append(alone, s, t, range(0, prefix));
    put(alone, s, t, range(first, first + n));
    const result r = attend_rows(alone[s].layer(layer) | causal(), t, range(first, first + n));
    for (int i = 0; i < n; ++i) EXPECT_EQ(together.row(row + i), r.row(i)) << "row " << row + i;
  };
  check(40, 100, 5, 0);
  check(75, 75, 3, 5);
  check(75, 90, 1, 8);
}

TYPED_TEST_P(attend_pool, a_tree_and_what_compaction_leaves_equal_decoding) {
  using namespace attend_pool_test;
  const text t(700);
  const std::vector<std::int32_t> parents = {-1, 0, 0, 1, 1, 2, 5, 6, 6}, depth = {0, 1, 1, 2, 2, 2, 3, 4, 4};
  const std::vector<std::int32_t> path = {0, 2, 5, 6, 8};
  for (const int prompt : {0, 10, 14, 61, 509}) {
    auto pool = this->pool(16, 1300);
    const auto s = pool.new_sequence();
    append(pool, s, t, range(0, prompt));
    std::vector<int> nodes = range(600, 609);
    std::vector<std::int32_t> positions;
    for (const std::int32_t d : depth) positions.push_back(prompt + d);
    put(pool, s, t, nodes, positions);
    const result rows = attend_rows(pool[s].layer(layer) | causal() | tree(parents), t, nodes);
    const auto decoded = pool.new_sequence();
    append(pool, decoded, t, range(0, prompt));
    for (const std::int32_t i : path) {
      put(pool, decoded, t, {600 + i});
      EXPECT_EQ(attend_rows(pool[decoded].layer(layer) | causal(), t, {600 + i}), rows.row(i)) << "node " << i << " after " << prompt;
      pool.commit(decoded);
    }
    pool.compact(s, path);
    EXPECT_TRUE(pool.same_rows(s, pool, decoded));
    put(pool, s, t, {650});
    put(pool, decoded, t, {650});
    EXPECT_EQ(attend_rows(pool[s].layer(layer) | causal(), t, {650}), attend_rows(pool[decoded].layer(layer) | causal(), t, {650}))
        << "the token after " << prompt;
  }
}

TYPED_TEST_P(attend_pool, eviction_equals_attention_over_the_kept_tokens) {
  using namespace attend_pool_test;
  const text t(200);
  auto pool = this->pool(16, 800);
  std::vector<std::int32_t> kept;
  for (std::int32_t i = 0; i < 180; ++i)
    if (i % 7 != 3 && i % 5 != 1) kept.push_back(i);
  const auto evicted = pool.new_sequence(), fresh = pool.new_sequence();
  append(pool, evicted, t, range(0, 180));
  pool.gather(evicted, kept);
  append(pool, fresh, t, std::vector<int>(kept.begin(), kept.end()));
  put(pool, evicted, t, range(180, 183));
  put(pool, fresh, t, range(180, 183));
  EXPECT_EQ(attend_rows(pool[evicted].layer(layer) | causal(), t, range(180, 183)),
            attend_rows(pool[fresh].layer(layer) | causal(), t, range(180, 183)));
}

TYPED_TEST_P(attend_pool, heads_with_their_own_tokens) {
  using namespace attend_pool_test;
  const text t(200);
  auto o = geometry(16, 2000);
  o.tables = heddle::page_tables::per_head;
  typename TestFixture::lanes ragged(o);
  const auto s = ragged.new_sequence();
  append(ragged, s, t, range(0, 180));
  std::vector<std::vector<std::int32_t>> kept(kv_heads);
  for (std::int32_t i = 0; i < 180; ++i) {
    if (i % 3) kept[0].push_back(i);
    if (i >= 170) kept[1].push_back(i);
  }
  for (int h = 0; h < kv_heads; ++h) ragged.gather(s, layer, h, kept[static_cast<std::size_t>(h)]);
  put(ragged, s, t, range(180, 184));
  const result got = attend_rows(ragged[s].layer(layer) | causal(), t, range(180, 184));
  for (int h = 0; h < kv_heads; ++h) {
    auto pool = this->pool(64, 400);
    const auto alone = pool.new_sequence();
    append(pool, alone, t, std::vector<int>(kept[static_cast<std::size_t>(h)].begin(), kept[static_cast<std::size_t>(h)].end()));
    put(pool, alone, t, range(180, 184));
    const result expected = attend_rows(pool[alone].layer(layer) | causal(), t, range(180, 184));
    for (std::size_t row = 0; row < 4; ++row)
      for (std::size_t q = static_cast<std::size_t>(h) * group; q < (static_cast<std::size_t>(h) + 1) * group; ++q) {
        const std::size_t at = row * kv_heads * group + q;
        EXPECT_EQ(got.lse[at], expected.lse[at]) << "row " << row << " head " << q;
        EXPECT_EQ(std::memcmp(&got.out[at * dim_v], &expected.out[at * dim_v], dim_v * 4), 0) << "row " << row << " head " << q;
      }
  }
}

REGISTER_TYPED_TEST_SUITE_P(attend_pool, equals_attention_on_what_is_stored, page_size_order_and_layout_do_not_matter,
                            decoding_verification_and_prefill_agree, a_batch_of_forks_equals_each_alone,
                            a_tree_and_what_compaction_leaves_equal_decoding, eviction_equals_attention_over_the_kept_tokens,
                            heads_with_their_own_tokens);
