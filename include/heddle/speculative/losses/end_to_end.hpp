// What a drafter is for, as a loss: the number of drafts that token rejection accepts in a block.
//
// Slots i = 1 .. K of a block with acceptances a_i = 1 - TV(p_i, q_i), p the target's law and q the drafter's on the same history:
//   J = sum_i prod_{j <= i} a_j            E[L] where a does not depend on the history
//   omega_i = dJ / da_i = prod_{j < i} a_j (1 + sum_{k > i} prod_{i < l <= k} a_l)
//
// expected_accepted    J of a block                      acceptance_weights    omega of a block, O(K), exact for acceptances of 0 too
// end_to_end_tv        loss -mean over blocks of J, and its gradient in the drafter's logits: rows of total variation with upstream omega / blocks.
//                      Rows b K .. b K + K - 1 are block b. A masked slot, or one with a bad row, is no slot: it neither ends the block nor counts
// accepted_estimate    E^ = sum_i prod_{j < i} min(1, p_j(x_j) / q_j(x_j)) a_i of one drawn block: unbiased for E[L], a monitor without gradient
//
// p = q: J = K and the gradient is 0. Errors: shapes, K, options; acceptances outside [0, 1]. Bad rows as in per_row.hpp.
// Determinism and accumulator as in per_row.hpp. Cost: two walks of total variation, O(N V). Source: SpecOPD and its end-to-end TV surrogate, after the abstract.
//
//     const auto result = losses::end_to_end_tv(drafter_logits, target_logits, 4, gradient);     // [blocks * 4, V]
//     const double accepted = -result.value;
#pragma once
#include <heddle/distillation/divergence.hpp>
#include <heddle/distillation/loss.hpp>

#include <cstdint>
#include <span>

namespace heddle::losses::inline HEDDLE_ISA {

inline void check_acceptances(const char* function, std::span<const double> acceptances) {
  for (std::size_t i = 0; i < acceptances.size(); ++i)
    require(acceptances[i] >= 0. && acceptances[i] <= 1., function, ": argument 'acceptances': entry ", i, " is ", acceptances[i], "; expected 0 to 1");
}

inline double expected_accepted(std::span<const double> acceptances) {
  check_acceptances("losses::expected_accepted", acceptances);
  double reached = 1, sum = 0;
  for (const double a : acceptances) sum += reached *= a;
  return sum;
}

inline void acceptance_weights(std::span<const double> acceptances, std::span<double> weights) {
  check_acceptances("losses::acceptance_weights", acceptances);
  require(weights.size() == acceptances.size(), "losses::acceptance_weights: argument 'weights' has ", weights.size(), " entries; expected ", acceptances.size());
  double later = 0;   // sum_{k > i} prod_{i < l <= k} a_l
  for (std::size_t i = weights.size(); i-- > 0;) weights[i] = 1 + later, later = acceptances[i] * (1 + later);
  double reached = 1;
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] *= reached, reached *= acceptances[i];
}

/// probabilities of the drafted tokens under target and drafter, and the acceptances 1 - TV of their slots.
inline double accepted_estimate(std::span<const double> target, std::span<const double> proposal, std::span<const double> acceptances) {
  check_acceptances("losses::accepted_estimate", acceptances);
  require(target.size() == acceptances.size() && proposal.size() == acceptances.size(), "losses::accepted_estimate: arguments have ", target.size(), ", ", proposal.size(), " and ", acceptances.size(), " slots; expected the same number");
  double survived = 1, sum = 0;
  for (std::size_t i = 0; i < acceptances.size(); ++i) {
    require(proposal[i] > 0., "losses::accepted_estimate: argument 'proposal': entry ", i, " is ", proposal[i], "; expected the positive probability of a drafted token");
    sum += survived * acceptances[i];
    survived *= target[i] < proposal[i] ? target[i] / proposal[i] : 1.;
  }
  return sum;
}

/// options.weights and options.reduction are not used: the loss is the mean over blocks with at least one slot. result.row_values are the TV of the rows.
template <class Drafter, class Target, class Gradient>
distillation::loss_result end_to_end_tv(const Drafter& drafter, const Target& target, std::int64_t block, const Gradient& gradient, const distillation::loss_options& options = {}) {
  require(block >= 1, "losses::end_to_end_tv: argument 'block' is ", block, "; expected at least 1 slot");
  require(options.weights.empty(), "losses::end_to_end_tv: option 'weights' is not empty; the weights of this loss are those of its objective");
  const auto own = distillation::detail::row_options_of(options);
  const double teacher_temperature = options.teacher_temperature > 0 ? options.teacher_temperature : options.temperature;
  const auto rows = distillation::per_row(distillation::total_variation{}, own, drafter, distillation::with_temperature(target, teacher_temperature));
  require(rows.size() % block == 0, "losses::end_to_end_tv: argument 'drafter' has ", rows.size(), " rows; expected a multiple of the block of ", block);

  distillation::loss_result result;
  result.row_values.assign(rows.values().begin(), rows.values().end());
  result.row_status.assign(rows.status().begin(), rows.status().end());
  result.rows_kept = rows.rows_kept();
  aligned_vector<double> upstream(static_cast<std::size_t>(rows.size())), acceptances, weights;
  std::int64_t blocks = 0;
  const auto is_slot = [&](std::int64_t r) { return !rows.masked(r) && rows.status()[static_cast<std::size_t>(r)] == heddle::status::ok; };
  for (std::int64_t first = 0; first < rows.size(); first += block) {
    acceptances.clear();
    for (std::int64_t r = first; r < first + block; ++r)
      if (is_slot(r)) {
        const double a = 1 - rows.values()[static_cast<std::size_t>(r)];
        acceptances.push_back(a < 0 ? 0 : a);
      }
    if (acceptances.empty()) continue;
    ++blocks;
    weights.resize(acceptances.size());
    acceptance_weights(acceptances, weights);
    result.value -= expected_accepted(acceptances);
    std::size_t slot = 0;
    for (std::int64_t r = first; r < first + block; ++r)
      if (is_slot(r)) upstream[static_cast<std::size_t>(r)] = weights[slot++];
  }
  if (blocks > 0) {
    result.value /= static_cast<double>(blocks);
    for (double& u : upstream) u /= static_cast<double>(blocks);
  }
  if constexpr (matrix<Gradient>) rows.backward({upstream.data(), upstream.size()}, gradient);
  return result;
}

}  // namespace heddle::losses::inline HEDDLE_ISA
