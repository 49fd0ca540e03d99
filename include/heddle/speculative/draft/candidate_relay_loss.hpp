// Training DRelay: keep the label in the pool, and repair where it raises the accepted length most.
//
//   L = L_sup + lambda L_rep
//   L_sup = sum_i v_i [CE(U_i, y_i) + mu (margin + U_i^(k) - U_i(y_i))_+]              U^(k) the k-th largest logit (ties: the lowest ids are ahead)
//   L_rep = sum_i omega_i [BCE(rho_i, 1[n_i = y_i]) + 1[n_i != y_i, y_i in C_i] CE(pi_i, y_i)]
//   omega_i = dE[L] / da_i = prod_{j < i} a_j (1 + sum_{j > i} prod_{i < l <= j} a_l),   a_j = q_j(y_j), constants (end_to_end.hpp)
//
// pool_supervision     L_sup's bracket as a row functional of the student's logits U: loss(U, pool_supervision{labels, k}, grad, {.weights = v, ..}). At a
//                      temperature the margin is one of U / temperature. k above V clamps
// relay_repair_loss    the mean of L_rep over blocks with a slot, and its gradients by the selector's logit of rho (keep) and scores of pi (alternatives), as
//                      relay_selector::select gives them for labels fed as previous tokens. Rows b K .. b K + K - 1 are block b. A label outside its pool
//                      teaches rho that the native token is wrong and adds nothing to CE(pi). A masked slot is no slot
// Errors: sizes, labels, mu, margin, scores that are NaN or infinite, before anything is written. In double. Cost: one walk of the logits; O(N k).
// Source: DRelay, after the abstract.
//
//     const auto repair = heddle::losses::relay_repair_loss(keep, alternatives, pools, labels, 8, d_keep, d_alternatives);
#pragma once
#include <heddle/distillation/loss.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>
#include <heddle/speculative/losses/end_to_end.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

struct pool_supervision {
  std::span<const std::int32_t> labels;
  std::int64_t candidates = 16;   ///< k
  double margin = 1, mu = 1;

  void check(const distillation::call_shape& shape) const {
    distillation::check_tokens("pool_supervision", "labels", labels, shape);
    require(candidates >= 1, "pool_supervision: option 'candidates' is ", candidates, "; expected 1 or more");
    require(margin >= 0 && margin < math::infinity, "pool_supervision: option 'margin' is ", margin, "; expected a finite number, 0 or more");
    require(mu >= 0 && mu < math::infinity, "pool_supervision: option 'mu' is ", mu, "; expected a finite number, 0 or more");
  }
  std::int64_t selected_columns() const { return candidates; }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    const std::int64_t y = labels.data()[row.index()];
    std::int64_t last = -1;
    for (const std::int32_t c : row.top_k(s, candidates))   // ascending ids
      if (last < 0 || s.log_prob(c) <= s.log_prob(last)) last = c;
    const double short_of = margin + s.log_prob(last) - s.log_prob(y), slope = short_of > 0 ? mu : 0;
    return distillation::outcome{-s.log_prob(y) + (slope > 0 ? slope * short_of : 0), distillation::gradient{[s](auto v) { return s(v).p; }, distillation::at(y, -1 - slope), distillation::at(last, slope)}};
  }
};

