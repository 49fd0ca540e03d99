// What may run at the same time: built with -fsanitize=thread this finds anything that is shared and should not be.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include "pool_model.hpp"

#include <thread>

using namespace pool_test;

namespace {

TEST(page_pool_threads, layers_and_sequences_are_written_and_read_at_once) {
  using pool_type = heddle::page_pool<heddle::codec::f16>;
  pool_type pool({.num_layers = 4, .num_pages = 20, .page_size = 16, .num_kv_heads = 2, .head_dim = 16});
  const sequence_id a = pool.new_sequence(), b = pool.new_sequence();
  append(pool, a, range(0, 20));
  const sequence_id c = pool.fork(a);
  std::vector<token> expected;
  for (int i = 0; i < 20; ++i) expected.push_back({i, i});
  pool.reserve(a, 30);
  pool.reserve(b, 30);
  {
    std::vector<std::jthread> threads;
    for (int layer = 0; layer < 4; ++layer)
      for (const sequence_id s : {a, b})
        threads.emplace_back([&pool, s, layer] {
          rows r(pool, range(100, 30), layer);
          pool.write(s, layer, r.keys().slice(0, 10), r.values().slice(0, 10));
          pool.write(s, layer, r.keys().slice(10, 20), r.values().slice(10, 20), {.first_row = 10});
        });
    for (int reader = 0; reader < 3; ++reader)
      threads.emplace_back([&] {
        expect_tokens(pool, c, expected);
        EXPECT_EQ(pool.usage().pages_in_use, 7);  // one shared, three more of a, the last one of c, two of b
        EXPECT_EQ(pool.pages_needed(c, 13), 1);
        heddle::tile t;
        pool[c].layer(1).find(0, 1, 0, t, nullptr);
        EXPECT_EQ(pool[c].layer(1).positions(0)[19], 19);
      });
  }
  pool.commit(a);
  pool.commit(b, 30);
  for (int i = 0; i < 30; ++i) expected.push_back({100 + i, 20 + i});
  expect_tokens(pool, a, expected);
}

}  // namespace
