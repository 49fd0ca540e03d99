// One row of logits: its law after a chain, and a token drawn from it. The plain sampler and the match verifier both call sample_row, so they
// decide alike.
//
// row_workspace   the scratch of one thread, for rows of one vocabulary; calls do not allocate (with DRY: once it has seen the longest history)
// law             the kept tokens in order of ids and their masses: p_v = mass_v / total; mass is 2^42 for the largest logit
// law_of          the law of a row; XTC uses the key, nothing else does. Valid until the workspace is used again
// sample_row      a token drawn from that law, by one of two rules
//     gumbel       argmax over the kept tokens of (z_v - max) / T + G_v, in double, ties to the lowest id; G_v = -ln(-ln u_v), u_v with the
//                  key's index set to the id
//     inverse_cdf  the first kept token, in order of ids, with cumulative mass > u * total, u with index 0; integers, exact
// log_prob        ln softmax(row)[token] at temperature 1, in double
//
// Exactness. Masses are integers (detail/weights.hpp), so the kept set is that of the definition (parameters.hpp) evaluated in double, whatever the
// order of summation. Float passes only rule out what cannot matter; where their error bound is too wide for a decision, the masses of the whole
// row are summed exactly. Logits are equal if they are equal as floats; f16 and bf16 rows are widened first.
// Row status instead of a token: nan_logit, inf_logit (+infinity), empty_support (no logit above -infinity, e.g. after a mask).
// Cost for a vocabulary of V: one read of the row with top_k, min_p or greedy; two more, one of them with exp, for top_p alone (with top_k and
// the Gumbel rule only when the token drawn is near the boundary); 4 V bytes are written first if the chain edits the row or it is not contiguous
// f32. Scratch: about 37 V bytes.
//
//     sampling::row_workspace memory{vocabulary};
//     const auto next = sampling::sample_row(logits, policy, {context, {}}, {.seed = 7, .position = 42}, memory);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/core/workspace.hpp>
#include <heddle/sampling/chain.hpp>
#include <heddle/sampling/detail/row_decision.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::sampling {

struct law {
  std::span<const std::int32_t> tokens{};
  std::span<const std::uint64_t> masses{};
  std::uint64_t total = 0;
  heddle::status status = heddle::status::ok;
  [[gnu::always_inline]] constexpr double probability(std::size_t i) const { return static_cast<double>(masses.data()[i]) / static_cast<double>(total); }
};

inline namespace HEDDLE_ISA {

class row_workspace {
 public:
  explicit row_workspace(std::int64_t vocabulary) : owned_(bytes(vocabulary)), owns_(true) { place(owned_.data(), vocabulary); }
  /// Uses `bytes(vocabulary)` bytes of the caller, 64-byte aligned, and `lengths` (a history's length of integers) for DRY.
  row_workspace(std::byte* memory, std::int64_t vocabulary, std::span<std::int32_t> lengths = {}) : lengths_(lengths) { place(memory, vocabulary); }
  row_workspace(row_workspace&&) = default;
  row_workspace& operator=(row_workspace&&) = default;

  static std::size_t bytes(std::int64_t vocabulary) {
    require(vocabulary > 0 && vocabulary <= detail::largest_vocabulary, "sampling::row_workspace: argument 'vocabulary' is ", vocabulary, "; expected 1 to ", detail::largest_vocabulary);
    scratch_layout layout;
    detail::row_scratch{}.place(layout, vocabulary);
    return layout.bytes();
  }
  std::int64_t vocabulary() const { return vocabulary_; }
  detail::row_scratch& scratch() { return at_; }
  std::int32_t* lengths(std::int64_t history) {
    const auto needed = static_cast<std::size_t>(history);
    if (owns_ && owned_lengths_.size() < needed) owned_lengths_.resize(2 * needed), lengths_ = owned_lengths_;
    require(lengths_.size() >= needed, "sampling::row_workspace: room for a history of ", lengths_.size(), " tokens; DRY needs ", history);
    return lengths_.data();
  }

 private:
  void place(std::byte* memory, std::int64_t vocabulary) {
    scratch_layout layout{memory};
    at_.place(layout, vocabulary);
    for (std::int64_t i = 0; i < vocabulary; ++i) at_.counts[i] = 0;
    vocabulary_ = vocabulary;
  }

  aligned_vector<std::byte> owned_;
  aligned_vector<std::int32_t> owned_lengths_;
  std::span<std::int32_t> lengths_;
  bool owns_ = false;
  detail::row_scratch at_{};
  std::int64_t vocabulary_ = 0;
};

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// The row as contiguous floats, edited: the row itself where that is so already.
template <class Element, class Chain>
const float* prepared_row(const tensor_view<Element, 1>& row, const Chain& policy, const history& before, row_workspace& memory) {
  const std::int64_t n = row.extent(0), stride = row.stride(0);
  require(n == memory.vocabulary(), "sampling: the row has ", n, " logits; the workspace is for ", memory.vocabulary());
  const bool edits = policy.edits();
  if constexpr (std::is_same_v<std::remove_cv_t<Element>, float>)
    if (stride == 1 && !edits) return row.data();
  float* const copy = memory.scratch().row;
  std::int64_t i = 0;
  if constexpr (requires { simd::load(row.data()); })
    if (stride == 1)
      for (; i + simd::lanes <= n; i += simd::lanes) simd::store(copy + i, simd::load(row.data() + i));
  for (; i < n; ++i) copy[i] = static_cast<float>(row.data()[i * stride]);
  if (edits) policy.edit({copy, static_cast<std::size_t>(n)}, before, memory.scratch().counts, has_dry(policy.parameters()) ? memory.lengths(before.size()) : nullptr);
  return copy;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <tensor_of<1> Row, class Chain>
  requires host_tensor<Row>
law law_of(const Row& row, const Chain& policy, const history& before, const random_key& key, row_workspace& memory) {
  const float* const z = detail::prepared_row(view_of(row), policy, before, memory);
  const detail::row_scratch& at = memory.scratch();
  detail::row_decision decision(z, memory.vocabulary(), policy.parameters(), key, memory.scratch());
  decision.keep();
  const auto count = static_cast<std::size_t>(decision.count());
  return {{at.ids, count}, {at.masses, count}, decision.total(), decision.status()};
}

template <tensor_of<1> Row, class Chain>
  requires host_tensor<Row>
drawn sample_row(const Row& row, const Chain& policy, const history& before, const random_key& key, row_workspace& memory, sampling::draw how = sampling::draw::gumbel) {
  const float* const z = detail::prepared_row(view_of(row), policy, before, memory);
  return detail::row_decision(z, memory.vocabulary(), policy.parameters(), key, memory.scratch()).draw_token(how);
}

/// ln softmax(row)[token]; NaN if the row holds a NaN or +infinity, or has no finite logit.
template <tensor_of<1> Row>
  requires host_tensor<Row>
double log_prob(const Row& row, std::int64_t token) {
  const auto z = view_of(row);
  const std::int64_t n = z.extent(0);
  require(token >= 0 && token < n, "sampling::log_prob: argument 'token' is ", token, "; expected 0 to ", n - 1);
  double max = -std::numeric_limits<double>::infinity(), sums[8] = {};
  for (std::int64_t i = 0; i < n; ++i) max = static_cast<double>(z(i)) > max ? static_cast<double>(z(i)) : max;
  for (std::int64_t i = 0; i < n; ++i) sums[i % 8] += math::exp(static_cast<double>(z(i)) - max);
  const double sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
  return (static_cast<double>(z(token)) - max) - math::log(sum);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::sampling
