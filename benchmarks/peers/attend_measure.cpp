// Times attend() on request, for sdpa.py: a JSON line {"element":"f32"|"f16"|"bf16","query_heads":H,"kv_heads":K,"head_dim":D,"keys":N,"rows":R,"repeats":T}
// on standard input, {"seconds":S} per call on standard output. Keys lie in the library's own pages; the cache of the processor is as the last call left it.
#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>
#include <heddle/core/thread_team.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "requests.hpp"

namespace {

using heddle::extents;
using heddle::tensor_view;

struct shape {
  std::int64_t query_heads, kv_heads, head_dim, keys, rows;
};

std::vector<float> noise(std::int64_t size, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<float> out(static_cast<std::size_t>(size));
  for (float& x : out) x = static_cast<float>(random() % 2001) / 1000.f - 1.f;
  return out;
}

template <class Codec>
double measure(const shape& s, int repeats, heddle::thread_team& team) {
  heddle::page_pool<Codec> pool{{.num_layers = 1,
                                 .num_pages = static_cast<std::int32_t>((s.keys + 63) / 64),
                                 .page_size = 64,
                                 .num_kv_heads = static_cast<int>(s.kv_heads),
                                 .head_dim = static_cast<int>(s.head_dim)}};
  const heddle::sequence_id sequence = pool.new_sequence();
  const auto keys = noise(s.keys * s.kv_heads * s.head_dim, 1), values = noise(s.keys * s.kv_heads * s.head_dim, 2);
  const extents<3> kv{s.keys, s.kv_heads, s.head_dim}, qo{s.rows, s.query_heads, s.head_dim};
  pool.reserve(sequence, s.keys);
  pool.write(sequence, 0, tensor_view{keys.data(), kv}, tensor_view{values.data(), kv}, {.executor = team});
  const auto q = noise(s.rows * s.query_heads * s.head_dim, 3);
  std::vector<float> out(q.size());
  const auto input = pool[sequence].layer(0) | heddle::causal();
  const tensor_view<const float, 3> queries{q.data(), qo};
  std::vector<std::byte> workspace(heddle::attend_workspace_size(queries, input, {.executor = team}));
  const auto run = [&] {
    heddle::attend(queries, input, tensor_view{out.data(), qo}, tensor_view<float, 2>{}, {.executor = team, .workspace = workspace});
  };
  return seconds_of(run, repeats);
}

}  // namespace

int main(int argc, char** argv) {
  return answer_requests(argc, argv, [](const nlohmann::json& request, heddle::thread_team& team) {
    const shape s{request["query_heads"], request["kv_heads"], request["head_dim"], request["keys"], request["rows"]};
    const std::string element = request["element"];
    const auto call = element == "f32" ? measure<heddle::codec::f32> : element == "f16" ? measure<heddle::codec::f16> : measure<heddle::codec::bf16>;
    return call(s, request["repeats"], team);
  });
}
