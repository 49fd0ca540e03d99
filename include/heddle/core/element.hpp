// Element types of tensors: float, double, and the narrow floats below.
//
//   float16        1 sign, 5 exponent, 10 mantissa bits (IEEE binary16)
//   bfloat16       1, 8, 7: the upper half of a float
//   float8_e4m3    1, 4, 3; no infinities, S.1111.111 is NaN, largest finite 448
//   float8_e5m2    1, 5, 2; with infinities, largest finite 57344
//
// Conversions from float round to nearest, ties to even; NaN stays NaN (quiet, sign and leading payload bits kept); subnormals are exact. A value above the largest
// finite one becomes infinity, in e4m3 NaN; `saturating` conversions of the fp8 types clamp to the largest finite value instead.
// The types are plain bits: their arithmetic is that of float. Layouts: OCP 8-bit floating point specification (fp8), IEEE 754 (binary16).
//
//     heddle::float16 h{1.5f};
//     float x = h;
#pragma once
#include <heddle/core/isa.hpp>

#include <concepts>
#include <cstdint>

namespace heddle {
namespace detail {

// A float with `exponent_bits` and `mantissa_bits`; `infinite`: the largest exponent holds infinity and NaN, else only its last code is NaN.
template <int exponent_bits, int mantissa_bits, bool infinite>
struct narrow_float {
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr std::uint32_t sign_bit = 1u << (exponent_bits + mantissa_bits);
  static constexpr std::uint32_t top_exponent = ((1u << exponent_bits) - 1u) << mantissa_bits;
  static constexpr std::uint32_t largest = infinite ? top_exponent - 1u : top_exponent + (1u << mantissa_bits) - 2u;
  static constexpr std::uint32_t quiet_nan = infinite ? top_exponent | (1u << (mantissa_bits - 1)) : largest + 1u;

  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr float to_float(std::uint32_t bits) {
    const std::uint32_t sign = (bits & sign_bit) << (31 - exponent_bits - mantissa_bits);
    const std::uint32_t magnitude = bits & (sign_bit - 1u);
    if (infinite ? magnitude >= top_exponent : magnitude > largest) {
      std::uint32_t payload = infinite ? (magnitude & ((1u << mantissa_bits) - 1u)) << (23 - mantissa_bits) : 1u << 22;
      if (payload) payload |= 1u << 22;
      return __builtin_bit_cast(float, sign | 0x7f800000u | payload);
    }
    // the exponent of the narrow type is small: multiply by the difference of the biases, exactly, subnormals included
    const float value = __builtin_bit_cast(float, magnitude << (23 - mantissa_bits)) * __builtin_bit_cast(float, static_cast<std::uint32_t>(254 - bias) << 23);
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, value) | sign);
  }

  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr std::uint32_t from_float(float x, bool saturate) {
    const std::uint32_t source = __builtin_bit_cast(std::uint32_t, x), sign = (source >> 31) * sign_bit;
    std::uint32_t magnitude = source & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | quiet_nan | (infinite ? magnitude >> (23 - mantissa_bits) & ((1u << mantissa_bits) - 1u) : 0u);
    constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(128 - bias) << 23;   // 2^(1 - bias)
    constexpr int dropped = 23 - mantissa_bits;
    std::uint32_t rounded;
    if (magnitude < smallest_normal) {   // adding a power of two whose last bit is one unit of the subnormals rounds in hardware
      constexpr std::uint32_t anchor = static_cast<std::uint32_t>(127 + 23 + 1 - bias - mantissa_bits) << 23;
      rounded = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + __builtin_bit_cast(float, anchor)) - anchor;
    } else {
      magnitude -= static_cast<std::uint32_t>(127 - bias) << 23;
      rounded = (magnitude + (1u << (dropped - 1)) - 1u + (magnitude >> dropped & 1u)) >> dropped;
    }
    if (rounded > largest) rounded = saturate ? largest : infinite ? top_exponent : quiet_nan;
    return sign | rounded;
  }
};

}  // namespace detail

struct float16 {
  std::uint16_t bits = 0;
  constexpr float16() = default;
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE explicit constexpr float16(float x) : bits(static_cast<std::uint16_t>(format::from_float(x, false))) {}
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr operator float() const { return format::to_float(bits); }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr float16 from_bits(std::uint16_t b) {
    float16 h;
    h.bits = b;
    return h;
  }

 private:
  using format = detail::narrow_float<5, 10, true>;
};

struct bfloat16 {
  std::uint16_t bits = 0;
  constexpr bfloat16() = default;
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE explicit constexpr bfloat16(float x) : bits(round(__builtin_bit_cast(std::uint32_t, x))) {}
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr operator float() const { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 h;
    h.bits = b;
    return h;
  }

 private:
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr std::uint16_t round(std::uint32_t b) {
    if ((b & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(b >> 16 | 0x40u);
    return static_cast<std::uint16_t>((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
  }
};

template <int exponent_bits, int mantissa_bits, bool infinite>
struct basic_float8 {
  std::uint8_t bits = 0;
  constexpr basic_float8() = default;
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE explicit constexpr basic_float8(float x) : bits(static_cast<std::uint8_t>(format::from_float(x, false))) {}
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr operator float() const { return format::to_float(bits); }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr basic_float8 from_bits(std::uint8_t b) {
    basic_float8 h;
    h.bits = b;
    return h;
  }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE static constexpr basic_float8 saturating(float x) { return from_bits(static_cast<std::uint8_t>(format::from_float(x, true))); }

 private:
  using format = detail::narrow_float<exponent_bits, mantissa_bits, infinite>;
};
using float8_e4m3 = basic_float8<4, 3, false>;
using float8_e5m2 = basic_float8<5, 2, true>;

template <class T>
concept narrow_element = std::same_as<T, float16> || std::same_as<T, bfloat16> || std::same_as<T, float8_e4m3> || std::same_as<T, float8_e5m2>;
/// Elements whose values are real numbers: what queries, keys, logits and hidden states are made of.
template <class T>
concept real_element = std::same_as<T, float> || std::same_as<T, double> || narrow_element<T>;

}  // namespace heddle
