#pragma once
// Small block drafters, and what tests of trees share.
#include <heddle/speculative/draft/block_model.hpp>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

namespace toy {

using rows = std::vector<std::vector<float>>;

struct matrix_of {
  std::vector<float> data;
  std::int64_t columns = 0;
  matrix_of() = default;
  explicit matrix_of(const rows& r) : columns(static_cast<std::int64_t>(r[0].size())) {
    for (const auto& row : r) data.insert(data.end(), row.begin(), row.end());
  }
  heddle::tensor_view<const float, 2> view() const { return {data.data(), heddle::extents{columns ? static_cast<std::int64_t>(data.size()) / columns : 0, columns}}; }
};

inline rows logits_of(const std::vector<std::vector<double>>& laws) {
  rows u;
  for (const auto& law : laws) {
    u.emplace_back();
    for (const double p : law) u.back().push_back(p > 0 ? static_cast<float>(std::log(p)) : -std::numeric_limits<float>::infinity());
  }
  return u;
}

// Predicts the same slots whatever the context.
struct fixed_block {
  matrix_of logits;
  int calls = 0;
  heddle::block_prediction predict(std::span<const std::int32_t>, std::int32_t slots) {
    ++calls;
    return {logits.view().slice(0, std::min<std::int64_t>(slots, logits.view().extent(0))), {}};
  }
};

// What references in double compute with.
using numbers = std::vector<double>;
inline numbers operator+(numbers a, const numbers& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
inline numbers join(std::initializer_list<numbers> parts) {
  numbers all;
  for (const numbers& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}
inline double dot_product(const numbers& a, const numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double sigma(double x) { return 1 / (1 + std::exp(-x)); }

// A random matrix of weights.
struct weight {
  std::int64_t rows, columns;
  std::vector<float> values;
  weight(std::int64_t n, std::int64_t m, unsigned seed, float scale = .6f) : rows(n), columns(m) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < n * m; ++i) values.push_back(std::normal_distribution<float>(0.f, scale)(random));
  }
  heddle::tensor_view<const float, 2> view() const { return {values.data(), heddle::extents{rows, columns}}; }
  numbers at(std::int64_t r) const { return {values.begin() + r * columns, values.begin() + (r + 1) * columns}; }
  numbers times(const numbers& x) const {
    numbers y;
    for (std::int64_t r = 0; r < rows; ++r) y.push_back(dot_product(at(r), x));
    return y;
  }
};

}  // namespace toy
