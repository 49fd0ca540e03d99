// One operation at a time. Random sequences of operations: page_pool_state_test.cpp.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include "pool_model.hpp"

#include <heddle/core/thread_team.hpp>

#include <cmath>
#include <type_traits>

using namespace pool_test;
using heddle::page_pool;
using heddle::page_tables;
using lane_pool = page_pool<heddle::codec::f16>;
using row_pool = page_pool<heddle::codec::f32, heddle::row_layout>;

static_assert(std::is_trivially_copyable_v<heddle::layer_source<lane_pool>>);
static_assert(std::is_move_constructible_v<lane_pool> && !std::is_copy_constructible_v<lane_pool>);
template <class K>
concept writes = requires(lane_pool& p, sequence_id s, K k) {
  p.write(s, 0, k, k);
};
static_assert(writes<tensor_view<float, 3>> && writes<tensor_view<const heddle::bfloat16, 3>>);
static_assert(!writes<tensor_view<float, 2>> && !writes<tensor_view<int, 3>> && !writes<tensor_view<float, 3, heddle::device>>);

namespace {

const heddle::page_pool_options small = {
    .num_layers = 3, .num_pages = 12, .page_size = 16, .num_kv_heads = 2, .head_dim = 24, .head_dim_v = 7};

std::vector<token> tokens(const std::vector<int>& tags, std::int32_t first_position = 0) {
  std::vector<token> list;
  for (const int tag : tags) list.push_back({tag, first_position++});
  return list;
}

TEST(page_pool, rows_come_back_from_every_layer_and_head) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  append(pool, s, range(0, 21));
  append(pool, s, range(21, 1));
  append(pool, s, range(22, 30));
  expect_tokens(pool, s, tokens(range(0, 52)));
  EXPECT_EQ(pool.committed(s), 52);
  EXPECT_EQ(pool.next_position(s), 52);
  EXPECT_EQ(pool.num_pages() - pool.free_pages(), 4);
}

TEST(page_pool, layers_may_be_written_in_any_order_and_in_pieces) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  append(pool, s, range(0, 11));
  pool.reserve(s, 20);
  for (const int layer : {2, 0, 1})
    for (const int first : {0, 3, 10}) {
      rows r(pool, range(11 + first, first == 0 ? 3 : first == 3 ? 7 : 10), layer);
      pool.write(s, layer, r.keys(), r.values(), {.first_row = first});
    }
  pool.commit(s);
  expect_tokens(pool, s, tokens(range(0, 31)));
}

TEST(page_pool, strided_rows_of_any_type_are_taken) {
  row_pool pool({.num_pages = 8, .page_size = 3, .num_kv_heads = 2, .head_dim = 20, .head_dim_v = 33});
  page_pool<heddle::codec::f16> lanes({.num_pages = 8, .page_size = 16, .num_kv_heads = 2, .head_dim = 20, .head_dim_v = 33});
  rows r(pool, range(0, 19), 0);
  std::vector<heddle::bfloat16> k(r.k.size()), v(r.v.size());  // channels slowest: [channel][head][row], rows backwards
  const std::int64_t n = 19;
  tensor_view keys{k.data() + (n - 1), extents{n, 2, 20}, extents{-1, n, 2 * n}};
  tensor_view values{v.data() + (n - 1), extents{n, 2, 33}, extents{-1, n, 2 * n}};
  for (std::int64_t i = 0; i < n; ++i)
    for (int h = 0; h < 2; ++h) {
      for (int c = 0; c < 20; ++c) keys(i, h, c) = heddle::bfloat16(r.keys()(i, h, c));
      for (int c = 0; c < 33; ++c) values(i, h, c) = heddle::bfloat16(r.values()(i, h, c));
    }
  const auto check = [&](auto& p) {
    const sequence_id s = p.new_sequence();
    p.reserve(s, n);
    p.write(s, 0, keys, values);
    p.commit(s);
    expect_tokens(p, s, tokens(range(0, 19)));
  };
  check(pool);
  check(lanes);
}

