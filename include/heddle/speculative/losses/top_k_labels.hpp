// Labels that are a target's k most likely tokens with their probabilities, and the loss on them.
//
//   l = -sum_{c in top k} p_c ln q_c - p_tail ln(1 - sum_{c in top k} q_c),   sum q at most 1 - 1e-6 (there the tail gives no gradient)
//   L = sum v l / (sum v + 1e-6)
//
// note_top_k            writes the labels of rows of target logits, and their most likely tokens (ties to the lowest id)
// top_k_cross_entropy   l, a row functional of the drafter. k = V: there is no tail
// labels_loss           L over rows with weights v; weight 0: the row and its label are not read
//
// l - (entropy of the k + 1 buckets) is the divergence of distillation/support.hpp's given_top_k; their gradients agree where nothing is clamped.
// A label with probability that the drafter's support lacks: status infinite_divergence. Errors: k outside 1 .. V, sizes, repeated ids, bad target rows.
// Cost: a read of the logits and O(k). Source: public reference code of ALR and IRA.
//
//     losses::note_top_k(target_logits, {}, tokens, log_probs, most_likely);
//     const auto result = losses::labels_loss(drafter_logits, tokens, log_probs, weights, gradient);
#pragma once
#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/support.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

struct top_k_cross_entropy {
  tensor_view<const std::int32_t, 2> tokens;    ///< [N, k], in any order, contiguous along k
  tensor_view<const float, 2> log_probs;        ///< [N, k]; what they leave of 1 is the tail

  std::int64_t selected_columns() const { return 2 * tokens.extent(1); }
  void check(const distillation::call_shape& shape) const { distillation::given_top_k{tokens, log_probs, distillation::forward_kl{}}.check(shape); }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    const auto list = row.sort({tokens.at(row.index()), static_cast<std::size_t>(tokens.extent(1))});
    const auto logs = log_probs[row.index()];
    const auto label = [=](std::int64_t j) { return math::exp(static_cast<double>(logs(list.order.data()[j]))); };
    const auto k = static_cast<std::int64_t>(list.columns.size());
    double value = 0, label_sum = 0, drafted = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const double p = label(j), log_q = s.log_prob(list.columns.data()[j]);
      if (p > 0.) value -= p * log_q;
      label_sum += p, drafted += math::exp(log_q);
    }
    double slope = 0;   // of the tail's term by sum q
    if (k < row.vocabulary() && label_sum < 1.) {
      const double tail = 1. - label_sum, rest = 1. - drafted;
      value -= tail * math::log(rest > 1e-6 ? rest : 1e-6);
      slope = rest > 1e-6 ? tail / rest : 0.;
    }
    const double mean = slope * drafted - label_sum;   // sum_v q_v dl/dq_v
    return distillation::outcome{value, distillation::gradient{[=](auto v) { return -mean * s(v).p; }, distillation::at(list.columns, [=](const auto& v, std::int64_t j) { return slope * s(v).p.value - label(j); })}};
  }
};

namespace detail {
/// The most likely token of a row, and its k most likely ones into the caller's tables.
struct top_k_notes {
  tensor_view<std::int32_t, 2> tokens;
  tensor_view<float, 2> log_probs;
  std::int64_t selected_columns() const { return tokens.extent(1); }
  void check(const distillation::call_shape& shape) const {
    const std::int64_t k = tokens.extent(1);
    require(k >= 1 && k <= shape.vocabulary, "losses::note_top_k: argument 'tokens': extent 1 is ", k, "; expected 1 to ", shape.vocabulary);
    require_shape("losses::note_top_k", "tokens", tokens, extents{shape.rows, k});
    require_shape("losses::note_top_k", "log_probs", log_probs, extents{shape.rows, k});
  }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    std::int64_t j = 0;
    for (const std::int32_t c : row.top_k(s, tokens.extent(1))) {
      tokens(row.index(), j) = c;
      log_probs(row.index(), j++) = static_cast<float>(s.log_prob(c));
    }
    return distillation::terms(static_cast<double>(row.argmax(s)));
  }
};
}  // namespace detail

inline namespace HEDDLE_ISA {

/// mask: rows to read (empty: all); the others keep what they hold.
template <class Logits>
void note_top_k(const Logits& logits, std::span<const std::uint8_t> mask, const tensor_view<std::int32_t, 2>& tokens, const tensor_view<float, 2>& log_probs, std::span<std::int32_t> most_likely) {
  const std::int64_t rows = view_of(logits).extent(0);
  require(static_cast<std::int64_t>(most_likely.size()) == rows, "losses::note_top_k: argument 'most_likely' has ", most_likely.size(), " entries; expected one per row, ", rows);
  aligned_vector<double> found(static_cast<std::size_t>(rows));
  distillation::measure(detail::top_k_notes{tokens, log_probs}, {.mask = mask, .on_bad_row = on_bad_row::throw_error}, tensor_view<double, 2>{found.data(), extents{rows, std::int64_t{1}}}, logits);
  for (std::size_t r = 0; r < found.size(); ++r)
    if (mask.empty() || mask[r]) most_likely[r] = static_cast<std::int32_t>(found[r]);
}

template <class Drafter, class Gradient>
distillation::loss_result labels_loss(const Drafter& drafter, const tensor_view<const std::int32_t, 2>& tokens, const tensor_view<const float, 2>& log_probs, std::span<const double> weights, const Gradient& gradient, executor_ref executor = {}) {
  aligned_vector<std::uint8_t> mask(weights.size());
  double sum = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    require(weights[r] >= 0. && weights[r] < math::infinity, "losses::labels_loss: argument 'weights': entry ", r, " is ", weights[r], "; expected a finite number, 0 or more");
    mask[r] = weights[r] > 0., sum += weights[r];
  }
  return distillation::loss(drafter, top_k_cross_entropy{tokens, log_probs}, gradient, {.mask = mask, .weights = weights, .reduction = distillation::reduction::count, .count = sum + 1e-6, .executor = executor});
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
