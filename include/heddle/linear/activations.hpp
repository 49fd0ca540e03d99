// Rows of activations, prepared once per input and shared by every matrix that reads them.
//
// f32     the values as given, and each block's sum: (lane l adds inputs l and l + 16, then the tree of simd::reduce_add)
// int8, int16, int24   per row and block of 32 inputs
//             limit = 127, 127 * 255, 127 * 255^2      scale = max |x| / limit      q = round(x / scale), ties to even
//             digits of base 255 in -127..127, most significant first: q = digit[0], or 255 digit[0] + digit[1], ...
//         A block whose largest magnitude is below 2^-100 counts as zeros.
//         A block with an element that is not finite has a scale of NaN: every output of that row is NaN, no other row notices.
// Preparing a row reads that row alone; its bits depend on nothing else (and, with fused multiply-add, not on the instruction set).
//
// class activations is a value: it owns its memory and keeps it, so that a later prepare() of no more rows and inputs allocates nothing.
// x: [rows, inputs] of float, float16 or bfloat16, unit stride along inputs, any row stride. Zero rows are fine. Errors name the argument.
// Cost per input: f32 a copy; integers about 1.5 to 3 bytes read and 4 to 8 written, some 40 instructions per 16 inputs.
//
//     heddle::linear::activations x{heddle::linear::precision::int24, 16, 576};
//     float values[576] = {};
//     x.prepare(heddle::tensor_view{values, heddle::extents{1, 576}});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/linear/format.hpp>

