// When a pool allocates, and what is left when it cannot.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include "pool_model.hpp"

#include "support/allocations.hpp"

using namespace pool_test;
using pool_type = heddle::page_pool<heddle::codec::bf16>;

namespace {

const heddle::page_pool_options options = {.num_layers = 2, .num_pages = 40, .page_size = 16, .num_kv_heads = 2, .head_dim = 20};

TEST(page_pool_memory, steps_do_not_allocate) {
  pool_type pool(options);
  const sequence_id s = pool.new_sequence();
  rows r(pool, range(0, 8), 0);
  const std::vector<std::int32_t> path = {0, 3, 4}, evicted = {1, 5};
  const auto keys = r.keys(), values = r.values();
  const auto write = [&] {
    for (int layer = 0; layer < 2; ++layer) pool.write(s, layer, keys, values);
  };
  pool.reserve(s, 100);  // tables grow here
  pool.rollback(s);
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 6; ++i) {
                pool.reserve(s, 8);
                write();
                pool.commit(s, 5);
                pool.reserve(s, 8);
                write();
                pool.compact(s, path);
              }
              pool.drop(s, evicted);
              pool.gather(s, path);
              pool.truncate(s, 1);
              heddle::tile t;
              pool[s].layer(1).find(0, 1, 0, t, nullptr);
              pool.free(s);
              (void)pool.new_sequence();
            }),
            0);
}

TEST(page_pool_memory, tables_grow_by_doubling) {
  pool_type pool({.num_pages = 1 << 12, .page_size = 16, .head_dim = 1});
  const sequence_id s = pool.new_sequence();
  rows r(pool, {0}, 0);
  const auto keys = r.keys(), values = r.values();
  const std::int64_t count = allocations_of([&] {
    for (int i = 0; i < 20000; ++i) {
      pool.reserve(s, 1);
      pool.write(s, 0, keys, values);
      pool.commit(s);
    }
  });
  EXPECT_LE(count, 2 * 16);
}

TEST(page_pool_memory, a_failed_allocation_changes_nothing) {
  for (const auto tables : {heddle::page_tables::shared, heddle::page_tables::per_head}) {
    auto o = options;
    o.tables = tables;
    pool_type pool(o);
    const sequence_id s = pool.new_sequence();
    append(pool, s, range(0, 20));
    const std::int64_t free_before = pool.free_pages();
    std::vector<token> expected;
    for (int i = 0; i < 20; ++i) expected.push_back({i, i});
    const auto fails_then_works = [&](auto&& f) {
      for (int n = 0; n < 100; ++n) {
        allocations.allowed = n;
        bool failed = false;
        try {
          f();
        } catch (const std::bad_alloc&) { failed = true; }
        allocations.allowed = -1;
        if (!failed) return n;
        EXPECT_EQ(pool.free_pages(), free_before);
        EXPECT_EQ(pool.reserved(s), 0);
        expect_tokens(pool, s, expected);
      }
      return -1;
    };
    EXPECT_GT(fails_then_works([&] { pool.reserve(s, 60); }), 0);
    pool.rollback(s);
    sequence_id child;
    EXPECT_GT(fails_then_works([&] { child = pool.fork(s); }), 0);
    expect_tokens(pool, child, expected);
    pool.free(child);
    EXPECT_EQ(pool.free_pages(), free_before);
    expect_tokens(pool, s, expected);
  }
}

}  // namespace