TEST(page_pool, wide_heads_with_strided_channels) {
  lane_pool pool({.num_pages = 1, .page_size = 16, .head_dim = 1031, .head_dim_v = 4096});
  rows r(pool, range(0, 16), 0);
  std::vector<float> k(r.k.size() * 2), v(r.v.size() * 2);
  const tensor_view keys{k.data(), extents{16, 1, 1031}, extents{2062, 2062, 2}},
      values{v.data(), extents{16, 1, 4096}, extents{8192, 8192, 2}};
  for (std::size_t i = 0; i < r.k.size(); ++i) k[2 * i] = r.k[i];
  for (std::size_t i = 0; i < r.v.size(); ++i) v[2 * i] = r.v[i];
  const sequence_id s = pool.new_sequence();
  pool.reserve(s, 16);
  pool.write(s, 0, keys, values);
  pool.commit(s);
  expect_tokens(pool, s, tokens(range(0, 16)));
}

TEST(page_pool, bytes_do_not_depend_on_the_executor) {
  heddle::thread_team team(3);
  const heddle::page_pool_options o = {.num_pages = 8, .page_size = 32, .num_kv_heads = 5, .head_dim = 40};
  memory one(lane_pool::storage_bytes(o)), many(lane_pool::storage_bytes(o));
  const auto fill = [&](memory& m, heddle::executor_ref executor) {
    auto with = o;
    with.storage = m.span();
    lane_pool pool(with);
    const sequence_id s = pool.new_sequence();
    append(pool, s, range(0, 7));
    pool.reserve(s, 200);
    rows r(pool, range(7, 200), 0);
    pool.write(s, 0, r.keys(), r.values(), {.executor = executor});
    pool.commit(s);
    expect_tokens(pool, s, tokens(range(0, 207)));
    const auto bytes = m.span();
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(fill(one, {}), fill(many, team));
}

TEST(page_pool, commit_keeps_the_first_rows_and_rollback_none) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  append(pool, s, range(0, 14));
  pool.reserve(s, 20);
  EXPECT_EQ(pool.length(s), 34);
  EXPECT_EQ(pool.reserved(s), 20);
  write_all(pool, s, range(100, 20));
  pool.commit(s, 3);
  std::vector<token> expected = tokens(range(0, 14));
  for (int i = 0; i < 3; ++i) expected.push_back({100 + i, 14 + i});
  expect_tokens(pool, s, expected);
  EXPECT_EQ(pool.num_pages() - pool.free_pages(), 2);
  pool.reserve(s, 40);
  pool.rollback(s);
  expect_tokens(pool, s, expected);
  EXPECT_EQ(pool.num_pages() - pool.free_pages(), 2);
  pool.reserve(s, 5);
  pool.commit(s, 0);  // nothing was written, nothing is kept
  expect_tokens(pool, s, expected);
}

TEST(page_pool, compaction_keeps_a_path) {
  for (const bool per_head : {false, true}) {
    row_pool pool({.num_layers = 2,
                   .num_pages = 200,
                   .page_size = 3,
                   .num_kv_heads = 2,
                   .head_dim = 9,
                   .tables = per_head ? page_tables::per_head : page_tables::shared});
    const sequence_id s = pool.new_sequence();
    append(pool, s, range(0, 5));
    const std::vector<std::int32_t> positions = {5, 6, 6, 7, 7, 7, 8, 9};  // depths of a tree
    pool.reserve(s, 8, positions);
    write_all(pool, s, range(50, 8));
    const std::vector<std::int32_t> path = {0, 2, 5, 6};
    pool.compact(s, path);
    std::vector<token> expected = tokens(range(0, 5));
    for (const int i : path) expected.push_back({50 + i, positions[static_cast<std::size_t>(i)]});
    expect_tokens(pool, s, expected);
    EXPECT_EQ(pool.next_position(s), 9);
    pool.reserve(s, 2);
    write_all(pool, s, range(70, 2));
    pool.compact(s, {});  // nothing accepted
    expect_tokens(pool, s, expected);
  }
}

