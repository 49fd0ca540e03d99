// Weights, packed once: the layout of format.hpp from rows of a GGUF file, from a tensor, or from several of them stacked.
//
// pack(stored)                the rows of one matrix, regrouped; no value changes
// pack(span of stored)        several matrices of one format that share their input, stacked (q|k|v, gate|up): one product yields all outputs
// pack(tensor)                a tensor [outputs, inputs] of float, float16 or bfloat16, any strides, in the format of its element
// pack(tensor, format)        the same, rounded or quantised as ggml's reference does; a weight that is not finite or a scale beyond f16 is an error
// pack_into(memory, stored)   into the caller's memory of packed_bytes() bytes, aligned to 64: an arena for a whole model
// unpack_row(matrix, o, out)  W[o, :] as floats (q*: the exact value, rounded once): the embedding of token o
//
// Cost: one read of the rows and one write of the same size; the executor shares out panels. Memory from 2 MB on is aligned and advised for
// huge pages. Errors name the argument: extents below 1, matrices of different formats or inputs, an unknown format, memory too small.
//
//     std::vector<std::byte> rows(heddle::linear::stored_row_bytes(heddle::linear::format::q8_0, 576) * 192);
//     heddle::linear::packed_matrix w = heddle::linear::pack({heddle::linear::format::q8_0, 192, 576, rows.data()});
//     float embedding[576];
//     heddle::linear::unpack_row(w, 7, embedding);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/element.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/linear/format.hpp>

#include <cstring>
#include <span>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heddle::linear {

struct pack_options {
  executor_ref executor{};
};

namespace detail::inline HEDDLE_ISA {

inline constexpr std::int64_t most_weights = std::int64_t{1} << 48;

inline void require_matrix(const char* function, format kind, std::int64_t outputs, std::int64_t inputs) {
  require(block_bytes(kind) != 0, function, ": argument 'kind' is ", static_cast<int>(kind), "; expected a format");
  require(outputs > 0, function, ": argument 'outputs' is ", outputs, "; expected 1 or more");
  require(inputs > 0, function, ": argument 'inputs' is ", inputs, "; expected 1 or more");
  require(outputs <= most_weights / inputs, function, ": a matrix of ", outputs, " outputs and ", inputs, " inputs; expected at most 2^48 weights");
}

template <class T>
T read_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
inline float read_half(const std::byte* p) { return float16::from_bits(read_as<std::uint16_t>(p)); }
inline void write_half(std::byte* p, float x) {
  const float16 h(x);
  std::memcpy(p, &h, sizeof h);
}

using bytes16 = std::uint8_t __attribute__((vector_size(16)));

// 32 bytes, one per input, in the order of the words: inputs z, z + 8, z + 16, z + 24 for z = 0..3 and z = 4..7
inline void order_words(bytes16& first, bytes16& second) {
  const bytes16 low = first, high = second;
  first = __builtin_shufflevector(low, high, 0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  second = __builtin_shufflevector(low, high, 4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31);
}

inline void scatter_words(const bytes16& words, std::byte* record, int first_word, int lane) {
  for (int z = 0; z < 4; ++z)
    std::memcpy(record + ((first_word + z) * panel_outputs + lane) * 4, reinterpret_cast<const std::byte*>(&words) + 4 * z, 4);
}

inline void pack_block(format kind, const std::byte* stored, std::byte* record, int lane) {
  const int header = kind == format::q4_1 ? 4 : 2;
  bytes16 first = read_as<bytes16>(stored + header), second = first;
  if (kind == format::q8_0) {
    second = read_as<bytes16>(stored + header + 16);
    first ^= 0x80, second ^= 0x80;
    order_words(first, second);
    scatter_words(second, record, 4, lane);
  } else {
    first &= 15, second >>= 4;
    order_words(first, second);
    first |= second << 4;
  }
  scatter_words(first, record, 0, lane);
  std::byte* scales = record + (kind == format::q8_0 ? 512 : 256);
  for (int i = 0; i < header / 2; ++i) std::memcpy(scales + 32 * i + 2 * lane, stored + 2 * i, 2);
}

// Sixteen stored rows (null: an output beyond the last) to one panel.
inline void pack_panel(format kind, std::int64_t inputs, const std::byte* const (&rows)[panel_outputs], std::byte* panel) {
  if (!rows[panel_outputs - 1] || (!is_quantised(kind) && inputs % block_inputs)) std::memset(panel, 0, panel_bytes(kind, inputs));
  if (!is_quantised(kind)) {
    const std::size_t element = block_bytes(kind) / block_inputs;
    for (std::int64_t k = 0; k < inputs; ++k)
      for (int lane = 0; lane < panel_outputs; ++lane) {
        if (!rows[lane]) break;
        std::byte* to = panel + static_cast<std::size_t>(k * panel_outputs + lane) * element;
        const std::byte* from = rows[lane] + static_cast<std::size_t>(k) * element;
        if (element == 4) std::memcpy(to, from, 4);
        else std::memcpy(to, from, 2);
      }
    return;
  }
  const std::size_t stored_block = block_bytes(kind);
  for (std::int64_t b = 0; b < blocks_of(inputs); ++b)
    for (int lane = 0; lane < panel_outputs; ++lane)
      if (rows[lane]) pack_block(kind, rows[lane] + static_cast<std::size_t>(b) * stored_block, panel + static_cast<std::size_t>(b) * stored_block * panel_outputs, lane);
}

inline float largest_weight(const float* x, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i)
    if ((x[i] < 0 ? -x[i] : x[i]) > (largest < 0 ? -largest : largest)) largest = x[i];
  return largest;
}
inline float half_scale(const char* name, float scale) {
  require(scale <= 65504.f && scale >= -65504.f, "pack: argument 'weights' needs a ", name, " of ", static_cast<double>(scale), " in a block; expected at most 65504 (f16)");
  return scale;
}

// One block of up to 32 floats as ggml's reference quantises it: codes from the unrounded scale.
inline void quantise_block(format kind, const float* x, int count, std::byte* to) {
  std::uint8_t codes[block_inputs] = {};
  const float largest = largest_weight(x, count);
  if (kind == format::q8_0) {
    const float scale = (largest < 0 ? -largest : largest) / 127.f, inverse = scale > 0 ? 1.f / scale : 0.f;
    for (int i = 0; i < count; ++i) {
      const float product = x[i] * inverse;
      codes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(product < 0 ? product - 0.5f : product + 0.5f));
    }
    write_half(to, half_scale("scale", scale));
    std::memcpy(to + 2, codes, block_inputs);
    return;
  }
  float scale = largest / -8.f, minimum = 0;
  if (kind == format::q4_1) {
    float low = x[0], high = x[0];
    for (int i = 1; i < count; ++i) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    scale = (high - low) / 15.f, minimum = low;
    write_half(to + 2, half_scale("minimum", minimum));
  }
  const float inverse = scale != 0 ? 1.f / scale : 0.f, offset = kind == format::q4_1 ? 0.5f : 8.5f;
  for (int i = 0; i < count; ++i) {
    const int code = static_cast<int>((x[i] - minimum) * inverse + offset);
    codes[i] = static_cast<std::uint8_t>(code > 15 ? 15 : code < 0 ? 0 : code);
  }
  write_half(to, half_scale("scale", scale));
  for (int i = 0; i < 16; ++i) to[(kind == format::q4_1 ? 4 : 2) + i] = static_cast<std::byte>(codes[i] | codes[i + 16] << 4);
}

