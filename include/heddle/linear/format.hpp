// Names and sizes of what a product y[r, o] = sum_k W[o, k] x[r, k] is made of.
//
// format     of weights. f32, f16, bf16: numbers. q8_0, q4_0, q4_1: codes in blocks of 32 inputs, as in GGUF files, with f16 scale d and minimum m:
//              q8_0  W = d c         c in -128..127    34 bytes a block
//              q4_0  W = d (c - 8)   c in 0..15        18
//              q4_1  W = d c + m     c in 0..15        20
// precision  of activations. f32: as they are. int8, int16, int24: per block of 32 inputs integers of that many bits and one scale.
//              error of a product, relative to the 2-norm of the outputs, activations N(0, 1): f32 2e-7, int24 2e-7, int16 2e-5, int8 5e-3
//            int24 has the accuracy of f32 at a fraction of its arithmetic; the choice is the caller's, never the instruction set's.
//
// Stored rows: one output after another as files hold them; quantised rows take whole blocks (what lies beyond `inputs` in the last one is
// ignored). Packed: panels of 16 outputs, a panel a sequence of records of 32 inputs, the same on every instruction set:
//   f32, f16, bf16   [32 inputs][16 outputs] numbers
//   q8_0             [8][16] words, 16 scales     word (z, o): the codes of inputs z, z + 8, z + 16, z + 24 of output o, plus 128
//   q4_0, q4_1       [4][16] words, 16 scales, q4_1: 16 minima     word (z, o): word z of q8_0's order in the low, z + 4 in the high nibbles
// Packing grows nothing but the last panel and the last block. Block formats: the GGUF specification of ggml.
//
//     linear::stored_matrix down{linear::format::q4_1, 576, 1536, rows_in_the_file};             // does not own the rows
//     std::size_t bytes = linear::packed_bytes(down.kind, down.outputs, down.inputs);             // what linear::pack_into wants for them
#pragma once
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::linear {

enum class format : std::uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1 };
enum class precision : std::uint8_t { f32, int8, int16, int24 };

[[gnu::always_inline]] constexpr const char* name_of(format f) {
  constexpr const char* names[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"};
  return f <= format::q4_1 ? names[static_cast<int>(f)] : "unknown format";
}
[[gnu::always_inline]] constexpr const char* name_of(precision p) {
  constexpr const char* names[] = {"f32", "int8", "int16", "int24"};
  return p <= precision::int24 ? names[static_cast<int>(p)] : "unknown precision";
}

inline constexpr int panel_outputs = 16;
inline constexpr int block_inputs = 32;

[[gnu::always_inline]] constexpr bool is_quantised(format f) { return f == format::q8_0 || f == format::q4_0 || f == format::q4_1; }

/// Bytes of one block of 32 inputs of one output; 0 for an unknown format.
[[gnu::always_inline]] constexpr std::size_t block_bytes(format f) {
  switch (f) {
    case format::f32: return 128;
    case format::f16: return 64;
    case format::bf16: return 64;
    case format::q8_0: return 34;
    case format::q4_0: return 18;
    case format::q4_1: return 20;
  }
  return 0;
}
[[gnu::always_inline]] constexpr std::int64_t blocks_of(std::int64_t inputs) { return inputs / block_inputs + (inputs % block_inputs != 0); }
[[gnu::always_inline]] constexpr std::int64_t panels_of(std::int64_t outputs) { return outputs / panel_outputs + (outputs % panel_outputs != 0); }

/// Bytes of one stored output.
[[gnu::always_inline]] constexpr std::size_t stored_row_bytes(format f, std::int64_t inputs) {
  if (is_quantised(f)) return static_cast<std::size_t>(blocks_of(inputs)) * block_bytes(f);
  return static_cast<std::size_t>(inputs) * (block_bytes(f) / block_inputs);
}
[[gnu::always_inline]] constexpr std::size_t panel_bytes(format f, std::int64_t inputs) { return static_cast<std::size_t>(blocks_of(inputs)) * block_bytes(f) * panel_outputs; }
[[gnu::always_inline]] constexpr std::size_t packed_bytes(format f, std::int64_t outputs, std::int64_t inputs) {
  return static_cast<std::size_t>(panels_of(outputs)) * panel_bytes(f, inputs);
}

/// Weights as a file or another library holds them: `outputs` rows back to back. Does not own them.
struct stored_matrix {
  format kind = format::f32;
  std::int64_t outputs = 0, inputs = 0;
  const void* rows = nullptr;
};

/// Packed weights. Does not own them; data is aligned to 64 bytes.
struct packed_view {
  format kind = format::f32;
  std::int64_t outputs = 0, inputs = 0;
  const std::byte* data = nullptr;
  [[gnu::always_inline]] constexpr std::int64_t panels() const { return panels_of(outputs); }
  [[gnu::always_inline]] constexpr std::int64_t blocks() const { return blocks_of(inputs); }
  [[gnu::always_inline]] constexpr std::size_t bytes() const { return packed_bytes(kind, outputs, inputs); }
  [[gnu::always_inline]] constexpr const std::byte* panel(std::int64_t i) const { return data + static_cast<std::size_t>(i) * panel_bytes(kind, inputs); }
};

}  // namespace heddle::linear
