// exp, log, sine and cosine in double, in portable operations only, so that hosts with different C libraries and devices compute the same
// bits. Error below 2 ulp. exp: overflow gives infinity, underflow 0 (subnormals included in between). log(0) = -infinity, log of a
// negative number or NaN = NaN. sincos: |x| <= 2^50, beyond that NaN; sin is odd and cos even to the bit. Cost: about 20 multiply-adds each.
//
//     double mass = heddle::math::exp(-2.5), log_mass = heddle::math::log(mass);   // the same bits on every host and device
#pragma once
#include <heddle/core/isa.hpp>

#include <cstdint>

namespace heddle::math {

inline constexpr double infinity = __builtin_huge_val();

inline namespace HEDDLE_ISA {

HEDDLE_HOST_DEVICE inline double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return ::fma(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

/// e^x
HEDDLE_HOST_DEVICE inline double exp(double x) {
  if (!(x > -746.)) return x != x ? x : 0.;
  if (x > 710.) return __builtin_huge_val();
  constexpr double round = 6755399441055744.;   // 1.5 * 2^52: adding it rounds to the nearest integer
  const double n = fma(x, 1.4426950408889634, round) - round;
  double r = fma(n, -6.93147180369123816490e-01, x);
  r = fma(n, -1.90821492927058770002e-10, r);
  constexpr double inverse_factorial[] = {1. / 6227020800., 1. / 479001600., 1. / 39916800., 1. / 3628800., 1. / 362880., 1. / 40320., 1. / 5040., 1. / 720., 1. / 120., 1. / 24., 1. / 6., 1. / 2., 1., 1.};
  double p = inverse_factorial[0];
  for (int i = 1; i < 14; ++i) p = fma(p, r, inverse_factorial[i]);
  const auto e = static_cast<std::int64_t>(n);   // in two factors, so that results near the ends of the range are exact powers apart
  const std::int64_t half = e / 2;
  const double first = __builtin_bit_cast(double, static_cast<std::uint64_t>(half + 1023) << 52), second = __builtin_bit_cast(double, static_cast<std::uint64_t>(e - half + 1023) << 52);
  return p * first * second;
}

/// ln x
HEDDLE_HOST_DEVICE inline double log(double x) {
  if (x != x || x < 0.) return __builtin_nan("");
  if (x == 0.) return -__builtin_huge_val();
  if (x == __builtin_huge_val()) return x;
  double e = 0.;
  if (x < 2.2250738585072014e-308) x *= 18014398509481984., e = -54.;
  auto bits = __builtin_bit_cast(std::uint64_t, x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m = __builtin_bit_cast(double, bits);
  if (m > 1.4142135623730951) m *= 0.5, ++exponent;
  e += static_cast<double>(exponent);
  const double f = m - 1., s = f / (m + 1.), z = s * s;   // ln m = 2 artanh s, |s| < 0.172
  double p = 1. / 23.;
  for (int k = 21; k >= 3; k -= 2) p = fma(p, z, 1. / static_cast<double>(k));
  const double tail = s * (2. * z * p);                    // 2 artanh s = 2 s + tail; 2 s itself is f - s f
  return fma(e, 6.93147180369123816490e-01, f - fma(s, f, -fma(e, 1.90821492927058770002e-10, tail)));
}

struct sine_and_cosine {
  double sine, cosine;
};

/// sin x and cos x. Branch-free, so that loops over it vectorise.
HEDDLE_HOST_DEVICE inline sine_and_cosine sincos(double x) {
  const std::uint64_t sign = __builtin_bit_cast(std::uint64_t, x) & 1ull << 63;
  x = __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, x) ^ sign);
  x = x <= 0x1p50 ? x : __builtin_nan("");
  constexpr double round = 6755399441055744.;
  const double shifted = fma(x, 0.63661977236758138, round), n = shifted - round;   // n quarter turns
  double r = fma(n, -1.5707963267948966, x);                                        // exact: both are multiples of 2^-52
  r = fma(n, -6.123233995736766e-17, r);
  r = fma(n, 1.4973849048591833e-33, r);
  const double z = r * r;
  double s = 1. / 355687428096000.;   // Taylor series, |r| <= pi / 4
  s = fma(s, -z, 1. / 1307674368000.);
  s = fma(s, -z, 1. / 6227020800.);
  s = fma(s, -z, 1. / 39916800.);
  s = fma(s, -z, 1. / 362880.);
  s = fma(s, -z, 1. / 5040.);
  s = fma(s, -z, 1. / 120.);
  s = fma(s, -z, 1. / 6.);
  s = fma(r * z, -s, r);
  double c = 1. / 20922789888000.;
  c = fma(c, -z, 1. / 87178291200.);
  c = fma(c, -z, 1. / 479001600.);
  c = fma(c, -z, 1. / 3628800.);
  c = fma(c, -z, 1. / 40320.);
  c = fma(c, -z, 1. / 720.);
  c = fma(c, -z, 1. / 24.);
  c = fma(c, -z, 0.5);
  c = fma(c, -z, 1.);
  const auto quarter = __builtin_bit_cast(std::uint64_t, shifted);
  const bool odd = quarter & 1u;
  const auto turned_sine = __builtin_bit_cast(std::uint64_t, odd ? c : s) ^ (quarter & 2u) << 62 ^ sign;
  const auto turned_cosine = __builtin_bit_cast(std::uint64_t, odd ? s : c) ^ ((quarter + 1u) & 2u) << 62;
  return {__builtin_bit_cast(double, turned_sine), __builtin_bit_cast(double, turned_cosine)};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::math
