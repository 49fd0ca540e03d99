// y += W x for a row-major float matrix W [n, m]: one fused chain of sixteen lanes per row, joined in a fixed tree.
#pragma once
#include <heddle/core/simd.hpp>
#include <heddle/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::detail::inline HEDDLE_ISA {

inline float dot(const float* a, const float* b, std::int64_t n) {
  simd::f32x16 sum = simd::splat(0.f);
  for (std::int64_t i = 0; i < n; i += simd::lanes) sum = simd::fma(simd::load_first(a + i, n - i), simd::load_first(b + i, n - i), sum);
  return simd::reduce_add(sum);
}

inline void add_product(const tensor_view<const float, 2>& w, std::span<const float> x, std::span<float> y) {
  for (std::int64_t row = 0; row < w.extent(0); ++row) y[static_cast<std::size_t>(row)] += dot(w.at(row), x.data(), w.extent(1));
}

inline float sigmoid(float x) { return 1.f / (1.f + simd::exp(x < -87.f ? 87.f : x > 87.f ? -87.f : -x)); }
inline float tanh(float x) { return 2.f * sigmoid(2.f * x) - 1.f; }

/// Throws unless the weight is a matrix [rows, columns] with contiguous rows.
inline void require_weight(const char* function, const char* name, const tensor_view<const float, 2>& w, std::int64_t rows, std::int64_t columns) {
  require_shape(function, name, w, extents{rows, columns});
  require(w.extent(1) <= 1 || w.stride(1) == 1, function, ": argument '", name, "' has a stride of ", w.stride(1), " between columns; expected 1");
}

}  // namespace heddle::detail::inline HEDDLE_ISA
