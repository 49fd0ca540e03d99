// A draw from weights that need not sum to 1.
#pragma once
#include <heddle/core/isa.hpp>

#include <cstddef>
#include <span>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

/// The first index at which the cumulative weight exceeds u * sum; the last one with a weight if rounding leaves none.
inline std::size_t pick(double u, std::span<const double> weights) {
  double sum = 0, cumulative = 0;
  for (const double w : weights) sum += w;
  const double target = u * sum;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.) last = i;
    if ((cumulative += weights[i]) > target) return i;
  }
  return last;
}

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
