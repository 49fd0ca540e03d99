// A loss on final hidden states inside a frozen subspace.
//
//   L_i = || B (h_student,i - h_teacher,i) ||^2 / (2 r)          dL_i/dh_student,i = B^T B (h_student,i - h_teacher,i) / r
//   value = sum_i mask_i w_i L_i / sum_i mask_i                  (0 where the mask keeps no row)
//
// factor [r, d] (fit it with residual_subspace_fit.hpp), student and teacher [N, d], gradient [N, d] or none: f32, f16, bf16 or double, any strides.
// The gradient is written, times w_i / sum mask; it may be the student's own storage. Masked rows are not read and their gradient is 0. A row with
// NaN or infinity has that status, adds 0, stays in the count and gets gradient 0. Errors: shapes, mask and weights of another length, a negative
// or NaN weight, r = 0, a factor that is not finite.
// Sums in double, in a fixed order: the result depends on no executor. Cost: 4 r d flops a row; d + r doubles of scratch a worker, allocated.
// The weight of this loss beside a distillation loss: calibrated_weight, from one fixed batch and frozen afterwards, so that arms (structured factor,
// random control) push equally hard.
// Source: SCOPE-OPSD (Fisher-conditioned residual supervision for on-policy self-distillation).
//
//     const auto auxiliary = residual_subspace_loss(factor, h_student, h_teacher, d_hidden);
//     const double c = calibrated_weight(0.1, d_hidden_distillation, d_hidden);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/distillation/detail/sequences.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::distillation {

struct residual_subspace_options {
  std::span<const std::uint8_t> mask{};   ///< one per row; empty: all rows
  std::span<const double> weights{};      ///< one per row; empty: 1
  executor_ref executor{};
};

