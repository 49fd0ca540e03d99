#include <heddle/attention/adaptors.hpp>
#include <heddle/attention/attend.hpp>
#include <heddle/attention/sources.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>
#include "support/bits.hpp"

#include <cstdio>

namespace {

constexpr int num_qo_heads = 6, num_kv_heads = 2, head_dim = 40;

heddle_bits::vector<float> queries(heddle_bits::inputs& in, std::int64_t rows) {
  auto q = in.uniform(static_cast<std::size_t>(rows * num_qo_heads * head_dim));
  for (float& x : q) x *= 3.f;
  return q;
}

template <class Keys>
void attend(heddle_bits::report& report, const char* what, const char* codec, const heddle_bits::vector<float>& q, const Keys& keys) {
  const std::int64_t rows = static_cast<std::int64_t>(q.size()) / (num_qo_heads * head_dim);
  heddle_bits::vector<float> out(q.size()), lse(static_cast<std::size_t>(rows * num_qo_heads));
  const heddle::extents shape{rows, std::int64_t{num_qo_heads}, std::int64_t{head_dim}};
  heddle::attend(heddle::tensor_view{q.data(), shape}, keys, heddle::tensor_view{out.data(), shape},
                 heddle::tensor_view{lse.data(), heddle::extents{rows, std::int64_t{num_qo_heads}}});
  char name[64];
  std::snprintf(name, sizeof name, "attend/%s/%s/out", codec, what), report.add(name, out);
  std::snprintf(name, sizeof name, "attend/%s/%s/lse", codec, what), report.add(name, lse);
}

template <class Codec>
void attend_pool(heddle_bits::report& report) {
  heddle_bits::inputs in{6};
  constexpr std::int64_t context = 1100, nodes = 7;
  constexpr std::int32_t parents[nodes] = {-1, 0, 0, 1, -1, 4, 3};
  heddle::page_pool<Codec> pool{{.num_layers = 1, .num_pages = 40, .page_size = 32, .num_kv_heads = num_kv_heads, .head_dim = head_dim}};
  const heddle::sequence_id s = pool.new_sequence();
  const auto append = [&](std::int64_t rows) {
    const auto k = in.uniform(static_cast<std::size_t>(rows * num_kv_heads * head_dim)), v = in.uniform(k.size());
    const heddle::extents shape{rows, std::int64_t{num_kv_heads}, std::int64_t{head_dim}};
    pool.reserve(s, rows);
    pool.write(s, 0, heddle::tensor_view{k.data(), shape}, heddle::tensor_view{v.data(), shape});
  };
  append(context);
  attend(report, "decode", Codec::name, queries(in, 1), pool[s].layer(0) | heddle::causal());
  attend(report, "prefill", Codec::name, queries(in, 70), pool[s].layer(0) | heddle::causal() | heddle::window(300) | heddle::soft_cap(20.f));
  pool.commit(s);
  append(nodes);
  attend(report, "tree", Codec::name, queries(in, nodes), pool[s].layer(0) | heddle::tree(parents));
}

}  // namespace

HEDDLE_BITS(attention_attend, report) {
  attend_pool<heddle::codec::f32>(report);
  attend_pool<heddle::codec::f16>(report);
  attend_pool<heddle::codec::fp8_e4m3>(report);
  attend_pool<heddle::codec::int8<>>(report);
}
