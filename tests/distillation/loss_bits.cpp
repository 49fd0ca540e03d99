#include <heddle/distillation/fused_linear.hpp>
#include <heddle/distillation/support.hpp>

#include "support/bits.hpp"

HEDDLE_BITS(distillation_loss, report) {
  using namespace heddle::distillation;
  heddle_bits::inputs in{11};
  constexpr std::int64_t n = 3, columns = 1100;
  const heddle::extents<2> shape{n, columns};
  auto z = in.uniform(n * columns), y = in.uniform(n * columns);
  for (float& x : z) x *= 6.f;
  for (float& x : y) x *= 6.f;
  z[5] = -__builtin_inff(), y[5] = -__builtin_inff();   // a guarded row beside plain ones
  heddle_bits::vector<float> gradient(z.size());
  const heddle::tensor_view<const float, 2> student{z.data(), shape}, teacher{y.data(), shape};
  const auto add = [&](const char* name, const auto& divergence) {
    const auto result = loss(student, teacher, divergence, heddle::tensor_view<float, 2>{gradient.data(), shape}, {.temperature = 1.25});
    report.add(name, result.row_values);
    report.add(name, gradient);
  };
  add("distillation/forward_kl", forward_kl{});
  add("distillation/generalized_jsd", generalized_jsd{.beta = 0.3});
  add("distillation/total_variation", total_variation{});
  add("distillation/top_k_tail", top_k_tail<reverse_kl>{.k = 9});

  constexpr std::int64_t d = 20, vocabulary = 100;
  const auto h = in.uniform(n * d), w = in.uniform(vocabulary * d);
  heddle_bits::vector<float> dh(h.size()), dw(w.size());
  fused_linear_loss(heddle::tensor_view<const float, 2>{h.data(), heddle::extents<2>{n, d}}, heddle::tensor_view<const float, 2>{w.data(), heddle::extents<2>{vocabulary, d}},
                    heddle::tensor_view<const float, 2>{y.data(), heddle::extents<2>{n, vocabulary}}, reverse_kl{}, heddle::tensor_view<float, 2>{dh.data(), heddle::extents<2>{n, d}},
                    heddle::tensor_view<float, 2>{dw.data(), heddle::extents<2>{vocabulary, d}});
  report.add("distillation/fused_linear/d_hidden", dh);
  report.add("distillation/fused_linear/d_unembedding", dw);
}
