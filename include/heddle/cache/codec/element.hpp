// Codecs of plain numbers: every element of a row is one element of type E.
//
//   codec::f32, codec::f16, codec::bf16       float, binary16, bfloat16
//   codec::fp8_e4m3, codec::fp8_e5m2          8-bit floats without a scale: |x| <= 448 and |x| <= 57344
//
// Formats (d channels):  key run [d][16], value run [round16(d) / 16][16 slots][16] with padding channels zero, record [d]; sizes of runs rounded up to 64
// bytes. Key lanes are tokens, so that scoring sixteen keys needs no transpose; values lie in panels of sixteen channels, so that their sums are
// one walk through memory.
//
// Rounding: to nearest, ties to even. Rows that already have type E are copied bit for bit. double goes through float.
// fp8 saturates: infinities and values beyond the largest finite one become that one. A cache entry out of range is then wrong by a bounded
// amount, where infinity (e5m2) or NaN (e4m3) would destroy the output of every later token. f16 follows IEEE 754: beyond 65504 is
// infinity, as in the activations it comes from. NaN stays NaN, with its sign. Relative error in the normal range: 2^-11 (f16), 2^-8
// (bf16), 2^-4 (e4m3), 2^-3 (e5m2). Formats: OCP 8-bit floating point specification, IEEE 754.
//
//     float rows[16][64];
//     alignas(64) std::byte run[16 * 64 * 2];
//     heddle::codec::f16::encode_keys(&rows[0][0], 64, 16, 64, run, 0);
//     float back[64];
//     heddle::codec::f16::decode_key(run, 3, 64, back);
#pragma once
#include <heddle/cache/codec/codec.hpp>
#include <heddle/cache/codec/detail/cells.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace heddle::codec::inline HEDDLE_ISA {

template <real_element E>
  requires(!std::is_same_v<E, double>)
struct element_codec {
  using element = E;
  static constexpr int run_tokens = 16;
  static constexpr int group_tokens = 1;
  static constexpr const char* name = std::is_same_v<E, float>         ? "f32"
                                      : std::is_same_v<E, float16>     ? "f16"
                                      : std::is_same_v<E, bfloat16>    ? "bf16"
                                      : std::is_same_v<E, float8_e4m3> ? "fp8_e4m3"
                                                                       : "fp8_e5m2";

  static constexpr int round16(int d) { return (d + 15) / 16 * 16; }
  static constexpr std::size_t key_run_bytes(int head_dim) { return (static_cast<std::size_t>(head_dim) * 16 * sizeof(E) + 63) / 64 * 64; }
  static constexpr std::size_t value_run_bytes(int head_dim) { return static_cast<std::size_t>(round16(head_dim)) * 16 * sizeof(E); }
  static constexpr std::size_t key_row_bytes(int head_dim) { return static_cast<std::size_t>(head_dim) * sizeof(E); }
  static constexpr std::size_t value_row_bytes(int head_dim) { return static_cast<std::size_t>(head_dim) * sizeof(E); }

  template <real_element T>
  static void encode_keys(const T* rows, std::int64_t row_stride, int count, int head_dim, std::byte* run, int slot) {
    E* cells = reinterpret_cast<E*>(run);
    if (count == 1) return scatter(rows, 0, head_dim, cells + slot);
    int c = 0;
    for (; c + 16 <= head_dim; c += 16) {
      if constexpr (std::is_same_v<E, T>) {
        if (count == run_tokens) {
          detail::transpose_16x16(rows + c, row_stride, cells + c * 16);
          continue;
        }
      }
      alignas(64) E block[16][16], lanes[16][16];
      for (int s = 0; s < count; ++s) detail::convert(rows + s * row_stride + c, 16, block[slot + s]);
      if (count == run_tokens) {
        detail::transpose_16x16(&block[0][0], 16, cells + c * 16);
      } else {
        detail::transpose_16x16(&block[0][0], 16, &lanes[0][0]);
        detail::store_lanes(&lanes[0][0], slot, count, cells + c * 16);
      }
    }
    for (int s = 0; s < count; ++s) scatter(rows + s * row_stride, c, head_dim, cells + slot + s);
  }

  template <real_element T>
  static void encode_values(const T* rows, std::int64_t row_stride, int count, int head_dim, std::byte* run, int slot) {
    E* cells = reinterpret_cast<E*>(run) + slot * 16;
    for (int s = 0; s < count; ++s, cells += 16)
      for (int c = 0; c < head_dim; c += 16) {
        const int n = head_dim - c < 16 ? head_dim - c : 16;
        detail::convert(rows + s * row_stride + c, n, cells + c * 16);
        for (int i = n; i < 16; ++i) cells[c * 16 + i] = E(0.f);
      }
  }

  template <real_element T>
  static void encode_key_row(const T* row, int head_dim, std::byte* record) {
    detail::convert(row, head_dim, reinterpret_cast<E*>(record));
  }
  template <real_element T>
  static void encode_value_row(const T* row, int head_dim, std::byte* record) {
    detail::convert(row, head_dim, reinterpret_cast<E*>(record));
  }

  static void decode_key(const std::byte* run, int slot, int head_dim, float* out) {
    const E* cells = reinterpret_cast<const E*>(run) + slot;
    for (int c = 0; c < head_dim; ++c) out[c] = static_cast<float>(cells[c * 16]);
  }
  static void decode_value(const std::byte* run, int slot, int head_dim, float* out) {
    const E* cells = reinterpret_cast<const E*>(run) + slot * 16;
    for (int c = 0; c < head_dim; c += 16) detail::convert(cells + c * 16, head_dim - c < 16 ? head_dim - c : 16, out + c);
  }

  static void copy_key(const std::byte* from, int from_slot, std::byte* to, int to_slot, int head_dim) {
    const E* source = reinterpret_cast<const E*>(from) + from_slot;
    E* target = reinterpret_cast<E*>(to) + to_slot;
    for (int c = 0; c < head_dim; ++c) target[c * 16] = source[c * 16];
  }
  static void copy_value(const std::byte* from, int from_slot, std::byte* to, int to_slot, int head_dim) {
    const E* source = reinterpret_cast<const E*>(from) + from_slot * 16;
    E* target = reinterpret_cast<E*>(to) + to_slot * 16;
    for (int c = 0; c < head_dim; c += 16) std::memmove(target + c * 16, source + c * 16, 16 * sizeof(E));
  }

  static void pack_key_row(const std::byte* record, std::byte* run, int slot, int head_dim) {
    encode_keys(reinterpret_cast<const E*>(record), 0, 1, head_dim, run, slot);
  }
  static void pack_value_row(const std::byte* record, std::byte* run, int slot, int head_dim) {
    encode_values(reinterpret_cast<const E*>(record), 0, 1, head_dim, run, slot);
  }

 private:
  // channels first .. head_dim - 1 of a row, sixteen cells apart
  template <class T>
  static void scatter(const T* row, int first, int head_dim, E* cells) {
    for (int c = first; c < head_dim; c += 16) {
      const int n = head_dim - c < 16 ? head_dim - c : 16;
      alignas(64) E part[16];
      detail::convert(row + c, n, part);
      for (int i = 0; i < n; ++i) cells[(c + i) * 16] = part[i];
    }
  }
};

using f32 = element_codec<float>;
using f16 = element_codec<float16>;
using bf16 = element_codec<bfloat16>;
using fp8_e4m3 = element_codec<float8_e4m3>;
using fp8_e5m2 = element_codec<float8_e5m2>;

}  // namespace heddle::codec::inline HEDDLE_ISA