TEST(page_pool, default_positions_continue) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  const std::vector<std::int32_t> positions = {7, 3, -2};
  pool.reserve(s, 3, positions);
  write_all(pool, s, range(0, 3));
  pool.commit(s, 2);
  EXPECT_EQ(pool.next_position(s), 4);
  append(pool, s, range(2, 1));
  expect_tokens(pool, s, {{0, 7}, {1, 3}, {2, 4}});
  pool.truncate(s, 1);
  append(pool, s, range(9, 1));
  expect_tokens(pool, s, {{0, 7}, {9, 8}});
  pool.truncate(s, 0);
  append(pool, s, range(4, 2));
  expect_tokens(pool, s, {{4, 0}, {5, 1}});
}

TEST(page_pool, a_fork_shares_pages_until_one_side_writes) {
  lane_pool pool(small);
  const sequence_id a = pool.new_sequence();
  append(pool, a, range(0, 40));  // pages of 16, 16, 8
  const sequence_id b = pool.fork(a), c = pool.fork(a, 32), d = pool.fork(a, 19);
  EXPECT_EQ(pool.usage().pages_in_use, 3);
  EXPECT_EQ(pool.usage().live_bytes, 40u * 6 * (24 + 7) * 2);
  expect_tokens(pool, b, tokens(range(0, 40)));
  expect_tokens(pool, c, tokens(range(0, 32)));
  EXPECT_EQ(pool.pages_needed(a, 0), 0);
  EXPECT_EQ(pool.pages_needed(a, 1), 1);  // the copy of the last page
  EXPECT_EQ(pool.pages_needed(a, 9), 2);
  EXPECT_EQ(pool.pages_needed(c, 1), 1);   // a new page, nothing to copy
  EXPECT_EQ(pool.pages_needed(d, 13), 1);  // room left in a shared page
  append(pool, a, {100});
  append(pool, b, {200});  // its last page is its own by now
  append(pool, c, {300});
  append(pool, d, {400});
  const auto with = [](std::vector<token> list, int tag) {
    const auto position = static_cast<std::int32_t>(list.size());
    list.push_back({tag, position});
    return list;
  };
  expect_tokens(pool, a, with(tokens(range(0, 40)), 100));
  expect_tokens(pool, b, with(tokens(range(0, 40)), 200));
  expect_tokens(pool, c, with(tokens(range(0, 32)), 300));
  expect_tokens(pool, d, with(tokens(range(0, 19)), 400));
  EXPECT_EQ(pool.usage().pages_in_use, 2 + 4);  // two shared, one tail for each
  for (const sequence_id s : {a, c, b, d}) pool.free(s);
  EXPECT_EQ(pool.free_pages(), pool.num_pages());
  EXPECT_EQ(pool.usage().live_bytes, 0u);
}

TEST(page_pool, a_shared_page_is_never_written) {
  const heddle::page_pool_options o = {.num_pages = 9, .page_size = 16, .head_dim = 16};
  memory m(lane_pool::storage_bytes(o));
  auto with = o;
  with.storage = m.span();
  lane_pool pool(with);
  const sequence_id a = pool.new_sequence();
  append(pool, a, range(0, 40));
  const std::size_t three_pages = 3 * lane_pool::storage_bytes(o) / 9;
  const auto parent_bytes = [&] {
    return std::vector<std::byte>(m.span().begin(), m.span().begin() + static_cast<std::ptrdiff_t>(three_pages));
  };
  const std::vector<std::byte> before = parent_bytes();
  const sequence_id b = pool.fork(a);
  append(pool, b, range(70, 3));
  EXPECT_EQ(parent_bytes(), before);
  pool.reserve(b, 2);
  write_all(pool, b, range(80, 2));
  const std::vector<std::int32_t> path = {1};
  pool.compact(b, path);
  EXPECT_EQ(parent_bytes(), before);
  const std::vector<std::int32_t> evicted = {3, 17, 39};
  pool.drop(b, evicted);
  EXPECT_EQ(parent_bytes(), before);
  pool.truncate(b, 20);
  append(pool, b, range(90, 5));
  EXPECT_EQ(parent_bytes(), before);
  expect_tokens(pool, a, tokens(range(0, 40)));
  // the child is the last holder once the parent is gone: nothing is copied any more
  const sequence_id c = pool.fork(a);
  pool.free(a);
  EXPECT_EQ(pool.pages_needed(c, 1), 0);
}

