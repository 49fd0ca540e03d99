// A call of attend() without its types: tensors as bytes, shapes, and the blocks of rows it is cut into.
#pragma once
#include <heddle/attention/adaptors.hpp>
#include <heddle/cache/codec/detail/cells.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/math.hpp>

#include <span>
#include <type_traits>

namespace heddle::detail::inline HEDDLE_ISA {

template <class T>
concept row_element = std::same_as<T, float> || std::same_as<T, float16> || std::same_as<T, bfloat16>;
enum class row_kind : std::uint8_t { f32, f16, bf16 };
template <row_element T>
inline constexpr row_kind kind_of = std::same_as<T, float> ? row_kind::f32 : std::same_as<T, float16> ? row_kind::f16 : row_kind::bf16;

/// A tensor [rows, heads, dim] of any of the three elements.
template <class Byte>
struct row_tensor {
  Byte* data = nullptr;
  row_kind kind = row_kind::f32;
  std::int64_t row = 0, head = 0, channel = 0;   // strides in elements

  row_tensor() = default;
  template <class T>
  explicit row_tensor(const tensor_view<T, 3>& t)
      : data(reinterpret_cast<Byte*>(t.data())), kind(kind_of<std::remove_const_t<T>>), row(t.stride(0)), head(t.stride(1)), channel(t.stride(2)) {}

  template <class F>
  void visit(std::int64_t r, std::int64_t h, F f) const {
    const std::int64_t at = r * row + h * head;
    const auto as = [&]<class T>(T*) {
      using pointer = std::conditional_t<std::is_const_v<Byte>, const T*, T*>;
      f(reinterpret_cast<pointer>(data) + at);
    };
    switch (kind) {
      case row_kind::f32: return as(static_cast<float*>(nullptr));
      case row_kind::f16: return as(static_cast<float16*>(nullptr));
      case row_kind::bf16: return as(static_cast<bfloat16*>(nullptr));
    }
  }
  void read(std::int64_t r, std::int64_t h, int dim, float* to) const {
    visit(r, h, [&](const auto* p) {
      if (channel == 1) return codec::detail::convert(p, dim, to);
      for (int c = 0; c < dim; ++c) to[c] = static_cast<float>(p[c * channel]);
    });
  }
  void write(std::int64_t r, std::int64_t h, int dim, const float* from) const {
    visit(r, h, [&](auto* p) {
      using element = std::remove_cvref_t<decltype(*p)>;
      if (channel == 1) return codec::detail::convert(from, dim, p);
      for (int c = 0; c < dim; ++c) p[c * channel] = element(from[c]);
    });
  }
};

/// Consecutive rows of one sequence; with a KV head they are the queries of one tile_kernel.
struct row_block {
  std::int64_t sequence;
  std::int64_t first;          // row of the call
  std::int32_t in_sequence;    // of the first row
  std::int32_t rows;
  std::int32_t sequence_rows;
};

struct attend_call {
  row_tensor<const std::byte> q;
  row_tensor<std::byte> out;
  tensor_view<float, 2> lse;
  std::int64_t rows = 0, sequences = 1;
  int num_qo_heads = 0, num_kv_heads = 0, group = 1, head_dim = 0, head_dim_v = 0;
  float scale = 0;
  std::span<const std::int32_t> q_indptr;
  executor_ref executor;

  std::int64_t first_row(std::int64_t sequence) const { return q_indptr.empty() ? 0 : q_indptr[static_cast<std::size_t>(sequence)]; }
  std::int64_t rows_of(std::int64_t sequence) const { return q_indptr.empty() ? rows : first_row(sequence + 1) - first_row(sequence); }
  int width() const { return (head_dim_v + 15) / 16 * 16; }
};

inline void require_indptr(std::span<const std::int32_t> indptr, std::int64_t rows) {
  require(indptr[0] == 0, "attend: argument 'q_indptr': entry 0 is ", indptr[0], "; expected 0");
  for (std::size_t i = 1; i < indptr.size(); ++i)
    require(indptr[i] >= indptr[i - 1], "attend: argument 'q_indptr': entry ", i, " is ", indptr[i], ", less than entry ", i - 1, " (", indptr[i - 1], "); expected a non-decreasing list of length batch + 1");
  require(indptr.back() == rows, "attend: argument 'q_indptr': the last entry is ", indptr.back(), "; expected ", rows, ", the number of rows of q");
}

/// The divided output and the lse of one row; `state` after all maps.
inline void write_row(const attend_call& call, std::int64_t row, std::int64_t head, float maximum, float sum, float factor, float* output) {
  if (sum == 0.f) {
    std::memset(output, 0, static_cast<std::size_t>(call.width()) * sizeof(float));
  } else {
    const simd::f32x16 f = simd::splat(factor), l = simd::splat(sum);
    for (int c = 0; c < call.width(); c += simd::lanes) simd::store(output + c, simd::product(simd::load(output + c), f) / l);
  }
  call.out.write(row, head, call.head_dim_v, output);
  if (call.lse.data()) call.lse(row, head) = sum == 0.f ? -simd::infinity : static_cast<float>(static_cast<double>(maximum) + math::log(static_cast<double>(sum)));
}

}  // namespace heddle::detail::inline HEDDLE_ISA
