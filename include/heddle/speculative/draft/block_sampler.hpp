// A chain sampled from a block drafter through a causal head, left to right, with the laws it was drawn from.
//
//   slot i = 1 .. K:  z = U_i + b_i(x_<i) (causal_head.hpp);  q_i = softmax(z / T) over the top_k best tokens;  x_i ~ q_i
//
// q_i is kept for the verifier exactly as it was drawn from (law `independent`: a chain): rows are dense over the vocabulary, or sparse where top_k or the head
// restrict the support. Keys: {seed, request, position of slot 1, purpose::draft, i - 1}. Temperature 0: the most probable tokens, verified as point
// masses: use greedy_block_sampler, whose law is deterministic.
// With a head that estimates confidence, confidences()[i] is the estimate for slot i + 1. The block's rows are not written. NaN, +infinity and rows
// without a finite logit are errors that name the slot.
// Cost: the model's pass, K head calls, O(K V).
//
//     heddle::block_sampler drafter{model, heddle::no_correction{}, {.num_slots = 15, .top_k = 20}};
//     auto tree = drafter.propose(context, 8);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/causal_head.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace heddle {

struct block_sampler_options {
  std::int32_t num_slots = 15;   ///< K
  std::int32_t top_k = 0;        ///< 0: the whole vocabulary
  double temperature = 1.;
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
};

inline namespace HEDDLE_ISA {

/// The corrected logits of a block, slot after slot.
template <block_model Model, causal_head Head>
class corrected_block {
 public:
  corrected_block(Model& model, Head head) : model_(model), head_(std::move(head)) {}

  /// Slots of a new block; `slots` at most.
  std::int32_t begin(std::span<const std::int32_t> context, std::int32_t slots) {
    confidences_.clear();
    block_ = model_.predict(context, slots);
    head_.start();
    return static_cast<std::int32_t>(std::min<std::int64_t>(slots, block_.logits.extent(0)));
  }
  std::span<const float> logits(std::int32_t slot, std::int32_t previous) {
    const std::int64_t vocabulary = block_.logits.extent(1);
    row_.resize(static_cast<std::size_t>(vocabulary)), hidden_.resize(static_cast<std::size_t>(block_.hidden.data() ? block_.hidden.extent(1) : 0));
    for (std::int64_t v = 0; v < vocabulary; ++v) row_[static_cast<std::size_t>(v)] = block_.logits(slot, v);
    for (std::size_t k = 0; k < hidden_.size(); ++k) hidden_[k] = block_.hidden(slot, static_cast<std::int64_t>(k));
    head_.correct(slot, previous, hidden_, row_);
    if constexpr (requires { head_.confidence(); })
      if (head_.estimates_confidence()) confidences_.push_back(head_.confidence());
    return row_;
  }
  std::span<const double> confidences() const { return confidences_; }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }

 private:
  Model& model_;
  Head head_;
  block_prediction block_{};
  aligned_vector<float> row_, hidden_;
  aligned_vector<double> confidences_;
};

inline void check_proposal(const char* function, std::span<const std::int32_t> context, std::int32_t budget) {
  require(!context.empty(), function, ": argument 'context' is empty; expected at least the last committed token");
  require(budget >= 0, function, ": argument 'budget' is ", budget, "; expected 0 or more");
}

template <block_model Model, causal_head Head = no_correction, class Draw = keyed_draws>
class block_sampler {
 public:
  block_sampler(Model& model, Head head, const block_sampler_options& options = {}) : block_sampler(model, std::move(head), options, keyed_draws{options.seed, options.request}) {}
  block_sampler(Model& model, Head head, const block_sampler_options& options, Draw draw) : block_(model, std::move(head)), options_(options), draw_(std::move(draw)) {
    require(options.num_slots >= 1, "block_sampler: option 'num_slots' is ", options.num_slots, "; expected 1 or more");
    require(options.top_k >= 0, "block_sampler: option 'top_k' is ", options.top_k, "; expected 0 (off) or more");
    require(options.temperature >= 1e-6 && options.temperature <= 1e6, "block_sampler: option 'temperature' is ", options.temperature, "; expected 1e-6 to 1e6 (0: greedy_block_sampler)");
  }

