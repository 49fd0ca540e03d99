// What the named rows of a call are made from, where gradients go, and whether they share memory. per_row.hpp describes it.
#pragma once
#include <heddle/core/tensor.hpp>
#include <heddle/distillation/row.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::distillation::inline HEDDLE_ISA {

template <class Rows>
struct tempered_rows {
  Rows rows;
  double temperature;
};
template <class Rows>
struct selected_rows {
  Rows rows;
  std::span<const std::int32_t> map;
};
template <class Rows>
tempered_rows<Rows> with_temperature(const Rows& rows, double temperature) {
  return {rows, temperature};
}
template <class Rows>
selected_rows<Rows> select_rows(const Rows& rows, std::span<const std::int32_t> map) {
  return {rows, map};
}

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {

struct row_input {
  row_source source;
  std::span<const std::int32_t> map;
};

template <matrix M>
  requires host_tensor<M>
row_input input_of(const M& m) {
  static_assert(logit_element<element_type<M>>, "logits are float, double, float16 or bfloat16");
  const auto view = view_of(m);
  return {{view.data(), view.extent(0), view.extent(1), view.stride(0), view.stride(1), kind_of<element_type<M>>, 0, 0}, {}};
}
template <class Rows>
row_input input_of(const selected_rows<Rows>& s);
template <class Rows>
row_input input_of(const tempered_rows<Rows>& t) {
  row_input in = input_of(t.rows);
  require(t.temperature > 0 && t.temperature < math::infinity, "with_temperature: argument 'temperature' is ", t.temperature, "; expected a positive number");
  in.source.temperature = t.temperature;
  return in;
}
template <class Rows>
row_input input_of(const selected_rows<Rows>& s) {
  row_input in = input_of(s.rows);
  require(in.map.empty(), "select_rows: argument 'rows' is a selection already; expected one selection");
  for (std::size_t i = 0; i < s.map.size(); ++i)
    require(s.map.data()[i] >= 0 && s.map.data()[i] < in.source.rows, "select_rows: argument 'map': entry ", i, " is ", s.map.data()[i], "; expected 0 to ", in.source.rows - 1);
  in.map = s.map, in.source.rows = static_cast<std::int64_t>(s.map.size());
  return in;
}
template <class Rows>
concept row_argument = requires(const Rows& rows) { input_of(rows); };
template <matrix M>
  requires host_tensor<M>
row_sink sink_of(const M& m) {
  static_assert(writable_tensor<M> && logit_element<element_type<M>>, "gradients are float, double, float16 or bfloat16, and writable");
  const auto view = view_of(m);
  return {view.data(), view.stride(0), view.stride(1), kind_of<element_type<M>>, false, 0};
}

/// Rows of contiguous elements as bytes.
struct byte_rows {
  std::int64_t at, rows, pitch, width;
};
template <class Rows>   // row_sink, row_source
byte_rows bytes_of_rows(const Rows& r, std::int64_t rows, std::int64_t width) {
  return {static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(r.data)), r.stride == 1 || width == 1 ? rows : 0, r.row_stride * bytes_of(r.kind), width * bytes_of(r.kind)};
}
/// Whether some row of a and some row of b share a byte. Pitches are 0 or more.
inline bool overlaps(const byte_rows& a, const byte_rows& b) {
  if (b.rows == 0 || a.width == 0 || b.width == 0) return false;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const std::int64_t begin = a.at + r * a.pitch, last = begin + a.width - 1;
    if (last < b.at) continue;
    const std::int64_t before = b.pitch > 0 ? (last - b.at) / b.pitch : 0, row = before < b.rows ? before : b.rows - 1;   // the last row of b that begins before this one ends
    if (b.at + row * b.pitch + b.width > begin) return true;
  }
  return false;
}

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA
