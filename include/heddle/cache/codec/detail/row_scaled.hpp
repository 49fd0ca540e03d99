// Rows to codes of `bits` bits and one scale, in the formats of integer_storage.hpp:
//
//   scale = max |x| / limit,  code = round(x limit / max |x|) + zero_code,  limit = 2^(bits - 1) - 1,  ties to even
//
// A row that is not finite gets a NaN scale and the codes of zeros. A row below 2^-100 is a row of zeros: scale 0.
#pragma once
#include <heddle/cache/codec/detail/cells.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace heddle::codec::detail::inline HEDDLE_ISA {

/// The low bytes of sixteen lanes, which hold 0 .. 255.
[[gnu::always_inline]] inline void store_bytes(void* p, simd::i32x16 v) {
  alignas(64) std::int32_t lane[16];
  simd::store_words(lane, v);
#if defined(__AVX2__)
  const auto* half = reinterpret_cast<const __m256i*>(lane);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_load_si256(half), _mm256_load_si256(half + 1)), 0xd8);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
  for (int i = 0; i < 16; ++i) static_cast<std::uint8_t*>(p)[i] = static_cast<std::uint8_t>(lane[i]);
#endif
}

/// Channels c .. c + 15 of a row of d, zeros beyond its end.
template <class T>
[[gnu::always_inline]] inline simd::f32x16 load_channels(const T* row, int c, int d) {
  if (c + 16 <= d) return detail::load(row + c);
  alignas(64) T part[16] = {};
  for (int i = c; i < d; ++i) part[i - c] = row[i];
  return detail::load(part);
}

template <int bits>
struct row_scaled {
  static constexpr int run_tokens = 16, group_tokens = 1;
  static constexpr int code_bits = bits, planes = 8 / bits, zero_code = 1 << (bits - 1);
  static constexpr int key_cells(int head_dim) { return (head_dim + 4 * planes - 1) / (4 * planes); }
  static constexpr int value_width(int head_dim) { return (head_dim + 15) / 16 * 16; }

  static constexpr std::size_t key_run_bytes(int head_dim) { return key_code_bytes(head_dim) + 64; }
  static constexpr std::size_t value_run_bytes(int head_dim) { return value_code_bytes(head_dim) + 64; }
  static constexpr std::size_t key_row_bytes(int head_dim) { return static_cast<std::size_t>(key_cells(head_dim)) * 4 + 4; }
  static constexpr std::size_t value_row_bytes(int head_dim) { return key_row_bytes(head_dim); }

  template <real_element T>
  static void encode_keys(const T* rows, std::int64_t row_stride, int count, int head_dim, std::byte* run, int slot) {
    const row_fit fit(rows, row_stride, count, head_dim);
    std::memcpy(run + key_code_bytes(head_dim) + 4 * slot, fit.scale, static_cast<std::size_t>(count) * 4);
    const int cells = key_cells(head_dim);
    for (int i = 0; i < cells; i += 16) {
      alignas(64) std::uint32_t block[16][16];
      for (int s = 0; s < count; ++s) cells_of(rows + s * row_stride, fit.inverse[s], i, head_dim, block[s]);
      std::byte* to = run + static_cast<std::size_t>(i) * 64;
      if (count == 16 && cells - i >= 16) {
        transpose_16x16(&block[0][0], 16, reinterpret_cast<std::uint32_t*>(to));
      } else {
        const int n = cells - i < 16 ? cells - i : 16;
        for (int s = 0; s < count; ++s)
          for (int k = 0; k < n; ++k) std::memcpy(to + k * 64 + (slot + s) * 4, &block[s][k], 4);
      }
    }
  }

  template <real_element T>
  static void encode_values(const T* rows, std::int64_t row_stride, int count, int head_dim, std::byte* run, int slot) {
    const row_fit fit(rows, row_stride, count, head_dim);
    std::memcpy(run + value_code_bytes(head_dim) + 4 * slot, fit.scale, static_cast<std::size_t>(count) * 4);
    const int width = value_width(head_dim);
    for (int c = 0; c < width; c += 16) {
      if (count == 16) {
        for (int i = 0; i < 4 / planes; ++i) {
          simd::i32x16 cell = simd::splat(0);
          tokens<0>(rows + c + i * 4 * planes * row_stride, row_stride, fit.inverse + i * 4 * planes, head_dim - c, cell);
          if constexpr (planes == 2) tokens<4>(rows + c + (i * 8 + 4) * row_stride, row_stride, fit.inverse + i * 8 + 4, head_dim - c, cell);
          simd::store_words(run + (static_cast<std::size_t>(i) * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)) * 4, cell);
        }
      } else {
        for (int s = 0; s < count; ++s) {
          alignas(16) std::uint8_t code[16];
          store_bytes(code, codes(rows + s * row_stride + c, fit.inverse[s], 0, head_dim - c));
          for (int k = 0; k < 16; ++k) put_value_code(run, slot + s, c + k, width, code[k]);
        }
      }
    }
  }

  template <real_element T>
  static void encode_key_row(const T* row, int head_dim, std::byte* record) {
    const row_fit fit(row, 0, 1, head_dim);
    const int cells = key_cells(head_dim);
    for (int i = 0; i < cells; i += 16) {
      alignas(64) std::uint32_t block[16];
      cells_of(row, fit.inverse[0], i, head_dim, block);
      std::memcpy(record + i * 4, block, static_cast<std::size_t>(cells - i < 16 ? cells - i : 16) * 4);
    }
    std::memcpy(record + cells * 4, fit.scale, 4);
  }
  template <real_element T>
  static void encode_value_row(const T* row, int head_dim, std::byte* record) { encode_key_row(row, head_dim, record); }

  static void decode_key(const std::byte* run, int slot, int head_dim, float* out) {
    const float scale = load_float(run + key_code_bytes(head_dim) + 4 * slot);
    for (int c = 0; c < head_dim; ++c) {
      const int cell = c / (4 * planes), shift = c / 4 % planes * bits;
      out[c] = scale * static_cast<float>((static_cast<int>(run[cell * 64 + slot * 4 + c % 4]) >> shift & mask) - zero_code);
    }
  }
  static void decode_value(const std::byte* run, int slot, int head_dim, float* out) {
    const float scale = load_float(run + value_code_bytes(head_dim) + 4 * slot);
    for (int c = 0; c < head_dim; ++c) out[c] = scale * static_cast<float>(value_code(run, slot, c, value_width(head_dim)) - zero_code);
  }

  static void copy_key(const std::byte* from, int from_slot, std::byte* to, int to_slot, int head_dim) {
    for (int i = 0; i <= key_cells(head_dim); ++i) std::memcpy(to + i * 64 + to_slot * 4, from + i * 64 + from_slot * 4, 4);   // the scale is one cell more
  }
  static void copy_value(const std::byte* from, int from_slot, std::byte* to, int to_slot, int head_dim) {
    const int width = value_width(head_dim);
    for (int c = 0; c < width; ++c) put_value_code(to, to_slot, c, width, value_code(from, from_slot, c, width));
    std::memcpy(to + value_code_bytes(head_dim) + 4 * to_slot, from + value_code_bytes(head_dim) + 4 * from_slot, 4);
  }

  static void pack_key_row(const std::byte* record, std::byte* run, int slot, int head_dim) {
    for (int i = 0; i <= key_cells(head_dim); ++i) std::memcpy(run + i * 64 + slot * 4, record + i * 4, 4);
  }
  static void pack_value_row(const std::byte* record, std::byte* run, int slot, int head_dim) {
    const int width = value_width(head_dim);
    for (int c = 0; c < width; ++c) {
      const int cell = c / (4 * planes), shift = c / 4 % planes * bits;
      put_value_code(run, slot, c, width, c < head_dim ? static_cast<int>(record[cell * 4 + c % 4]) >> shift & mask : zero_code);
    }
    std::memcpy(run + value_code_bytes(head_dim) + 4 * slot, record + key_cells(head_dim) * 4, 4);
  }

 protected:
  static constexpr std::size_t key_code_bytes(int head_dim) { return static_cast<std::size_t>(key_cells(head_dim)) * 64; }
  static constexpr std::size_t value_code_bytes(int head_dim) { return static_cast<std::size_t>(4 / planes) * static_cast<std::size_t>(value_width(head_dim)) * 4; }

 private:
  static constexpr int mask = (1 << bits) - 1;
  static constexpr float limit = static_cast<float>(zero_code - 1);

  /// Scales of up to sixteen rows. The long chain of maximum and division runs once for all of them.
  struct row_fit {
    alignas(64) float scale[16], inverse[16];   // of no use from `count` on
    template <class T>
    row_fit(const T* rows, std::int64_t row_stride, int count, int head_dim) {
      alignas(64) float largest[16][16] = {}, lane[16][16];   // [row][channel % 16], then [channel % 16][row]
      for (int s = 0; s < count; ++s) {
        simd::f32x16 top = simd::splat(0.f), poison = simd::splat(0.f);   // poison: 0, or NaN when a channel is not finite
        for (int c = 0; c < head_dim; c += 16) {
          const simd::f32x16 x = load_channels(rows + s * row_stride, c, head_dim);
          top = simd::max(simd::abs(x), top), poison = simd::fma(x, simd::splat(0.f), poison);
        }
        simd::store(largest[s], top + poison);
      }
      transpose_16x16(&largest[0][0], 16, &lane[0][0]);
      simd::f32x16 top = simd::load(lane[0]), poison = simd::splat(0.f);
      for (const float* l : lane) top = simd::max(simd::load(l), top), poison = simd::fma(simd::load(l), simd::splat(0.f), poison);
      const simd::mask16 zero = simd::less(top, simd::splat(0x1p-100f)), bad = simd::is_nan(poison);
      constexpr float largest_scale = std::numeric_limits<float>::max() / limit * (1.f - 0x1p-23f);   // times limit it is finite
      const simd::f32x16 s = simd::select(zero, simd::splat(0.f), simd::min(top / simd::splat(limit), simd::splat(largest_scale)));
      const simd::f32x16 i = simd::select(zero, simd::splat(0.f), simd::splat(limit) / top);
      simd::store(scale, simd::select(bad, simd::splat(std::numeric_limits<float>::quiet_NaN()), s));
      simd::store(inverse, simd::select(bad, simd::splat(0.f), i));
    }
  };

  /// Codes of channels c .. c + 15; zero_code for all when inverse is 0.
  template <class T>
  [[gnu::always_inline]] static simd::i32x16 codes(const T* row, float inverse, int c, int head_dim) {
    if (inverse == 0.f) return simd::splat(zero_code);
    return simd::to_int(load_channels(row, c, head_dim) * simd::splat(inverse)) + simd::splat(zero_code);
  }
  /// Sixteen cells of a row from cell `first` on.
  template <class T>
  [[gnu::always_inline]] static void cells_of(const T* row, float inverse, int first, int head_dim, std::uint32_t* out) {
    alignas(64) std::uint32_t wide[16 * planes];
    for (int i = 0; i < 4 * planes; ++i) store_bytes(wide + 4 * i, codes(row, inverse, first * 4 * planes + 16 * i, head_dim));
    for (int i = 0; i < 16; ++i) out[i] = planes == 1 ? wide[i] : wide[planes * i] | wide[planes * i + planes - 1] << 4;
  }
  /// Four tokens of sixteen channels into bits `shift` and up of the four bytes of a cell.
  template <int shift, class T>
  [[gnu::always_inline]] static void tokens(const T* rows, std::int64_t row_stride, const float* inverse, int channels, simd::i32x16& cell) {
    cell = cell | simd::shift_left<shift>(codes(rows, inverse[0], 0, channels));
    cell = cell | simd::shift_left<shift + 8>(codes(rows + row_stride, inverse[1], 0, channels));
    cell = cell | simd::shift_left<shift + 16>(codes(rows + 2 * row_stride, inverse[2], 0, channels));
    cell = cell | simd::shift_left<shift + 24>(codes(rows + 3 * row_stride, inverse[3], 0, channels));
  }

  static std::size_t value_byte(int slot, int channel, int width) {
    return (static_cast<std::size_t>(slot / (4 * planes)) * static_cast<std::size_t>(width) + static_cast<std::size_t>(channel)) * 4 + static_cast<std::size_t>(slot % 4);
  }
  static int value_code(const std::byte* run, int slot, int channel, int width) {
    return static_cast<int>(run[value_byte(slot, channel, width)]) >> (slot / 4 % planes * bits) & mask;
  }
  static void put_value_code(std::byte* run, int slot, int channel, int width, int code) {
    std::byte& byte = run[value_byte(slot, channel, width)];
    const int shift = slot / 4 % planes * bits;
    byte = static_cast<std::byte>((static_cast<int>(byte) & ~(mask << shift)) | code << shift);
  }
  static float load_float(const std::byte* p) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
  }
};

}  // namespace heddle::codec::detail::inline HEDDLE_ISA