inline void store_row(format kind, const float* x, std::int64_t inputs, std::byte* to) {
  for (std::int64_t k = 0; k < inputs; ++k) {
    if (kind == format::f32) std::memcpy(to + 4 * k, x + k, 4);
    if (kind == format::f16) write_half(to + 2 * k, x[k]);
    if (kind == format::bf16) {
      const bfloat16 b(x[k]);
      std::memcpy(to + 2 * k, &b, 2);
    }
  }
  if (!is_quantised(kind)) return;
  for (std::int64_t k = 0; k < inputs; ++k)
    require(x[k] - x[k] == 0, "pack: argument 'weights' holds a value that is not finite; expected finite weights for format ", name_of(kind));
  for (std::int64_t b = 0; b < blocks_of(inputs); ++b) {
    const std::int64_t rest = inputs - b * block_inputs;
    quantise_block(kind, x + b * block_inputs, static_cast<int>(rest < block_inputs ? rest : block_inputs), to + static_cast<std::size_t>(b) * block_bytes(kind));
  }
}

template <class Element>
inline constexpr format format_of = format::f32;
template <>
inline constexpr format format_of<float16> = format::f16;
template <>
inline constexpr format format_of<bfloat16> = format::bf16;

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// Owner of packed weights.
class packed_matrix {
 public:
  packed_matrix() = default;
  packed_matrix(format kind, std::int64_t outputs, std::int64_t inputs) {
    detail::require_matrix("packed_matrix", kind, outputs, inputs);
    view_ = {kind, outputs, inputs, nullptr};
    data_ = static_cast<std::byte*>(::operator new(view_.bytes(), alignment()));
    view_.data = data_;
#if defined(__linux__)
    if (view_.bytes() >= huge_page) madvise(data_, view_.bytes(), MADV_HUGEPAGE);
#endif
  }
  packed_matrix(packed_matrix&& other) noexcept : view_(std::exchange(other.view_, {})), data_(std::exchange(other.data_, nullptr)) {}
  packed_matrix& operator=(packed_matrix&& other) noexcept {
    std::swap(view_, other.view_), std::swap(data_, other.data_);
    return *this;
  }
  ~packed_matrix() {
    if (data_) ::operator delete(data_, alignment());
  }

