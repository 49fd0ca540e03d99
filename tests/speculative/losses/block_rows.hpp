// Logits, labels and finite differences for the losses of block drafters.
#pragma once
#include <heddle/core/random.hpp>

#include "distillation/gradient_laws.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace test {

inline array<double> random_logits(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  array<double> z(rows, columns);
  for (std::size_t i = 0; i < z.values.size(); ++i) z.values[i] = 4 * heddle::uniform({.seed = seed, .index = static_cast<std::uint32_t>(i)}) - 2;
  return z;
}
inline std::vector<std::int32_t> random_labels(std::int64_t rows, std::int64_t vocabulary, std::uint64_t seed) {
  std::vector<std::int32_t> y;
  for (std::int64_t r = 0; r < rows; ++r) y.push_back(static_cast<std::int32_t>(heddle::random_bits({.seed = seed, .request = 9, .index = static_cast<std::uint32_t>(r)}) % static_cast<std::uint32_t>(vocabulary)));
  return y;
}
/// The lowest id of the largest logit.
inline std::int32_t argmax(const array<double>& z, std::int64_t row) {
  std::int64_t best = 0;
  for (std::int64_t c = 1; c < z.columns; ++c)
    if (z(row, c) > z(row, best)) best = c;
  return static_cast<std::int32_t>(best);
}
/// value(z) against its gradient, entry by entry.
template <class Value>
void expect_slopes(const array<double>& gradient, const array<double>& z, Value value) {
  for (std::int64_t r = 0; r < z.rows; ++r)
    for (std::int64_t c = 0; c < z.columns; ++c) {
      array<double> up = z, down = z;
      up(r, c) += 1e-6, down(r, c) -= 1e-6;
      ASSERT_NEAR(gradient(r, c), (value(up) - value(down)) / 2e-6, 1e-7) << "row " << r << " column " << c;
    }
}

}  // namespace test
