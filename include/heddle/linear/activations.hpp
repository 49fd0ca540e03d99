// Rows of activations, prepared once per input and shared by every matrix that reads them.
//
// f32     the values as given, and each block's sum: (lane l adds inputs l and l + 16, then the tree of simd::reduce_add)
// int8, int16, int24   per row and block of 32 inputs
//             limit = 127, 127 * 2^8, 127 * 2^16      scale = max |x| / limit      q = round(x / scale), ties to even
//             as signed bytes, most significant first: q = digit[0], or 256 digit[0] + digit[1], ...
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

/// Rows that are stored together, block by block: floats: the largest tile of a kernel; integers: a multiple of the rows of most kernels.
inline constexpr int tile_rows = simd::wide_registers ? 12 : 6, integer_tile_rows = 12;
constexpr int tile_rows_of(precision p) { return p == precision::f32 ? tile_rows : integer_tile_rows; }
/// Inputs of one chain of multiply-adds in products of numbers by numbers.
inline constexpr int chain_inputs = 256;
/// Floats from row to row of a chain: equal inputs of the rows of a tile lie in different banks of a cache, to be read in one cycle.
inline constexpr int chain_stride = chain_inputs + 2;

/// Low 16 bits of word j of a part: input j, high: input j + 16. `digit` word z: inputs z, z + 8, z + 16, z + 24.
template <int digits>
struct alignas(16) digit_block {
  static constexpr int parts = digits == 3 ? 2 : 1;
  std::int8_t digit[digits][block_inputs];
  std::int16_t part[parts][block_inputs];   ///< part[0]: all digits but the third as one number; part[1]: the third
  std::int32_t minus_128_sums[parts];       ///< -128 times the sum of a part: what codes with an offset of 128 have too much
  float scale, scaled_sum;                  ///< scaled_sum: scale times the sum of q
};

template <int digits>
inline constexpr float digit_limit = digits == 3 ? 127.f * 65536.f : digits == 2 ? 127.f * 256.f : 127.f;

constexpr int digits_of(precision p) { return p == precision::int8 ? 1 : p == precision::int16 ? 2 : 3; }

constexpr std::size_t prepared_block_bytes(precision p) {
  switch (p) {
    case precision::int8: return sizeof(digit_block<1>);
    case precision::int16: return sizeof(digit_block<2>);
    default: return sizeof(digit_block<3>);
  }
}

/// Floats that a row of f32 takes: whole chains, so that rows of a tile lie at constant distances.
constexpr std::int64_t chains_of(std::int64_t inputs) { return (inputs + chain_inputs - 1) / chain_inputs; }
constexpr std::int64_t padded_inputs(std::int64_t inputs) { return chains_of(inputs) * chain_stride; }

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

// Reductions over lanes whose result does not depend on the order.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
struct halves {
  __m256i low, high;
};
[[gnu::always_inline]] inline halves halves_of(simd::i32x16 v) { return std::bit_cast<halves>(v); }
[[gnu::always_inline]] inline std::int32_t sum_of_lanes(simd::i32x16 v) {
  const halves h = halves_of(v);
  const __m256i eight = _mm256_add_epi32(h.low, h.high);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
[[gnu::always_inline]] inline float largest_lane(simd::f32x16 v) {
  const halves h = halves_of(simd::bits_of(v));
  const __m256 eight = _mm256_max_ps(_mm256_castsi256_ps(h.low), _mm256_castsi256_ps(h.high));
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
}
[[gnu::always_inline]] inline void store_merged(void* to, simd::i32x16 pairs) {
  const halves h = halves_of(pairs);
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_or_si256(h.low, _mm256_slli_epi32(h.high, 8)));
}
#else
inline std::int32_t sum_of_lanes(simd::i32x16 v) {
  std::int32_t lane[simd::lanes], sum = 0;
  simd::store_words(lane, v);
  for (const std::int32_t x : lane) sum += x;
  return sum;
}
inline float largest_lane(simd::f32x16 v) { return simd::reduce_max(v); }
/// Word z of eight: lane z, and lane z + 8 one byte higher.
inline void store_merged(void* to, simd::i32x16 pairs) {
  std::uint32_t lane[simd::lanes];
  simd::store_words(lane, pairs);
  for (int z = 0; z < 8; ++z) lane[z] |= lane[z + 8] << 8;
  std::memcpy(to, lane, 32);
}
#endif

