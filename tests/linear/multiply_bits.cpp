#include <heddle/linear/elementwise.hpp>
#include <heddle/linear/multiply.hpp>
#include <heddle/linear/norm.hpp>
#include "support/bits.hpp"

#include <cstdio>

HEDDLE_BITS(linear_multiply, report) {
  using heddle::linear::format, heddle::linear::precision;
  constexpr std::int64_t rows = 7, inputs = 295, outputs = 37;
  heddle_bits::inputs in{8};
  const auto weights = in.uniform(outputs * inputs), values = in.uniform(rows * inputs);
  const heddle::tensor_view x{values.data(), heddle::extents{rows, inputs}};
  for (const format kind : {format::f32, format::f16, format::bf16, format::q8_0, format::q4_0, format::q4_1}) {
    const auto w = heddle::linear::pack(heddle::tensor_view{weights.data(), heddle::extents{outputs, inputs}}, kind);
    for (const precision p : {precision::f32, precision::int8, precision::int16, precision::int24}) {
      if (p != precision::f32 && !heddle::linear::is_quantised(kind)) continue;
      heddle::linear::activations prepared;
      prepared.prepare(x, p);
      heddle_bits::vector<float> y(rows * outputs);
      heddle::linear::multiply(w, prepared, heddle::tensor_view{y.data(), heddle::extents{rows, outputs}});
      char name[64];
      std::snprintf(name, sizeof name, "linear/%s/%s", heddle::linear::name_of(kind), heddle::linear::name_of(p));
      report.add(name, y);
    }
  }
}

HEDDLE_BITS(linear_elementwise, report) {
  constexpr std::int64_t rows = 3, width = 83;
  heddle_bits::inputs in{9};
  auto a = in.uniform(rows * width);
  const auto b = in.uniform(rows * width), weight = in.uniform(width);
  for (float& x : a) x *= 40.f;
  heddle_bits::vector<float> out(rows * width);
  const heddle::extents shape{rows, width};
  const heddle::tensor_view to{out.data(), shape};
  heddle::linear::rms_norm(heddle::tensor_view{a.data(), shape}, heddle::tensor_view{weight.data(), heddle::extents{width}}, 1e-5f, to);
  report.add("linear/rms_norm", out);
  heddle::linear::silu_gate(heddle::tensor_view{a.data(), shape}, heddle::tensor_view{b.data(), shape}, to);
  report.add("linear/silu_gate", out);
}
