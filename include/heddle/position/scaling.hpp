// Frequencies of rotary position embedding for contexts longer than the trained one.
//
//   theta_f = base^(-2 f / d_r), f = 0 .. d_r / 2 - 1, radians per position; d_r = rotary width, L0 = original (trained) context length.
//
// no_scaling          theta
// linear_scaling      theta / factor (position interpolation)
// ntk_scaling         base' = base * factor^(d_r / (d_r - 2))
// dynamic_ntk_scaling base' = base * (factor L / L0 - (factor - 1))^(d_r / (d_r - 2)) for a sequence length L > L0, else base
// yarn_scaling        theta (1 - g) / factor + theta g, g falling linearly from 1 to 0 between the pairs that turn beta_fast and beta_slow
//                     times within L0; magnitude m(mscale) / m(mscale_all_dim), m(t) = 0.1 t ln(factor) + 1
// llama3_scaling      theta where L0 theta / 2 pi > high_frequency_factor, theta / factor below low_frequency_factor, linear in it between
// longrope_scaling    theta_f / short_factors[f] for L <= L0, theta_f / long_factors[f] beyond; magnitude sqrt(1 + ln(factor) / ln(L0))
//
// L is rope_options::sequence_length. The *magnitude* multiplies rotated queries and keys once; it is no part of the rotation. An explicit
// attention_factor replaces its formula (1 switches it off). Frequencies are formed in double; the relative error is below 1e-14.
// A scaling of one's own is any trivially copyable type with a function scale(const S&, rope_frequencies&) in its namespace.
// Errors: a factor that is not positive and finite, an original length below 1, factor lists of another length than d_r / 2.
// Sources: arXiv 2306.15595 (linear), 2309.00071 (NTK, dynamic NTK, YaRN), 2407.21783 (llama3), 2402.13753 (longrope).
//
//     heddle::rope<heddle::half_split> r{{.head_dim = 128, .scaling = heddle::yarn_scaling{.factor = 4, .original_length = 32768}}};
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace heddle {

struct no_scaling {};

struct linear_scaling {
  double factor;
};

struct ntk_scaling {
  double factor;
};

struct dynamic_ntk_scaling {
  double factor;
  std::int64_t original_length;
};

struct yarn_scaling {
  double factor;
  std::int64_t original_length;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;             ///< 0 or mscale_all_dim 0: magnitude m(1)
  double mscale_all_dim = 0;
  double attention_factor = 0;   ///< the magnitude itself; 0: from the formula
  bool truncate = true;          ///< round the ends of the ramp outwards to whole pairs
};

struct llama3_scaling {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  std::int64_t original_length = 8192;
};

struct longrope_scaling {
  std::span<const double> short_factors, long_factors;   ///< one per pair; read while the rope is constructed
  std::int64_t original_length;
  double factor;                 ///< longest context / original_length
  double attention_factor = 0;   ///< the magnitude itself; 0: from the formula
};

/// What a scaling works on: the frequencies of the base, to be changed in place, and the magnitude.
struct rope_frequencies {
  std::span<double> values;   ///< theta_f, radians per position
  double base;
  std::int64_t sequence_length;
  double magnitude = 1;
};

inline namespace HEDDLE_ISA {

/// theta_f = base^(-2 f / d_r)
inline void set_base(rope_frequencies& f, double base) {
  const double log_base = math::log(base), pairs = static_cast<double>(f.values.size());
  for (std::size_t i = 0; i < f.values.size(); ++i) f.values[i] = math::exp(-log_base * (static_cast<double>(i) / pairs));
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

inline void require_factor(const char* name, double factor) {
  require(factor > 0 && factor < math::infinity, "rope: scaling: '", name, "' is ", factor, "; expected a positive finite number");
}
inline void require_length(std::int64_t length) {
  require(length > 0, "rope: scaling: 'original_length' is ", length, "; expected 1 or more");
}
inline void stretch_base(rope_frequencies& f, double stretch) {   // the slowest pair turns `stretch` times slower
  const double pairs = static_cast<double>(f.values.size());
  require(pairs > 1, "rope: scaling: NTK scalings need a rotary width of 4 or more; it is 2");
  set_base(f, f.base * math::exp(math::log(stretch) * (pairs / (pairs - 1))));
}
inline constexpr double two_pi = 6.283185307179586;

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

inline void scale(const no_scaling&, rope_frequencies&) {}

inline void scale(const linear_scaling& s, rope_frequencies& f) {
  detail::require_factor("factor", s.factor);
  for (double& theta : f.values) theta /= s.factor;
}

inline void scale(const ntk_scaling& s, rope_frequencies& f) {
  detail::require_factor("factor", s.factor);
  detail::stretch_base(f, s.factor);
}

inline void scale(const dynamic_ntk_scaling& s, rope_frequencies& f) {
  detail::require_factor("factor", s.factor);
  detail::require_length(s.original_length);
  if (f.sequence_length <= s.original_length) return;
  const double ratio = static_cast<double>(f.sequence_length) / static_cast<double>(s.original_length);
  detail::stretch_base(f, math::fma(s.factor, ratio, 1 - s.factor));
}

inline void scale(const yarn_scaling& s, rope_frequencies& f) {
  detail::require_factor("factor", s.factor);
  detail::require_factor("beta_fast", s.beta_fast);
  detail::require_factor("beta_slow", s.beta_slow);
  detail::require_length(s.original_length);
  require(s.beta_fast >= s.beta_slow, "rope: scaling: 'beta_fast' is ", s.beta_fast, ", less than 'beta_slow' (", s.beta_slow, ")");
  require(f.base > 1, "rope: argument 'base' is ", f.base, "; YaRN expects more than 1");

  const double pairs = static_cast<double>(f.values.size());
  const auto pair_that_turns = [&](double times) {   // within the original length, as a real number
    return pairs * math::log(static_cast<double>(s.original_length) / (times * detail::two_pi)) / math::log(f.base);
  };
  double low = pair_that_turns(s.beta_fast), high = pair_that_turns(s.beta_slow);
  if (s.truncate) low = __builtin_floor(low), high = __builtin_ceil(high);
  low = low < 0 ? 0 : low;
  high = high > 2 * pairs - 1 ? 2 * pairs - 1 : high;
  if (high == low) high += 0.001;
  for (std::size_t i = 0; i < f.values.size(); ++i) {
    const double ramp = (static_cast<double>(i) - low) / (high - low), interpolated = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    f.values[i] = math::fma(f.values[i] / s.factor, interpolated, f.values[i] * (1 - interpolated));
  }

  const auto m = [&](double t) { return s.factor <= 1 ? 1. : math::fma(0.1 * t, math::log(s.factor), 1.); };
  if (s.attention_factor != 0) detail::require_factor("attention_factor", s.attention_factor), f.magnitude = s.attention_factor;
  else f.magnitude = s.mscale != 0 && s.mscale_all_dim != 0 ? m(s.mscale) / m(s.mscale_all_dim) : m(1);
}

inline void scale(const llama3_scaling& s, rope_frequencies& f) {
  detail::require_factor("factor", s.factor);
  detail::require_factor("low_frequency_factor", s.low_frequency_factor);
  detail::require_length(s.original_length);
  require(s.high_frequency_factor > s.low_frequency_factor, "rope: scaling: 'high_frequency_factor' is ", s.high_frequency_factor,
          "; expected more than 'low_frequency_factor' (", s.low_frequency_factor, ")");
  for (double& theta : f.values) {
    const double turns = static_cast<double>(s.original_length) * theta / detail::two_pi;
    if (turns > s.high_frequency_factor) continue;
    const double kept = (turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
    theta = kept <= 0 ? theta / s.factor : math::fma(1 - kept, theta / s.factor, kept * theta);
  }
}

inline void scale(const longrope_scaling& s, rope_frequencies& f) {
  detail::require_factor("factor", s.factor);
  require(s.original_length > 1, "rope: scaling: 'original_length' is ", s.original_length, "; longrope expects 2 or more");
  const auto divide_by = [&](const char* name, std::span<const double> factors) {
    require(factors.size() == f.values.size(), "rope: scaling: '", name, "' has ", factors.size(), " entries; expected ", f.values.size(), ", one per rotary pair");
    for (std::size_t i = 0; i < factors.size(); ++i) detail::require_factor(name, factors[i]), f.values[i] /= factors[i];
  };
  if (f.sequence_length > s.original_length) divide_by("long_factors", s.long_factors);
  else divide_by("short_factors", s.short_factors);
  if (s.attention_factor != 0) detail::require_factor("attention_factor", s.attention_factor), f.magnitude = s.attention_factor;
  else if (s.factor > 1) f.magnitude = __builtin_sqrt(1 + math::log(s.factor) / math::log(static_cast<double>(s.original_length)));
}

template <class S>
concept frequency_scaling = std::is_trivially_copyable_v<S> && requires(const S& s, rope_frequencies& f) { scale(s, f); };

/// Any one scaling, held by value.
class rope_scaling {
 public:
  static constexpr std::size_t capacity = 128;
  rope_scaling() : rope_scaling(no_scaling{}) {}
  template <frequency_scaling S>
    requires(!std::is_same_v<S, rope_scaling> && sizeof(S) <= capacity)
  rope_scaling(const S& s)
      : apply_([](const void* storage, rope_frequencies& f) { scale(*static_cast<const S*>(storage), f); }) {
    std::memcpy(storage_, &s, sizeof(S));
  }
  void apply(rope_frequencies& f) const { apply_(storage_, f); }

 private:
  alignas(std::max_align_t) unsigned char storage_[capacity] = {};
  void (*apply_)(const void*, rope_frequencies&);
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
