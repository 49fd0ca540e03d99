// Rectangular arrays that own their elements.
#pragma once
#include <heddle/core/tensor.hpp>

#include <cstdint>
#include <random>
#include <vector>

namespace test {

template <class T>
struct array {
  std::int64_t rows, columns;
  std::vector<T> values;
  array(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  T& operator()(std::int64_t i, std::int64_t c) { return values[static_cast<std::size_t>(i * columns + c)]; }
  T operator()(std::int64_t i, std::int64_t c) const { return values[static_cast<std::size_t>(i * columns + c)]; }
  heddle::tensor_view<T, 2> view() { return {values.data(), heddle::extents{rows, columns}}; }
};
template <class T>
array<T> gaussian(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  std::normal_distribution<double> normal;
  array<T> a(rows, columns);
  for (T& x : a.values) x = static_cast<T>(normal(random));
  return a;
}
/// d value() / d x, from both sides; x is as before.
template <class Value>
double central_difference(double& x, double step, const Value& value) {
  const double at = x;
  x = at + step;
  const double up = value();
  x = at - step;
  const double down = value();
  x = at;
  return (up - down) / (2 * step);
}

}  // namespace test
