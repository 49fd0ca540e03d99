// Products with activations as floats: one or more panels of 16 outputs, a few rows, one chain of up to 256 inputs.
//   numbers     chain: a sequence of fma over the inputs of the chain;                  out = the sum of the chains in order
//   quantised   block: a sequence of fma of (code - centre) x over 32 inputs;           acc = fma(d, block, acc)
//               q4_1: acc = fma(m + 8 d, sum of the block's x, acc)                     centre: q4: 8, q8_0: 0
// The order of the inputs of a block is that of the words of a record, whether its codes are unpacked on the way or beforehand.
#pragma once
#include <heddle/linear/detail/integer_tile.hpp>

namespace heddle::linear::detail::inline HEDDLE_ISA {

/// Panels worked on together: enough chains of dependent multiply-adds to hide their latency.
template <int rows>
inline constexpr int float_panels = simd::wide_registers ? (rows == 1 ? 8 : rows <= 4 ? 4 : 2) : rows == 1 ? 4 : rows <= 3 ? 2 : 1;

/// Keeps a compiler from reading a weight from memory again for every row: the load ports are what binds.
[[gnu::always_inline]] inline f32x16 in_register(f32x16 v) {
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)
  __asm__("" : "+x"(v.low), "+x"(v.high));
#endif
  return v;
}

/// sum[r][p] over `inputs` inputs; panels `panel_stride` elements apart. The largest tile fetches the rows of the next one meanwhile: they lie
/// in as many places as there are rows, which the hardware notices too late.
template <int rows, int panels, class Element>
[[gnu::always_inline]] inline void chain(const Element* weights, std::int64_t panel_stride, std::int64_t inputs, const float* x, const float* next, f32x16 (&sum)[rows][panels]) {
  constexpr int step = 4, line = 16, fetched_lines = (rows * step + line - 1) / line;
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < panels; ++p) sum[r][p] = simd::splat(0.f);
  for (std::int64_t k = 0; k < inputs; k += step, weights += step * panel_outputs, x += step, next += fetched_lines * line) {   // inputs come in blocks of 32
    if constexpr (rows == tile_rows)
#pragma GCC unroll 4
      for (int i = 0; i < fetched_lines; ++i) __builtin_prefetch(next + i * line);
#pragma GCC unroll 4
    for (int j = 0; j < step; ++j) {
      f32x16 w[panels];
#pragma GCC unroll 8
      for (int p = 0; p < panels; ++p) w[p] = in_register(simd::load(weights + p * panel_stride + j * panel_outputs));
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const f32x16 value = simd::splat(x[r * chain_stride + j]);
#pragma GCC unroll 8
        for (int p = 0; p < panels; ++p) sum[r][p] = simd::fma(w[p], value, sum[r][p]);
      }
    }
  }
}

/// Adds a chain to the outputs, or begins them with it.
template <int rows, int panels, class Element>
void number_tile(const Element* weights, std::int64_t panel_stride, std::int64_t inputs, const float* x, const float* next, bool first, float* out, std::int64_t out_stride,
                 std::int64_t outputs) {
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < panels; ++p) __builtin_prefetch(out + r * out_stride + p * panel_outputs, 1);
  f32x16 sum[rows][panels];
  chain<rows, panels>(weights, panel_stride, inputs, x, next, sum);
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < panels; ++p) {
      float* to = out + r * out_stride + p * panel_outputs;
      const std::int64_t n = outputs - p * panel_outputs;
      if (!first) sum[r][p] = simd::load_first(to, n) + sum[r][p];
      simd::store_first(to, sum[r][p], n);
    }
}

template <bool nibbles>
inline constexpr int record_words = nibbles ? 4 : 8;

// Code number `position` of a word as float, minus its centre, and the input it belongs to.
template <bool nibbles>
[[gnu::always_inline]] inline f32x16 centred_code(i32x16 word, int position) {
  constexpr int bits = nibbles ? 4 : 8, mask = nibbles ? 15 : 255, centre = nibbles ? 8 : 128;
  i32x16 codes = word;
  if (position == 1) codes = simd::shift_right<bits>(word);
  if (position == 2) codes = simd::shift_right<2 * bits>(word);
  if (position == 3) codes = simd::shift_right<3 * bits>(word);
  if (position == 4) codes = simd::shift_right<16>(word);
  if (position == 5) codes = simd::shift_right<20>(word);
  if (position == 6) codes = simd::shift_right<24>(word);
  if (position == 7) codes = simd::shift_right<28>(word);
  return simd::to_float((codes & simd::splat(mask)) - simd::splat(centre));
}
template <bool nibbles>
constexpr int input_of(int z, int position) {
  return nibbles ? z + position % 2 * 4 + position / 2 * 8 : z + position * 8;
}

/// The centred codes of a record in the order in which they are multiplied.
template <bool nibbles>
void unpack_record(const std::byte* record, float* to) {
  constexpr int words = record_words<nibbles>, codes = block_inputs / words;
  for (int z = 0; z < words; ++z) {
    const i32x16 word = simd::load_words(record + 64 * z);
#pragma GCC unroll 8
    for (int i = 0; i < codes; ++i) simd::store(to + (z * codes + i) * panel_outputs, centred_code<nibbles>(word, i));
  }
}

/// One panel; `codes`: its records unpacked, or null: unpacked on the way.
template <bool nibbles, bool unpacked, int rows>
void quantised_tile(format kind, const std::byte* panel, const float* codes, std::int64_t blocks, const float* x, const float* sums, std::int64_t sums_stride, bool first, float* out,
                    std::int64_t out_stride, std::int64_t outputs) {
  constexpr int words = record_words<nibbles>, codes_of_word = block_inputs / words;
  const std::size_t record_bytes = block_bytes(kind) * panel_outputs;
  f32x16 acc[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) acc[r] = first ? simd::splat(0.f) : simd::load_first(out + r * out_stride, outputs);
  for (std::int64_t b = 0; b < blocks; ++b, panel += record_bytes, x += block_inputs, sums += sums_stride) {
    f32x16 block[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) block[r] = simd::splat(0.f);
    for (int z = 0; z < words; ++z) {
      i32x16 word = simd::splat(0);
      if constexpr (!unpacked) word = simd::load_words(panel + 64 * z);
#pragma GCC unroll 8
      for (int i = 0; i < codes_of_word; ++i) {
        f32x16 code;
        if constexpr (unpacked) code = simd::load(codes + ((b * words + z) * codes_of_word + i) * panel_outputs);
        else code = centred_code<nibbles>(word, i);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) block[r] = simd::fma(code, simd::splat(x[r * chain_stride + input_of<nibbles>(z, i)]), block[r]);
      }
    }
    const std::byte* scales = panel + (nibbles ? 256 : 512);
    const f32x16 d = simd::load_f16(scales);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) acc[r] = simd::fma(d, block[r], acc[r]);
    if (nibbles && kind == format::q4_1) {
      const f32x16 m = simd::fma(simd::splat(8.f), d, simd::load_f16(scales + 32));
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) acc[r] = simd::fma(m, simd::splat(sums[r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) simd::store_first(out + r * out_stride, acc[r], outputs);
}

}  // namespace heddle::linear::detail::inline HEDDLE_ISA
