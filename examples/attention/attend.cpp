// A decode step and the verification of a small draft over one paged cache: the row of the accepted branch has the bits of the decode step.
#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>
#include <heddle/core/thread_team.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  using namespace heddle;
  constexpr int num_qo_heads = 8, num_kv_heads = 2, head_dim = 64, prompt = 100, nodes = 3;
  std::vector<float> k((prompt + nodes) * num_kv_heads * head_dim), v(k.size()), q(nodes * num_qo_heads * head_dim), out(q.size()), lse(nodes * num_qo_heads);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = std::sin(0.37f * static_cast<float>(i)), v[i] = std::cos(0.11f * static_cast<float>(i));
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.53f * static_cast<float>(i));
  const auto rows_of = [&](std::vector<float>& x, int first, int n) { return tensor_view{x.data() + first * num_kv_heads * head_dim, extents{n, num_kv_heads, head_dim}}; };

  page_pool<codec::f16> pool{{.num_layers = 1, .num_pages = 16, .page_size = 16, .num_kv_heads = num_kv_heads, .head_dim = head_dim}};
  const sequence_id sequence = pool.new_sequence();
  pool.reserve(sequence, prompt);
  pool.write(sequence, 0, rows_of(k, 0, prompt), rows_of(v, 0, prompt));
  pool.commit(sequence, prompt);

  // a draft: two guesses for the next token, and one token after the second guess
  const std::vector<std::int32_t> parents{-1, -1, 1}, positions{prompt, prompt, prompt + 1};
  pool.reserve(sequence, nodes, positions);
  pool.write(sequence, 0, rows_of(k, prompt, nodes), rows_of(v, prompt, nodes));
  thread_team team{2};
  attend(tensor_view{q.data(), extents{nodes, num_qo_heads, head_dim}}, pool[sequence].layer(0) | tree(parents) | window(64), tensor_view{out.data(), extents{nodes, num_qo_heads, head_dim}},
         tensor_view{lse.data(), extents{nodes, num_qo_heads}}, {.executor = team});

  // the second branch is accepted: its rows move to the front, and a decode step of its last row gives the same bits
  const std::vector<std::int32_t> accepted{1, 2};
  pool.compact(sequence, accepted);
  std::vector<float> again(num_qo_heads * head_dim), again_lse(num_qo_heads);
  attend(tensor_view{q.data() + 2 * num_qo_heads * head_dim, extents{1, num_qo_heads, head_dim}}, pool[sequence].layer(0) | causal() | window(64), tensor_view{again.data(), extents{1, num_qo_heads, head_dim}},
         tensor_view{again_lse.data(), extents{1, num_qo_heads}});
  const bool same = std::equal(again.begin(), again.end(), out.end() - static_cast<std::ptrdiff_t>(again.size()));
  std::printf("verification and decoding agree: %s\n", same ? "bit for bit" : "no");
  return same ? 0 : 1;
}
