// A loss in one call: divergence, target transform, token weights.
//
//   L = sum_i mask_i w_i L_i / D        D = 1 (sum), sum of mask (mean), sum of mask w (weighted_mean), or a count of the caller's
//   loss(student, teacher, divergence, grad, options)                 student, teacher [N, V]; grad [N, V] or no_gradient
//   loss(student, teacher, divergence, transform, grad, options)      target q = transform(row, s, t), a distribution, instead of t
//   loss(student, functional, grad, options)                          losses of the student alone: nll{tokens}, a teacher given as top-k, ...
//   loss_over(functional, grad, options, rows...)                     any number of named rows
//   reduce(rows, options, grads...)                                   weights and reduction after per_row, when the weights come from the rows
// L_i is computed from softmax(student / temperature) and softmax(teacher / teacher_temperature). grad is that of L with respect to the student's logits, the factor
// 1 / temperature included; temperature_squared multiplies value and gradient by the student's temperature^2 (off: nothing hidden).
// Value and gradient of a row are computed together while it is in cache: the logits come from memory once. grad may be the student's logits themselves.
// D comes from mask and weights alone: a bad row (per_row.hpp) adds 0 (+infinity if that is its value) and stays in D. D = 0: value 0, gradient 0.
// Errors, statuses, masks, determinism, accumulator: per_row.hpp. Weights are constants, >= 0; weights and entries of masked rows are not read.
// Cost: 2 or 3 passes of O(V) per row; bytes: student and teacher once, gradient once.
//
//     std::vector<float> grad(rows * vocabulary);
//     const auto result = loss(student, teacher, reverse_kl{}, tensor_view{grad.data(), extents{rows, vocabulary}}, {.temperature = 2, .executor = team});
//     // result.value, result.row_values, result.row_status, result.rows_kept
#pragma once
#include <heddle/distillation/divergence.hpp>
#include <heddle/distillation/per_row.hpp>

namespace heddle::distillation {

enum class reduction : std::uint8_t { sum, mean, weighted_mean, count };

struct loss_options {
  double temperature = 1;
  double teacher_temperature = 0;                  ///< 0: as temperature; of all named rows but the first
  bool temperature_squared = false;
  std::span<const std::uint8_t> mask{};            ///< one per row, 0: not supervised; empty: all are
  std::span<const double> weights{};               ///< one per row; empty: 1
  distillation::reduction reduction = distillation::reduction::mean;
  double count = 0;                                ///< D of reduction::count
  std::int64_t chunk = 0;
  heddle::on_bad_row on_bad_row = heddle::on_bad_row::report;
  executor_ref executor{};
};

struct no_gradient_type {};
inline constexpr no_gradient_type no_gradient{};

inline namespace HEDDLE_ISA {

struct loss_result {
  double value = 0;
  aligned_vector<double> row_values;               ///< L_i, not weighted
  aligned_vector<heddle::status> row_status;
  std::int64_t rows_kept = 0;                      ///< supervised rows with status ok
};

/// A functional whose second distribution is a target made from all named rows: divergence(row, s, transform(row, s, t, ...)).
template <class Divergence, class Transform>
struct targeted {
  Divergence divergence;
  Transform transform;
  void check(const call_shape& shape) const {
    if constexpr (requires { divergence.check(shape); }) divergence.check(shape);
    if constexpr (requires { transform.check(shape); }) transform.check(shape);
  }
  std::int64_t selected_columns() const {
    std::int64_t columns = 0;
    if constexpr (requires { divergence.selected_columns(); }) columns += divergence.selected_columns();
    if constexpr (requires { transform.selected_columns(); }) columns += transform.selected_columns();
    return columns;
  }
  template <class Row, class S, class... Teachers>
  auto operator()(Row& row, S s, Teachers... teachers) const {
    return divergence(row, s, transform(row, s, teachers...));
  }
};
template <class Divergence, class Transform>
targeted(Divergence, Transform) -> targeted<Divergence, Transform>;

/// q ~ t^lambda s^(1 - lambda): between the student (0) and the teacher (1).
struct power_target {
  double lambda = 1;
  void check(const call_shape&) const { require(lambda >= 0 && lambda <= 1, "power_target: option 'lambda' is ", lambda, "; expected 0 to 1"); }
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    return row.normalise([s, t, l = lambda](auto v) {
      if (l == 0) return s(v).log;
      if (l == 1) return t(v).log;
      return l * t(v).log + (1 - l) * s(v).log;
    });
  }
};

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

inline row_options row_options_of(const loss_options& o) { return {o.temperature, o.mask, o.chunk, o.on_bad_row, o.executor}; }

template <class G>
concept gradient_argument = matrix<G> || std::same_as<G, no_gradient_type>;

/// mask_i w_i / D (times temperature^2), whatever the rows turn out to be.
class row_factors {
 public:
  row_factors(const char* function, const loss_options& o, std::int64_t rows) : options_(o) {
    require(o.weights.empty() || static_cast<std::int64_t>(o.weights.size()) == rows, function, ": option 'weights' has ", o.weights.size(), " entries; expected none or one per row, ", rows);
    require(o.reduction != reduction::count || (o.count >= 0 && o.count < math::infinity), function, ": option 'count' is ", o.count, "; expected 0 or more");
    double kept = 0, weight = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (masked(r)) continue;
      const double w = weight_of(r);
      require(w >= 0 && w < math::infinity, function, ": option 'weights': entry ", r, " is ", w, "; expected a finite number, 0 or more");
      kept += 1, weight += w;
    }
    const double count = o.reduction == reduction::sum ? 1 : o.reduction == reduction::mean ? kept : o.reduction == reduction::weighted_mean ? weight : o.count;
    scale_ = count > 0 ? (o.temperature_squared ? o.temperature * o.temperature : 1.) / count : 0;
  }
  bool masked(std::int64_t r) const { return !options_.mask.empty() && options_.mask.data()[r] == 0; }
  double operator()(std::int64_t r) const { return masked(r) ? 0 : scale_ * weight_of(r); }

