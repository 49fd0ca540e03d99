// The feed-forward block of a Llama layer for three rows: norm, gate and up as one product, SiLU gate, down, residual.
#include <heddle/core/thread_team.hpp>
#include <heddle/linear/elementwise.hpp>
#include <heddle/linear/multiply.hpp>

#include <cstdio>
#include <vector>

int main() {
  using namespace heddle;
  const std::int64_t rows = 3, hidden = 64, wide = 160;
  const auto values = [](std::int64_t count, float scale) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = scale * (static_cast<float>(i * 2654435761u % 1000u) / 500.f - 1.f);
    return v;
  };
  const std::vector<float> gate_up = values(2 * wide * hidden, 0.1f), down = values(hidden * wide, 0.1f), weight(static_cast<std::size_t>(hidden), 1.f);
  std::vector<float> state = values(rows * hidden, 1.f), normed(state.size()), projected(state.size()), both(static_cast<std::size_t>(rows * 2 * wide)), activated(static_cast<std::size_t>(rows * wide));
  const tensor_view x{state.data(), extents{rows, hidden}}, n{normed.data(), extents{rows, hidden}}, p{projected.data(), extents{rows, hidden}};
  const tensor_view gate{both.data(), extents{rows, wide}, extents{2 * wide, std::int64_t{1}}}, up{both.data() + wide, extents{rows, wide}, extents{2 * wide, std::int64_t{1}}};
  const tensor_view a{activated.data(), extents{rows, wide}};

  const linear::packed_matrix w_gate_up = linear::pack(tensor_view{gate_up.data(), extents{2 * wide, hidden}}, linear::format::q8_0);
  const linear::packed_matrix w_down = linear::pack(tensor_view{down.data(), extents{hidden, wide}}, linear::format::q4_1);
  thread_team team{2};
  linear::activations prepared{linear::precision::int24, rows, wide};

  linear::rms_norm(x, tensor_view{weight.data(), extents{hidden}}, 1e-5f, n);
  prepared.prepare(n);
  linear::multiply(w_gate_up, prepared, tensor_view{both.data(), extents{rows, 2 * wide}}, {.executor = team});
  linear::silu_gate(gate, up, a);
  prepared.prepare(a);
  linear::multiply(w_down, prepared, p, {.executor = team});
  linear::add(x, p, x);
  std::printf("%.4f %.4f %.4f\n", static_cast<double>(x(0, 0)), static_cast<double>(x(1, 0)), static_cast<double>(x(2, 0)));
}
