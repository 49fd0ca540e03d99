// The element by element steps between two products.
//
// silu_gate(gate, up, out)   out = silu(gate) * up,   silu(g) = g / (1 + e^-g)
// add(a, b, out)             out = a + b              (the residual)
//
// All: [rows, width] of float, float16 or bfloat16, unit stride along width, any row stride (gate and up may be the halves of one fused
// output); out may be an input. Arithmetic in float, rounded once to out's element. An element depends on its own inputs only.
// silu: relative error below 4e-7 for g > -87; below -87.33 the result is -0; NaN stays NaN, silu(-infinity) is NaN, silu(infinity) infinity.
// Cost: one pass; silu_gate about 30 operations per 16 elements. Zero rows are fine. Errors name the argument.
// Source: Shazeer 2020, GLU Variants Improve Transformer (SwiGLU).
//
//     heddle::linear::silu_gate(gate, up, activated);
//     heddle::linear::add(hidden, projected, hidden);
#pragma once
#include <heddle/linear/norm.hpp>

namespace heddle::linear {

namespace detail::inline HEDDLE_ISA {

// g / (1 + e^-|g|), times e^-|g| for negative g: the exponential never overflows.
[[gnu::always_inline]] inline simd::f32x16 silu(simd::f32x16 g) {
  const simd::f32x16 one = simd::splat(1.f), e = simd::exp(-simd::abs(g));
  return g * simd::select(simd::less(g, simd::splat(0.f)), e, one) / (one + e);
}

template <class A, class B, class Out, class F>
void map_rows(const char* function, const char* first, const char* second, const A& a, const B& b, const Out& out, const row_options& options, const F& f) {
  require_shape(function, second, b, a.shape());
  require_shape(function, "out", out, a.shape());
  require_rows(function, first, a), require_rows(function, second, b), require_rows(function, "out", out);
  const std::int64_t width = a.extent(1);
  for_rows(a.extent(0), width, options.executor, [&](std::int64_t r) {
    const auto *x = a.at(r);
    const auto *y = b.at(r);
    auto *to = out.at(r);
    for (std::int64_t i = 0; i < width; i += simd::lanes) simd::store_first(to + i, f(simd::load_first(x + i, width - i), simd::load_first(y + i, width - i)), width - i);
  });
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <row_matrix Gate, row_matrix Up, row_matrix Out>
  requires writable_tensor<Out>
void silu_gate(const Gate& gate, const Up& up, const Out& out, const row_options& options = {}) {
  detail::map_rows("silu_gate", "gate", "up", view_of(gate), view_of(up), view_of(out), options,
                   [](simd::f32x16 g, simd::f32x16 u) __attribute__((always_inline)) { return detail::silu(g) * u; });
}

template <row_matrix A, row_matrix B, row_matrix Out>
  requires writable_tensor<Out>
void add(const A& a, const B& b, const Out& out, const row_options& options = {}) {
  detail::map_rows("add", "a", "b", view_of(a), view_of(b), view_of(out), options, [](simd::f32x16 x, simd::f32x16 y) __attribute__((always_inline)) { return x + y; });
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::linear
