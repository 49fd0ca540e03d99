// Quantised weights times integer activations: one panel of 16 outputs, a few rows.
//     acc = fma(d scale, block, acc)      block: the exact integer product, of 24-bit activations fma(256, part[0], part[1]) rounded once
//     acc = fma(m, scale sum q, acc)      q4_1; q4_0 alike with m = -8 d
// in the order of the blocks: a lane is an output, so nothing but the block size decides what is summed with what.
//
// Zen 3 (AVX2), cycles per block and row, panels in the innermost cache; multiply-adds of bytes with their 16-bit sums alone need 10.6:
//     int8 q4 15.3 (4 rows), q8_0 24.2; int24 q4 39.7 (2 rows), q8_0 46.1 (3 rows)
// Tried there and not kept, as it won nothing:
//     records unpacked once for all tiles of rows (13.9 in the kernel; with the unpacking 1.0 to 1.1 times the time)
//     rows within panels, the next panel fetched evenly over the tiles of rows (0.95 to 1.05 times)
//     q8_0 as |w| times x with the sign of w, vpmaddubsw (19.5 against 20.3 for the products alone)
//     saturating 16-bit sums (they share the ports of the multiplies), other orders of products and sums (equal)
#pragma once
#include <heddle/linear/detail/block_products.hpp>

namespace heddle::linear::detail::inline HEDDLE_ISA {

using simd::f32x16;

/// Bytes that the weights are asked for ahead of their use: the hardware alone falls behind.
inline constexpr std::size_t prefetch_distance = 2048;

/// Calls step<height>(), then the lower heights of kernels, down to one.
template <int height, class Step>
void descend(const Step& step) {
  step.template operator()<height>();
  constexpr int lower = height > 6 ? 6 : height > 4 ? 4 : height - 1;
  if constexpr (lower > 0) descend<lower>(step);
}

// Not inlined: with constants of its caller g++ orders the products so that they no longer fit the registers (26 cycles instead of 15).
template <bool nibbles, int digits, int rows>
[[gnu::noinline]] void integer_tile(format kind, const std::byte* panel, std::int64_t blocks, const digit_block<digits>* x, std::int64_t x_stride, float* out, std::int64_t out_stride,
                                    std::int64_t outputs) {
  const std::size_t record_bytes = block_bytes(kind) * panel_outputs;
  f32x16 acc[rows];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) acc[r] = simd::splat(0.f);
  for (std::int64_t b = 0; b < blocks; ++b, panel += record_bytes, x += x_stride) {
#pragma GCC unroll 9
    for (int line = 0; line < (nibbles ? 5 : 9); ++line) __builtin_prefetch(panel + prefetch_distance + 64 * line);
    i32x16 part[digit_block<digits>::parts][rows];
    block_products<nibbles, digits, rows>(panel, x, part);
    const std::byte* scales = panel + (nibbles ? 256 : 512);
    const f32x16 d = simd::load_f16(scales);
    f32x16 m = d;
    if constexpr (nibbles) m = kind == format::q4_1 ? simd::load_f16(scales + 32) : d * simd::splat(-8.f);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      f32x16 block = simd::to_float(part[0][r]);
      if constexpr (digits == 3) block = simd::fma(simd::splat(256.f), block, simd::to_float(part[1][r]));
      acc[r] = simd::fma(d * simd::splat(x[r].scale), block, acc[r]);
      if constexpr (nibbles) acc[r] = simd::fma(m, simd::splat(x[r].scaled_sum), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) simd::store_first(out + r * out_stride, acc[r], outputs);
}

}  // namespace heddle::linear::detail::inline HEDDLE_ISA
