// Divergences on the support of the k most probable tokens.
//
//   top_k_tail<D>     buckets: each column of S, and the tail, everything else.      D(s~, t~) over the k + 1 buckets
//                     s~_tail = -expm1(ln sum_S s), the argument at most -1e-7 while S is not the whole vocabulary (then there is no tail and no term)
//                     gradient s_v (a_b(v) - sum_b s~_b a_b), a_b = dD/ds~_b: dense, but of s alone outside S
//   renormalised<D>   softmax restricted to S on both sides; gradient 0 outside S
//   given_top_k<D>    top_k_tail with a teacher that is known by k tokens and their log-probabilities per row; a functional of the student alone
// D: forward_kl, reverse_kl, generalized_jsd or total_variation. S is chosen by teacher, student, or is the union of both choices, and is a constant. k > V counts as V.
// Ties: larger logit first, then lower id. A divergence of buckets is at most the full one, and equal to it for k = V.
// Accuracy with float logits: the tail is what the sum over S leaves of 1, within 1e-7, so where the student's tail is below about 1e-5 it, and for forward
// KL (a_tail = -t_tail / s~_tail) all of the gradient, are known to a few digits only. Double logits have no such limit.
// There is no truncated divergence without tail and renormalisation: it can be driven down by pushing the student's mass off the support.
// A renormalised row whose support holds no mass of student or teacher has status empty_support.
// Errors: k <= 0; ids outside [0, V) or repeated in a row. Cost: one more read of the selecting row(s), O(V + hits log k); sums over S in double.
//
//     loss(student, teacher, top_k_tail<reverse_kl>{.k = 64}, grad);
#pragma once
#include <heddle/distillation/divergence.hpp>

namespace heddle::distillation {

enum class support : std::uint8_t { teacher, student, both };

namespace detail::inline HEDDLE_ISA {

/// One bucket: its part of the divergence, and a = the derivative by s~ (any constant common to all buckets dropped).
struct bucket {
  double value, a;
};
using mass = entry<real<double>>;
inline double product_with(const mass& p, real<double> x) { return weigh(p, x).value; }

inline bucket bucket_of(const forward_kl&, mass s, mass t) { return {product_with(t, log_ratio(t, s)), s.p.value > 0 ? -t.p.value / s.p.value : 0}; }
inline bucket bucket_of(const reverse_kl&, mass s, mass t) { return {product_with(s, log_ratio(s, t)), s.p.value > 0 ? log_ratio(s, t).value : 0}; }
inline bucket bucket_of(const total_variation&, mass s, mass t) {
  const double difference = s.p.value - t.p.value, half_sign = difference > 0 ? 0.5 : difference < 0 ? -0.5 : 0;
  return {half_sign * difference, half_sign};
}
inline bucket bucket_of(const generalized_jsd& d, mass s, mass t) {
  if (d.beta == 0) return bucket_of(forward_kl{}, s, t);
  if (d.beta == 1) return bucket_of(reverse_kl{}, s, t);
  const double b = d.beta, m = b * t.p.value + (1 - b) * s.p.value, log_m = m > 0 ? math::log(m) : 0;
  return {b * product_with(t, t.log - log_m) + (1 - b) * product_with(s, s.log - log_m), s.p.value > 0 ? (1 - b) * (s.log.value - log_m) : 0};
}
template <class D>
concept bucket_divergence = requires(const D& d, mass m) { bucket_of(d, m, m); };

template <class D, class Row, class T>
auto target_of(const D& d, const Row& row, T t) {
  if constexpr (requires { d.floored(row, t); }) return d.floored(row, t);
  else return t;
}

/// What is left beside the columns of S, which hold `sum`.
inline mass tail_of(double sum, bool is_everything) {
  if (is_everything) return {-math::infinity, 0.};
  const double tail = 1. - sum, least = 9.9999995e-8;   // -expm1(-1e-7)
  const double p = tail > least ? tail : least;
  return {math::log(p), p};
}

/// The divergence of buckets; target(v, j) is the target at columns[j].
template <class D, class Row, class S, class Target>
auto bucketed(const D& divergence, Row& row, S s, std::span<const std::int32_t> columns, Target target) {
  const auto k = static_cast<std::int64_t>(columns.size());
  double value = 0, mean = 0, student_sum = 0, teacher_sum = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    const auto v = row.at(columns.data()[j]);
    const mass p = {s(v).log, s(v).p}, q = target(v, j);
    const bucket b = bucket_of(divergence, p, q);
    value += b.value, mean += p.p.value * b.a, student_sum += p.p.value, teacher_sum += q.p.value;
  }
  const bool is_everything = k == row.vocabulary();
  const bucket tail = bucket_of(divergence, tail_of(student_sum, is_everything), tail_of(teacher_sum, is_everything));
  if (!is_everything) value += tail.value, mean += (student_sum < 1 ? 1 - student_sum : 0) * tail.a;
  const double tail_slope = is_everything ? 0 : tail.a;
  return outcome{value, gradient{[=](auto v) { return s(v).p * (tail_slope - mean); }, at(columns, [=](const auto& v, std::int64_t j) {
                                   const mass p{s(v).log, s(v).p};
                                   return p.p.value * (bucket_of(divergence, p, target(v, j)).a - tail_slope);
                                 })}};
}

inline void check_support(const char* function, std::int64_t k) { require(k > 0, function, ": option 'k' is ", k, "; expected 1 or more"); }

template <class Row, class S, class T>
std::span<const std::int32_t> select(Row& row, S s, T t, std::int64_t k, support from) {
  if (from == support::student) return row.top_k(s, k);
  if (from == support::teacher) return row.top_k(t, k);
  const auto of_teacher = row.top_k(t, k);
  return row.unite(of_teacher, row.top_k(s, k));
}

}  // namespace detail::inline HEDDLE_ISA

