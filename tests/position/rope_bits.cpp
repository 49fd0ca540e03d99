#include <heddle/position/rope.hpp>
#include "support/bits.hpp"

#include <type_traits>

HEDDLE_BITS(position_rope, report) {
  heddle_bits::inputs in{5};
  heddle_bits::vector<double> waves;
  for (int i = 0; i < 4000; ++i) {
    const auto t = heddle::math::sincos(static_cast<double>(in.value()) * (i % 2 ? 4. : 1e9));
    waves.push_back(t.sine), waves.push_back(t.cosine);
  }
  report.add("core/sincos", waves);

  constexpr std::int64_t rows = 9, heads = 3, dim = 84;
  const std::int32_t positions[rows] = {0, 1, -1, 77, 4095, 4096, 131071, 1 << 30, -12345};
  const auto turn = [&]<class Pairing>(Pairing, const char* name, const char* frequencies, const heddle::rope_scaling& scaling) {
    const heddle::rope<Pairing> r{{.head_dim = dim, .rotary_dim = 80, .base = 5e5, .scaling = scaling, .sequence_length = 10000}};
    auto x = in.uniform(rows * heads * dim);
    r.rotate(heddle::tensor_view{x.data(), heddle::extents{rows, heads, dim}}, positions);
    report.add(name, x);
    report.add(frequencies, r.frequencies());
  };
  turn(heddle::half_split{}, "rope/half_split/yarn", "rope/frequencies/yarn", heddle::yarn_scaling{.factor = 16, .original_length = 4096});
  turn(heddle::interleaved{}, "rope/interleaved/llama3", "rope/frequencies/llama3", heddle::llama3_scaling{});
  turn(heddle::interleaved{}, "rope/interleaved/dynamic_ntk", "rope/frequencies/dynamic_ntk", heddle::dynamic_ntk_scaling{4, 2048});
}