  draft_tree<draft_law::independent> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    check_proposal("block_sampler::propose", context, budget);
    nodes_.start(context.back()), rows_.start(), dense_.clear();
    const std::int32_t slots = budget ? block_.begin(context, std::min(budget, options_.num_slots)) : 0;
    std::int64_t vocabulary = 0;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      const std::span<const float> z = block_.logits(slot, nodes_.token(slot));
      vocabulary = static_cast<std::int64_t>(z.size());
      const auto position = static_cast<std::int64_t>(context.size());
      nodes_.add(slot, is_dense() ? draw_dense(z, slot, position) : draw_sparse(z, slot, position));
    }
    draft_tree<draft_law::independent> tree{nodes_.tokens(), nodes_.parents(), rows_.laws(slots + 1)};
    if (is_dense() && slots) tree.laws = {.row_of = tree.laws.row_of, .dense = {dense_.data(), extents{std::int64_t{slots}, vocabulary}}};
    return tree;
  }
  std::span<const double> confidences() const { return block_.confidences(); }
  void keep(std::span<const std::int32_t> path) { block_.keep(path); }

 private:
  bool is_dense() const { return options_.top_k == 0 && !Head::restricts_support; }

  std::int32_t draw_dense(std::span<const float> z, std::int32_t slot, std::int64_t position) {
    const detail::row_summary row = summary_of(z, slot);
    const std::size_t first = dense_.size();
    dense_.resize(first + z.size());
    const simd::f32x16 max = simd::splat(row.max), scale = simd::splat(static_cast<float>(1. / options_.temperature));
    const auto n = static_cast<std::int64_t>(z.size());
    for (std::int64_t i = 0; i < n; i += simd::lanes)
      simd::store_first(dense_.data() + first + i, simd::exp((simd::load_first(z.data() + i, n - i) - max) * scale), n - i);
    rows_.give(slot, slot);
    return static_cast<std::int32_t>(draw_(position, static_cast<std::uint32_t>(slot), std::span<const float>(dense_).subspan(first)));
  }
  std::int32_t draw_sparse(std::span<const float> z, std::int32_t slot, std::int64_t position) {
    if (options_.top_k > 0) {
      const slot_ranking best = ranked(z, slot, options_.top_k);
      weights_.clear();
      for (const double log_prob : best.log_probs_of(0)) weights_.push_back(math::exp(log_prob));
      return draw_row(rows_.add(best.tokens_of(0), weights_), slot, position);
    }
    const detail::row_summary row = summary_of(z, slot);   // the head has left few
    weights_.clear(), tokens_.clear();
    for (std::size_t v = 0; v < z.size(); ++v)
      if (z[v] > sampling::detail::impossible) tokens_.push_back(static_cast<std::int32_t>(v)), weights_.push_back(math::exp((static_cast<double>(z[v]) - static_cast<double>(row.max)) / options_.temperature));
    return draw_row(rows_.add(tokens_, weights_), slot, position);
  }
  std::int32_t draw_row(std::int32_t row, std::int32_t slot, std::int64_t position) {
    rows_.give(slot, row);
    return rows_.tokens(row)[draw_(position, static_cast<std::uint32_t>(slot), rows_.probabilities(row))];
  }
  detail::row_summary summary_of(std::span<const float> z, std::int32_t slot) {
    const auto n = static_cast<std::int64_t>(z.size());
    block_max_.resize(static_cast<std::size_t>(sampling::detail::blocks_of(n)));
    const sampling::detail::scanned scanned = sampling::detail::scan(z.data(), n, block_max_.data());
    const status found = scanned.has_nan ? status::nan_logit : scanned.max == simd::infinity ? status::inf_logit : scanned.max == -simd::infinity ? status::empty_support : status::ok;
    require(found == status::ok, "block_sampler::propose: the logits of slot ", slot, ": ", name_of(found));
    return {.max = scanned.max};
  }
  slot_ranking ranked(std::span<const float> z, std::int32_t slot, std::int32_t width) {
    summary_of(z, slot);
    return ranker_.rank(tensor_view<const float, 2>{z.data(), extents{1, static_cast<std::int64_t>(z.size())}}, width, options_.temperature);
  }

  corrected_block<Model, Head> block_;
  block_sampler_options options_;
  Draw draw_;
  draft_nodes nodes_;
  law_rows rows_;
  slot_ranker ranker_;
  aligned_vector<float> dense_, block_max_;
  aligned_vector<double> weights_;
  aligned_vector<std::int32_t> tokens_;
};
template <class Model, class Head>
block_sampler(Model&, Head, const block_sampler_options&) -> block_sampler<Model, Head, keyed_draws>;

/// The most probable token of every corrected slot.
template <block_model Model, causal_head Head = no_correction>
class greedy_block_sampler {
 public:
  greedy_block_sampler(Model& model, Head head, std::int32_t num_slots = 15) : block_(model, std::move(head)), num_slots_(num_slots) {
    require(num_slots >= 1, "greedy_block_sampler: argument 'num_slots' is ", num_slots, "; expected 1 or more");
  }
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    check_proposal("greedy_block_sampler::propose", context, budget);
    nodes_.start(context.back());
    const std::int32_t slots = budget ? block_.begin(context, std::min(budget, num_slots_)) : 0;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      const std::span<const float> z = block_.logits(slot, nodes_.token(slot));
      nodes_.add(slot, ranker_.rank(tensor_view<const float, 2>{z.data(), extents{1, static_cast<std::int64_t>(z.size())}}, 1).tokens_of(0)[0]);
    }
    return nodes_.tree<draft_law::deterministic>();
  }
  std::span<const double> confidences() const { return block_.confidences(); }
  void keep(std::span<const std::int32_t> path) { block_.keep(path); }

 private:
  corrected_block<Model, Head> block_;
  std::int32_t num_slots_;
  draft_nodes nodes_;
  slot_ranker ranker_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
