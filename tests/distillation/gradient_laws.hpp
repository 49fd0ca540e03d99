// What every row loss must obey, in double: gradients by finite differences, sums of 0, shifts of a row that change nothing.
#pragma once
#include <heddle/distillation/per_row.hpp>

#include "distillation/arrays.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace test {

inline std::vector<double> softmax(const array<double>& z, std::int64_t row, double temperature = 1) {
  double max = -INFINITY, sum = 0;
  for (std::int64_t c = 0; c < z.columns; ++c) max = std::max(max, z(row, c));
  std::vector<double> p;
  for (std::int64_t c = 0; c < z.columns; ++c) p.push_back(std::exp((z(row, c) - max) / temperature)), sum += p.back();
  for (double& x : p) x /= sum;
  return p;
}

/// sum p (ln p - ln q)
inline double kl(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v)
    if (p[v] > 0) sum += p[v] * std::log(p[v] / q[v]);
  return sum;
}

template <class F, class... Rows>
std::vector<double> values_of(const F& functional, const heddle::distillation::row_options& options, Rows&&... rows) {
  const auto result = heddle::distillation::per_row(functional, options, rows...);
  return {result.values().begin(), result.values().end()};
}

template <class F, class... Rows>
array<double> gradient_of(const F& functional, const heddle::distillation::row_options& options, array<double>& z, Rows&&... rows) {
  array<double> gradient(z.rows, z.columns);
  heddle::distillation::per_row(functional, options, z.view(), rows...).backward(std::vector<double>(static_cast<std::size_t>(z.rows), 1.), gradient.view());
  return gradient;
}

/// The gradient with respect to the first named row.
template <class F, class... Rows>
void expect_gradient(const F& functional, const heddle::distillation::row_options& options, array<double> z, Rows&&... rows) {
  const auto gradient = gradient_of(functional, options, z, rows...);
  const auto value = values_of(functional, options, z.view(), rows...);
  for (std::int64_t c = 0; c < z.columns; ++c) {
    const double h = 1e-5;
    array<double> up = z, down = z;
    for (std::int64_t r = 0; r < z.rows; ++r) up(r, c) += h, down(r, c) -= h;
    const auto above = values_of(functional, options, up.view(), rows...), below = values_of(functional, options, down.view(), rows...);
    for (std::int64_t r = 0; r < z.rows; ++r)
      ASSERT_NEAR(gradient(r, c), (above[static_cast<std::size_t>(r)] - below[static_cast<std::size_t>(r)]) / (2 * h), 1e-6 * (0.1 + std::abs(gradient(r, c)))) << "row " << r << " column " << c;
  }
  array<double> shifted = z;
  for (std::int64_t r = 0; r < z.rows; ++r)
    for (std::int64_t c = 0; c < z.columns; ++c) shifted(r, c) += 64. * static_cast<double>(r - 1);
  const auto same = gradient_of(functional, options, shifted, rows...);
  const auto same_value = values_of(functional, options, shifted.view(), rows...);
  for (std::int64_t r = 0; r < z.rows; ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < z.columns; ++c) {
      sum += gradient(r, c);
      ASSERT_NEAR(same(r, c), gradient(r, c), 1e-10);
    }
    ASSERT_NEAR(sum, 0, 1e-12) << "row " << r;
    ASSERT_NEAR(same_value[static_cast<std::size_t>(r)], value[static_cast<std::size_t>(r)], 1e-10 * (1 + std::abs(value[static_cast<std::size_t>(r)])));
  }
}

/// float, float16 and bfloat16 logits give what double ones of the same numbers give.
template <class Narrow>
std::pair<array<Narrow>, array<double>> same_numbers(const array<double>& z) {
  std::pair<array<Narrow>, array<double>> both{array<Narrow>(z.rows, z.columns), array<double>(z.rows, z.columns)};
  for (std::size_t i = 0; i < z.values.size(); ++i) both.first.values[i] = Narrow(static_cast<float>(z.values[i])), both.second.values[i] = static_cast<double>(static_cast<float>(both.first.values[i]));
  return both;
}

}  // namespace test