template <class Divergence>
struct top_k_tail {
  std::int64_t k = 16;
  support from = support::teacher;
  Divergence divergence{};

  std::int64_t selected_columns() const { return detail::four_times(k); }
  void check(const call_shape& shape) const {
    detail::check_support("top_k_tail", k);
    if constexpr (requires { divergence.check(shape); }) divergence.check(shape);
  }
  template <class Row, class S, class T>
    requires detail::bucket_divergence<Divergence>
  auto operator()(Row& row, S s, T t) const {
    const auto q = detail::target_of(divergence, row, t);
    return detail::bucketed(divergence, row, s, detail::select(row, s, t, k, from), [=](const auto& v, std::int64_t) { return detail::mass{q(v).log, q(v).p}; });
  }
};
template <class D>
top_k_tail(std::int64_t, support, D) -> top_k_tail<D>;

template <class Divergence>
struct renormalised {
  std::int64_t k = 16;
  support from = support::student;
  Divergence divergence{};

  std::int64_t selected_columns() const { return detail::four_times(k); }
  void check(const call_shape& shape) const {
    detail::check_support("renormalised", k);
    if constexpr (requires { divergence.check(shape); }) divergence.check(shape);
  }
  template <class Row, class S, class T>
    requires detail::bucket_divergence<Divergence>
  auto operator()(Row& row, S s, T t) const {
    return on(row, detail::select(row, s, t, k, from), s, detail::target_of(divergence, row, t));
  }
  /// The same on a given support, ascending columns.
  template <class Row, class S, class T>
  auto on(Row& row, std::span<const std::int32_t> columns, S s, T t) const {
    using detail::mass;
    double student_sum = 0, teacher_sum = 0;
    for (const std::int32_t c : columns) student_sum += s(row.at(c)).p.value, teacher_sum += t(row.at(c)).p.value;
    if (!(student_sum > 0 && teacher_sum > 0)) row.reject(heddle::status::empty_support);
    const auto within = [](auto p, double sum, double log_sum) { return mass{p.log - log_sum, p.p / sum}; };
    const double log_student = math::log(student_sum), log_teacher = math::log(teacher_sum);
    const auto student = [=](const auto& v) { return within(s(v), student_sum, log_student); };
    const auto target = [=](const auto& v) { return within(t(v), teacher_sum, log_teacher); };
    double value = 0, mean = 0;
    for (const std::int32_t c : columns) {
      const auto v = row.at(c);
      const detail::bucket b = detail::bucket_of(divergence, student(v), target(v));
      value += b.value, mean += student(v).p.value * b.a;
    }
    return outcome{value, gradient{zero{}, at(columns, [=, divergence = divergence](const auto& v, std::int64_t) {
                                     const mass p = student(v);
                                     return p.p.value * (detail::bucket_of(divergence, p, target(v)).a - mean);
                                   })}};
  }
};
template <class D>
renormalised(std::int64_t, support, D) -> renormalised<D>;

template <class Divergence>
struct given_top_k {
  tensor_view<const std::int32_t, 2> tokens;        ///< [N, k], in any order, contiguous along k
  tensor_view<const float, 2> log_probs;            ///< [N, k]; what they leave of 1 is the tail
  Divergence divergence{};

  std::int64_t selected_columns() const { return 2 * tokens.extent(1); }
  void check(const call_shape& shape) const {
    const std::int64_t k = tokens.extent(1);
    detail::check_support("given_top_k", k);
    require(k <= shape.vocabulary, "given_top_k: argument 'tokens': extent 1 is ", k, "; expected at most ", shape.vocabulary);
    require_shape("given_top_k", "tokens", tokens, extents{shape.rows, k});
    require_shape("given_top_k", "log_probs", log_probs, extents{shape.rows, k});
    require(tokens.stride(1) == 1 || k == 1, "given_top_k: argument 'tokens' has stride ", tokens.stride(1), " along k; expected 1");
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      if (shape.masked(r)) continue;
      for (std::int64_t j = 0; j < k; ++j) {
        const std::int32_t id = tokens(r, j);
        require(id >= 0 && id < shape.vocabulary, "given_top_k: argument 'tokens': entry ", j, " of row ", r, " is ", id, "; expected 0 to ", shape.vocabulary - 1);
        require(log_probs(r, j) <= 1e-4f, "given_top_k: argument 'log_probs': entry ", j, " of row ", r, " is ", static_cast<double>(log_probs(r, j)), "; expected the logarithm of a probability");
        for (std::int64_t i = 0; i < j; ++i) require(tokens(r, i) != id, "given_top_k: argument 'tokens': row ", r, " has ", id, " twice");
      }
    }
    if constexpr (requires { divergence.check(shape); }) divergence.check(shape);
    if constexpr (requires { divergence.teacher_floor; }) require(divergence.teacher_floor == 0, "given_top_k: option 'teacher_floor' is ", divergence.teacher_floor, "; expected 0, the tail is the floor");
  }
  template <class Row, class S>
    requires detail::bucket_divergence<Divergence>
  auto operator()(Row& row, S s) const {
    const auto list = row.sort({tokens.at(row.index()), static_cast<std::size_t>(tokens.extent(1))});
    const auto logs = log_probs[row.index()];
    return detail::bucketed(divergence, row, s, list.columns, [=](const auto&, std::int64_t j) {
      const double log_prob = static_cast<double>(logs(list.order.data()[j]));
      return detail::mass{log_prob, math::exp(log_prob)};
    });
  }
};
template <class D>
given_top_k(tensor_view<const std::int32_t, 2>, tensor_view<const float, 2>, D) -> given_top_k<D>;

}  // namespace heddle::distillation
