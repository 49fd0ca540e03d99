// Intervals and tests of counts, as audits report them.
//
// wilson_interval   of a rate, k of n: (k + z^2/2 +- z sqrt(k (n - k) / n + z^2/4)) / (n + z^2), z = 1.96 (Wilson 1927); 0 to 1 for n = 0
// sign_test         two-sided exact p-value of a against b under equal chances: min(1, 2 sum_{i <= min(a, b)} C(a + b, i) / 2^(a + b))
// Errors: counts below 0, k above n. Double; the sums of sign_test run in the log domain, O(a + b).
//
//     const audit::interval rate = audit::wilson_interval(540, 1190);
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>

#include <cmath>
#include <cstdint>

namespace heddle::audit {

struct interval {
  double low = 0, high = 0;
};

inline namespace HEDDLE_ISA {

inline interval wilson_interval(std::int64_t successes, std::int64_t trials) {
  require(trials >= 0, "audit::wilson_interval: argument 'trials' is ", trials, "; expected 0 or more");
  require(successes >= 0 && successes <= trials, "audit::wilson_interval: argument 'successes' is ", successes, "; expected 0 to ", trials);
  if (trials == 0) return {0, 1};
  constexpr double z = 1.959963984540054;
  const auto k = static_cast<double>(successes), n = static_cast<double>(trials);
  const double centre = k + z * z / 2, half = z * std::sqrt(k * (n - k) / n + z * z / 4);
  return {(centre - half) / (n + z * z), (centre + half) / (n + z * z)};
}

inline double sign_test(std::int64_t a, std::int64_t b) {
  require(a >= 0 && b >= 0, "audit::sign_test: arguments are ", a, " and ", b, "; expected counts, 0 or more");
  const std::int64_t n = a + b, least = a < b ? a : b;
  double log_term = -static_cast<double>(n) * math::log(2.), sum = 0;   // ln (C(n, i) / 2^n)
  for (std::int64_t i = 0; i <= least; ++i) {
    sum += math::exp(log_term);
    log_term += math::log(static_cast<double>(n - i)) - math::log(static_cast<double>(i + 1));
  }
  return 2 * sum < 1 ? 2 * sum : 1;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::audit