TEST(page_pool, without_pages_nothing_changes) {
  const heddle::page_pool_options o = {.num_layers = 2, .num_pages = 5, .page_size = 16, .num_kv_heads = 2, .head_dim = 16};
  memory m(lane_pool::storage_bytes(o));
  auto with = o;
  with.storage = m.span();
  lane_pool pool(with);
  const sequence_id a = pool.new_sequence();
  append(pool, a, range(0, 40));
  const sequence_id b = pool.fork(a);
  const auto before = m.copy();
  EXPECT_EQ(message_of([&] { pool.reserve(a, 25); }),
            "page_pool::reserve: 3 pages needed, 2 free of 5 (sequence 0, length 40); nothing was changed");
  EXPECT_EQ(pool.pages_needed(a, 25), 3);
  EXPECT_EQ(m.copy(), before);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.length(a), 40);
  EXPECT_EQ(pool.reserved(a), 0);
  pool.reserve(a, 24);  // exactly what there is: the copy and one more
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_NE(message_of([&] { pool.drop(b, std::vector<std::int32_t>{0}); }), "no error");
  write_all(pool, a, range(40, 24));
  pool.commit(a);
  expect_tokens(pool, a, tokens(range(0, 64)));
  expect_tokens(pool, b, tokens(range(0, 40)));
}

TEST(page_pool, bytes_are_counted_exactly) {
  row_pool pool({.num_layers = 2, .num_pages = 10, .page_size = 3, .num_kv_heads = 2, .head_dim = 5, .head_dim_v = 4});
  const std::size_t page_bytes = 2 * 2 * (64 + 64);  // 3 x 20 and 3 x 16 bytes, each on cache lines of its own
  EXPECT_EQ(pool.usage().capacity_bytes, 10 * page_bytes);
  EXPECT_EQ(row_pool::storage_bytes({.num_layers = 2, .num_pages = 10, .page_size = 3, .num_kv_heads = 2, .head_dim = 5, .head_dim_v = 4}),
            10 * page_bytes);
  EXPECT_EQ(pool.usage().resident_bytes, 0u);
  const sequence_id s = pool.new_sequence();
  append(pool, s, range(0, 7));
  EXPECT_EQ(pool.usage().live_bytes, 7u * 2 * 2 * (5 + 4) * 4);
  EXPECT_EQ(pool.usage().resident_bytes, 3 * page_bytes);
  pool.reserve(s, 3);
  EXPECT_EQ(pool.usage().live_bytes, 10u * 2 * 2 * (5 + 4) * 4);
  EXPECT_EQ(pool.usage().pages_in_use, 4);
  pool.rollback(s);
  EXPECT_EQ(pool.usage().pages_in_use, 3);
}

TEST(page_pool, eviction_keeps_order_and_continues_positions) {
  for (const auto tables : {page_tables::shared, page_tables::per_head}) {
    row_pool pool({.num_layers = 2, .num_pages = 400, .page_size = 3, .num_kv_heads = 2, .head_dim = 6, .tables = tables});
    const sequence_id s = pool.new_sequence();
    append(pool, s, range(0, 20));
    pool.drop(s, std::vector<std::int32_t>{0, 1, 5, 18, 19});
    std::vector<token> expected;
    for (const int i : {2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}) expected.push_back({i, i});
    expect_tokens(pool, s, expected);
    append(pool, s, {77});
    expected.push_back({77, 20});
    expect_tokens(pool, s, expected);
    pool.gather(s, std::vector<std::int32_t>{0, 1, 4, 15});
    expected = {{2, 2}, {3, 3}, {7, 7}, {77, 20}};
    expect_tokens(pool, s, expected);
    pool.gather(s, std::vector<std::int32_t>{0, 1});
    pool.drop(s, {});
    append(pool, s, {78});
    expect_tokens(pool, s, {{2, 2}, {3, 3}, {78, 21}});
    pool.gather(s, {});
    EXPECT_EQ(pool.length(s), 0);
    EXPECT_EQ(pool.free_pages(), pool.num_pages());
    append(pool, s, {79});
    expect_tokens(pool, s, {{79, 22}});
  }
}

