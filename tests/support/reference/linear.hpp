#pragma once
// Float64 references of the linear room, written from the formulas and the GGUF block layouts, sharing no code with the library's kernels.

#include <heddle/core/element.hpp>
#include <heddle/linear/format.hpp>

#include <cmath>
#include <cstring>
#include <vector>

namespace heddle_reference {

using heddle::linear::format;

inline double half_at(const std::byte* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31 ? (mantissa ? std::nan("") : INFINITY) : exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/// W[output, k] of a matrix stored as in a GGUF file.
inline double stored_weight(format kind, const std::byte* rows, std::int64_t inputs, std::int64_t output, std::int64_t k) {
  const std::int64_t cell = output * inputs + k, block = output * ((inputs + 31) / 32) + k / 32, i = k % 32;
  const auto nibble = [&](const std::byte* codes) { return static_cast<int>(codes[i % 16]) >> (i < 16 ? 0 : 4) & 15; };
  switch (kind) {
    case format::f32: {
      float value;
      std::memcpy(&value, rows + 4 * cell, 4);
      return static_cast<double>(value);
    }
    case format::f16: return half_at(rows + 2 * cell);
    case format::bf16: {
      std::uint32_t bits = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, rows + 2 * cell, 2);
      float value;
      std::memcpy(&value, &bits, 4);
      return static_cast<double>(value);
    }
    case format::q8_0: return half_at(rows + 34 * block) * static_cast<std::int8_t>(rows[34 * block + 2 + i]);
    case format::q4_0: return half_at(rows + 18 * block) * (nibble(rows + 18 * block + 2) - 8);
    case format::q4_1: return half_at(rows + 20 * block) * nibble(rows + 20 * block + 4) + half_at(rows + 20 * block + 2);
  }
  return std::nan("");
}

/// What integer activations stand for: x rounded to `bits` bits per block of 32, the quotient formed in float as documented.
inline std::vector<double> rounded_activations(const std::vector<float>& x, int bits) {
  const float limit = bits == 8 ? 127.f : bits == 16 ? 127.f * 256.f : 127.f * 65536.f;
  std::vector<double> out(x.size());
  for (std::size_t first = 0; first < x.size(); first += 32) {
    const std::size_t last = first + 32 < x.size() ? first + 32 : x.size();
    float largest = 0;
    for (std::size_t i = first; i < last; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    if (largest == 0) continue;
    const float inverse = limit / largest;
    for (std::size_t i = first; i < last; ++i) out[i] = std::nearbyint(static_cast<double>(x[i] * inverse)) * (static_cast<double>(largest) / static_cast<double>(limit));
  }
  return out;
}

inline std::vector<double> multiply(const std::vector<double>& weights, const std::vector<double>& x, std::int64_t outputs) {
  const auto inputs = static_cast<std::int64_t>(x.size());
  std::vector<double> y(static_cast<std::size_t>(outputs));
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t k = 0; k < inputs; ++k) y[static_cast<std::size_t>(o)] += weights[static_cast<std::size_t>(o * inputs + k)] * x[static_cast<std::size_t>(k)];
  return y;
}

inline std::vector<double> rms_norm(const std::vector<double>& x, const std::vector<double>& weight, double epsilon) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
  return y;
}

inline double silu(double g) { return g / (1 + std::exp(-g)); }

/// |a - b| / |b| in the 2-norm.
template <class A>
double relative_error(const A* a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d, norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace heddle_reference
