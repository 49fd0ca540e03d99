// Token weights from how the divergence evolves behind a token: divergence-adaptive supervision horizons (DASH).
//
// D_1 .. D_T are the divergences of one sequence, constants of the loss. Over its unmasked tokens:
//
//   e_t = (D_t - mean D) / (std D + epsilon)          gap between a token and its sequence
//   g_t = sigmoid(kappa e_t)                          gate; a negative kappa opens it where the divergence is small
//   n_t = D_t + gamma g_t n_{t+1}                     both sums end with the sequence, or after `horizon` tokens
//   m_t = 1   + gamma g_t m_{t+1}
//   A_t = n_t / m_t                                   between the smallest and the largest D_j, j >= t
//   w_t = 1 + strength (A_t / mean A - 1)             mean 1, never negative
//
// The loss is the sum of w_t L_t over the unmasked tokens, divided by their number. The sums pass over masked tokens, whose average and weight
// are 0. A sequence whose averages are all 0, and one of a single token, has weights 1.
// divergence, weights [N] in double, as per-row values are everywhere; sequences lie end to end (`indptr`). In place is allowed.
// Errors, before anything is written: a parameter outside its range; an unmasked divergence that is negative, NaN or infinite (mask the rows
// whose status is not ok).
// Arithmetic in double. Cost: O(N) whatever the horizon; allocates 40 bytes per token of the longest sequence.
// Source: DASH, formalised from its abstract.
//
//     std::vector<double> divergence = {0.1, 2.0, 0.3}, weights(3);
//     heddle::distillation::horizon_weights(divergence, weights, {.gamma = 0.9});
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/distillation/detail/sequences.hpp>

#include <cmath>
#include <cstdint>
#include <span>

namespace heddle::distillation {

struct horizon_options {
  double kappa = 1;          ///< steepness of the gate, and its direction
  double gamma = 0.9;        ///< decay per token, in [0, 1]; 0: A = D
  double strength = 1;       ///< lambda, in [0, 1]; 0: all weights are 1
  double epsilon = 1e-6;     ///< >= 0
  std::int64_t horizon = 0;  ///< unmasked tokens in a sum, its own included; 0: to the end
  std::span<const std::uint8_t> mask{};
  std::span<const std::int32_t> indptr{};
};

/// Mean and population standard deviation of the divergences of a sequence.
struct gap_statistics {
  double mean = 0, deviation = 0;
};

}  // namespace heddle::distillation

namespace heddle::distillation::detail::inline HEDDLE_ISA {

/// The unmasked divergences of one sequence and their gated averages.
class horizon_sums {
 public:
  void gather(std::span<const double> divergence, std::int64_t first, std::int64_t end, std::span<const std::uint8_t> mask) {
    divergence_.clear();
    for (std::int64_t t = first; t < end; ++t)
      if (kept(mask, t)) divergence_.push_back(divergence[index(t)]);
  }

  gap_statistics statistics() const {
    gap_statistics gap;
    for (const double d : divergence_) gap.mean += d;
    gap.mean /= static_cast<double>(divergence_.size());
    for (const double d : divergence_) gap.deviation = math::fma(d - gap.mean, d - gap.mean, gap.deviation);
    gap.deviation = std::sqrt(gap.deviation / static_cast<double>(divergence_.size()));
    return gap;
  }

