#include "projection.hpp"

#include <heddle/linear/multiply.hpp>

#include <algorithm>

namespace llama {
namespace {

linear::format format_of(const tensor_info& tensor) {
  if (tensor.format == format::f32) return linear::format::f32;
  if (tensor.format == format::f16) return linear::format::f16;
  if (tensor.format == format::bf16) return linear::format::bf16;
  if (tensor.format == format::q8_0) return linear::format::q8_0;
  if (tensor.format == format::q4_0) return linear::format::q4_0;
  return linear::format::q4_1;
}

}  // namespace

projection::projection(std::initializer_list<const tensor_info*> tensors, weight_arena& arena, const release_pages& release,
                       heddle::executor_ref executor) {
  std::vector<linear::stored_matrix> stored;
  for (const tensor_info* t : tensors)
    stored.push_back({format_of(*t), static_cast<std::int64_t>(t->dims[1]), static_cast<std::int64_t>(t->dims[0]), t->data.data()});
  const auto add = [&](std::span<const linear::stored_matrix> matrices) {
    std::int64_t outputs = 0;
    for (const auto& m : matrices) outputs += m.outputs;
    const auto memory = arena.take(linear::packed_bytes(matrices[0].kind, outputs, matrices[0].inputs));
    auto& parts = linear::is_quantised(matrices[0].kind) ? quantised_ : plain_;
    parts.push_back({linear::pack_into(memory, matrices, {.executor = executor}), outputs_});
    outputs_ += outputs;
  };
  const bool one_format = std::all_of(stored.begin(), stored.end(), [&](const auto& m) { return m.kind == stored[0].kind; });
  if (one_format) add(stored);
  else
    for (const auto& matrix : stored) add(std::span(&matrix, 1));
  for (const tensor_info* t : tensors) release(t->data);
}

void projection::apply(const tensor_view<const float, 2>& x, inputs& scratch, const tensor_view<float, 2>& out,
                       heddle::executor_ref executor) const {
  const auto apply_parts = [&](const std::vector<part>& parts, linear::activations& prepared) {
    if (parts.empty()) return;
    prepared.prepare(x, {.executor = executor});
    std::vector<linear::product> products;
    for (const part& p : parts) {
      const extents<2> shape{out.extent(0), p.weights.outputs};
      products.push_back({p.weights, tensor_view{out.at(0, p.first_output), shape, out.strides()}});
    }
    linear::multiply(products, prepared, {.executor = executor});
  };
  apply_parts(quantised_, scratch.rounded);
  apply_parts(plain_, scratch.exact);
}

}  // namespace llama
