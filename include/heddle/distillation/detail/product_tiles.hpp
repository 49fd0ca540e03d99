// Tiles of matrix products in float or double: six numbers against one vector of lanes, one chain of fma per element.
#pragma once
#include <heddle/distillation/detail/logit_rows.hpp>
#include <heddle/distillation/row.hpp>

namespace heddle::distillation::detail::inline HEDDLE_ISA {

inline constexpr int tile_height = 6;

template <class T>
[[gnu::always_inline]] inline real<T> broadcast(T x) {
  if constexpr (std::is_same_v<T, double>) return x;
  else return simd::splat(x);
}

/// sum[i] += a[i * a_stride + k * a_step] * b[k * b_step + lane] over k
template <class T, int height>
[[gnu::always_inline]] inline void multiply_add(const T* a, std::int64_t a_stride, std::int64_t a_step, const T* b, std::int64_t b_step, std::int64_t count, real<T> (&sum)[height]) {
  for (std::int64_t k = 0; k < count; ++k) {
    const real<T> lane = load(b + k * b_step);
#pragma GCC unroll 6
    for (int i = 0; i < height; ++i) sum[i] = fma(lane, broadcast(a[i * a_stride + k * a_step]), sum[i]);
  }
}

/// c[i * c_stride + lane], i < rows: begun or continued.
template <class T>
[[gnu::noinline]] void product_tile(const T* a, std::int64_t a_stride, std::int64_t a_step, const T* b, std::int64_t b_step, std::int64_t count, std::int64_t rows, bool begin, T* c, std::int64_t c_stride) {
  const auto block = [&]<int height>(std::int64_t first) __attribute__((always_inline)) {
    real<T> sum[height];
#pragma GCC unroll 6
    for (int i = 0; i < height; ++i) sum[i] = begin ? real<T>(0) : load(c + (first + i) * c_stride);
    multiply_add<T, height>(a + first * a_stride, a_stride, a_step, b, b_step, count, sum);
#pragma GCC unroll 6
    for (int i = 0; i < height; ++i) store(c + (first + i) * c_stride, sum[i]);
  };
  std::int64_t i = 0;
  for (; i + tile_height <= rows; i += tile_height) block.template operator()<tile_height>(i);
  for (; i < rows; ++i) block.template operator()<1>(i);
}

/// Columns first .. of a row as numbers, zeros after its end.
template <class T>
void copy_columns(const row_source& s, const void* row, std::int64_t first, std::int64_t count, T* to) {
  with_element(s.kind, [&]<class E>(E) {
    const E* const from = static_cast<const E*>(row) + first * s.stride;
    const std::int64_t inside = s.width - first < count ? s.width - first : count;
    std::int64_t i = 0;
    if constexpr (std::is_same_v<T, float> && sizeof(E) < 8)
      if (s.stride == 1)
        for (; i + simd::lanes <= inside; i += simd::lanes) simd::store(to + i, simd::load(from + i));
    for (; i < inside; ++i) to[i] = static_cast<T>(from[i * s.stride]);
    for (; i < count; ++i) to[i] = 0;
  });
}

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA
