// Rows of logits in any element type and stride, brought to contiguous numbers of one type a chunk at a time, and gradients the way back.
// Kernels see float or double only, so that a formula is compiled for these two and not for every combination of elements.
#pragma once
#include <heddle/core/element.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/core/tensor.hpp>

#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace heddle::distillation::detail {

enum class element_kind : std::uint8_t { f32, f64, f16, bf16 };
template <class E>
inline constexpr element_kind kind_of = std::is_same_v<E, float> ? element_kind::f32 : std::is_same_v<E, double> ? element_kind::f64 : std::is_same_v<E, float16> ? element_kind::f16 : element_kind::bf16;
template <class E>
concept logit_element = std::same_as<E, float> || std::same_as<E, double> || std::same_as<E, float16> || std::same_as<E, bfloat16>;

/// All rows of a matrix, its element type erased.
struct row_source {
  const void* data = nullptr;
  std::int64_t rows = 0, width = 0, row_stride = 0, stride = 1;
  element_kind kind = element_kind::f32;
  double temperature = 0;   ///< 0: that of the call
  std::int64_t first = 0;   ///< the row that lies at `data`
};
struct row_sink {
  void* data = nullptr;
  std::int64_t row_stride = 0, stride = 1;
  element_kind kind = element_kind::f32;
  bool streamed = false;   ///< larger than caches: written past them
  std::int64_t first = 0;
};

inline namespace HEDDLE_ISA {

constexpr std::int64_t bytes_of(element_kind kind) { return kind == element_kind::f64 ? 8 : kind == element_kind::f32 ? 4 : 2; }

inline const void* row_of(const row_source& s, std::int64_t row) { return static_cast<const char*>(s.data) + (row - s.first) * s.row_stride * bytes_of(s.kind); }
inline void* row_of(const row_sink& s, std::int64_t row) { return static_cast<char*>(s.data) + (row - s.first) * s.row_stride * bytes_of(s.kind); }

template <class F>
decltype(auto) with_element(element_kind kind, F f) {
  switch (kind) {
    case element_kind::f32: return f(float{});
    case element_kind::f64: return f(double{});
    case element_kind::f16: return f(float16{});
    default: return f(bfloat16{});
  }
}

inline double read_logit(const row_source& s, const void* row, std::int64_t column) {
  return with_element(s.kind, [&]<class E>(E) { return static_cast<double>(static_cast<const E*>(row)[column * s.stride]); });
}

/// Columns first .. first + count - 1 as contiguous numbers: the row itself where it is that already, else `buffer`, filled up to whole vectors with -infinity.
template <class T>
[[gnu::noinline]] const T* stage(const row_source& s, const void* row, std::int64_t first, std::int64_t count, T* buffer) {
  constexpr std::int64_t lanes = std::is_same_v<T, float> ? simd::lanes : 1;
  if (s.kind == kind_of<T> && s.stride == 1 && count % lanes == 0) return static_cast<const T*>(row) + first;
  with_element(s.kind, [&]<class E>(E) {
    const E* const from = static_cast<const E*>(row) + first * s.stride;
    std::int64_t i = 0;
    if constexpr (std::is_same_v<T, float> && sizeof(E) < 8)
      if (s.stride == 1)
        for (; i + simd::lanes <= count; i += simd::lanes) simd::store(buffer + i, simd::load(from + i));
    for (; i < count; ++i) buffer[i] = static_cast<T>(from[i * s.stride]);
    for (; i % lanes; ++i) buffer[i] = -std::numeric_limits<T>::infinity();
  });
  return buffer;
}

template <class E, class T>
E narrowed(T x) {
  if constexpr (sizeof(E) < 4) return E(static_cast<float>(x));
  else return static_cast<E>(x);
}

/// Sixteen numbers to memory that nobody reads soon; `to` lies on a multiple of 64 bytes (f32) or 32 (narrow elements).
template <class E>
[[gnu::always_inline]] inline void store_past_caches(E* to, simd::f32x16 values) {
#if defined(__AVX__)
  alignas(64) E cells[simd::lanes];
  simd::store(cells, values);
  for (std::size_t i = 0; i < sizeof cells; i += 32) {
    const __m256i part = _mm256_load_si256(reinterpret_cast<const __m256i*>(reinterpret_cast<const char*>(cells) + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(reinterpret_cast<char*>(to) + i), part);
  }
#else
  simd::store(to, values);
#endif
}
/// Orders stores past the caches before what another thread reads.
inline void finish_streams() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

/// Numbers of a chunk to where they belong, whatever the element and stride.
template <class T>
[[gnu::noinline]] void deliver(const row_sink& s, void* row, std::int64_t first, std::int64_t count, const T* values) {
  with_element(s.kind, [&]<class E>(E) {
    E* const to = static_cast<E*>(row) + first * s.stride;
    std::int64_t i = 0;
    if constexpr (std::is_same_v<T, float>)   // on its own: clang discards it before E is known
      if constexpr (sizeof(E) < 8)
        if (s.stride == 1)
          for (; i + simd::lanes <= count; i += simd::lanes) simd::store(to + i, simd::load(values + i));
    for (; i < count; ++i) to[i * s.stride] = narrowed<E>(values[i]);
  });
}

inline void write_zeros(const row_sink& s, std::int64_t row, std::int64_t width) {
  with_element(s.kind, [&]<class E>(E) {
    E* const to = static_cast<E*>(row_of(s, row));
    if (s.stride == 1) std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(width) * sizeof(E));
    else
      for (std::int64_t i = 0; i < width; ++i) to[i * s.stride] = narrowed<E>(0.f);
  });
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation::detail
