// Attention refuses rows that were reserved but not yet written: a page holds what an earlier sequence left there.
#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include <gtest/gtest.h>

#include <vector>

#include "support/errors.hpp"

namespace {

using namespace heddle;

TEST(LayerSource, RowsMustBeWrittenBeforeTheyAreRead) {
  page_pool<codec::f32> pool{{.num_layers = 2, .num_pages = 4, .page_size = 16, .num_kv_heads = 1, .head_dim = 16}};
  const std::vector<float> numbers(3 * 16, 1.f);
  std::vector<float> out(3 * 16, -7.f), lse(3, -7.f);
  const auto rows = [](auto& v, std::int64_t n) { return tensor_view{v.data(), extents{n, 1, 16}}; };
  const sequence_id s = pool.new_sequence();
  pool.reserve(s, 3);
  pool.write(s, 0, rows(numbers, 2), rows(numbers, 2));

  const auto read = [&](int layer) { attend(rows(numbers, 3), pool[s].layer(layer) | causal(), rows(out, 3), tensor_view{lse.data(), extents{3, 1}}); };
  EXPECT_EQ(message_of([&] { read(0); }), "page_pool: layer 0 has written 2 of the 3 reserved rows of sequence 0; write() comes before attention reads them");
  EXPECT_EQ(message_of([&] { read(1); }), "page_pool: layer 1 has written 0 of the 3 reserved rows of sequence 0; write() comes before attention reads them");
  EXPECT_EQ(out, std::vector<float>(3 * 16, -7.f));
  EXPECT_EQ(lse, std::vector<float>(3, -7.f));
  EXPECT_GT(attend_workspace_size(rows(numbers, 3), pool[s].layer(0) | causal()), 0u);  // sizes are known before the rows are

  pool.write(s, 0, rows(numbers, 1), rows(numbers, 1), {.first_row = 2});
  read(0);
  EXPECT_EQ(out, std::vector<float>(3 * 16, 1.f));
  EXPECT_EQ(pool.written(s, 0), 3);
  EXPECT_EQ(pool.written(s, 1), 0);
}

}  // namespace