  packed_view view() const { return view_; }
  operator packed_view() const { return view_; }
  format kind() const { return view_.kind; }
  std::int64_t outputs() const { return view_.outputs; }
  std::int64_t inputs() const { return view_.inputs; }
  std::size_t bytes() const { return view_.bytes(); }
  std::span<std::byte> memory() { return {data_, data_ ? view_.bytes() : 0}; }

 private:
  static constexpr std::size_t huge_page = std::size_t{2} << 20;
  std::align_val_t alignment() const { return std::align_val_t{view_.bytes() >= huge_page ? huge_page : 64}; }
  packed_view view_;
  std::byte* data_ = nullptr;
};

/// Stacks the matrices into the caller's memory.
inline packed_view pack_into(std::span<std::byte> memory, std::span<const stored_matrix> matrices, const pack_options& options = {}) {
  require(!matrices.empty(), "pack: argument 'matrices' is empty; expected 1 or more");
  packed_view w{matrices[0].kind, 0, matrices[0].inputs, memory.data()};
  for (const stored_matrix& m : matrices) {
    detail::require_matrix("pack", m.kind, m.outputs, m.inputs);
    require(m.rows, "pack: argument 'rows' is null; expected stored rows");
    require(m.kind == w.kind, "pack: argument 'matrices' mixes ", name_of(w.kind), " and ", name_of(m.kind), "; expected one format");
    require(m.inputs == w.inputs, "pack: argument 'matrices' mixes ", w.inputs, " and ", m.inputs, " inputs; expected matrices that share their input");
    w.outputs += m.outputs;
  }
  require(memory.size() >= w.bytes(), "pack: argument 'memory' holds ", memory.size(), " bytes; expected at least ", w.bytes());
  require(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0, "pack: argument 'memory' is not aligned; expected an address divisible by 64");
  const std::size_t row_bytes = stored_row_bytes(w.kind, w.inputs), size = panel_bytes(w.kind, w.inputs);
  const std::int64_t panels_per_piece = 8;
  const auto pieces = static_cast<std::size_t>((w.panels() + panels_per_piece - 1) / panels_per_piece);
  options.executor.bulk(pieces, [&](std::size_t piece) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * panels_per_piece, last = first + panels_per_piece < w.panels() ? first + panels_per_piece : w.panels();
    for (std::int64_t panel = first; panel < last; ++panel) {
      const std::byte* rows[panel_outputs] = {};
      for (int lane = 0; lane < panel_outputs; ++lane) {
        std::int64_t output = panel * panel_outputs + lane;
        std::size_t i = 0;
        while (i < matrices.size() && output >= matrices[i].outputs) output -= matrices[i++].outputs;
        if (i < matrices.size()) rows[lane] = static_cast<const std::byte*>(matrices[i].rows) + static_cast<std::size_t>(output) * row_bytes;
      }
      detail::pack_panel(w.kind, w.inputs, rows, memory.data() + static_cast<std::size_t>(panel) * size);
    }
  });
  return w;
}

inline packed_matrix pack(std::span<const stored_matrix> matrices, const pack_options& options = {}) {
  require(!matrices.empty(), "pack: argument 'matrices' is empty; expected 1 or more");
  std::int64_t outputs = 0;
  for (const stored_matrix& m : matrices) {
    detail::require_matrix("pack", m.kind, m.outputs, m.inputs);
    outputs += m.outputs;
  }
  packed_matrix w(matrices[0].kind, outputs, matrices[0].inputs);
  pack_into(w.memory(), matrices, options);
  return w;
}
inline packed_matrix pack(const stored_matrix& matrix, const pack_options& options = {}) { return pack(std::span<const stored_matrix>(&matrix, 1), options); }

template <matrix Weights>
  requires host_tensor<Weights> && real_element<element_type<Weights>>