TEST(page_pool, heads_may_keep_different_tokens) {
  lane_pool pool({.num_layers = 2, .num_pages = 40, .page_size = 16, .num_kv_heads = 2, .head_dim = 8, .tables = page_tables::per_head});
  const sequence_id s = pool.new_sequence();
  append(pool, s, range(0, 40));
  EXPECT_EQ(pool.usage().pages_in_use, 3 * 4);
  EXPECT_EQ(pool.usage().live_bytes, 40u * 4 * 16 * 2);
  const sequence_id shared = pool.fork(s);
  pool.gather(s, 1, 0, std::vector<std::int32_t>{0, 30, 35});
  pool.drop(s, 0, 1, std::vector<std::int32_t>{2});
  EXPECT_EQ(pool.length(s, 1, 0), 3);
  EXPECT_EQ(pool.length(s, 0, 1), 39);
  EXPECT_EQ(pool.length(s, 0, 0), 40);
  EXPECT_EQ(pool.length(s), 40);
  const auto layer = pool[s].layer(1);
  EXPECT_EQ(layer.length(0, 0), 3);
  EXPECT_EQ(layer.length(0, 1), 40);
  EXPECT_EQ(layer.length(0), 40);
  EXPECT_EQ(layer.head(0).length(0), 3);
  pool.reserve(s, 1);
  write_all(pool, s, {90});
  pool.commit(s);
  EXPECT_EQ(pool.length(s, 1, 0), 4);
  std::vector<token> expected = tokens(range(0, 40));
  expect_tokens(pool, shared, expected);
  const auto read_one = [&](int l, int h, std::int64_t i) {  // the first channel of a key
    std::vector<float> k(16), v(16);
    pool.read(s, l, i, {k.data(), extents{1, 2, 8}}, {v.data(), extents{1, 2, 8}});
    return k[static_cast<std::size_t>(h) * 8];
  };
  EXPECT_EQ(read_one(1, 0, 1), number(30, 1, 0, 0, true));
  EXPECT_EQ(read_one(1, 0, 3), number(90, 1, 0, 0, true));
  EXPECT_EQ(pool.positions(s, 1, 0)[3], 40);
  EXPECT_EQ(read_one(0, 1, 2), number(3, 0, 1, 0, true));
  EXPECT_NE(message_of([&] { pool.truncate(s, 10); }), "no error") << "heads of different lengths have no common prefix";
}

TEST(page_pool, tiles_point_at_the_rows) {
  lane_pool lanes({.num_layers = 2, .num_pages = 20, .page_size = 48, .num_kv_heads = 2, .head_dim = 24, .head_dim_v = 7});
  page_pool<heddle::codec::f16, heddle::row_layout> records(
      {.num_layers = 2, .num_pages = 200, .page_size = 5, .num_kv_heads = 2, .head_dim = 24, .head_dim_v = 7});
  const auto check = [](auto& pool) {
    const sequence_id first = pool.new_sequence(), s = pool.new_sequence();
    append(pool, first, range(500, 20));
    append(pool, s, range(0, 50));
    append(pool, first, range(520, 20));  // pages of the two are interleaved
    append(pool, s, range(50, 100));
    pool.reserve(s, 2);
    write_all(pool, s, range(150, 2));
    const std::vector<sequence_id> ids = {first, s};
    const auto source = pool[ids].layer(1);
    EXPECT_EQ(source.num_sequences(), 2);
    EXPECT_EQ(source.length(1), 152);
    EXPECT_EQ(source.committed(1), 150);
    EXPECT_EQ(source.positions(1)[151], 151);
    heddle::aligned_vector<std::byte> scratch(source.scratch_bytes());
    for (int start = 0; start < 152; start += 64) {
      heddle::tile t;
      source.find(1, 1, start, t, scratch.data());
      for (int i = 0; i < 64; ++i) {
        const int tag = std::min(start + i, 151 / 16 * 16 + i % 16);  // runs past the end repeat the last
        if (tag >= 152) continue;
        float k[24], v[7];
        heddle::codec::f16::decode_key(t.key[i / 16], i % 16, 24, k);
        heddle::codec::f16::decode_value(t.value[i / 16], i % 16, 7, v);
        for (int c = 0; c < 24; ++c) ASSERT_EQ(k[c], number(tag, 1, 1, c, true)) << start << " + " << i;
        for (int c = 0; c < 7; ++c) ASSERT_EQ(v[c], number(tag, 1, 1, c, false)) << start << " + " << i;
      }
    }
  };
  check(lanes);
  check(records);
}

