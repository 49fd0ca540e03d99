#pragma once
// Rotary embedding in double by the C library: the definition, one channel pair at a time.
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

namespace reference {

enum class pairing { half_split, interleaved };

inline std::vector<double> rope_frequencies(std::int64_t rotary_dim, double base) {
  std::vector<double> theta;
  for (std::int64_t i = 0; i < rotary_dim; i += 2) theta.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(rotary_dim)));
  return theta;
}

// magnitude R(position) on the first 2 theta.size() channels of a row.
inline std::vector<double> rope(std::vector<double> row, double position, const std::vector<double>& theta, pairing how, double magnitude = 1) {
  const std::size_t pairs = theta.size();
  for (std::size_t f = 0; f < pairs; ++f) {
    const auto [first, second] = how == pairing::half_split ? std::pair{f, f + pairs} : std::pair{2 * f, 2 * f + 1};
    const double a = row[first], b = row[second], angle = position * theta[f];
    row[first] = magnitude * (a * std::cos(angle) - b * std::sin(angle));
    row[second] = magnitude * (b * std::cos(angle) + a * std::sin(angle));
  }
  return row;
}

// YaRN (arXiv 2309.00071, section 3.2): pair i turns L0 / wavelength times within the trained context; the ramp runs over pair numbers.
inline std::vector<double> yarn_frequencies(std::int64_t rotary_dim, double base, double factor, double original_length, double beta_fast, double beta_slow, bool truncate) {
  const double dim = static_cast<double>(rotary_dim);
  const auto correction = [&](double turns) { return dim * std::log(original_length / (turns * 2 * std::numbers::pi)) / (2 * std::log(base)); };
  double low = correction(beta_fast), high = correction(beta_slow);
  if (truncate) low = std::floor(low), high = std::ceil(high);
  low = std::fmax(low, 0), high = std::fmin(high, dim - 1);
  std::vector<double> theta = rope_frequencies(rotary_dim, base);
  for (std::size_t i = 0; i < theta.size(); ++i) {
    const double ramp = std::fmin(1, std::fmax(0, (static_cast<double>(i) - low) / (high == low ? 0.001 : high - low)));
    theta[i] = theta[i] / factor * ramp + theta[i] * (1 - ramp);
  }
  return theta;
}

// Llama 3.1: by wavelength.
inline std::vector<double> llama3_frequencies(std::int64_t rotary_dim, double base, double factor, double low_factor, double high_factor, double original_length) {
  std::vector<double> theta = rope_frequencies(rotary_dim, base);
  for (double& t : theta) {
    const double wavelength = 2 * std::numbers::pi / t;
    if (wavelength > original_length / low_factor) t /= factor;
    else if (wavelength >= original_length / high_factor) {
      const double smooth = (original_length / wavelength - low_factor) / (high_factor - low_factor);
      t = (1 - smooth) * t / factor + smooth * t;
    }
  }
  return theta;
}

}  // namespace reference
