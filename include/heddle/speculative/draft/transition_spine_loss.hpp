// Training DSpine: the head's law against the labels, and what each layer sends on as well.
//
//   L = sum_i v_i CE(q_i, y_i) / D + sum_l lambda_l sum_i v_i CE(softmax(Z u^l_i), y_i) / D              u^l_i = P_l h^l_i (transition_spine.hpp)
//
// Labels are fed as previous tokens to the head only (teacher forcing); injections carry u, whatever the label. logits [N, V] are the head's, after its correction;
// transitions: one matrix [N, r] per layer. Gradients by both; dP_l = du^T h and dh = P_l^T du are the caller's. Z is a constant. Logits of transitions are
// made a block of rows at a time (fused_linear.hpp). v, masks, D: loss_options (weights = v, reduction::weighted_mean: D = sum v). Errors: counts of layers, shapes, lambda < 0.
// Cost: one walk of the logits, 4 N V r flops per layer. Source: DSpine, after the abstract.
//
//     const auto loss = heddle::losses::spine_loss(logits, transitions, cache, labels, lambdas, d_logits, d_transitions);
#pragma once
#include <heddle/distillation/fused_linear.hpp>
#include <heddle/speculative/draft/detail/scaled_nll.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses::inline HEDDLE_ISA {

struct spine_loss_result {
  double value = 0;
  distillation::loss_result head;
  aligned_vector<double> layers;   ///< lambda_l times the layer's mean
};

/// d_transitions: one matrix per layer, or none.
template <class Logits, class T, class Cache, class Gradient, class U>
spine_loss_result spine_loss(const Logits& logits, std::span<const tensor_view<T, 2>> transitions, const Cache& cache, std::span<const std::int32_t> labels, std::span<const double> lambdas,
                             const Gradient& d_logits, std::span<const tensor_view<U, 2>> d_transitions, const distillation::loss_options& options = {}) {
  require(lambdas.size() == transitions.size(), "losses::spine_loss: argument 'lambdas' has ", lambdas.size(), " entries; expected one per layer, ", transitions.size());
  require(d_transitions.empty() || d_transitions.size() == transitions.size(), "losses::spine_loss: argument 'd_transitions' has ", d_transitions.size(), " matrices; expected none or one per layer, ", transitions.size());
  for (std::size_t l = 0; l < lambdas.size(); ++l) require(lambdas[l] >= 0. && lambdas[l] < math::infinity, "losses::spine_loss: argument 'lambdas': entry ", l, " is ", lambdas[l], "; expected a finite number, 0 or more");
  spine_loss_result result;
  result.head = distillation::loss(logits, scaled_nll{labels, 1.}, d_logits, options);
  result.value = result.head.value;
  for (std::size_t l = 0; l < transitions.size(); ++l) {
    const scaled_nll term{labels, lambdas[l]};
    const double value = d_transitions.empty() ? distillation::fused_linear_loss(transitions[l], cache, term, distillation::no_gradient, distillation::no_gradient, options).value
                                               : distillation::fused_linear_loss(transitions[l], cache, term, d_transitions[l], distillation::no_gradient, options).value;
    result.layers.push_back(value), result.value += value;
  }
  return result;
}

}  // namespace heddle::losses::inline HEDDLE_ISA