TEST(page_pool, the_same_rows_in_another_layout_are_the_same) {
  lane_pool lanes({.num_layers = 2, .num_pages = 3, .page_size = 32, .num_kv_heads = 3, .head_dim = 10});
  page_pool<heddle::codec::f16, heddle::row_layout> records(
      {.num_layers = 2, .num_pages = 300, .page_size = 7, .num_kv_heads = 3, .head_dim = 10, .tables = page_tables::per_head});
  const sequence_id a = lanes.new_sequence(), b = records.new_sequence();
  append(lanes, a, range(0, 45));
  append(records, b, range(0, 44));
  EXPECT_FALSE(lanes.same_rows(a, records, b));
  append(records, b, {44});
  EXPECT_TRUE(lanes.same_rows(a, records, b));
  EXPECT_TRUE(records.same_rows(b, lanes, a));
  records.truncate(b, 44);
  append(records, b, {45});
  EXPECT_FALSE(lanes.same_rows(a, records, b));
}

TEST(page_pool, ids_of_freed_sequences_are_refused) {
  lane_pool pool(small);
  const sequence_id a = pool.new_sequence();
  append(pool, a, range(0, 3));
  pool.free(a);
  const sequence_id b = pool.new_sequence();
  EXPECT_EQ(b.index, a.index);
  EXPECT_EQ(pool.length(b), 0);
  EXPECT_EQ(message_of([&] { pool.reserve(a, 1); }),
            "page_pool::reserve: argument 'sequence' (index 0, generation 1) names no sequence of this pool");
  EXPECT_NE(message_of([&] { pool.free(a); }), "no error");
  EXPECT_NE(message_of([&] { (void)pool[a]; }), "no error");
  EXPECT_NE(message_of([&] { (void)pool.length(sequence_id{}); }), "no error");
  const std::vector<sequence_id> ids = {b, a};
  EXPECT_NE(message_of([&] { (void)pool[ids]; }), "no error");
}