  /// A_t of the gathered tokens, in order.
  std::span<const double> averages(const gap_statistics& gap, const horizon_options& options) {
    const std::size_t n = divergence_.size(), window = options.horizon > 0 && index(options.horizon) < n ? index(options.horizon) : n;
    decay_.resize(n), value_.resize(n), weight_.resize(n), reach_.resize(n);
    const double scale = gap.deviation + options.epsilon;
    for (std::size_t t = 0; t < n; ++t) {
      const double e = scale > 0. ? (divergence_[t] - gap.mean) / scale : 0.;
      decay_[t] = options.gamma / (1. + math::exp(-options.kappa * e));
    }
    // Blocks of `window` tokens: a sum ends in its own block or in the next one, where it is the sum of a prefix.
    for (std::size_t begin = 0; begin < n; begin += window) {
      const std::size_t end = n - begin < window ? n : begin + window;
      double value = 0, weight = 0, reach = 1;
      for (std::size_t t = end; t-- > begin;) {
        value_[t] = value = math::fma(decay_[t], value, divergence_[t]);
        weight_[t] = weight = math::fma(decay_[t], weight, 1.);
        reach_[t] = reach *= decay_[t];
      }
      value = weight = 0, reach = 1;
      for (std::size_t t = begin + 1; t < end; ++t) {
        if (const std::size_t last = t + window - 1; last < n) value = math::fma(reach, divergence_[last], value), weight += reach, reach *= decay_[last];
        value_[t] = math::fma(reach_[t], value, value_[t]), weight_[t] = math::fma(reach_[t], weight, weight_[t]);
      }
    }
    for (std::size_t t = 0; t < n; ++t) value_[t] /= weight_[t];
    return value_;
  }

 private:
  aligned_vector<double> divergence_, decay_, value_, weight_, reach_;
};

inline void check_horizons(const char* function, std::span<const double> divergence, std::span<double> out, const horizon_options& options) {
  require(finite(options.kappa), function, ": option 'kappa' is ", options.kappa, "; expected a finite number");
  check_unit_interval(function, "gamma", options.gamma);
  check_unit_interval(function, "strength", options.strength);
  require(finite(options.epsilon) && options.epsilon >= 0., function, ": option 'epsilon' is ", options.epsilon, "; expected a finite number, 0 or more");
  require(options.horizon >= 0, function, ": option 'horizon' is ", options.horizon, "; expected 0 (to the end) or more");
  require(out.size() == divergence.size(), function, ": the output has ", out.size(), " rows; expected ", divergence.size());
  const auto n = static_cast<std::int64_t>(divergence.size());
  check_mask(function, options.mask, n);
  check_indptr(function, options.indptr, n);
  for (std::int64_t t = 0; t < n; ++t) {
    const double d = divergence[index(t)];
    require(!kept(options.mask, t) || (finite(d) && d >= 0.), function, ": argument 'divergence' is ", d, " at row ", t, "; expected a finite number, 0 or more, in unmasked rows");
  }
}

/// gap(sums): the statistics of a sequence. result(averages): the function that turns an average of the sequence into the output.
template <class Gap, class Result>
void each_horizon(std::span<const double> divergence, std::span<double> out, const horizon_options& options, Gap gap, Result result) {
  horizon_sums sums;
  for_each_sequence(options.indptr, static_cast<std::int64_t>(divergence.size()), [&](std::int64_t first, std::int64_t end) {
    sums.gather(divergence, first, end, options.mask);
    const auto averages = sums.averages(gap(sums), options);
    const auto value_of = result(averages);
    std::size_t next = 0;
    for (std::int64_t t = first; t < end; ++t) out[index(t)] = kept(options.mask, t) ? value_of(averages[next++]) : 0.;
  });
}

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA

namespace heddle::distillation::inline HEDDLE_ISA {

/// A_t with statistics from elsewhere: then A_j depends on no divergence before j.
inline void horizon_averages(std::span<const double> divergence, std::span<double> averages, const gap_statistics& gap, const horizon_options& options = {}) {
  detail::check_horizons("horizon_averages", divergence, averages, options);
  detail::each_horizon(divergence, averages, options, [&](const auto&) { return gap; }, [](const auto&) { return [](double average) { return average; }; });
}

inline void horizon_weights(std::span<const double> divergence, std::span<double> weights, const horizon_options& options = {}) {
  detail::check_horizons("horizon_weights", divergence, weights, options);
  detail::each_horizon(divergence, weights, options, [](const auto& sums) { return sums.statistics(); },
                       [&](std::span<const double> averages) {
                         double mean = 0;
                         for (const double a : averages) mean += a;
                         mean /= static_cast<double>(averages.size());
                         return [strength = options.strength, mean](double average) { return mean > 0. ? 1. + strength * (average / mean - 1.) : 1.; };
                       });
}

}  // namespace heddle::distillation::inline HEDDLE_ISA
