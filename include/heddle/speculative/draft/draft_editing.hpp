// Drafts that are edited: a block without masks is predicted again, all slots at once and each at its own place.
//
//   pass 0   m = model([anchor, MASK, .., MASK])        x^0_i = argmax m_i
//   edit e   r^e = model([anchor, x^{e-1}])             x^e_i = argmax r^e_i              e = 1 .. E, tokens see both directions
//
// edited_block runs the passes and is a block model itself: its slots are r^E given x^{E-1}, so every sampler and tree over block models serves
//   greedy_block_sampler   x^E, verified as point masses                            block_sampler   x_i ~ r^E_i(. | x^{E-1}), independent
// The earlier block was fixed before anything of the last pass was drawn, so r^E_i is the law of x_i that C2 of draft_tree.hpp asks for.
// Passes end early at a fixed point, x^e = x^{e-1}: the model would say the same again. Without one (oscillation) E is the cap and the last pass counts. E = 0 is the
// model itself (DFlash), bit for bit.
//
// temperature        of the tokens x^0 .. x^{E-1} between passes; 0: the most probable, ties to the lowest id. Above 0 they are drawn: purpose::draft,
//                    the position of slot 1, index (1 + e) 2^16 + i - 1 for slot i (the last pass's are the sampler's, below 2^16)
// keep_probability   a slot whose token had at least this probability in the pass that chose it is not edited again. Its token is realised, so the law
//                    handed on is a point mass (logit 0 there, -infinity elsewhere): the verifier must not see the marginal it was once drawn from
//
// The model: predict(context, slots) and keep(path) of block_model.hpp, and
//   revise(context, tokens) -> block_prediction   slots predicted at the places of `tokens`, which follow context.back()
// edit_counts: with A(x) the drafts that greedy verification accepts, an edit from x to x' is harmful if A(x') < A(x) and a repair if A(x') > A(x).
// Errors: options; NaN, +infinity or a row without finite logit names pass and slot. The model's rows are not written.
// Cost: 1 + E passes of the model at most, O(E K V) to choose tokens. Memory: K V numbers if slots are kept. Source: DEdit, after the abstract.
//
//     heddle::edited_block edited{model, {.edits = 2}};
//     heddle::block_sampler drafter{edited, heddle::no_correction{}, {.num_slots = 15}};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