TEST(page_pool, what_a_caller_can_get_wrong) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  append(pool, s, range(0, 10));
  rows r(pool, range(10, 4), 0);
  pool.reserve(s, 4);
  const auto refused = [&](auto&& f, const char* part) { EXPECT_NE(message_of(f).find(part), std::string::npos) << message_of(f); };
  refused([&] { pool.reserve(s, 1); }, "commit or roll back first");
  refused([&] { pool.fork(s); }, "commit or roll back first");
  refused([&] { pool.truncate(s, 1); }, "commit or roll back first");
  refused([&] { pool.drop(s, std::vector<std::int32_t>{0}); }, "commit or roll back first");
  refused([&] { pool.write(s, 3, r.keys(), r.values()); }, "'layer' is 3; expected 0 to 2");
  refused([&] { pool.write(s, -1, r.keys(), r.values()); }, "'layer' is -1");
  refused([&] { pool.write(s, 0, r.values(), r.values()); }, "argument 'k': extent 2 is 7; expected 24");
  refused([&] { pool.write(s, 0, r.keys(), r.values().slice(0, 3)); }, "argument 'v': extent 0 is 3; expected 4");
  refused([&] { pool.write(s, 0, r.keys(), r.values(), {.first_row = 1}); }, "'first_row' is 1; expected 0 to 0");
  refused([&] { pool.commit(s); }, "layer 0 has written 0 of the 4 rows to keep");
  pool.write(s, 0, r.keys(), r.values());
  refused([&] { pool.write(s, 0, r.keys(), r.values(), {.first_row = 4}); }, "4 rows are reserved");
  refused([&] { pool.commit(s, 1); }, "layer 1 has written 0 of the 1 rows to keep");
  write_all(pool, s, range(10, 4));
  refused([&] { pool.commit(s, 5); }, "'rows' is 5; expected 0 to 4");
  refused([&] { pool.commit(s, -1); }, "'rows' is -1");
  refused([&] { pool.compact(s, std::vector<std::int32_t>{0, 0}); }, "entry 1 is 0; expected 1 to 3, strictly increasing");
  refused([&] { pool.compact(s, std::vector<std::int32_t>{2, 4}); }, "entry 1 is 4; expected 3 to 3");
  refused([&] { pool.compact(s, std::vector<std::int32_t>{-1}); }, "entry 0 is -1");
  pool.commit(s);
  refused([&] { pool.commit(s, 1); }, "'rows' is 1; expected 0 to 0");
  refused([&] { pool.reserve(s, -1); }, "'rows' is -1");
  refused([&] { pool.reserve(s, std::int64_t{1} << 40); }, "'rows' is 1099511627776");
  refused([&] { pool.reserve(s, 2, std::vector<std::int32_t>{1}); }, "'positions' holds 1 entries; expected 2");
  refused([&] { pool.truncate(s, 15); }, "'length' is 15; expected 0 to 14");
  refused([&] { pool.fork(s, -1); }, "'length' is -1");
  refused([&] { pool.drop(s, std::vector<std::int32_t>{14}); }, "entry 0 is 14; expected 0 to 13");
  refused([&] { pool.drop(s, 0, 0, std::vector<std::int32_t>{1}); }, "page_tables::per_head");
  refused([&] { (void)pool[s].layer(3); }, "'layer' is 3");
  expect_tokens(pool, s, tokens(range(0, 14)));

  refused([] { lane_pool({.num_pages = 4, .page_size = 24, .head_dim = 8}); }, "'page_size' is 24; expected a multiple of 16");
  refused([] { row_pool({.num_pages = 4, .page_size = 0, .head_dim = 8}); }, "'page_size' is 0; expected 1 or more");
  refused([] { lane_pool({.num_pages = 4}); }, "'head_dim' is 0");
  refused([] { lane_pool({.num_pages = 4, .head_dim = 4097}); }, "'head_dim' is 4097");
  refused([] { lane_pool({.head_dim = 8}); }, "'num_pages' is 0");
  refused([] { lane_pool({.num_layers = 1 << 30, .num_pages = 1 << 30, .num_kv_heads = 1 << 30, .head_dim = 64}); },
          "do not fit the address space");
  std::byte few[64];
  refused([&] { lane_pool({.num_pages = 4, .head_dim = 8, .storage = few}); }, "'storage' holds 64 bytes");
}

TEST(page_pool, rows_that_were_not_written_are_not_kept) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  pool.reserve(s, 4);
  for (int layer = 0; layer < 3; ++layer) {
    rows r(pool, range(0, 4), layer);
    const int written = layer == 1 ? 2 : 4;
    pool.write(s, layer, r.keys().slice(0, written), r.values().slice(0, written));
  }
  EXPECT_EQ(message_of([&] { pool.commit(s, 3); }), "page_pool::commit: layer 1 has written 2 of the 3 rows to keep");
  EXPECT_EQ(message_of([&] { pool.compact(s, std::vector<std::int32_t>{2}); }),
            "page_pool::compact: layer 1 has written 2 of the 3 rows to keep");
  pool.commit(s, 2);
  expect_tokens(pool, s, tokens(range(0, 2)));
}

TEST(page_pool, positions_end_where_int32_ends) {
  lane_pool pool(small);
  const sequence_id s = pool.new_sequence();
  pool.reserve(s, 1, std::vector<std::int32_t>{2147483646});
  write_all(pool, s, {0});
  pool.commit(s);
  append(pool, s, {1});
  EXPECT_EQ(pool.positions(s)[1], 2147483647);
  EXPECT_NE(message_of([&] { pool.reserve(s, 1); }), "no error");
  pool.reserve(s, 1, std::vector<std::int32_t>{5});
}

}  // namespace