/// max |x|, or NaN if an element is not finite.
inline float largest_magnitude(const block_values& x) {
  const simd::f32x16 low = simd::abs(x.low), high = simd::abs(x.high), infinite = simd::splat(simd::infinity);
  if ((simd::bits_of(simd::less(low, infinite)) & simd::bits_of(simd::less(high, infinite))) != 0xffffu) return std::numeric_limits<float>::quiet_NaN();
  return largest_lane(simd::max(low, high));
}

// Sixteen numbers as 256 * upper + lower, lower in -128..127.
struct split_bytes {
  simd::i32x16 upper, lower;
};
[[gnu::always_inline]] inline split_bytes split_byte(simd::i32x16 q) {
  const simd::i32x16 upper = simd::shift_right_signed<8>(q + simd::splat(128));
  return {upper, q - simd::shift_left<8>(upper)};
}

inline void store_part(std::int16_t* to, simd::i32x16 low, simd::i32x16 high) {
  simd::store_words(to, (low & simd::splat(0xffff)) | simd::shift_left<16>(high));
}
inline void store_digit(std::int8_t* to, simd::i32x16 low, simd::i32x16 high) {
  store_merged(to, (low & simd::splat(0xff)) | simd::shift_left<16>(high & simd::splat(0xff)));
}

template <int digits>
void prepare_block(const block_values& x, digit_block<digits>& out) {
  using namespace simd;
  const float largest = largest_magnitude(x);
  if (!(largest >= 0x1p-100f)) [[unlikely]] {
    out = {};
    if (largest != largest) out.scale = out.scaled_sum = largest;
    return;
  }
  const f32x16 inverse = splat(digit_limit<digits> / largest);
  i32x16 low = to_int(x.low * inverse), high = to_int(x.high * inverse);
  std::int32_t sum = sum_of_lanes(low + high), part_sum = sum;
  if constexpr (digits == 3) {
    const split_bytes a = split_byte(low), b = split_byte(high);
    store_digit(out.digit[2], a.lower, b.lower);
    store_part(out.part[1], a.lower, b.lower);
    low = a.upper, high = b.upper;
    part_sum = sum_of_lanes(low + high);
    out.minus_128_sums[1] = -128 * (sum - 256 * part_sum);
  }
  out.minus_128_sums[0] = -128 * part_sum;
  store_part(out.part[0], low, high);
  if constexpr (digits > 1) {
    const split_bytes a = split_byte(low), b = split_byte(high);
    store_digit(out.digit[1], a.lower, b.lower);
    low = a.upper, high = b.upper;
  }
  store_digit(out.digit[0], low, high);
  out.scale = largest / digit_limit<digits>;
  out.scaled_sum = out.scale * static_cast<float>(sum);
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
    const std::int64_t tile = detail::tile_rows_of(kind);
    constexpr std::int64_t worth_sharing = 4096;   // a parallel call costs about as much as so many inputs
    const std::int64_t workers = rows_ * inputs_ < worth_sharing ? 1 : static_cast<std::int64_t>(options.executor.concurrency()), run = (rows_ + workers - 1) / workers;
    options.executor.bulk(static_cast<std::size_t>(rows_ > 0 ? workers : 0), [&](std::size_t worker) {
      const std::int64_t begin = static_cast<std::int64_t>(worker) * run;
      for (std::int64_t r = begin; r < rows_ && r < begin + run; ++r) prepare_row(r / tile * tile, r % tile, rows.at(r));
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
  std::int64_t rows_in_tile(std::int64_t first) const {
    const std::int64_t tile = detail::tile_rows_of(kind_);
    return rows_ - first < tile ? rows_ - first : tile;
  }
  template <int digits>
  const detail::digit_block<digits>* blocks(std::int64_t first) const {   // [block][row]
    return reinterpret_cast<const detail::digit_block<digits>*>(data_.data()) + first * blocks_of(inputs_);
  }
  const float* values(std::int64_t first) const {   // [chain][row][chain_stride]
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
      float* to = values + (chain * n + r) * detail::chain_stride + k % detail::chain_inputs;
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
