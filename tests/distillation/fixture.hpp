// Rows of logits for the tests of losses, and calls in a few characters.
#pragma once
#include <heddle/distillation/loss.hpp>

#include "support/reference/distillation.hpp"

#include <cstdint>
#include <random>
#include <vector>

namespace distillation_tests {

using heddle::extents;
using heddle::tensor_view;

/// A matrix [rows, columns] that owns its elements.
template <class E>
struct logits {
  std::int64_t rows, columns;
  std::vector<E> data;

  logits(std::int64_t n, std::int64_t v) : rows(n), columns(v), data(static_cast<std::size_t>(n * v)) {}
  tensor_view<E, 2> view() { return {data.data(), extents{rows, columns}}; }
  tensor_view<const E, 2> view() const { return {data.data(), extents{rows, columns}}; }
  E& operator()(std::int64_t r, std::int64_t v) { return data[static_cast<std::size_t>(r * columns + v)]; }
  E operator()(std::int64_t r, std::int64_t v) const { return data[static_cast<std::size_t>(r * columns + v)]; }
  template <class To>
  logits<To> as() const {
    logits<To> out(rows, columns);
    for (std::size_t i = 0; i < data.size(); ++i) {
      if constexpr (sizeof(To) < 4) out.data[i] = To(static_cast<float>(data[i]));
      else out.data[i] = static_cast<To>(data[i]);
    }
    return out;
  }
  reference::row row(std::int64_t r) const {
    reference::row out(static_cast<std::size_t>(columns));
    for (std::int64_t v = 0; v < columns; ++v) out[static_cast<std::size_t>(v)] = static_cast<double>((*this)(r, v));
    return out;
  }
};

/// Normal logits of the given spread, rounded to bfloat16: the same numbers in every element type of at least its range.
inline logits<float> noise(std::int64_t rows, std::int64_t columns, unsigned seed, float spread = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  logits<float> out(rows, columns);
  for (float& x : out.data) x = static_cast<float>(heddle::bfloat16(normal(random)));
  return out;
}

/// Value and gradient of one call, the gradient in the type of the student.
template <class E>
struct evaluated {
  heddle::distillation::loss_result result;
  logits<E> gradient;
};
template <class E, class F, class... Teachers>
evaluated<E> evaluate(const F& functional, const heddle::distillation::loss_options& options, const logits<E>& student, const Teachers&... teachers) {
  evaluated<E> out{{}, logits<E>(student.rows, student.columns)};
  out.result = heddle::distillation::loss_over(functional, out.gradient.view(), options, student.view(), teachers.view()...);
  return out;
}

/// The largest difference between the gradient and central differences of the value, in double.
template <class F, class... Teachers>
double difference_to_finite_differences(const F& functional, const heddle::distillation::loss_options& options, logits<double> student, const Teachers&... teachers) {
  const auto exact = evaluate(functional, options, student, teachers...);
  const auto value = [&] { return heddle::distillation::loss_over(functional, heddle::distillation::no_gradient, options, student.view(), teachers.view()...).value; };
  double worst = 0;
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < student.data.size(); ++i) {
    const double z = student.data[i];
    student.data[i] = z + step;
    const double above = value();
    student.data[i] = z - step;
    const double difference = (above - value()) / (2 * step);
    student.data[i] = z;
    worst = std::max(worst, std::abs(difference - exact.gradient.data[i]));
  }
  return worst;
}

template <class E>
double row_sum(const logits<E>& g, std::int64_t r) {
  double sum = 0;
  for (std::int64_t v = 0; v < g.columns; ++v) sum += static_cast<double>(g(r, v));
  return sum;
}

}  // namespace distillation_tests
