// What a formula says about one row: its value, and its gradients as formulas.
//
//   outcome{value, gradient{dense}}                      dense(v) = dL / d(z_v / temperature) of named row 0
//   outcome{value, gradient{dense, at(column, c)}}       plus c at one column
//   outcome{value, gradient{dense, at(columns, f)}}      plus f(v, j) at columns[j], which ascend strictly; v: see row.at; f returns double or real<double>
//   outcome{value, gradient{zero{}, at(columns, f)}}     only there
//   outcome{value, gradient{...}, gradient{...}}         with respect to named rows 0, 1, ...
//   outcome{value}                                       no gradient
//   a + b, a - b, c * a                                  sums and multiples of losses; one pass writes the gradient of the whole
//   choose(which, f, g)                                  as dense: f or g, decided once per row
//   with_value(x, keep, a)                               another value; gradient 0 unless `keep`
//
//     const auto mixed = [](auto& row, auto s, auto t) { return reverse_kl{}(row, s, t) + 0.1 * forward_kl{}(row, s, t); };   // a row functional
#pragma once
#include <heddle/distillation/real.hpp>

#include <cstdint>
#include <span>
#include <tuple>

namespace heddle::distillation::inline HEDDLE_ISA {

/// The gradient that is 0 everywhere.
struct zero {
  template <class V>
  [[gnu::always_inline]] inline auto operator()(const V&) const {
    return typename V::number(0);
  }
};

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {

template <class F>
struct at_columns {
  std::span<const std::int32_t> columns;
  F f;
  std::int64_t count() const { return static_cast<std::int64_t>(columns.size()); }
  std::int64_t column(std::int64_t j) const { return columns.data()[j]; }
  template <class V>
  double operator()(const V& v, std::int64_t j) const {
    return static_cast<double>(f(v, j));
  }
};
struct at_column {
  std::int64_t where;
  double c;
  std::int64_t count() const { return 1; }
  std::int64_t column(std::int64_t) const { return where; }
  template <class V>
  double operator()(const V&, std::int64_t) const {
    return c;
  }
};
template <class Sparse>
struct scaled_columns {
  Sparse base;
  double factor;
  std::int64_t count() const { return base.count(); }
  std::int64_t column(std::int64_t j) const { return base.column(j); }
  template <class V>
  double operator()(const V& v, std::int64_t j) const {
    return factor == 0. ? 0. : factor * base(v, j);
  }
};

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

template <class F>
detail::at_columns<F> at(std::span<const std::int32_t> columns, F f) {
  return {columns, f};
}
inline detail::at_column at(std::int64_t column, double c) { return {column, c}; }

/// A dense gradient that is one of two formulas.
template <class F, class G>
struct choice {
  bool first;
  F f;
  G g;
  template <class V>
  [[gnu::always_inline]] inline auto operator()(const V& v) const {
    if (first) return typename V::number(f(v));
    return typename V::number(g(v));
  }
};
template <class F, class G>
choice<F, G> choose(bool first, F f, G g) {
  return {first, f, g};
}

template <class Dense, class... Sparse>
struct gradient {
  Dense dense;
  std::tuple<Sparse...> sparse;
  explicit gradient(Dense d, Sparse... s) : dense(d), sparse(s...) {}
};

template <class... Gradients>
struct outcome {
  double value;
  std::tuple<Gradients...> gradients;
  static constexpr int num_gradients = sizeof...(Gradients);
  explicit outcome(double v, Gradients... g) : value(v), gradients(g...) {}
};

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {

template <class Dense, class... Sparse>
auto scaled(double c, const gradient<Dense, Sparse...>& g) {
  const auto dense = [&] {
    if constexpr (std::is_same_v<Dense, zero>) return zero{};
    else return [c, d = g.dense](auto v) __attribute__((always_inline)) { return c == 0. ? decltype(d(v))(0) : c * d(v); };   // 0 times infinity is 0
  }();
  return std::apply([&](const Sparse&... s) { return gradient(dense, scaled_columns<Sparse>{s, c}...); }, g.sparse);
}

template <class Sparse>
struct gated_columns {
  Sparse base;
  bool open;
  std::int64_t count() const { return open ? base.count() : 0; }
  std::int64_t column(std::int64_t j) const { return base.column(j); }
  template <class V>
  double operator()(const V& v, std::int64_t j) const {
    return base(v, j);
  }
};
template <class Dense, class... Sparse>
auto gated(bool open, const gradient<Dense, Sparse...>& g) {
  const auto dense = [open, d = g.dense](auto v) __attribute__((always_inline)) { return open ? d(v) : typename decltype(v)::number(0); };
  return std::apply([&](const Sparse&... s) { return gradient(dense, gated_columns<Sparse>{s, open}...); }, g.sparse);
}

template <class A, class B>
auto dense_sum(A a, B b) {
  if constexpr (std::is_same_v<A, zero>) return b;
  else if constexpr (std::is_same_v<B, zero>) return a;
  else return [a, b](auto v) __attribute__((always_inline)) { return a(v) + b(v); };
}
template <class A, class... S, class B, class... T>
auto sum(const gradient<A, S...>& a, const gradient<B, T...>& b) {
  return std::apply([&](const auto&... all) { return gradient(dense_sum(a.dense, b.dense), all...); }, std::tuple_cat(a.sparse, b.sparse));
}

template <int i, class... A, class... B>
auto sum_at(const outcome<A...>& a, const outcome<B...>& b) {
  if constexpr (i >= static_cast<int>(sizeof...(A))) return std::get<i>(b.gradients);
  else if constexpr (i >= static_cast<int>(sizeof...(B))) return std::get<i>(a.gradients);
  else return sum(std::get<i>(a.gradients), std::get<i>(b.gradients));
}

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

template <class... G>
auto operator*(double c, const outcome<G...>& a) {
  return std::apply([&](const G&... g) { return outcome(c == 0. ? 0. : c * a.value, detail::scaled(c, g)...); }, a.gradients);
}
template <class... G>
auto with_value(double value, bool keep, const outcome<G...>& a) {
  return std::apply([&](const G&... g) { return outcome(value, detail::gated(keep, g)...); }, a.gradients);
}
template <class... A, class... B>
auto operator+(const outcome<A...>& a, const outcome<B...>& b) {
  constexpr int n = static_cast<int>(sizeof...(A) > sizeof...(B) ? sizeof...(A) : sizeof...(B));
  return [&]<int... i>(std::integer_sequence<int, i...>) { return outcome(a.value + b.value, detail::sum_at<i>(a, b)...); }(std::make_integer_sequence<int, n>{});
}
template <class... A, class... B>
auto operator-(const outcome<A...>& a, const outcome<B...>& b) {
  return a + -1. * b;
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