namespace heddle::linear {

struct prepare_options {
  executor_ref executor{};   ///< worth passing from about 16 rows on
};

namespace detail::inline HEDDLE_ISA {

/// Rows that are stored together, block by block: the largest tile of a kernel.
inline constexpr int tile_rows = simd::wide_registers ? 12 : 6;
/// Inputs of one chain of multiply-adds in products of numbers by numbers.
inline constexpr int chain_inputs = 256;

/// Low 16 bits of word j: input j, high: input j + 16. `digit` word z: inputs z, z + 8, z + 16, z + 24.
template <int digits>
struct alignas(16) digit_block {
  static constexpr int parts = digits == 3 ? 2 : 1;
  std::int8_t digit[digits][block_inputs];
  std::int16_t part[parts][block_inputs];   ///< part[0]: digit[0], or 255 digit[0] + digit[1]; part[1]: digit[2]
  std::int32_t minus_128_sums[parts];       ///< -128 times the sum of a part: what codes with an offset of 128 have too much
  float scale, scaled_sum;                  ///< scaled_sum: scale times the sum of q
};

template <int digits>
inline constexpr float digit_limit = digits == 3 ? 127.f * 65025.f : digits == 2 ? 127.f * 255.f : 127.f;

constexpr int digits_of(precision p) { return p == precision::int8 ? 1 : p == precision::int16 ? 2 : 3; }

constexpr std::size_t prepared_block_bytes(precision p) {
  switch (p) {
    case precision::int8: return sizeof(digit_block<1>);
    case precision::int16: return sizeof(digit_block<2>);
    default: return sizeof(digit_block<3>);
  }
}

/// Floats that a row of f32 takes: whole chains, so that rows of a tile lie at constant distances.
constexpr std::int64_t padded_inputs(std::int64_t inputs) { return (inputs + chain_inputs - 1) / chain_inputs * chain_inputs; }

constexpr std::size_t prepared_bytes(precision p, std::int64_t rows, std::int64_t inputs) {
  const auto blocks = static_cast<std::size_t>(rows * blocks_of(inputs));
  if (p == precision::f32) return sizeof(float) * (static_cast<std::size_t>(rows * padded_inputs(inputs)) + blocks);
  return prepared_block_bytes(p) * blocks;
}

struct block_values {
  simd::f32x16 low, high;   ///< inputs 0..15, 16..31
};

template <class Element>
block_values load_block(const Element* x, std::int64_t count) {
  if (count >= block_inputs) return {simd::load(x), simd::load(x + 16)};
  return {simd::load_first(x, count), count > 16 ? simd::load_first(x + 16, count - 16) : simd::splat(0.f)};
}

/// max |x|, or NaN if an element is not finite.
inline float largest_magnitude(const block_values& x) {
  const simd::f32x16 low = simd::abs(x.low), high = simd::abs(x.high), infinite = simd::splat(simd::infinity);
  if ((simd::bits_of(simd::less(low, infinite)) & simd::bits_of(simd::less(high, infinite))) != 0xffffu) return std::numeric_limits<float>::quiet_NaN();
  return simd::reduce_max(simd::max(low, high));
}

inline std::int32_t reduce_add(simd::i32x16 v) {
  alignas(64) std::int32_t lane[simd::lanes];
  simd::store_words(lane, v);
  std::int32_t sum = 0;
  for (const std::int32_t x : lane) sum += x;
  return sum;
}

inline simd::i32x16 clamp_digit(simd::i32x16 v) {
  return simd::to_int(simd::min(simd::max(simd::to_float(v), simd::splat(-127.f)), simd::splat(127.f)));
}

inline void store_part(std::int16_t* to, simd::i32x16 low, simd::i32x16 high) {
  simd::store_words(to, (low & simd::splat(0xffff)) | simd::shift_left<16>(high));
}
inline void store_digit(std::int8_t* to, simd::i32x16 low, simd::i32x16 high) {
  alignas(64) std::uint32_t pairs[simd::lanes];
  simd::store_words(pairs, (low & simd::splat(0xff)) | shift_left<16>(high & simd::splat(0xff)));
  std::uint32_t words[8];
  for (int z = 0; z < 8; ++z) words[z] = pairs[z] | pairs[z + 8] << 8;
  std::memcpy(to, words, sizeof words);
}

template <int digits>
void prepare_block(const block_values& x, digit_block<digits>& out) {
  using namespace simd;
  const float largest = largest_magnitude(x);
  if (!(largest >= 0x1p-100f)) {
    out = {};
    if (largest != largest) out.scale = out.scaled_sum = largest;
    return;
  }
  const f32x16 inverse = splat(digit_limit<digits> / largest);
  i32x16 low = to_int(x.low * inverse), high = to_int(x.high * inverse);
  i32x16 part_low = splat(0), part_high = splat(0);
  std::int32_t sums[2] = {};
  for (int d = 0; d < digits; ++d) {
    i32x16 digit_low = low, digit_high = high;
    if (d + 1 < digits) {
      const std::int32_t weight = digits - d == 3 ? 65025 : 255;
      const f32x16 share = splat(1.f / static_cast<float>(weight));
      digit_low = to_int(to_float(low) * share), digit_high = to_int(to_float(high) * share);
      digit_low = clamp_digit(digit_low), digit_high = clamp_digit(digit_high);
      low = low - digit_low * splat(weight), high = high - digit_high * splat(weight);
    } else {
      digit_low = clamp_digit(digit_low), digit_high = clamp_digit(digit_high);
    }
    store_digit(out.digit[d], digit_low, digit_high);
    const bool new_part = d == 0 || d == 2;
    part_low = new_part ? digit_low : part_low * splat(255) + digit_low;
    part_high = new_part ? digit_high : part_high * splat(255) + digit_high;
    if (d == digits - 1 || d == 1) {
      const int i = d == 2;
      store_part(out.part[i], part_low, part_high);
      sums[i] = reduce_add(part_low + part_high);
      out.minus_128_sums[i] = -128 * sums[i];
    }
  }
  out.scale = largest / digit_limit<digits>;
  out.scaled_sum = out.scale * static_cast<float>(digits == 3 ? sums[0] * 255 + sums[1] : sums[0]);
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

class activations {
 public:
  activations() = default;
  /// Reserves memory for later calls.
  activations(precision kind, std::int64_t max_rows, std::int64_t max_inputs) : kind_(kind) {
    check("activations", kind, max_rows, max_inputs);
    reserve(kind, max_rows, max_inputs);
  }

  template <matrix X>
    requires host_tensor<X> && (std::same_as<element_type<X>, float> || std::same_as<element_type<X>, float16> || std::same_as<element_type<X>, bfloat16>)
  void prepare(const X& x, precision kind, const prepare_options& options = {}) {
    const auto rows = view_of(x);
    check("activations::prepare", kind, rows.extent(0), rows.extent(1));
    require(rows.stride(1) == 1 || rows.extent(1) == 1, "activations::prepare: argument 'x' has stride ", rows.stride(1), " along inputs; expected 1");
    reserve(kind, rows.extent(0), rows.extent(1));
    kind_ = kind, rows_ = rows.extent(0), inputs_ = rows.extent(1);
    const auto tiles = static_cast<std::size_t>((rows_ + detail::tile_rows - 1) / detail::tile_rows);
    options.executor.bulk(tiles, [&](std::size_t tile) {
      const auto first = static_cast<std::int64_t>(tile) * detail::tile_rows;
      for (std::int64_t r = 0; r < rows_in_tile(first); ++r) prepare_row(first, r, rows.at(first + r));
    });
  }
  template <matrix X>
  void prepare(const X& x, const prepare_options& options = {}) {
    prepare(x, kind_, options);
  }

  precision kind() const { return kind_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t inputs() const { return inputs_; }

  // For kernels: what belongs to the tile that begins at row `first`.
  std::int64_t rows_in_tile(std::int64_t first) const { return rows_ - first < detail::tile_rows ? rows_ - first : detail::tile_rows; }
  template <int digits>
  const detail::digit_block<digits>* blocks(std::int64_t first) const {   // [block][row]
    return reinterpret_cast<const detail::digit_block<digits>*>(data_.data()) + first * blocks_of(inputs_);
  }
  const float* values(std::int64_t first) const {   // [chain][row][chain_inputs]
    return reinterpret_cast<const float*>(data_.data()) + first * detail::padded_inputs(inputs_);
  }
  const float* block_sums(std::int64_t first) const {   // [block][row]
    return reinterpret_cast<const float*>(data_.data()) + rows_ * detail::padded_inputs(inputs_) + first * blocks_of(inputs_);
  }

 private:
  static void check(const char* function, precision kind, std::int64_t rows, std::int64_t inputs) {
    require(kind <= precision::int24, function, ": argument 'kind' is ", static_cast<int>(kind), "; expected a precision");
    require(rows >= 0, function, ": argument 'rows' is ", rows, "; expected 0 or more");
    require(inputs > 0, function, ": argument 'inputs' is ", inputs, "; expected 1 or more");
  }
  void reserve(precision kind, std::int64_t rows, std::int64_t inputs) {
    const std::size_t bytes = detail::prepared_bytes(kind, rows, inputs);
    if (data_.size() < bytes) data_.resize(bytes);
  }

  template <class Element>
  void prepare_row(std::int64_t first, std::int64_t r, const Element* x) {
    switch (kind_) {
      case precision::f32: return copy_row(first, r, x);
      case precision::int8: return split_row<1>(first, r, x);
      case precision::int16: return split_row<2>(first, r, x);
      case precision::int24: return split_row<3>(first, r, x);
    }
  }
  template <class Element>
  void copy_row(std::int64_t first, std::int64_t r, const Element* x) {
    const std::int64_t n = rows_in_tile(first);
    auto* values = const_cast<float*>(this->values(first));
    auto* sums = const_cast<float*>(block_sums(first));
    for (std::int64_t b = 0; b < blocks_of(inputs_); ++b) {
      const std::int64_t k = b * block_inputs, chain = k / detail::chain_inputs;
      float* to = values + (chain * n + r) * detail::chain_inputs + k % detail::chain_inputs;
      const detail::block_values v = detail::load_block(x + k, inputs_ - k);
      simd::store(to, v.low), simd::store(to + 16, v.high);
      sums[b * n + r] = simd::reduce_add(v.low + v.high);
    }
  }
  template <int digits, class Element>
  void split_row(std::int64_t first, std::int64_t r, const Element* x) {
    const std::int64_t n = rows_in_tile(first);
    auto* to = const_cast<detail::digit_block<digits>*>(this->blocks<digits>(first)) + r;
    for (std::int64_t b = 0; b < blocks_of(inputs_); ++b) detail::prepare_block(detail::load_block(x + b * block_inputs, inputs_ - b * block_inputs), to[b * n]);
  }

  precision kind_ = precision::f32;
  std::int64_t rows_ = 0, inputs_ = 0;
  aligned_vector<std::byte> data_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle::linear
