// What a slot of a block is worth in a drafter's loss: W_1 .. W_K.
//
//   decay        exp(-(i - 1) / gamma); gamma = infinity: 1                          DFlash, DSpark
//   survival     prod_{j < i} a~_j                                                   the chance that verification gets there
//   acceptance   omega_i = prod_{j < i} a~_j (1 + sum_{k > i} prod_{i < l <= k} a~_l)  the derivative of the expected accepted length by a~_i
//   d_pace       sum_{j >= i} prod_{l <= j} a~_l = a~_i omega_i                      D-PACE
// with a~ = (1 - s) a + s: a the acceptances of the slots, s the smoothing. Weights are constants of the loss.
// Slots that are not included are no slots: weight 0, and no factor of any product. decay counts them, it goes by place.
// Errors: sizes, gamma <= 0, smoothing or an acceptance of an included slot outside [0, 1]. Cost O(K).
//
//     losses::slot_weights({.kind = losses::weighting::d_pace, .smoothing = 0.1}, acceptances, included, weights);
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

enum class weighting : std::uint8_t { decay, survival, acceptance, d_pace };

struct slot_weighting {
  weighting kind = weighting::decay;
  double gamma = math::infinity;   ///< of decay
  double smoothing = 0;            ///< s, of the others
};

inline namespace HEDDLE_ISA {

inline void check_weighting(const char* function, const slot_weighting& w) {
  require(w.gamma > 0., function, ": option 'gamma' is ", w.gamma, "; expected a positive number, or infinity (no decay)");
  require(w.smoothing >= 0. && w.smoothing <= 1., function, ": option 'smoothing' is ", w.smoothing, "; expected 0 to 1");
}

/// One block; included empty: all slots are. acceptances are not read by decay.
inline void slot_weights(const slot_weighting& w, std::span<const double> acceptances, std::span<const std::uint8_t> included, std::span<double> weights) {
  const char* const function = "losses::slot_weights";
  check_weighting(function, w);
  const std::size_t slots = weights.size();
  const auto is_slot = [&](std::size_t i) { return included.empty() || included[i] != 0; };
  require(included.empty() || included.size() == slots, function, ": argument 'included' has ", included.size(), " entries; expected none or ", slots);
  if (w.kind == weighting::decay) {
    for (std::size_t i = 0; i < slots; ++i) weights[i] = is_slot(i) ? math::exp(-static_cast<double>(i) / w.gamma) : 0.;
    return;
  }
  require(acceptances.size() == slots, function, ": argument 'acceptances' has ", acceptances.size(), " entries; expected ", slots);
  for (std::size_t i = 0; i < slots; ++i)
    require(!is_slot(i) || (acceptances[i] >= 0. && acceptances[i] <= 1.), function, ": argument 'acceptances': entry ", i, " is ", acceptances[i], "; expected 0 to 1");
  const auto smoothed = [&](std::size_t i) { return (1. - w.smoothing) * acceptances[i] + w.smoothing; };
  double later = 0;   // sum_{k > i} prod_{i < l <= k} a~_l
  for (std::size_t i = slots; i-- > 0;) {
    if (!is_slot(i)) continue;
    weights[i] = w.kind == weighting::survival ? 1. : w.kind == weighting::acceptance ? 1. + later : smoothed(i) * (1. + later);
    later = smoothed(i) * (1. + later);
  }
  double reached = 1;
  for (std::size_t i = 0; i < slots; ++i) {
    if (!is_slot(i)) weights[i] = 0.;
    else weights[i] *= reached, reached *= smoothed(i);
  }
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
