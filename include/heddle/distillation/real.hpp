// The numbers that formulas of losses are written in.
//
// real<float>    sixteen floats, one per column of the vocabulary
// real<double>   one double: the oracle, and single columns
// condition<T>   what their comparisons give
// A formula is written once, with ordinary arithmetic, and is evaluated in both. doubles and integers mix in freely.
//
//   + - * /  unary -  abs  min  max  clamp(x, low, high)  sign (0 of 0)  fma  exp  log  tanh  < <= > >= ==  & | !  select(condition, yes, no)
//
// A product is rounded before it is added to something; fma() asks for the other (so the bits do not depend on what a compiler contracts).
// exp: overflow gives infinity, below about e^-87 (float) 0. log(0) = -infinity, of a negative number NaN. min and max are of numbers, not of NaN.
// Error: exp and log about 1 ulp; tanh a few.
//
//     const auto softplus = [](auto x) { return max(x, 0) + log(1 + exp(-abs(x))); };   // of real<float>, or of real<double>
#pragma once
#include <heddle/core/math.hpp>
#include <heddle/core/simd.hpp>

#include <cstdint>
#include <limits>
#include <utility>

namespace heddle::distillation::inline HEDDLE_ISA {

template <class T>
struct real;
template <class T>
struct condition;

template <>
struct condition<float> {
  simd::mask16 lanes;
};
template <>
struct condition<double> {
  bool holds;
};

template <>
struct real<float> {
  static constexpr int lanes = simd::lanes;
  simd::f32x16 value;

  real() = default;
  [[gnu::always_inline]] inline real(double x) : value(simd::splat(static_cast<float>(x))) {}
  [[gnu::always_inline]] inline real(simd::f32x16 v) : value(v) {}
  [[gnu::always_inline]] friend inline real operator+(real a, real b) { return a.value + b.value; }
  [[gnu::always_inline]] friend inline real operator-(real a, real b) { return a.value - b.value; }
  [[gnu::always_inline]] friend inline real operator*(real a, real b) { return simd::product(a.value, b.value); }
  [[gnu::always_inline]] friend inline real operator/(real a, real b) { return a.value / b.value; }
  [[gnu::always_inline]] friend inline real operator-(real a) { return -a.value; }
  [[gnu::always_inline]] friend inline condition<float> operator<(real a, real b) { return {simd::less(a.value, b.value)}; }
  [[gnu::always_inline]] friend inline condition<float> operator<=(real a, real b) { return {simd::less_equal(a.value, b.value)}; }
  [[gnu::always_inline]] friend inline condition<float> operator>(real a, real b) { return {simd::less(b.value, a.value)}; }
  [[gnu::always_inline]] friend inline condition<float> operator>=(real a, real b) { return {simd::less_equal(b.value, a.value)}; }
  [[gnu::always_inline]] friend inline condition<float> operator==(real a, real b) { return {simd::equal(a.value, b.value)}; }
  [[gnu::always_inline]] friend inline real select(condition<float> c, real yes, real no) { return simd::select(c.lanes, yes.value, no.value); }
  [[gnu::always_inline]] friend inline real fma(real a, real b, real c) { return simd::fma(a.value, b.value, c.value); }
  [[gnu::always_inline]] friend inline real abs(real a) { return simd::abs(a.value); }
  [[gnu::always_inline]] friend inline real min(real a, real b) { return simd::min(a.value, b.value); }
  [[gnu::always_inline]] friend inline real max(real a, real b) { return simd::max(a.value, b.value); }
};

template <>
struct real<double> {
  static constexpr int lanes = 1;
  double value;

  real() = default;
  [[gnu::always_inline]] inline real(double x) : value(x) {}
  [[gnu::always_inline]] inline explicit operator double() const { return value; }
  [[gnu::always_inline]] friend inline real operator+(real a, real b) { return a.value + b.value; }
  [[gnu::always_inline]] friend inline real operator-(real a, real b) { return a.value - b.value; }
  [[gnu::always_inline]] friend inline real operator*(real a, real b) { return rounded(a.value * b.value); }
  [[gnu::always_inline]] friend inline real operator/(real a, real b) { return a.value / b.value; }
  [[gnu::always_inline]] friend inline real operator-(real a) { return -a.value; }
  [[gnu::always_inline]] friend inline condition<double> operator<(real a, real b) { return {a.value < b.value}; }
  [[gnu::always_inline]] friend inline condition<double> operator<=(real a, real b) { return {a.value <= b.value}; }
  [[gnu::always_inline]] friend inline condition<double> operator>(real a, real b) { return {a.value > b.value}; }
  [[gnu::always_inline]] friend inline condition<double> operator>=(real a, real b) { return {a.value >= b.value}; }
  [[gnu::always_inline]] friend inline condition<double> operator==(real a, real b) { return {a.value == b.value}; }
  [[gnu::always_inline]] friend inline real select(condition<double> c, real yes, real no) { return c.holds ? yes.value : no.value; }
  [[gnu::always_inline]] friend inline real fma(real a, real b, real c) { return math::fma(a.value, b.value, c.value); }
  [[gnu::always_inline]] friend inline real abs(real a) { return __builtin_fabs(a.value); }
  [[gnu::always_inline]] friend inline real min(real a, real b) { return a.value < b.value ? a.value : b.value; }
  [[gnu::always_inline]] friend inline real max(real a, real b) { return a.value > b.value ? a.value : b.value; }

