// A cache after a speculative round equals the cache of plain decoding, bit for bit, whatever was accepted.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>

#include "pool_model.hpp"

#include <cmath>

using namespace pool_test;
namespace codec = heddle::codec;

namespace {

template <class Pool>
Pool pool_of(int page_size) {
  return Pool(
      {.num_layers = 2, .num_pages = 2000 / page_size, .page_size = page_size, .num_kv_heads = 2, .head_dim = 20, .head_dim_v = 33});
}

// Numbers that no codec but f32 holds exactly, and one row in eight with an outlier.
template <class Pool>
void write_numbers(Pool& pool, sequence_id s, const std::vector<int>& tags) {
  for (int layer = 0; layer < pool.num_layers(); ++layer) {
    rows r(pool, tags, layer);
    for (std::size_t i = 0; i < r.k.size(); ++i) r.k[i] = std::sin(r.k[i]) * (static_cast<int>(r.k[i]) % 8 ? 1.f : 50.f);
    for (std::size_t i = 0; i < r.v.size(); ++i) r.v[i] = std::cos(r.v[i]);
    pool.write(s, layer, r.keys(), r.values());
  }
}
template <class Pool>
sequence_id plain(Pool& pool, const std::vector<int>& tags) {
  const sequence_id s = pool.new_sequence();
  for (const int tag : tags) {
    pool.reserve(s, 1);
    write_numbers(pool, s, {tag});
    pool.commit(s);
  }
  return s;
}
template <class Pool>
sequence_id prefill(Pool& pool, const std::vector<int>& tags) {
  const sequence_id s = pool.new_sequence();
  pool.reserve(s, static_cast<std::int64_t>(tags.size()));
  write_numbers(pool, s, tags);
  pool.commit(s);
  return s;
}

template <class Pool>
class rounds : public testing::Test {};
using pools = testing::Types<heddle::page_pool<codec::f16>, heddle::page_pool<codec::fp8_e4m3, heddle::row_layout>,
                             heddle::page_pool<codec::int8<>>, heddle::page_pool<codec::int8<>, heddle::row_layout>>;
TYPED_TEST_SUITE(rounds, pools);

TYPED_TEST(rounds, chunked_prefill_equals_one_by_one) {
  for (const int page_size : {16, 64}) {
    TypeParam a = pool_of<TypeParam>(page_size), b = pool_of<TypeParam>(page_size);
    const sequence_id one = plain(a, range(0, 70)), whole = prefill(b, range(0, 70)), chunks = b.new_sequence();
    for (int first = 0; first < 70; first += 23) {
      const int n = std::min(23, 70 - first);
      b.reserve(chunks, n);
      write_numbers(b, chunks, range(first, n));
      b.commit(chunks);
    }
    EXPECT_TRUE(a.same_rows(one, b, whole));
    EXPECT_TRUE(a.same_rows(one, b, chunks));
  }
}

TYPED_TEST(rounds, a_chain_of_which_a_are_accepted) {
  constexpr int drafted = 6;
  for (const int prompt : {0, 13, 16, 60})
    for (int accepted = 0; accepted <= drafted; ++accepted) {
      TypeParam a = pool_of<TypeParam>(16), b = pool_of<TypeParam>(16);
      const sequence_id s = prefill(a, range(0, prompt));
      int next = prompt;  // tags of the true text; drafts from the first rejected one on are others
      for (int round = 0; round < 3; ++round) {
        std::vector<int> step = range(next, 1 + accepted);
        while (step.size() < 1 + drafted) step.push_back(1000 + next + static_cast<int>(step.size()));
        a.reserve(s, 1 + drafted);
        write_numbers(a, s, step);
        a.commit(s, 1 + accepted);
        next += 1 + accepted;
      }
      EXPECT_TRUE(a.same_rows(s, b, plain(b, range(0, next)))) << accepted << " of " << drafted << " after " << prompt;
    }
}

TYPED_TEST(rounds, a_branching_tree) {
  const std::vector<std::int32_t> depth = {0, 1, 1, 1, 2, 2, 2, 3, 3};
  const std::vector<std::vector<std::int32_t>> paths = {{0}, {0, 1}, {0, 3, 6}, {0, 2, 5, 8}, {0, 1, 4, 7}};
  for (const auto& path : paths) {
    TypeParam a = pool_of<TypeParam>(16), b = pool_of<TypeParam>(16);
    const sequence_id s = prefill(a, range(0, 13));
    int next = 13;
    for (int round = 0; round < 4; ++round) {
      std::vector<int> step;
      for (std::size_t i = 0; i < depth.size(); ++i) step.push_back(1000 + 10 * round + static_cast<int>(i));
      for (const std::int32_t i : path) step[static_cast<std::size_t>(i)] = next++;
      std::vector<std::int32_t> positions;
      for (const std::int32_t d : depth) positions.push_back(static_cast<std::int32_t>(a.next_position(s)) + d);
      a.reserve(s, static_cast<std::int64_t>(depth.size()), positions);
      write_numbers(a, s, step);
      a.compact(s, path);
    }
    EXPECT_TRUE(a.same_rows(s, b, plain(b, range(0, next))));
  }
}

// A window of 64 over 100 tokens, then four drafts of which one is accepted: eviction sees committed tokens only, so the cache can be
// rewound.
TYPED_TEST(rounds, eviction_waits_for_the_verdict) {
  TypeParam a = pool_of<TypeParam>(16), b = pool_of<TypeParam>(16);
  const auto slide = [](TypeParam& pool, sequence_id s) {
    std::vector<std::int32_t> old;
    for (std::int32_t i = 0; i < pool.committed(s) - 64; ++i) old.push_back(i);
    pool.drop(s, old);
  };
  const sequence_id s = prefill(a, range(0, 100)), t = prefill(b, range(0, 100));
  slide(a, s);
  a.reserve(s, 4);
  write_numbers(a, s, {100, 901, 902, 903});
  EXPECT_NE(message_of([&] { slide(a, s); }), "no error") << "a window must not move over a draft";
  a.commit(s, 1);
  slide(a, s);
  slide(b, t);
  b.reserve(t, 1);
  write_numbers(b, t, {100});
  b.commit(t);
  slide(b, t);
  EXPECT_EQ(a.committed(s), 64);
  EXPECT_TRUE(a.same_rows(s, b, t));
}

// --- codecs of token groups: a codec that rounds to multiples of the group's first number ---

struct grouped : codec::f32 {
  static constexpr int group_tokens = 32;
  static constexpr const char* name = "grouped";
  static inline int seals = 0;
  static void seal_keys(std::byte* run, int head_dim) { seal(reinterpret_cast<float*>(run), 32 * head_dim); }
  static void seal_values(std::byte* run, int head_dim) { seal(reinterpret_cast<float*>(run), 32 * round16(head_dim)); }
  static void seal(float* numbers, int n) {
    ++seals;
    float largest = 0;
    for (int i = 0; i < n; ++i) largest = std::max(largest, std::abs(numbers[i]));
    for (int i = 0; i < n; ++i) numbers[i] = std::round(numbers[i] / largest * 7) * largest / 7;
  }
};
static_assert(heddle::sealing_codec<grouped>);
using group_pool = heddle::page_pool<grouped>;
group_pool grouped_pool(int page_size) { return group_pool({.num_pages = 10, .page_size = page_size, .num_kv_heads = 2, .head_dim = 16}); }

TEST(page_pool_groups, only_whole_groups_of_committed_tokens_are_sealed_once) {
  group_pool a = grouped_pool(32), b = grouped_pool(64);
  grouped::seals = 0;
  const sequence_id one = plain(a, range(0, 33));
  EXPECT_EQ(grouped::seals, 2 * 2) << "keys and values of two heads";
  const sequence_id whole = prefill(b, range(0, 33));
  EXPECT_TRUE(a.same_rows(one, b, whole));
  std::vector<float> k(33 * 32), v(33 * 32);
  a.read(one, 0, 0, {k.data(), extents{33, 2, 16}}, {v.data(), extents{33, 2, 16}});
  rows exact(a, range(0, 33), 0);
  for (float& x : exact.k) x = std::sin(x) * (static_cast<int>(x) % 8 ? 1.f : 50.f);
  EXPECT_FALSE(std::equal(k.begin(), k.begin() + 32 * 32, exact.k.begin()));
  EXPECT_TRUE(std::equal(k.begin() + 32 * 32, k.end(), exact.k.begin() + 32 * 32)) << "the tail is exact";
}
TEST(page_pool_groups, rejected_drafts_leave_no_scale_behind) {
  for (int accepted = 0; accepted <= 4; ++accepted) {
    group_pool a = grouped_pool(32), b = grouped_pool(32);
    const sequence_id s = prefill(a, range(0, 29));
    a.reserve(s, 5);
    std::vector<int> step = range(29, 1 + accepted);
    while (step.size() < 5) step.push_back(2000 + static_cast<int>(step.size()));
    write_numbers(a, s, step);
    a.commit(s, 1 + accepted);
    EXPECT_TRUE(a.same_rows(s, b, plain(b, range(0, 30 + accepted))));
  }
}
TEST(page_pool_groups, sealed_groups_are_not_cut) {
  group_pool pool = grouped_pool(64);
  const sequence_id s = prefill(pool, range(0, 70));
  EXPECT_NE(message_of([&] { pool.truncate(s, 40); }).find("inside a sealed group"), std::string::npos);
  pool.truncate(s, 66);
  pool.truncate(s, 32);
  EXPECT_EQ(pool.length(s), 32);
  EXPECT_NE(message_of([] { grouped_pool(48); }).find("expected a multiple of 32"), std::string::npos);
}
template <class Pool>
concept evicts = requires(Pool& p, sequence_id s, std::span<const std::int32_t> i) {
  p.drop(s, i);
};
static_assert(evicts<heddle::page_pool<codec::f32>> && !evicts<group_pool>);

}  // namespace