namespace detail::inline HEDDLE_ISA {

struct relay_slot {
  double loss = 0, acceptance = 0, d_keep = 0;
};

/// BCE(rho, 1[place = 0]) + CE(pi, place); place: of the label in the pool, its size if it is not there. d: gradient by the alternatives, 0 on entry, or empty.
inline relay_slot relay_slot_loss(double keep, std::span<const double> alternatives, std::size_t place, std::span<double> d) {
  const std::size_t n = alternatives.size();
  if (n == 1) return {.acceptance = place == 0 ? 1. : 0.};   // nothing to decide
  const auto softplus = [](double x) { return (x > 0. ? x : 0.) + math::log(1. + math::exp(x > 0. ? -x : x)); };
  const double log_keep = -softplus(-keep), log_leave = -softplus(keep), rho = math::exp(log_keep);
  if (place == 0) return {.loss = -log_keep, .acceptance = rho, .d_keep = rho - 1.};
  if (place == n) return {.loss = -log_leave, .d_keep = rho};
  const double max = *std::max_element(alternatives.begin() + 1, alternatives.end());
  double sum = 0.;
  for (std::size_t c = 1; c < n; ++c) sum += math::exp(alternatives[c] - max);
  const double log_pi = alternatives[place] - max - math::log(sum);
  for (std::size_t c = 1; c < d.size(); ++c) d[c] = math::exp(alternatives[c] - max) / sum - (c == place ? 1. : 0.);
  return {.loss = -log_leave - log_pi, .acceptance = math::exp(log_leave + log_pi), .d_keep = rho};
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

struct relay_repair_result {
  double value = 0;
  aligned_vector<double> acceptances, weights;   ///< a and omega per row; 0 where masked
};

/// keep [N], alternatives [N][pools.width], labels [N]; gradients of the same sizes, or empty. mask: empty, or 0 for slots that are none.
inline relay_repair_result relay_repair_loss(std::span<const double> keep, std::span<const double> alternatives, const slot_ranking& pools, std::span<const std::int32_t> labels, std::int64_t block,
                                             std::span<double> d_keep = {}, std::span<double> d_alternatives = {}, std::span<const std::uint8_t> mask = {}) {
  const std::size_t n = pools.counts.size(), width = static_cast<std::size_t>(pools.width);
  const auto check_size = [](const char* name, std::size_t size, std::size_t expected, bool optional) {
    require(size == expected || (optional && size == 0), "losses::relay_repair_loss: argument '", name, "' has ", size, " entries; expected ", expected);
  };
  check_size("keep", keep.size(), n, false), check_size("alternatives", alternatives.size(), n * width, false), check_size("labels", labels.size(), n, false);
  check_size("d_keep", d_keep.size(), n, true), check_size("d_alternatives", d_alternatives.size(), n * width, true), check_size("mask", mask.size(), n, true);
  require(block >= 1 && n % static_cast<std::size_t>(block) == 0, "losses::relay_repair_loss: argument 'block' is ", block, "; expected a divisor of the number of slots, ", n);
  const auto is_slot = [&](std::size_t i) { return mask.empty() || mask[i]; };
  for (std::size_t i = 0; i < n; ++i)
    if (is_slot(i)) {
      require(labels[i] >= 0, "losses::relay_repair_loss: argument 'labels': entry ", i, " is ", labels[i], "; expected a token");
      require(keep[i] - keep[i] == 0., "losses::relay_repair_loss: argument 'keep': entry ", i, " is ", keep[i], "; expected a finite number");
      for (std::size_t c = 1; c < static_cast<std::size_t>(pools.counts[i]); ++c)
        require(alternatives[i * width + c] - alternatives[i * width + c] == 0., "losses::relay_repair_loss: argument 'alternatives': slot ", i, " has ", alternatives[i * width + c], "; expected finite numbers");
    }
  std::fill(d_keep.begin(), d_keep.end(), 0.), std::fill(d_alternatives.begin(), d_alternatives.end(), 0.);

  relay_repair_result result;
  result.acceptances.assign(n, 0.), result.weights.assign(n, 0.);
  aligned_vector<double> row_loss(n, 0.), a, omega;
  for (std::size_t i = 0; i < n; ++i) {
    if (!is_slot(i)) continue;
    const auto pool = pools.tokens_of(static_cast<std::int32_t>(i));
    const auto place = static_cast<std::size_t>(std::find(pool.begin(), pool.end(), labels[i]) - pool.begin());
    const detail::relay_slot slot = detail::relay_slot_loss(keep[i], alternatives.subspan(i * width, pool.size()), place, d_alternatives.empty() ? d_alternatives : d_alternatives.subspan(i * width, pool.size()));
    row_loss[i] = slot.loss, result.acceptances[i] = slot.acceptance;
    if (!d_keep.empty()) d_keep[i] = slot.d_keep;
  }

  double blocks = 0;
  for (std::size_t first = 0; first < n; first += static_cast<std::size_t>(block)) {
    a.clear();
    for (std::size_t i = first; i < first + static_cast<std::size_t>(block); ++i)
      if (is_slot(i)) a.push_back(result.acceptances[i]);
    if (a.empty()) continue;
    ++blocks;
    omega.resize(a.size());
    acceptance_weights(a, omega);
    std::size_t slot = 0;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(block); ++i)
      if (is_slot(i)) result.weights[i] = omega[slot++], result.value += result.weights[i] * row_loss[i];
  }
  if (blocks == 0) return result;
  result.value /= blocks;
  for (std::size_t i = 0; i < n; ++i) {
    if (!d_keep.empty()) d_keep[i] *= result.weights[i] / blocks;
    for (std::size_t c = 0; c < width && !d_alternatives.empty(); ++c) d_alternatives[i * width + c] *= result.weights[i] / blocks;
  }
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
