// Several teachers of one student, weighted by whether they are right.
//
// K teacher responses or distributions with correctness c_k in [0, 1]:
//
//   unfiltered   w_k = 1 / K
//   hard         w_k = c_k / sum c, c of 0 or 1; nobody right: the row is skipped (all weights 0) and counted
//   soft         w_k proportional to e + (1 - e) c_k; nobody right: uniform
//
//   weighted_teachers{w}   sum_k w_k KL(t_k || s) for teachers that share the prefix: a row functional of student and K teachers (at most 7),
//                          gradient s - sum_k w_k t_k (times 1 / temperature)
//   spread_weights         w_k on all rows of response k, for sum_k w_k NLL_k over responses with prefixes of their own (loss_options.weights)
//   label_recall           per label, how many of its items are predicted: a gate that lifts the mean can still lose a whole label
//
// correctness, weights [N, K] row-major: the teachers of one row lie together. Skipped rows have value and gradient 0; mask them to take them out of the mean, too.
// Errors: c outside [0, 1], not 0 or 1 for hard; e outside [0, 1]; labels outside [0, labels). Source: correctness-gated distillation, after its abstract.
//
//     const auto skipped = heddle::distillation::correctness_weights(correct, 3, weights, correctness_gate::soft, 0.1);
//     auto result = loss_over(weighted_teachers{weights}, grad, {}, student, first, second, third);
#pragma once
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/divergence.hpp>

#include <cstdint>
#include <span>
#include <utility>

namespace heddle::distillation {

enum class correctness_gate : std::uint8_t { unfiltered, hard, soft };

/// Items of a label, and those among them that are predicted as that label.
struct label_count {
  std::int64_t items = 0, hits = 0;
  [[gnu::always_inline]] constexpr double recall() const { return items > 0 ? static_cast<double>(hits) / static_cast<double>(items) : 0.; }
};

inline namespace HEDDLE_ISA {

/// `floor` is e of the soft gate. Returns how many rows are skipped.
inline std::int64_t correctness_weights(std::span<const double> correctness, std::int64_t teachers, std::span<double> weights, correctness_gate gate, double floor = 0.1) {
  require(teachers >= 1 && static_cast<std::int64_t>(correctness.size()) % teachers == 0, "correctness_weights: argument 'teachers' is ", teachers, "; expected a divisor of ", correctness.size());
  require(weights.size() == correctness.size(), "correctness_weights: argument 'weights' has ", weights.size(), " entries; expected ", correctness.size());
  detail::check_unit_interval("correctness_weights", "floor", floor);
  for (std::size_t i = 0; i < correctness.size(); ++i) {
    const double c = correctness[i];
    require(c >= 0. && c <= 1., "correctness_weights: argument 'correctness' is ", c, " at entry ", i, "; expected 0 to 1");
    require(gate != correctness_gate::hard || c == 0. || c == 1., "correctness_weights: argument 'correctness' is ", c, " at entry ", i, "; expected 0 or 1 for a hard gate");
  }
  std::int64_t skipped = 0;
  const auto k = detail::index(teachers);
  for (std::size_t row = 0; row < correctness.size(); row += k) {
    double sum = 0;
    for (std::size_t i = row; i < row + k; ++i) {
      weights[i] = gate == correctness_gate::unfiltered ? 1. : gate == correctness_gate::hard ? correctness[i] : floor + (1. - floor) * correctness[i];
      sum += weights[i];
    }
    if (sum == 0. && gate == correctness_gate::hard) {
      ++skipped;
      continue;
    }
    for (std::size_t i = row; i < row + k; ++i) weights[i] = sum > 0. ? weights[i] / sum : 1. / static_cast<double>(teachers);
  }
  return skipped;
}

struct weighted_teachers {
  std::span<const double> weights;

  void check(const call_shape& shape) const {
    const auto size = static_cast<std::int64_t>(weights.size());
    require(shape.rows > 0 ? size > 0 && size % shape.rows == 0 : size == 0, "weighted_teachers: argument 'weights' has ", size, " entries; expected one per row and teacher, ", shape.rows, " rows");
    for (std::int64_t i = 0; i < size; ++i)
      require(shape.masked(i / (size / shape.rows)) || (detail::finite(weights.data()[i]) && weights.data()[i] >= 0.), "weighted_teachers: argument 'weights' is ", weights.data()[i], " at entry ", i, "; expected 0 or more");
  }
  template <class Row, class S, class... T>
  auto operator()(Row& row, S s, T... teachers) const {
    const double* const w = weights.data() + row.index() * static_cast<std::int64_t>(sizeof...(T));
    return [&]<std::size_t... k>(std::index_sequence<k...>) { return (... + (w[k] * forward_kl{}(row, s, teachers))); }(std::index_sequence_for<T...>{});
  }
};

/// out[i] = weights[r] for the rows i of response r.
inline void spread_weights(std::span<const double> weights, std::span<const std::int32_t> indptr, std::span<double> out) {
  require(indptr.size() == weights.size() + 1, "spread_weights: argument 'indptr' has ", indptr.size(), " entries; expected one more than responses, ", weights.size() + 1);
  detail::check_indptr("spread_weights", indptr, static_cast<std::int64_t>(out.size()));
  for (std::size_t r = 0; r < weights.size(); ++r)
    for (std::int64_t i = indptr[r]; i < indptr[r + 1]; ++i) out[detail::index(i)] = weights[r];
}

/// counts [labels]. A prediction may be anything, for an answer that is no label.
inline void label_recall(std::span<const std::int32_t> predicted, std::span<const std::int32_t> truth, std::span<label_count> counts) {
  require(predicted.size() == truth.size(), "label_recall: argument 'predicted' has ", predicted.size(), " items; expected ", truth.size());
  const auto labels = static_cast<std::int64_t>(counts.size());
  for (std::size_t i = 0; i < truth.size(); ++i) require(truth[i] >= 0 && truth[i] < labels, "label_recall: argument 'truth' is ", truth[i], " at item ", i, "; expected 0 to ", labels - 1);
  for (label_count& count : counts) count = {};
  for (std::size_t i = 0; i < truth.size(); ++i) {
    label_count& count = counts[detail::index(truth[i])];
    ++count.items, count.hits += predicted[i] == truth[i];
  }
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
