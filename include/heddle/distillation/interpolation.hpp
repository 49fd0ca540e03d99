// The policy closest to a teacher inside a KL ball around the student, and its maximal coupling with the student.
//
//   q_l(v) = s(v)^(1-l) t(v)^l / Z(l)                           s, t = softmax of the student's and the teacher's row at their temperatures
//   lambda = max { l in [0, 1] : KL(q_l || s) <= epsilon }       KL is increasing: d/dl KL(q_l || s) = l Var_{q_l}(ln t - ln s)
//   coupling: x ~ s is kept with probability min(1, q(x) / s(x)); otherwise the token is drawn from (q - s)_+ / TV(s, q)
//
// Coupled tokens have exactly the law q, and a correction happens with probability TV(s, q) <= sqrt(epsilon / 2). Trajectories drawn this way, and
// which of their tokens were corrected, are the input of routed_supervision.hpp.
// Tokens: for lambda > 0 the support of q is that of s and t together (at lambda = 1 too: q = t renormalised on it); as lambda -> 0 the law is s on
// that support, and when even that lies outside the ball, or the supports are disjoint, or epsilon = 0, lambda = 0 and q = s. s = t: lambda = 1.
// Rows: rank 1, the same length, f32, f16, bf16 or double, any stride; -infinity is probability 0. A row with NaN or +infinity, or without a finite
// logit, gives that status, lambda = 0 and token -1. Errors: lengths, temperatures, epsilon < 0 or NaN.
// |KL - epsilon| <= 1e-10 epsilon + 1e-14 where lambda < 1. All sums in double, ids ascending; deterministic. Cost: a pass with one exponential per
// token for each of about eight steps of Newton's method on sqrt(KL), inside a bracket; no memory. The rows must outlive the object.
// Source: SAKI (supervision allocation with KL-constrained interpolation).
//
//     const heddle::distillation::interpolated_law law{student, teacher, 0.05};
//     const auto next = law.couple(proposed, u_accept, u_residual);      // uniform numbers; next.token ~ q
#pragma once
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>

#include <cstdint>

