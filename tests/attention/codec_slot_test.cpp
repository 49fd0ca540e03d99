// The kernel slot takes codecs whose parameters belong to the source: here one that stores keys and values under sign flips of its own for
// every KV head. Queries are flipped once, outputs flipped back once, tiles never; signs are exact, so every bit must equal the plain codec's.
#include "attention/filled_pool.hpp"

namespace attention_test {

inline float sign(int kv_head, int channel) { return (channel * (kv_head + 2) + kv_head) % 3 == 0 ? -1.f : 1.f; }

struct flipped : codec::f32 {
  static constexpr const char* name = "flipped";
  int kv_head = 0;
};

using pool_of_f32 = page_pool<codec::f32>;
struct flipped_source : layer_source<pool_of_f32> {
  using codec = flipped;
  explicit flipped_source(const layer_source<pool_of_f32>& stored) : layer_source<pool_of_f32>(stored) {}
  flipped coder(int kv_head) const {
    flipped c;
    c.kv_head = kv_head;
    return c;
  }
};

}  // namespace attention_test

namespace heddle::detail::inline HEDDLE_ISA {

template <>
class tile_kernel<attention_test::flipped> : public tile_kernel<codec::f32> {
 public:
  tile_kernel(scratch_layout& memory, int capacity, int head_dim, int head_dim_v, std::int64_t chunks)
      : tile_kernel<codec::f32>(memory, capacity, head_dim, head_dim_v, chunks), head_dim_(head_dim), flipped_(memory.take<float>(static_cast<std::size_t>(head_dim))) {}
  void begin(int queries, int kv_head, const attention_test::flipped& coder) {
    tile_kernel<codec::f32>::begin(queries, kv_head, coder);
    kv_head_ = coder.kv_head;
  }
  void pack_query(const float* q, int query, float scale) {
    for (int c = 0; c < head_dim_; ++c) flipped_[c] = q[c] * attention_test::sign(kv_head_, c);
    tile_kernel<codec::f32>::pack_query(flipped_, query, scale);
  }
  void restore(const float* accumulated, float* out) const {
    for (int c = 0; c < width(); ++c) out[c] = accumulated[c] * attention_test::sign(kv_head_, c);
  }

 private:
  int head_dim_, kv_head_ = 0;
  float* flipped_;
};

}  // namespace heddle::detail::inline HEDDLE_ISA

using namespace attention_test;

namespace {

values<float> flip(values<float> x) {
  for (std::int64_t i = 0; i < x.n; ++i)
    for (std::int64_t h = 0; h < x.heads; ++h)
      for (std::int64_t c = 0; c < x.dim; ++c) x.at(i, h, c) *= sign(static_cast<int>(h), static_cast<int>(c));
  return x;
}

TEST(CodecSlot, ParametersOfTheSourceReachTheKernel) {
  const filled_pool<codec::f32, lane_layout> plain(32, 7);
  pool_of_f32 pool({.num_layers = 1, .num_pages = length / 16 + 1, .page_size = 16, .num_kv_heads = num_kv_heads, .head_dim = dim, .head_dim_v = dim_v});
  const sequence_id id = pool.new_sequence();
  pool.reserve(id, length);
  pool.write(id, 0, flip(k).view(), flip(v).view());
  pool.commit(id);
  const flipped_source keys(pool[id].layer(0));
  thread_team team{3};
  for (const auto& options : {attend_options<host>{}, attend_options<host>{.executor = team}}) {
    EXPECT_TRUE(same_bits(run(q, plain.keys() | causal(), dim_v, options), run(q, keys | causal(), dim_v, options)));
    EXPECT_TRUE(same_bits(run(q.rows(0, 1), plain.keys() | window(700) | soft_cap(4.f), dim_v, options), run(q.rows(0, 1), keys | window(700) | soft_cap(4.f), dim_v, options)));
  }
  std::vector<std::int32_t> parents(rows);
  for (std::int32_t r = 0; r < rows; ++r) parents[static_cast<std::size_t>(r)] = r / 2 - 1;
  EXPECT_TRUE(same_bits(run(q, plain.keys() | tree(parents), dim_v), run(q, keys | tree(parents), dim_v)));
  EXPECT_FALSE(same_bits(run(q, plain.keys() | causal(), dim_v), run(q, pool[id].layer(0) | causal(), dim_v))) << "the flips matter";
}

}  // namespace
