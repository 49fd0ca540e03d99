// The softmax state: what attention over a set of keys X leaves behind, and how two sets join.
//
//   L(X) = ln sum_{j in X} e^{z_j},   O(X) = sum_{j in X} e^{z_j - L(X)} v_j,   (O, L)(empty) = (0, -infinity)
//   (O1, L1) + (O2, L2):  L = ln(e^L1 + e^L2),  O = e^{L1 - L} O1 + e^{L2 - L} O2
//
// Commutative, associative up to rounding, identity (0, -infinity): merging with an empty state copies the other bit for bit, and the O of an
// empty state is never read (it may hold anything). NaN in an L spreads; L = +infinity gives NaN. Weights are formed in double.
// Backward of the merge, w_r = e^{L_r - L}:  dO_r = w_r dO,  dL_r = w_r (dO . (O_r - O) + dL).
//
//     const auto w = heddle::merge_weights(lse_a, lse_b);      // out = w.first * a + w.second * b, lse = w.lse
#pragma once
#include <heddle/core/math.hpp>

#include <cstdint>

namespace heddle::inline HEDDLE_ISA {

template <class Real>
struct state_weights {
  Real first, second;   ///< 0 marks a state that must not be read
  Real lse;
};

template <class Real>
HEDDLE_HOST_DEVICE inline state_weights<Real> merge_weights(Real first_lse, Real second_lse) {
  constexpr Real empty = static_cast<Real>(-__builtin_huge_val());
  if (second_lse == empty) return {first_lse == empty ? Real(0) : Real(1), Real(0), first_lse};
  if (first_lse == empty) return {Real(0), Real(1), second_lse};
  const double a = static_cast<double>(first_lse), b = static_cast<double>(second_lse);
  const double top = a > b ? a : b, lse = top + math::log(math::exp(a - top) + math::exp(b - top));
  return {static_cast<Real>(math::exp(a - lse)), static_cast<Real>(math::exp(b - lse)), static_cast<Real>(lse)};
}

/// out = a + b for one row of `dim` values; returns the lse. `out` may be `a` or `b`.
template <class Real>
HEDDLE_HOST_DEVICE inline Real merge_state(const Real* a, Real a_lse, const Real* b, Real b_lse, Real* out, std::int64_t dim) {
  constexpr Real empty = static_cast<Real>(-__builtin_huge_val());
  const auto w = merge_weights(a_lse, b_lse);
  if (w.lse == empty) {
    for (std::int64_t i = 0; i < dim; ++i) out[i] = Real(0);
  } else if (b_lse == empty) {
    for (std::int64_t i = 0; i < dim; ++i) out[i] = a[i];
  } else if (a_lse == empty) {
    for (std::int64_t i = 0; i < dim; ++i) out[i] = b[i];
  } else {
    for (std::int64_t i = 0; i < dim; ++i) out[i] = static_cast<Real>(math::fma(static_cast<double>(b[i]), static_cast<double>(w.second), static_cast<double>(a[i]) * static_cast<double>(w.first)));
  }
  return w.lse;
}

/// Gradients of both states of one row from (d_out, d_lse) of the merged one; `merged` is its O. Empty states get zeros.
template <class Real>
inline void merge_state_backward(const Real* a, Real a_lse, const Real* b, Real b_lse, const Real* merged, Real merged_lse, const Real* d_out, Real d_lse, Real* d_a, Real* d_a_lse, Real* d_b, Real* d_b_lse, std::int64_t dim) {
  constexpr Real empty = static_cast<Real>(-__builtin_huge_val());
  const auto side = [&](const Real* o, Real lse, Real* d_o, Real* d_o_lse) {
    if (lse == empty) {
      for (std::int64_t i = 0; i < dim; ++i) d_o[i] = Real(0);
      *d_o_lse = Real(0);
      return;
    }
    const double w = math::exp(static_cast<double>(lse) - static_cast<double>(merged_lse));
    double dot = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      dot = math::fma(static_cast<double>(d_out[i]), static_cast<double>(o[i]) - static_cast<double>(merged[i]), dot);
      d_o[i] = static_cast<Real>(w * static_cast<double>(d_out[i]));
    }
    *d_o_lse = static_cast<Real>(w * (dot + static_cast<double>(d_lse)));
  };
  side(a, a_lse, d_a, d_a_lse);
  side(b, b_lse, d_b, d_b_lse);
}

}  // namespace heddle::inline HEDDLE_ISA