namespace heddle {

template <class M>
concept editing_model = block_model<M> && requires(M& m, std::span<const std::int32_t> context, std::span<const std::int32_t> tokens) {
  { m.revise(context, tokens) } -> std::convertible_to<block_prediction>;
};

struct edited_block_options {
  std::int32_t edits = 1;          ///< E
  double temperature = 0.;         ///< of the tokens between passes
  double keep_probability = 2.;    ///< above 1: every slot is edited every time
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
};

inline namespace HEDDLE_ISA {

template <editing_model Model, class Draw = keyed_draws>
class edited_block {
 public:
  explicit edited_block(Model& model, const edited_block_options& options = {})
    requires std::same_as<Draw, keyed_draws>
      : edited_block(model, options, keyed_draws{options.seed, options.request}) {}
  edited_block(Model& model, const edited_block_options& options, Draw draw) : model_(model), options_(options), draw_(std::move(draw)) {
    require(options.edits >= 0 && options.edits < most_slots - 1, "edited_block: option 'edits' is ", options.edits, "; expected 0 to ", most_slots - 2);
    require(options.temperature == 0. || (options.temperature >= 1e-6 && options.temperature <= 1e6), "edited_block: option 'temperature' is ", options.temperature, "; expected 0 (the most probable tokens) or 1e-6 to 1e6");
    require(options.keep_probability > 0., "edited_block: option 'keep_probability' is ", options.keep_probability, "; expected more than 0 (above 1: nothing is kept)");
  }

  block_prediction predict(std::span<const std::int32_t> context, std::int32_t slots) {
    require(slots <= most_slots, "edited_block::predict: argument 'slots' is ", slots, "; expected at most ", most_slots);
    block_prediction block = model_.predict(context, slots);
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(slots, block.logits.extent(0)));
    tokens_.assign(count, -1), probabilities_.assign(count, 0.), blocks_.clear(), passes_ = 1;
    for (std::int32_t e = 0; e < options_.edits && count; ++e) {
      const bool changed = choose(block.logits, static_cast<std::int64_t>(context.size()), e);
      if (!changed && options_.temperature == 0.) break;
      blocks_.insert(blocks_.end(), tokens_.begin(), tokens_.end());
      block = model_.revise(context, tokens_), ++passes_;
    }
    return {realised(block.logits), block.hidden};
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }

  /// Of the last call: passes of the model, and x^0, x^1, .. as they were fed to the edits.
  std::int32_t passes() const { return passes_; }
  std::span<const std::int32_t> fed_to_edit(std::int32_t e) const {
    require(e >= 1 && e < passes_, "edited_block::fed_to_edit: argument 'e' is ", e, "; expected 1 to ", passes_ - 1);
    return std::span<const std::int32_t>(blocks_).subspan(static_cast<std::size_t>(e - 1) * tokens_.size(), tokens_.size());
  }

 private:
  static constexpr std::int32_t most_slots = 1 << 16;   // a slot's draws of different passes have different keys

  bool kept(std::size_t slot) const { return probabilities_[slot] >= options_.keep_probability; }

  /// x^e from the logits of pass e; whether it differs from x^{e-1}.
  bool choose(const tensor_view<const float, 2>& logits, std::int64_t position, std::int32_t e) {
    const auto n = logits.extent(1);
    row_.resize(static_cast<std::size_t>(n)), block_max_.resize(static_cast<std::size_t>(sampling::detail::blocks_of(n)));
    bool changed = false;
    for (std::size_t slot = 0; slot < tokens_.size(); ++slot) {
      if (kept(slot)) continue;
      for (std::int64_t v = 0; v < n; ++v) row_[static_cast<std::size_t>(v)] = logits(static_cast<std::int64_t>(slot), v);
      const detail::row_summary row = detail::summarise<false>(row_.data(), n, 1., block_max_.data());
      require(row.status == status::ok, "edited_block: pass ", e, ": the logits of slot ", slot, ": ", name_of(row.status));
      const auto x = static_cast<std::int32_t>(options_.temperature > 0. ? drawn(row.max, position, (1u + static_cast<std::uint32_t>(e)) * most_slots + static_cast<std::uint32_t>(slot)) : std::find(row_.begin(), row_.end(), row.max) - row_.begin());
      changed |= x != tokens_[slot];
      tokens_[slot] = x;
      probabilities_[slot] = math::exp(static_cast<double>(logits(static_cast<std::int64_t>(slot), x)) - static_cast<double>(row.max) - row.log_sum);
    }
    return changed;
  }
  std::ptrdiff_t drawn(float max, std::int64_t position, std::uint32_t index) {
    const simd::f32x16 top = simd::splat(max), scale = simd::splat(static_cast<float>(1. / options_.temperature));
    const auto n = static_cast<std::int64_t>(row_.size());
    for (std::int64_t i = 0; i < n; i += simd::lanes) simd::store_first(row_.data() + i, simd::exp((simd::load_first(row_.data() + i, n - i) - top) * scale), n - i);
    return static_cast<std::ptrdiff_t>(draw_(position, index, std::span<const float>(row_)));
  }

  /// The logits, with point masses where slots were kept.
  tensor_view<const float, 2> realised(const tensor_view<const float, 2>& logits) {
    bool any = false;
    for (std::size_t slot = 0; slot < tokens_.size(); ++slot) any |= kept(slot);
    if (!any) return logits;
    const auto n = static_cast<std::size_t>(logits.extent(1));
    realised_.resize(tokens_.size() * n);
    for (std::size_t slot = 0; slot < tokens_.size(); ++slot)
      for (std::size_t v = 0; v < n; ++v)
        realised_[slot * n + v] = !kept(slot) ? logits(static_cast<std::int64_t>(slot), static_cast<std::int64_t>(v)) : static_cast<std::int32_t>(v) == tokens_[slot] ? 0.f : -std::numeric_limits<float>::infinity();
    return {realised_.data(), extents{static_cast<std::int64_t>(tokens_.size()), static_cast<std::int64_t>(n)}};
  }

  Model& model_;
  edited_block_options options_;
  Draw draw_;
  aligned_vector<std::int32_t> tokens_, blocks_;
  aligned_vector<double> probabilities_;     // of the tokens, each in the pass that chose it
  aligned_vector<float> row_, block_max_, realised_;
  std::int32_t passes_ = 0;
};
template <class Model>
edited_block(Model&, const edited_block_options&) -> edited_block<Model, keyed_draws>;
template <class Model>
explicit edited_block(Model&) -> edited_block<Model, keyed_draws>;

/// A(x): how many tokens agree with the reference from the first one on.
inline std::int64_t accepted_prefix(std::span<const std::int32_t> tokens, std::span<const std::int32_t> reference) {
  std::size_t i = 0;
  while (i < tokens.size() && i < reference.size() && tokens[i] == reference[i]) ++i;
  return static_cast<std::int64_t>(i);
}

/// What edits did, against what the target continues with.
struct edit_counts {
  std::int64_t edits = 0, repairs = 0, harmful = 0;
  std::int64_t accepted_before = 0, accepted_after = 0;   ///< sums of A

  void add(std::span<const std::int32_t> before, std::span<const std::int32_t> after, std::span<const std::int32_t> reference) {
    require(before.size() == after.size(), "edit_counts::add: argument 'after' has ", after.size(), " tokens; expected as many as 'before', ", before.size());
    const std::int64_t a = accepted_prefix(before, reference), b = accepted_prefix(after, reference);
    ++edits, repairs += b > a, harmful += b < a;
    accepted_before += a, accepted_after += b;
  }
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