inline namespace HEDDLE_ISA {

struct residual_subspace_result {
  double value = 0;
  aligned_vector<double> row_values;          ///< L_i, 0 for masked and bad rows
  aligned_vector<heddle::status> row_status;
  std::int64_t rows_kept = 0;                 ///< unmasked rows that are ok
};

/// Stands for a gradient that nobody wants.
struct no_hidden_gradient {};

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// sum_c a[c] b[c], eight partial sums.
template <class Row>
double inner_product(const Row& a, const double* b, std::int64_t n) {
  double partial[8] = {};
  std::int64_t c = 0;
  for (; c + 8 <= n; c += 8)
    for (std::int64_t k = 0; k < 8; ++k) partial[k] = math::fma(static_cast<double>(a(c + k)), b[c + k], partial[k]);
  for (std::int64_t k = 0; c < n; ++c, ++k) partial[k] = math::fma(static_cast<double>(a(c)), b[c], partial[k]);
  return ((partial[0] + partial[4]) + (partial[1] + partial[5])) + ((partial[2] + partial[6]) + (partial[3] + partial[7]));
}
template <class Row>
void write_zeros(const Row& row) {
  for (std::int64_t c = 0; c < row.extent(0); ++c) row(c) = std::remove_cvref_t<decltype(row(c))>(0.f);
}
/// Root mean square over the entries of unmasked rows; 0 without any.
template <class View>
double root_mean_square(const View& rows, std::span<const std::uint8_t> mask) {
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < rows.extent(0); ++i) {
    if (!kept(mask, i)) continue;
    for (std::int64_t c = 0; c < rows.extent(1); ++c) {
      const auto x = static_cast<double>(rows(i, c));
      sum = math::fma(x, x, sum);
    }
    count += rows.extent(1);
  }
  return count ? __builtin_sqrt(sum / static_cast<double>(count)) : 0;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <matrix Factor, matrix Student, matrix Teacher, class Gradient = no_hidden_gradient>
  requires(host_tensor<Factor> && host_tensor<Student> && host_tensor<Teacher>)
residual_subspace_result residual_subspace_loss(const Factor& factor, const Student& student, const Teacher& teacher, Gradient&& gradient = {}, const residual_subspace_options& options = {}) {
  const char* const name = "residual_subspace_loss";
  constexpr bool with_gradient = !std::same_as<std::remove_cvref_t<Gradient>, no_hidden_gradient>;
  const auto basis = view_of(factor);
  const auto h = view_of(student);
  const auto target = view_of(teacher);
  const std::int64_t rank = basis.extent(0), rows = h.extent(0), width = h.extent(1);
  const auto count = static_cast<std::size_t>(rows);
  require(rank > 0, name, ": argument 'factor' has no rows; expected at least 1");
  require_shape(name, "factor", basis, extents{rank, width});
  require_shape(name, "teacher", target, extents{rows, width});
  detail::check_mask(name, options.mask, rows);
  require(options.weights.empty() || options.weights.size() == count, name, ": option 'weights' has ", options.weights.size(), " entries; expected one per row, ", count);
  for (std::size_t i = 0; i < options.weights.size(); ++i) require(options.weights[i] >= 0 && options.weights[i] < math::infinity, name, ": option 'weights': entry ", i, " is ", options.weights[i], "; expected a finite number, 0 or more");
  for (std::int64_t j = 0; j < rank; ++j)
    for (std::int64_t c = 0; c < width; ++c)
      if (const auto b = static_cast<double>(basis(j, c)); b - b != 0) fail(name, ": argument 'factor': entry (", j, ", ", c, ") is ", b, "; expected a finite number");
  if constexpr (with_gradient) require_shape(name, "gradient", view_of(gradient), extents{rows, width});

  std::int64_t unmasked = 0;
  for (std::int64_t i = 0; i < rows; ++i) unmasked += detail::kept(options.mask, i);
  residual_subspace_result result{0, aligned_vector<double>(count), aligned_vector<heddle::status>(count), 0};
  const auto weight = [&](std::int64_t i) { return options.weights.empty() ? 1. : options.weights[static_cast<std::size_t>(i)]; };
  const auto workers = static_cast<std::int64_t>(options.executor.concurrency()), pieces = rows < workers ? rows : workers;
  options.executor.bulk(static_cast<std::size_t>(pieces), [&](std::size_t piece) {
    aligned_vector<double> residual(static_cast<std::size_t>(width)), projected(static_cast<std::size_t>(rank));
    const auto p = static_cast<std::int64_t>(piece);
    for (std::int64_t i = rows * p / pieces; i < rows * (p + 1) / pieces; ++i) {
      const auto at = static_cast<std::size_t>(i);
      double sum = 0, absolute = 0;
      if (detail::kept(options.mask, i)) {
        for (std::int64_t c = 0; c < width; ++c) {
          const double e = static_cast<double>(h(i, c)) - static_cast<double>(target(i, c));
          residual[static_cast<std::size_t>(c)] = e, absolute += __builtin_fabs(e);
        }
        if (absolute != absolute || absolute == math::infinity) result.row_status[at] = absolute != absolute ? status::nan_logit : status::inf_logit;
        else
          for (std::int64_t j = 0; j < rank; ++j) {
            const double x = detail::inner_product(basis[j], residual.data(), width);
            projected[static_cast<std::size_t>(j)] = x, sum = math::fma(x, x, sum);
          }
        result.row_values[at] = sum / static_cast<double>(2 * rank);
      }
      if constexpr (with_gradient) {
        const auto out = view_of(gradient)[i];
        if (sum == 0) {
          detail::write_zeros(out);
          continue;
        }
        for (double& e : residual) e = 0;
        for (std::int64_t j = 0; j < rank; ++j)
          for (std::int64_t c = 0; c < width; ++c) residual[static_cast<std::size_t>(c)] = math::fma(projected[static_cast<std::size_t>(j)], static_cast<double>(basis(j, c)), residual[static_cast<std::size_t>(c)]);
        const double scale = weight(i) / (static_cast<double>(rank) * static_cast<double>(unmasked));
        using element = std::remove_cvref_t<decltype(out(0))>;
        for (std::int64_t c = 0; c < width; ++c)
          if constexpr (std::same_as<element, double>) out(c) = scale * residual[static_cast<std::size_t>(c)];
          else out(c) = element(static_cast<float>(scale * residual[static_cast<std::size_t>(c)]));
      }
    }
  });
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    sum = math::fma(weight(i), result.row_values[static_cast<std::size_t>(i)], sum);
    result.rows_kept += detail::kept(options.mask, i) && result.row_status[static_cast<std::size_t>(i)] == status::ok;
  }
  result.value = unmasked ? sum / static_cast<double>(unmasked) : 0;
  return result;
}

/// share * rms(distillation) / rms(auxiliary), over the entries of unmasked rows: the weight at which the auxiliary gradient is `share` times as large
/// as that of the distillation loss. Throws where the auxiliary gradient is zero.
template <matrix Distillation, matrix Auxiliary>
  requires(host_tensor<Distillation> && host_tensor<Auxiliary>)
double calibrated_weight(double share, const Distillation& distillation, const Auxiliary& auxiliary, std::span<const std::uint8_t> mask = {}) {
  const auto a = view_of(distillation);
  const auto b = view_of(auxiliary);
  require(share >= 0 && share < math::infinity, "calibrated_weight: argument 'share' is ", share, "; expected a finite number, 0 or more");
  require_shape("calibrated_weight", "auxiliary", b, a.shape());
  detail::check_mask("calibrated_weight", mask, a.extent(0));
  const double size = detail::root_mean_square(b, mask);
  require(size > 0 && size < math::infinity, "calibrated_weight: argument 'auxiliary' has the root mean square ", size, "; expected a positive number");
  const double wanted = detail::root_mean_square(a, mask);
  require(wanted < math::infinity, "calibrated_weight: argument 'distillation' has the root mean square ", wanted, "; expected a finite number");
  return share * wanted / size;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