packed_matrix pack(const Weights& weights, format kind, const pack_options& options = {}) {
  const auto view = view_of(weights);
  packed_matrix w(kind, view.extent(0), view.extent(1));
  const std::size_t row_bytes = stored_row_bytes(kind, w.inputs());
  options.executor.bulk(static_cast<std::size_t>(w.view().panels()), [&](std::size_t panel) {
    aligned_vector<float> values(static_cast<std::size_t>(w.inputs()));
    aligned_vector<std::byte> stored(row_bytes * panel_outputs);
    const std::byte* rows[panel_outputs] = {};
    for (int lane = 0; lane < panel_outputs; ++lane) {
      const std::int64_t output = static_cast<std::int64_t>(panel) * panel_outputs + lane;
      if (output >= w.outputs()) break;
      for (std::int64_t k = 0; k < w.inputs(); ++k) values[static_cast<std::size_t>(k)] = static_cast<float>(view(output, k));
      std::byte* row = stored.data() + row_bytes * static_cast<std::size_t>(lane);
      detail::store_row(kind, values.data(), w.inputs(), row);
      rows[lane] = row;
    }
    detail::pack_panel(kind, w.inputs(), rows, w.memory().data() + panel * panel_bytes(kind, w.inputs()));
  });
  return w;
}
template <matrix Weights>
  requires host_tensor<Weights> && real_element<element_type<Weights>>
packed_matrix pack(const Weights& weights, const pack_options& options = {}) {
  return pack(weights, detail::format_of<element_type<Weights>>, options);
}

inline void unpack_row(const stored_matrix& w, std::int64_t output, std::span<float> out) {
  detail::require_matrix("unpack_row", w.kind, w.outputs, w.inputs);
  require(output >= 0 && output < w.outputs, "unpack_row: argument 'output' is ", output, "; expected 0..", w.outputs - 1);
  require(static_cast<std::int64_t>(out.size()) == w.inputs, "unpack_row: argument 'out' holds ", out.size(), " floats; expected ", w.inputs);
  const std::byte* row = static_cast<const std::byte*>(w.rows) + static_cast<std::size_t>(output) * stored_row_bytes(w.kind, w.inputs);
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (w.kind == format::f32) out[k] = detail::read_as<float>(row + 4 * k);
    else if (w.kind == format::f16) out[k] = detail::read_half(row + 2 * k);
    else if (w.kind == format::bf16) out[k] = bfloat16::from_bits(detail::read_as<std::uint16_t>(row + 2 * k));
    else {
      const std::byte* block = row + k / block_inputs * block_bytes(w.kind);
      const std::size_t i = k % block_inputs;
      const float scale = detail::read_half(block);
      if (w.kind == format::q8_0) {
        out[k] = scale * static_cast<float>(detail::read_as<std::int8_t>(block + 2 + i));
        continue;
      }
      const std::byte* codes = block + (w.kind == format::q4_1 ? 4 : 2);
      const int code = static_cast<int>(codes[i % 16] >> (i < 16 ? 0 : 4) & std::byte{15});
      out[k] = w.kind == format::q4_1 ? scale * static_cast<float>(code) + detail::read_half(block + 2) : scale * static_cast<float>(code - 8);
    }
  }
}

inline void unpack_row(const packed_view& w, std::int64_t output, std::span<float> out) {
  detail::require_matrix("unpack_row", w.kind, w.outputs, w.inputs);
  require(output >= 0 && output < w.outputs, "unpack_row: argument 'output' is ", output, "; expected 0..", w.outputs - 1);
  require(static_cast<std::int64_t>(out.size()) == w.inputs, "unpack_row: argument 'out' holds ", out.size(), " floats; expected ", w.inputs);
  const std::byte* panel = w.panel(output / panel_outputs);
  const auto lane = static_cast<std::size_t>(output % panel_outputs);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const std::size_t cell = k * panel_outputs + lane, i = k % block_inputs;
    const std::byte* record = panel + k / block_inputs * block_bytes(w.kind) * panel_outputs;
    if (w.kind == format::f32) out[k] = detail::read_as<float>(panel + 4 * cell);
    else if (w.kind == format::f16) out[k] = detail::read_half(panel + 2 * cell);
    else if (w.kind == format::bf16) out[k] = bfloat16::from_bits(detail::read_as<std::uint16_t>(panel + 2 * cell));
    else if (w.kind == format::q8_0) {
      const int code = static_cast<int>(record[(i % 8 * panel_outputs + lane) * 4 + i / 8]) - 128;
      out[k] = detail::read_half(record + 512 + 2 * lane) * static_cast<float>(code);
    } else {
      const int code = static_cast<int>(record[(i % 4 * panel_outputs + lane) * 4 + i / 8] >> (i % 8 < 4 ? 0 : 4) & std::byte{15});
      const float scale = detail::read_half(record + 256 + 2 * lane);
      out[k] = w.kind == format::q4_1 ? scale * static_cast<float>(code) + detail::read_half(record + 288 + 2 * lane) : scale * static_cast<float>(code - 8);
    }
  }
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::linear
