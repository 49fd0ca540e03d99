// RMSNorm:  y[r, i] = w[i] x[r, i] / sqrt(mean over i of x[r, i]^2 + epsilon)
//
// x, out: [rows, width] of float, float16 or bfloat16, unit stride along width, any row stride; out may be x. weight: [width] of float.
// Order, the same for every row and on every instruction set with fused multiply-add: lane l sums the squares of elements l, l + 16, ... as
// a chain of fma in float, the lanes are added in the tree of simd::reduce_add; y = (x * factor) * w.
// A NaN makes its row NaN, an infinity makes its own element NaN and the rest of its row 0; no other row notices. Zero rows are
// fine. A row of zeros with epsilon 0 is NaN (0 / 0).
// Cost: reads x twice (the second time from cache), writes out; three operations per element. Errors name the argument.
// Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization.
//
//     heddle::linear::rms_norm(hidden, weight, 1e-5f, normed);
#pragma once
#include <heddle/core/executor.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/core/tensor.hpp>

namespace heddle::linear {

struct row_options {
  executor_ref executor{};   ///< shares out rows
};

template <class T>
concept row_matrix = matrix<T> && host_tensor<T> && (std::same_as<element_type<T>, float> || std::same_as<element_type<T>, float16> || std::same_as<element_type<T>, bfloat16>);

namespace detail::inline HEDDLE_ISA {

template <class View>
void require_rows(const char* function, const char* argument, const View& view) {
  require(view.stride(1) == 1 || view.extent(1) <= 1, function, ": argument '", argument, "' has stride ", view.stride(1), " along its last axis; expected 1");
}

/// f(row) for all rows, shared out in runs when there is enough to do.
template <class F>
void for_rows(std::int64_t rows, std::int64_t width, executor_ref executor, const F& f) {
  constexpr std::int64_t worth_sharing = 1 << 15;
  const auto workers = rows * width < worth_sharing ? std::int64_t{1} : static_cast<std::int64_t>(executor.concurrency());
  const std::int64_t run = (rows + workers - 1) / (workers > 0 ? workers : 1);
  executor.bulk(static_cast<std::size_t>(rows > 0 ? workers : 0), [&](std::size_t worker) {
    const std::int64_t first = static_cast<std::int64_t>(worker) * run;
    for (std::int64_t r = first; r < rows && r < first + run; ++r) f(r);
  });
}

template <class In, class Out>
void rms_norm_row(const In* x, const float* weight, float epsilon, Out* out, std::int64_t width) {
  simd::f32x16 squares = simd::splat(0.f);
  for (std::int64_t i = 0; i < width; i += simd::lanes) {
    const simd::f32x16 v = simd::load_first(x + i, width - i);
    squares = simd::fma(v, v, squares);
  }
  const float mean = simd::reduce_add(squares) / static_cast<float>(width);
  const simd::f32x16 factor = simd::splat(1.f / __builtin_sqrtf(mean + epsilon));
  for (std::int64_t i = 0; i < width; i += simd::lanes)
    simd::store_first(out + i, simd::load_first(x + i, width - i) * factor * simd::load_first(weight + i, width - i), width - i);
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <row_matrix X, tensor_of<1> Weight, row_matrix Out>
  requires writable_tensor<Out> && host_tensor<Weight> && std::same_as<element_type<Weight>, float>
void rms_norm(const X& x, const Weight& weight, float epsilon, const Out& out, const row_options& options = {}) {
  const auto from = view_of(x);
  const auto to = view_of(out);
  const auto w = view_of(weight);
  require(from.extent(1) > 0, "rms_norm: argument 'x' has extent 1 of ", from.extent(1), "; expected 1 or more");
  require_shape("rms_norm", "out", to, from.shape());
  require_shape("rms_norm", "weight", w, extents<1>{from.extent(1)});
  require(w.stride(0) == 1 || w.extent(0) == 1, "rms_norm: argument 'weight' has stride ", w.stride(0), "; expected 1");
  require(epsilon >= 0, "rms_norm: argument 'epsilon' is ", static_cast<double>(epsilon), "; expected 0 or more");
  detail::require_rows("rms_norm", "x", from), detail::require_rows("rms_norm", "out", to);
  detail::for_rows(from.extent(0), from.extent(1), options.executor, [&](std::int64_t r) { detail::rms_norm_row(from.at(r), w.data(), epsilon, to.at(r), from.extent(1)); });
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::linear
