// What every row functional obeys, checked against a loss written as its formula reads.
//
// The reference gives L(base, at): the row's loss with the student at `at` and everything that the system holds constant taken at `base`. The value must be
// L(z, z), the gradient the derivative of L(z, .) by central differences. In double, then with the same logits rounded to float.
//   further laws   the gradient of a row sums to 0; a constant added to all logits of a named row changes nothing; masked rows are zero; the gradient may
//                  replace the student's logits; two workers give the same bits
#pragma once
#include "distillation/arrays.hpp"

#include <heddle/core/thread_team.hpp>
#include <heddle/distillation/per_row.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
using log_probs = std::vector<double>;

/// ln softmax(z / temperature)
inline log_probs log_softmax(const array<double>& z, std::int64_t i, double temperature) {
  double max = -infinity, sum = 0;
  for (std::int64_t v = 0; v < z.columns; ++v) max = std::max(max, z(i, v));
  log_probs p;
  for (std::int64_t v = 0; v < z.columns; ++v) p.push_back((z(i, v) - max) / temperature), sum += std::exp(p.back());
  for (double& x : p) x -= std::log(sum);
  return p;
}
/// p (a - b), where 0 counts for nothing
inline double weighed(double log_p, double log_a, double log_b) { return log_p == -infinity ? 0 : std::exp(log_p) * (log_a - log_b); }
inline double kl(const log_probs& p, const log_probs& q) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += weighed(p[v], p[v], q[v]);
  return sum;
}
inline double tv(const log_probs& p, const log_probs& q) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += std::abs(std::exp(p[v]) - std::exp(q[v])) / 2;
  return sum;
}

template <std::size_t k>
using named_rows = std::array<array<double>, k>;

/// The loss of row i: log-probabilities of all named rows at `base`, of the student at `at`.
template <std::size_t k>
using reference_loss = std::function<double(std::int64_t i, const std::array<log_probs, k>& base, const log_probs& at)>;

template <class T, class U>
array<T> as(const array<U>& a) {
  array<T> b(a.rows, a.columns);
  for (std::size_t i = 0; i < a.values.size(); ++i) b.values[i] = static_cast<T>(a.values[i]);
  return b;
}

template <class T>
struct evaluated {
  std::vector<double> values;
  std::vector<heddle::status> status;
  array<T> gradient;
};
template <class T, class F, std::size_t k>
evaluated<T> evaluate(const F& functional, const named_rows<k>& rows, const heddle::distillation::row_options& options, bool in_place = false) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    std::array<array<T>, k> z{as<T>(rows[i])...};
    const auto losses = heddle::distillation::per_row(functional, options, z[i].view()...);
    evaluated<T> out{{losses.values().begin(), losses.values().end()}, {losses.status().begin(), losses.status().end()}, array<T>(z[0].rows, z[0].columns)};
    const std::vector<double> ones(out.values.size(), 1);
    if (in_place) losses.backward(ones, z[0].view()), out.gradient = z[0];
    else {
      for (T& x : out.gradient.values) x = 77;
      losses.backward(ones, out.gradient.view());
    }
    return out;
  }(std::make_index_sequence<k>{});
}

struct law_options {
  double temperature = 1;
  double float_tolerance = 2e-5;
  bool separate_shifts = true;   ///< a constant on any one named row changes nothing
};

template <class F, std::size_t k>
void check_laws(const F& functional, named_rows<k> rows, const reference_loss<k>& reference, const law_options& laws = {}) {
  for (auto& z : rows) z = as<double>(as<float>(z));   // exactly representable in both
  const std::int64_t n = rows[0].rows, width = rows[0].columns;
  const heddle::distillation::row_options plain{.temperature = laws.temperature};
  const auto exact = evaluate<double>(functional, rows, plain);
  const auto rounded = evaluate<float>(functional, rows, plain);
  for (std::int64_t i = 0; i < n; ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    const auto row = static_cast<std::size_t>(i);
    ASSERT_EQ(exact.status[row], heddle::status::ok);
    std::array<log_probs, k> base;
    for (std::size_t j = 0; j < k; ++j) base[j] = log_softmax(rows[j], i, laws.temperature);
    const double value = reference(i, base, base[0]);
    EXPECT_NEAR(exact.values[row], value, 1e-11 * (1 + std::abs(value)));
    EXPECT_NEAR(rounded.values[row], value, laws.float_tolerance * (1 + std::abs(value)));
    double sum = 0, largest = 0;
    for (std::int64_t v = 0; v < width; ++v) {
      const double z = rows[0](i, v);
      double slope = 0;
      if (z > -infinity) {
        const double step = 1e-4;
        const auto at = [&](double x) {
          rows[0](i, v) = x;
          return reference(i, base, log_softmax(rows[0], i, laws.temperature));
        };
        slope = (8 * (at(z + step) - at(z - step)) - (at(z + 2 * step) - at(z - 2 * step))) / (12 * step);
        rows[0](i, v) = z;
      }
      EXPECT_NEAR(exact.gradient(i, v), slope, 1e-8 * (1 + std::abs(slope))) << "column " << v;
      EXPECT_NEAR(static_cast<double>(rounded.gradient(i, v)), slope, laws.float_tolerance * (1 + std::abs(slope))) << "column " << v;
      sum += exact.gradient(i, v), largest = std::max(largest, std::abs(exact.gradient(i, v)));
    }
    EXPECT_NEAR(sum, 0, 1e-12 * (1 + largest * static_cast<double>(width)));
  }

  for (std::size_t j = 0; j < k && laws.separate_shifts; ++j) {
    named_rows<k> shifted = rows;
    for (double& x : shifted[j].values) x += 64;
    const auto moved = evaluate<double>(functional, shifted, plain);
    for (std::size_t i = 0; i < exact.values.size(); ++i) EXPECT_NEAR(moved.values[i], exact.values[i], 1e-10 * (1 + std::abs(exact.values[i])));
    for (std::size_t i = 0; i < exact.gradient.values.size(); ++i) EXPECT_NEAR(moved.gradient.values[i], exact.gradient.values[i], 1e-10);
  }

  std::vector<std::uint8_t> mask(static_cast<std::size_t>(n), 1);
  mask[static_cast<std::size_t>(n - 1)] = 0;
  for (auto& z : rows)
    for (std::int64_t v = 0; v < z.columns; ++v) z(n - 1, v) = std::numeric_limits<double>::quiet_NaN();
  heddle::thread_team team{2};
  const auto masked = evaluate<double>(functional, rows, {.temperature = laws.temperature, .mask = mask, .executor = team}, true);
  for (std::int64_t i = 0; i < n; ++i) {
    const bool kept = i < n - 1;
    EXPECT_EQ(masked.values[static_cast<std::size_t>(i)], kept ? exact.values[static_cast<std::size_t>(i)] : 0);
    for (std::int64_t v = 0; v < width; ++v) EXPECT_EQ(masked.gradient(i, v), kept ? exact.gradient(i, v) : 0);
  }
}

}  // namespace test