  /// The sum of the rows in their order.
  double total(std::span<const double> values, std::span<const heddle::status> statuses) const {
    double sum = 0;
    for (std::size_t r = 0; r < values.size(); ++r) {
      const double factor = (*this)(static_cast<std::int64_t>(r));
      if (factor != 0 && (statuses.data()[r] == heddle::status::ok || statuses.data()[r] == heddle::status::infinite_divergence)) sum += factor * values.data()[r];
    }
    return sum;
  }

 private:
  double weight_of(std::int64_t r) const { return options_.weights.empty() ? 1. : options_.weights.data()[r]; }
  const loss_options& options_;
  double scale_ = 0;
};

template <class T, class F, int k, class Gradient>
loss_result fused_loss(const char* function, const F& functional, const Gradient& gradient, const loss_options& options, row_input (&inputs)[static_cast<std::size_t>(k)]) {
  constexpr int G = std::same_as<Gradient, no_gradient_type> ? 0 : 1;
  require(options.teacher_temperature >= 0 && options.teacher_temperature < math::infinity, function, ": option 'teacher_temperature' is ", options.teacher_temperature, "; expected a positive number, or 0 for that of the student");
  for (int i = 1; i < k; ++i)
    if (inputs[i].source.temperature == 0) inputs[i].source.temperature = options.teacher_temperature;
  const row_call<T, F, k> call(function, functional, row_options_of(options), inputs);
  loss_options of_student = options;
  if (inputs[0].source.temperature > 0) of_student.temperature = inputs[0].source.temperature;
  const row_factors factors(function, of_student, call.rows());
  row_sink sink{};
  if constexpr (G == 1) sink = sink_of(gradient), call.check_gradient(0, sink, view_of(gradient).extent(0), view_of(gradient).extent(1));
  loss_result result;
  result.row_values.resize(static_cast<std::size_t>(call.rows()));
  result.row_status.resize(static_cast<std::size_t>(call.rows()));
  const bad_value bad = call.each_row(nullptr, [&](auto& row, std::int64_t r, double*) {
    const auto i = static_cast<std::size_t>(r);
    return result.row_status[i] = evaluate_row<G>(call, row, r, nullptr, result.row_values[i], factors(r), &sink);
  });
  for (std::int64_t r = 0; r < call.rows(); ++r) result.rows_kept += !call.masked(r) && result.row_status[static_cast<std::size_t>(r)] == heddle::status::ok;
  result.value = factors.total(result.row_values, result.row_status);
  call.throw_if_asked(bad);
  return result;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <class F, detail::gradient_argument Gradient, detail::row_argument... Rows>
loss_result loss_over(const F& functional, const Gradient& gradient, const loss_options& options, const Rows&... rows) {
  detail::row_input inputs[] = {detail::input_of(rows)...};
  return detail::fused_loss<detail::number_of<Rows...>, F, sizeof...(Rows)>("loss", functional, gradient, options, inputs);
}
template <detail::row_argument Student, detail::row_argument Teacher, class Divergence, detail::gradient_argument Gradient>
loss_result loss(const Student& student, const Teacher& teacher, const Divergence& divergence, const Gradient& gradient, const loss_options& options = {}) {
  return loss_over(divergence, gradient, options, student, teacher);
}
template <detail::row_argument Student, detail::row_argument Teacher, class Divergence, class Transform, detail::gradient_argument Gradient>
  requires(!detail::gradient_argument<Transform>)
loss_result loss(const Student& student, const Teacher& teacher, const Divergence& divergence, const Transform& transform, const Gradient& gradient, const loss_options& options = {}) {
  return loss_over(targeted<Divergence, Transform>{divergence, transform}, gradient, options, student, teacher);
}
template <detail::row_argument Student, class F, detail::gradient_argument Gradient>
  requires(!detail::row_argument<F>)
loss_result loss(const Student& student, const F& functional, const Gradient& gradient, const loss_options& options = {}) {
  return loss_over(functional, gradient, options, student);
}

/// Weights and reduction of rows that have been evaluated; their mask, temperatures and executor are those of per_row, options.mask may mask more.
template <class T, class F, int k, matrix... Gradients>
loss_result reduce(const row_losses<T, F, k>& rows, const loss_options& options, const Gradients&... gradients) {
  const auto n = static_cast<std::size_t>(rows.size());
  aligned_vector<std::uint8_t> mask(n);
  require(options.mask.empty() || options.mask.size() == n, "reduce: option 'mask' has ", options.mask.size(), " entries; expected none or one per row, ", n);
  for (std::size_t r = 0; r < n; ++r) mask[r] = !rows.masked(static_cast<std::int64_t>(r)) && (options.mask.empty() || options.mask.data()[r] != 0);
  loss_options own = options;
  own.mask = {mask.data(), n}, own.temperature = rows.temperature();
  const detail::row_factors factors("reduce", own, rows.size());
  loss_result result;
  result.row_values.assign(rows.values().begin(), rows.values().end());
  result.row_status.assign(rows.status().begin(), rows.status().end());
  for (std::size_t r = 0; r < n; ++r) result.rows_kept += mask[r] != 0 && result.row_status[r] == heddle::status::ok;
  result.value = factors.total(result.row_values, result.row_status);
  if constexpr (sizeof...(Gradients) > 0) {
    aligned_vector<double> upstream(n);
    for (std::size_t r = 0; r < n; ++r) upstream[r] = factors(static_cast<std::int64_t>(r));
    rows.backward({upstream.data(), n}, gradients...);
  }
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
