#pragma once
// The rows that tests put into a pool, and what a pool must then hold.
#include <heddle/cache/page_pool.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace pool_test {

using heddle::extents;
using heddle::sequence_id;
using heddle::tensor_view;

struct token {
  int tag;
  std::int32_t position;
  friend bool operator==(const token&, const token&) = default;
};

// One number of a token's key or value: a small integer, exact in every element type of sixteen bits or more.
inline float number(int tag, int layer, int head, int channel, bool key) {
  std::uint32_t z = static_cast<std::uint32_t>(tag) * 0x9e3779b9u +
                    static_cast<std::uint32_t>(layer * 71 + head * 1009 + channel * 31 + (key ? 0 : 77777)) * 0x85ebca6bu;
  z = (z ^ z >> 15) * 0x2c1b3c6du;
  return static_cast<float>(static_cast<int>((z ^ z >> 13) % 255u) - 127);
}

// Keys and values [rows, num_kv_heads, head_dim] of tokens in one layer.
struct rows {
  std::int64_t count, heads, dim, dim_v;
  std::vector<float> k, v;
  template <class Pool>
  rows(const Pool& pool, const std::vector<int>& tags, int layer)
      : count(static_cast<std::int64_t>(tags.size())), heads(pool.num_kv_heads()), dim(pool.head_dim()), dim_v(pool.head_dim_v()) {
    for (const int tag : tags)
      for (int h = 0; h < pool.num_kv_heads(); ++h) {
        for (int c = 0; c < pool.head_dim(); ++c) k.push_back(number(tag, layer, h, c, true));
        for (int c = 0; c < pool.head_dim_v(); ++c) v.push_back(number(tag, layer, h, c, false));
      }
  }
  tensor_view<float, 3> keys() { return {k.data(), extents{count, heads, dim}}; }
  tensor_view<float, 3> values() { return {v.data(), extents{count, heads, dim_v}}; }
};

template <class Pool>
void write_all(Pool& pool, sequence_id s, const std::vector<int>& tags) {
  for (int layer = 0; layer < pool.num_layers(); ++layer) {
    rows r(pool, tags, layer);
    pool.write(s, layer, r.keys(), r.values());
  }
}
template <class Pool>
void append(Pool& pool, sequence_id s, const std::vector<int>& tags) {
  pool.reserve(s, static_cast<std::int64_t>(tags.size()));
  write_all(pool, s, tags);
  pool.commit(s);
}
inline std::vector<int> range(int first, int count) {
  std::vector<int> tags;
  for (int i = 0; i < count; ++i) tags.push_back(first + i);
  return tags;
}

// Every number of one layer and head, exactly.
template <class Pool>
void expect_head(const Pool& pool, sequence_id s, const std::vector<token>& tokens, int layer, int head) {
  const auto positions = pool.positions(s, layer, head);
  ASSERT_EQ(positions.size(), tokens.size());
  const auto n = static_cast<std::int64_t>(tokens.size());
  std::vector<float> k(tokens.size() * static_cast<std::size_t>(pool.num_kv_heads() * pool.head_dim())),
      v(tokens.size() * static_cast<std::size_t>(pool.num_kv_heads() * pool.head_dim_v()));
  const tensor_view keys{k.data(), extents{n, pool.num_kv_heads(), pool.head_dim()}},
      values{v.data(), extents{n, pool.num_kv_heads(), pool.head_dim_v()}};
  pool.read(s, layer, 0, keys, values);
  for (std::int64_t i = 0; i < n; ++i) {
    const token& t = tokens[static_cast<std::size_t>(i)];
    ASSERT_EQ(positions[static_cast<std::size_t>(i)], t.position) << "token " << i;
    for (int c = 0; c < pool.head_dim(); ++c)
      ASSERT_EQ(keys(i, head, c), number(t.tag, layer, head, c, true))
          << "token " << i << " layer " << layer << " head " << head << " channel " << c;
    for (int c = 0; c < pool.head_dim_v(); ++c)
      ASSERT_EQ(values(i, head, c), number(t.tag, layer, head, c, false))
          << "token " << i << " layer " << layer << " head " << head << " channel " << c;
  }
}
template <class Pool>
void expect_tokens(const Pool& pool, sequence_id s, const std::vector<token>& tokens) {
  ASSERT_EQ(pool.length(s), static_cast<std::int64_t>(tokens.size()));
  for (int layer = 0; layer < pool.num_layers(); ++layer)
    for (int head = 0; head < pool.num_kv_heads(); ++head) ASSERT_NO_FATAL_FAILURE(expect_head(pool, s, tokens, layer, head));
}

// Page memory of a pool, full of NaN bytes, that a test can look at.
class memory {
 public:
  explicit memory(std::size_t bytes) : bytes_(bytes + 64, std::byte{0xff}) {}
  std::span<std::byte> span() {
    auto* p = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(bytes_.data()) + 63) / 64 * 64);
    return {p, bytes_.size() - 64};
  }
  std::vector<std::byte> copy() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const heddle::error& e) { return e.what(); }
  return "no error";
}

}  // namespace pool_test
