// Training a drafter that edits: the second pass reads a mixture of its own first proposals and of the labels.
//
//   ^y_i = argmax m_i,  kappa_i = max m_i                          first pass (masks)
//   x~_i = ^y_i with probability g(kappa_i), else y_i              input of the second pass, which predicts r_i(. | x~)
//   L = sum_i v_i [CE(m_i, y_i) + lambda CE(r_i, y_i)] / D         over all slots, those that show their label included
//
// first_proposals     ^y and kappa of rows of logits, ties to the lowest id; kappa within 1.1e-4 (slot_ranking.hpp)
// mix_proposals       x~, constant for gradients. g: any callable to [0, 1]; by_confidence g = kappa, by_doubt g = 1 - kappa (the abstract leaves the
//                     direction open). Slot i uses the key with index i and purpose::mixture, so every epoch needs its own seed or position
// proposal_mix_loss   value and both gradients; v, masks, D and the rest are loss_options (weights = v, reduction::weighted_mean: D = sum v)
// Errors: sizes, labels outside the vocabulary, g outside [0, 1]. Bad rows, determinism, accumulator, cost: distillation/loss.hpp, one walk per pass.
// Source: ProposalMix, after the abstract.
//
//     const auto loss = heddle::losses::proposal_mix_loss(first, second, labels, 1., d_first, d_second);
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/distillation/loss.hpp>
#include <heddle/speculative/draft/detail/scaled_nll.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

inline namespace HEDDLE_ISA {

struct by_confidence {
  double operator()(double confidence) const { return confidence; }
};
struct by_doubt {
  double operator()(double confidence) const { return 1. - confidence; }
};

/// logits [N, V]; proposals and confidences: N each.
template <tensor_of<2> Logits>
  requires host_tensor<Logits>
void first_proposals(const Logits& logits, std::span<std::int32_t> proposals, std::span<double> confidences) {
  slot_ranker ranker;
  const slot_ranking best = ranker.rank(logits, 1);
  require(proposals.size() == best.tokens.size() && confidences.size() == best.tokens.size(),
          "first_proposals: arguments 'proposals' and 'confidences' have ", proposals.size(), " and ", confidences.size(), " entries; expected one per row, ", best.tokens.size());
  for (std::size_t i = 0; i < proposals.size(); ++i) proposals[i] = best.tokens[i], confidences[i] = math::exp(best.log_probs[i]);
}

template <class G = by_confidence>
void mix_proposals(std::span<const std::int32_t> proposals, std::span<const double> confidences, std::span<const std::int32_t> labels, random_key key, std::span<std::int32_t> mixed, const G& g = {}) {
  const std::size_t n = labels.size();
  require(proposals.size() == n && confidences.size() == n && mixed.size() == n,
          "mix_proposals: arguments have ", proposals.size(), " proposals, ", confidences.size(), " confidences and room for ", mixed.size(), " tokens; expected one per label, ", n);
  for (std::size_t i = 0; i < n; ++i) {
    const double share = g(confidences[i]);
    require(share >= 0. && share <= 1., "mix_proposals: argument 'g' gives ", share, " for slot ", i, "; expected 0 to 1");
  }
  key.purpose = purpose::mixture;
  for (std::size_t i = 0; i < n; ++i) {
    key.index = static_cast<std::uint32_t>(i);
    mixed[i] = uniform(key) < g(confidences[i]) ? proposals[i] : labels[i];
  }
}

}  // namespace HEDDLE_ISA

namespace losses::inline HEDDLE_ISA {

struct proposal_mix_result {
  double value = 0;
  distillation::loss_result first, second;   ///< second: lambda times its cross-entropy
};

template <class First, class Second, class FirstGradient, class SecondGradient>
proposal_mix_result proposal_mix_loss(const First& first, const Second& second, std::span<const std::int32_t> labels, double lambda, const FirstGradient& d_first, const SecondGradient& d_second,
                                      const distillation::loss_options& options = {}) {
  require(lambda >= 0. && lambda < math::infinity, "losses::proposal_mix_loss: argument 'lambda' is ", lambda, "; expected a finite number, 0 or more");
  require_shape("losses::proposal_mix_loss", "second", view_of(second), extents{view_of(first).extent(0), view_of(first).extent(1)});
  proposal_mix_result result;
  result.first = distillation::loss(first, scaled_nll{labels, 1.}, d_first, options);
  result.second = distillation::loss(second, scaled_nll{labels, lambda}, d_second, options);
  result.value = result.first.value + result.second.value;
  return result;
}

}  // namespace losses::inline HEDDLE_ISA
}  // namespace heddle
