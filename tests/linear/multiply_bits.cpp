#include "support/bits.hpp"

#include <heddle/linear/elementwise.hpp>
#include <heddle/linear/multiply.hpp>

HEDDLE_BITS(linear_multiply, report) {
  using namespace heddle;
  heddle_bits::inputs in{11};
  const std::int64_t inputs = 300, outputs = 40, rows = 7;
  const auto weights = in.uniform(static_cast<std::size_t>(inputs * outputs)), x = in.uniform(static_cast<std::size_t>(inputs * rows));
  heddle_bits::vector<float> y(static_cast<std::size_t>(outputs * rows));
  const tensor_view out{y.data(), extents{rows, outputs}};
  linear::activations prepared;
  for (const linear::format f : {linear::format::f32, linear::format::f16, linear::format::bf16, linear::format::q8_0, linear::format::q4_0, linear::format::q4_1}) {
    const linear::packed_matrix w = linear::pack(tensor_view{weights.data(), extents{outputs, inputs}}, f);
    for (const linear::precision p : {linear::precision::f32, linear::precision::int8, linear::precision::int16, linear::precision::int24}) {
      if (!linear::is_quantised(f) && p != linear::precision::f32) continue;
      prepared.prepare(tensor_view{x.data(), extents{rows, inputs}}, p);
      linear::multiply(w, prepared, out);
      char name[64] = "linear/";
      std::snprintf(name, sizeof name, "linear/%s/%s", linear::name_of(f), linear::name_of(p));
      report.add(name, y);
    }
  }
  heddle_bits::vector<float> z(x.size());
  const tensor_view from{x.data(), extents{rows, inputs}};
  const tensor_view to{z.data(), extents{rows, inputs}};
  linear::rms_norm(from, tensor_view{weights.data(), extents{inputs}}, 1e-5f, to);
  report.add("linear/rms_norm", z);
  linear::silu_gate(from, from, to);
  report.add("linear/silu_gate", z);
}