namespace heddle::distillation {

struct interpolation_options {
  double temperature = 1;           ///< of the student, above 0
  double teacher_temperature = 0;   ///< 0: the student's
};

struct coupled_token {
  std::int32_t token = -1;
  bool corrected = false;   ///< drawn from the residual: the student's proposal was not kept
};

inline namespace HEDDLE_ISA {

template <tensor_of<1> StudentView, tensor_of<1> TeacherView>
class interpolated_law {
 public:
  template <tensor_of<1> Student, tensor_of<1> Teacher>
  interpolated_law(const Student& student, const Teacher& teacher, double epsilon, const interpolation_options& options = {})
      : student_(view_of(student)), teacher_(view_of(teacher)), student_scale_(1 / options.temperature), teacher_scale_(1 / (options.teacher_temperature == 0 ? options.temperature : options.teacher_temperature)) {
    require_shape("interpolated_law", "teacher", teacher_, extents{student_.extent(0)});
    require(epsilon >= 0, "interpolated_law: argument 'epsilon' is ", epsilon, "; expected 0 or more");
    require(options.temperature > 0 && options.temperature < math::infinity, "interpolated_law: option 'temperature' is ", options.temperature, "; expected a positive number");
    require(options.teacher_temperature >= 0 && options.teacher_temperature < math::infinity, "interpolated_law: option 'teacher_temperature' is ", options.teacher_temperature, "; expected a positive number, or 0 for the student's");
    status_ = normalise(student_, student_scale_, student_lse_);
    if (const auto s = normalise(teacher_, teacher_scale_, teacher_lse_); status_ == status::ok) status_ = s;
    if (status_ == status::ok && epsilon > 0) solve(epsilon);
  }

  heddle::status status() const { return status_; }
  double lambda() const { return lambda_; }
  /// KL(q || s)
  double divergence() const { return divergence_; }
  std::int64_t size() const { return student_.extent(0); }

  double student_log_prob(std::int64_t v) const { return math::fma(static_cast<double>(student_(v)), student_scale_, -student_lse_); }
  double teacher_log_prob(std::int64_t v) const { return math::fma(static_cast<double>(teacher_(v)), teacher_scale_, -teacher_lse_); }
  /// ln q(v)
  double log_prob(std::int64_t v) const { return lambda_ == 0 ? student_log_prob(v) : mixed(v, lambda_) - log_normalizer_; }
  double prob(std::int64_t v) const { return math::exp(log_prob(v)); }
  double student_prob(std::int64_t v) const { return math::exp(student_log_prob(v)); }

  /// TV(s, q): the probability of a correction.
  double total_variation() const {
    double sum = 0;
    for (std::int64_t v = 0; v < size(); ++v) sum += missing(v);
    return sum;
  }

  /// A token with law q from `proposed` ~ s and two uniform numbers in (0, 1). A proposal that the student cannot make is an error.
  coupled_token couple(std::int32_t proposed, double accept, double residual) const {
    require(proposed >= 0 && proposed < size(), "interpolated_law::couple: argument 'proposed' is ", proposed, "; expected 0 to ", size() - 1);
    if (status_ != status::ok) return {};
    require(student_prob(proposed) > 0, "interpolated_law::couple: argument 'proposed' is ", proposed, ", which has probability 0 under the student; expected a token drawn from it");
    if (lambda_ == 0 || accept * student_prob(proposed) < prob(proposed)) return {proposed, false};
    const double threshold = residual * total_variation();
    double below = 0;
    std::int32_t last = proposed;
    for (std::int32_t v = 0; v < size(); ++v) {
      const double mass = missing(v);
      if (mass > 0) last = v;
      if ((below += mass) > threshold) return {v, true};
    }
    return {last, last != proposed};
  }

 private:
  template <class View>
  static heddle::status normalise(const View& row, double scale, double& lse) {
    double max = -math::infinity;
    for (std::int64_t v = 0; v < row.extent(0); ++v) {
      const auto z = static_cast<double>(row(v));
      if (z != z) return status::nan_logit;
      if (z == math::infinity) return status::inf_logit;
      if (z > max) max = z;
    }
    if (max == -math::infinity) return status::empty_support;
    double sum = 0;
    for (std::int64_t v = 0; v < row.extent(0); ++v) sum += math::exp((static_cast<double>(row(v)) - max) * scale);
    lse = math::fma(max, scale, math::log(sum));
    return status::ok;
  }
  /// (1 - l) ln s + l ln t, -infinity outside the common support.
  double mixed(std::int64_t v, double l) const {
    const double s = student_log_prob(v), t = teacher_log_prob(v);
    return s == -math::infinity || t == -math::infinity ? -math::infinity : math::fma(l, t - s, s);
  }
  /// (q - s)_+
  double missing(std::int64_t v) const {
    const double excess = prob(v) - student_prob(v);
    return excess > 0 ? excess : 0;
  }

  struct point {
    double divergence, variance, log_normalizer;   // KL(q_l || s), Var_{q_l}(ln t - ln s), ln Z(l)
  };
  point at(double l) const {
    double max = -math::infinity;
    std::int64_t best = -1;
    for (std::int64_t v = 0; v < size(); ++v)
      if (const double x = mixed(v, l); x > max) max = x, best = v;
    if (best < 0) return {math::infinity, 0, -math::infinity};
    const double centre = teacher_log_prob(best) - student_log_prob(best);   // moments about it lose no digits
    double mass = 0, first = 0, second = 0;
    for (std::int64_t v = 0; v < size(); ++v) {
      const double s = student_log_prob(v), t = teacher_log_prob(v);
      if (s == -math::infinity || t == -math::infinity) continue;
      const double r = t - s - centre, weight = math::exp(math::fma(l, t - s, s) - max);
      mass += weight, first = math::fma(weight, r, first), second = math::fma(weight * r, r, second);
    }
    const double mean = first / mass, log_normalizer = max + math::log(mass);
    const double divergence = math::fma(l, mean + centre, -log_normalizer), variance = second / mass - mean * mean;
    return {divergence > 0 ? divergence : 0, variance > 0 ? variance : 0, log_normalizer};
  }
  bool identical() const {
    for (std::int64_t v = 0; v < size(); ++v)
      if (student_log_prob(v) != teacher_log_prob(v)) return false;
    return true;
  }
  void take(double l, const point& p) { lambda_ = l, divergence_ = p.divergence, log_normalizer_ = p.log_normalizer; }

  void solve(double epsilon) {
    const double tolerance = math::fma(1e-10, epsilon, 1e-14);
    if (identical()) return take(1, {0, 0, 0});
    const point end = at(1);
    if (end.divergence <= epsilon + tolerance) return take(1, end);
    const point start = at(0);
    if (start.divergence > epsilon) return;
    // KL - KL(0) is nearly a parabola: Newton's method on its square root
    double low = 0, high = 1, l = start.variance > 0 ? __builtin_sqrt(2 * (epsilon - start.divergence) / start.variance) : 0.5;
    for (int step = 0; step < 100; ++step) {
      if (!(l > low && l < high)) l = 0.5 * (low + high);
      const point here = at(l);
      if (here.divergence > epsilon) high = l;
      else low = l, take(l, here);
      const double miss = here.divergence - epsilon;
      if ((miss <= 0 ? -miss : miss) <= tolerance) return take(l, here);
      const double risen = here.divergence - start.divergence, wanted = epsilon - start.divergence;
      if (risen > 0 && here.variance > 0) l -= 2 * (risen - __builtin_sqrt(risen * wanted)) / (l * here.variance);
      else l = 0.5 * (low + high);
    }
  }

  StudentView student_;
  TeacherView teacher_;
  double student_scale_, teacher_scale_, student_lse_ = 0, teacher_lse_ = 0;
  double lambda_ = 0, divergence_ = 0, log_normalizer_ = 0;
  heddle::status status_ = status::ok;
};
template <tensor_of<1> Student, tensor_of<1> Teacher>
interpolated_law(const Student&, const Teacher&, double, const interpolation_options& = {}) -> interpolated_law<view_type<const Student>, view_type<const Teacher>>;

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
