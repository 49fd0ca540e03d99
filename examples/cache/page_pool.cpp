// Two continuations of one prompt share its pages; one of them verifies a draft and keeps the branch that was accepted.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include <cstdio>
#include <vector>

namespace example {

constexpr int layers = 4, kv_heads = 2, dim = 64;

// What a model would compute for `rows` tokens: keys or values [rows, kv_heads, head_dim].
inline std::vector<float> projection(int rows, int layer) {
  return std::vector<float>(static_cast<std::size_t>(rows * kv_heads * dim), 0.5f * static_cast<float>(layer));
}

}  // namespace example

int main() {
  using namespace heddle;
  using namespace example;
  page_pool<codec::f16> pool{{.num_layers = layers, .num_pages = 16, .page_size = 32, .num_kv_heads = kv_heads, .head_dim = dim}};

  const auto write_all_layers = [&](sequence_id s, int rows) {
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<float> k = projection(rows, layer), v = projection(rows, layer);
      pool.write(s, layer, tensor_view{k.data(), extents{rows, kv_heads, dim}}, tensor_view{v.data(), extents{rows, kv_heads, dim}});
      // attend(q, pool[s].layer(layer) | causal(), out, lse) would follow here
    }
  };

  const sequence_id prompt = pool.new_sequence();
  pool.reserve(prompt, 40);
  write_all_layers(prompt, 40);
  pool.commit(prompt);

  const sequence_id answer = pool.fork(prompt);       // shares both pages; the half full one is copied when somebody writes to it
  const std::int32_t positions[] = {40, 41, 41, 42};  // the last token, two candidates for the next, and a child of the second
  pool.reserve(answer, 4, positions);
  write_all_layers(answer, 4);
  const std::int32_t accepted[] = {0, 2, 3};
  pool.compact(answer, accepted);

  const pool_usage usage = pool.usage();
  std::printf("prompt %lld tokens, answer %lld tokens, %lld pages, %zu bytes live of %zu resident\n",
              static_cast<long long>(pool.length(prompt)), static_cast<long long>(pool.length(answer)),
              static_cast<long long>(usage.pages_in_use), usage.live_bytes, usage.resident_bytes);
  try {
    pool.reserve(answer, 1000);
  } catch (const error& e) { std::printf("%s\n", e.what()); }
  return pool.length(answer) == 43 && pool.positions(answer)[42] == 42 && usage.pages_in_use == 3 ? 0 : 1;
}