 private:
  [[gnu::always_inline]] static inline double rounded(double x) {
#if defined(__SSE2__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
  }
};

[[gnu::always_inline]] inline condition<double> operator&(condition<double> a, condition<double> b) { return {a.holds && b.holds}; }
[[gnu::always_inline]] inline condition<double> operator|(condition<double> a, condition<double> b) { return {a.holds || b.holds}; }
[[gnu::always_inline]] inline condition<double> operator!(condition<double> a) { return {!a.holds}; }
[[gnu::always_inline]] inline condition<float> operator&(condition<float> a, condition<float> b) { return select(a, select(b, real<float>(1), 0), 0) > 0; }
[[gnu::always_inline]] inline condition<float> operator|(condition<float> a, condition<float> b) { return select(a, 1, select(b, real<float>(1), 0)) > 0; }
[[gnu::always_inline]] inline condition<float> operator!(condition<float> a) { return select(a, real<float>(0), 1) > 0; }

[[gnu::always_inline]] inline real<double> exp(real<double> x) { return math::exp(x.value); }
[[gnu::always_inline]] inline real<double> log(real<double> x) { return math::log(x.value); }

[[gnu::always_inline]] inline real<float> exp(real<float> x) { return select(x < 88.72, simd::exp(x.value), select(x == x, real<float>(math::infinity), x)); }

}  // namespace heddle::distillation::inline HEDDLE_ISA

namespace heddle::distillation::detail::inline HEDDLE_ISA {
/// ln x of positive normal numbers: x = 2^e (1 + f), |f| < 0.42, and a polynomial for (ln(1 + f) - f + f^2 / 2) / f^3 (our own fit, error 6e-9).
[[gnu::always_inline]] inline simd::f32x16 log_of_normal(simd::f32x16 x, simd::f32x16 exponent_bias) {
  using namespace simd;
  const i32x16 root = splat(0x3f3504f3);   // the float next to sqrt(1/2)
  const i32x16 exponent = shift_right_signed<23>(bits_of(x) - root);
  const f32x16 e = to_float(exponent) + exponent_bias;
  const f32x16 f = floats_of(bits_of(x) - shift_left<23>(exponent)) - splat(1.f);
  f32x16 p = splat(-0.07634493f);
  p = simd::fma(p, f, splat(0.12761575f));
  p = simd::fma(p, f, splat(-0.13160183f));
  p = simd::fma(p, f, splat(0.14201759f));
  p = simd::fma(p, f, splat(-0.16623357f));
  p = simd::fma(p, f, splat(0.20001227f));
  p = simd::fma(p, f, splat(-0.2500082f));
  p = simd::fma(p, f, splat(0.3333333f));
  const f32x16 tail = simd::fma(e, splat(-2.12194440e-4f), product(product(f, f), simd::fma(p, f, splat(-0.5f))));
  return simd::fma(e, splat(0.693359375f), f + tail);
}
}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

[[gnu::always_inline]] inline real<float> log(real<float> x) {
  const auto subnormal = x < 1.17549435e-38;
  const real<float> y = detail::log_of_normal(select(subnormal, x * 0x1p23, x).value, select(subnormal, real<float>(-23), 0).value);
  return select(x < math::infinity, select(x > 0, y, select(x == 0, real<float>(-math::infinity), std::numeric_limits<double>::quiet_NaN())), x);
}

template <class T>
[[gnu::always_inline]] inline real<T> clamp(real<T> x, real<T> low, real<T> high) {
  return min(max(x, low), high);
}
template <class T>
[[gnu::always_inline]] inline real<T> clamp(real<T> x, double low, double high) {
  return min(max(x, real<T>(low)), real<T>(high));
}
template <class T>
[[gnu::always_inline]] inline real<T> sign(real<T> x) {
  return select(x > 0, 1, select(x < 0, real<T>(-1), 0));
}
template <class T>
[[gnu::always_inline]] inline real<T> tanh(real<T> x) {
  const real<T> a = abs(x), e = exp(-2 * a), square = x * x;
  const real<T> large = (1 - e) / (1 + e);
  real<T> series = fma(square, 62. / 2835., -17. / 315.);   // x - x^3/3 + 2 x^5/15 - ...
  series = fma(square, series, 2. / 15.);
  series = fma(square, series, -1. / 3.);
  const double small = std::numeric_limits<T>::digits > 30 ? 0.01 : 0.3;
  return select(a < small, fma(x * square, series, x), select(x < 0, -large, large));
}

/// Several numbers, to be summed together: auto [a, b] = row.sum([=](auto v) { return terms(f(v), g(v)); });
template <class R, int n>
struct terms {
  R values[n];
  template <class... Values>
  [[gnu::always_inline]] explicit constexpr terms(Values... v) : values{static_cast<R>(v)...} {}
  constexpr terms() = default;
  template <std::size_t i>
  [[gnu::always_inline]] constexpr R get() const {
    return values[i];
  }
};
template <class First, class... Rest>
terms(First, Rest...) -> terms<First, 1 + sizeof...(Rest)>;

}  // namespace heddle::distillation::inline HEDDLE_ISA

template <class R, int n>
struct std::tuple_size<heddle::distillation::terms<R, n>> : std::integral_constant<std::size_t, n> {};
template <std::size_t i, class R, int n>
struct std::tuple_element<i, heddle::distillation::terms<R, n>> {
  using type = R;
};
