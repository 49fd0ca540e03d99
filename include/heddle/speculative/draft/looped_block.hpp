// D-Loop: two passes of one block drafter. The first proposes; the rest of the block is predicted again given the prefix that was drawn.
//
//   pass 1   [anchor, MASK^K] -> m_i;                     x_i ~ m_i for i <= l,   l = max{ l : max_v m_i(v) >= eta for all i <= l }, at least 1
//   pass 2   [anchor, x_1 .. x_l, MASK^{K-l}] -> r_i;     x_i ~ r_i(. | x_{<= l}) for i > l, same weights
//   more passes repeat this, the prefix growing by what the latest pass is sure of, at least one slot
// The prefix length looks at laws, never at the tokens drawn from them, so it is predictable (C3 of draft_tree.hpp). Choosing it by the tokens bends the law: keep x_1
// only if it is `a`, with m_1 = (.3, .7) and r_1 = p = (.5, .5), and verification by m_1 and r_1 emits (13/20, 7/20).
//
// looped_block is a block model, and its head() goes with it into any sampler over block models: the head stands where x_i is known, and runs the next pass there.
//   block_sampler          laws m_i and r_i as they were drawn from           greedy_block_sampler   their most probable tokens
// One pass, l = K or K = 1: the model itself (DFlash), bit for bit. Tokens of the prefix are never changed.
//
// The model: predict(context, slots) and keep(path) of block_model.hpp, and
//   predict_after(context, prefix, slots) -> block_prediction   the block whose first slots hold `prefix`; rows of slots behind it are read
//
// Repetition trap: slots of one pass are independent, so a token that belongs at slot i or at i + 1 comes twice or not at all. A token placed at either with
// probability 1/2 is doubled with probability 1/4 where the target never doubles it.
//   repetition(logits)          rep_i = sum_v m_i(v) m_{i+1}(v), i = 1 .. K - 1, in double
//   count_repetition(tokens)    of the latest block and the tokens drawn from it: neighbours of one pass, how many were expected to be equal, how many are
// Errors: options; NaN, +infinity or a row without finite logit names pass and slot. Memory: K V numbers. Cost: the passes, O(K V) each.
// Source: D-Loop, after the abstract.
//
//     heddle::looped_block looped{model, {.sure = 0.6}};
//     heddle::block_sampler drafter{looped, looped.head(), {.num_slots = 15}};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

template <class M>
concept looped_block_model = block_model<M> && requires(M& m, std::span<const std::int32_t> context, std::span<const std::int32_t> prefix, std::int32_t slots) {
  { m.predict_after(context, prefix, slots) } -> std::convertible_to<block_prediction>;
};

struct looped_block_options {
  std::int32_t passes = 2;     ///< at most
  double sure = 0.5;           ///< eta, 0 to 1
  double temperature = 1.;     ///< of the laws that are compared with eta
};

/// Neighbouring slots of one pass.
struct repetition_count {
  std::int64_t pairs = 0;
  double expected = 0;         ///< sum of rep_i
  std::int64_t equal = 0;
};

inline namespace HEDDLE_ISA {

/// sum_v a(v) b(v) of two softmaxes.
template <class A, class B>
double overlap(const A& a, const B& b, double temperature = 1.) {
  double max_a = -math::infinity, max_b = -math::infinity, sum_a = 0, sum_b = 0, both = 0;
  for (std::int64_t v = 0; v < a.extent(0); ++v) max_a = std::max(max_a, static_cast<double>(a(v))), max_b = std::max(max_b, static_cast<double>(b(v)));
  for (std::int64_t v = 0; v < a.extent(0); ++v) {
    const double x = math::exp((static_cast<double>(a(v)) - max_a) / temperature), y = math::exp((static_cast<double>(b(v)) - max_b) / temperature);
    sum_a += x, sum_b += y, both = math::fma(x, y, both);
  }
  return both / sum_a / sum_b;
}

/// out: K - 1 numbers.
template <tensor_of<2> Logits>
  requires host_tensor<Logits>
void repetition(const Logits& logits, std::span<double> out, double temperature = 1.) {
  const auto u = view_of(logits);
  require(static_cast<std::int64_t>(out.size()) == std::max<std::int64_t>(u.extent(0) - 1, 0), "repetition: argument 'out' has ", out.size(), " entries; expected one per pair of neighbouring slots, of ", u.extent(0));
  require(temperature >= 1e-6 && temperature <= 1e6, "repetition: argument 'temperature' is ", temperature, "; expected 1e-6 to 1e6");
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = overlap(u[static_cast<std::int64_t>(i)], u[static_cast<std::int64_t>(i) + 1], temperature);
}

template <looped_block_model Model>
class looped_block {
 public:
  explicit looped_block(Model& model, const looped_block_options& options = {}) : model_(model), options_(options) {
    require(options.passes >= 1, "looped_block: option 'passes' is ", options.passes, "; expected 1 or more");
    require(options.sure >= 0. && options.sure <= 1., "looped_block: option 'sure' is ", options.sure, "; expected 0 to 1");
    require(options.temperature >= 1e-6 && options.temperature <= 1e6, "looped_block: option 'temperature' is ", options.temperature, "; expected 1e-6 to 1e6");
  }

  /// The first pass.
  block_prediction predict(std::span<const std::int32_t> context, std::int32_t slots) {
    const block_prediction block = model_.predict(context, slots);
    context_ = context, slots_ = static_cast<std::int32_t>(std::min<std::int64_t>(slots, block.logits.extent(0)));
    vocabulary_ = block.logits.extent(1), passes_ = 0;
    rows_.resize(static_cast<std::size_t>(slots_ * vocabulary_));
    pass_of_.assign(static_cast<std::size_t>(slots_), 0), prefix_.clear();
    take(block, 0);
    return {logits(), {}};
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }

  /// Of the latest block: passes made, the pass (1 ..) whose law a slot has, the logits of the laws.
  std::int32_t passes() const { return passes_; }
  std::int32_t pass_of(std::int32_t slot) const { return pass_of_[static_cast<std::size_t>(slot)]; }
  tensor_view<const float, 2> logits() const { return {rows_.data(), extents{std::int64_t{slots_}, vocabulary_}}; }

  /// Adds the pairs of the latest block to counts[pass - 1]. tokens: x_1 .. x_K.
  void count_repetition(std::span<const std::int32_t> tokens, std::span<repetition_count> counts) const {
    require(tokens.size() == pass_of_.size(), "looped_block::count_repetition: argument 'tokens' has ", tokens.size(), " entries; expected one per slot of the latest block, ", pass_of_.size());
    require(static_cast<std::int64_t>(counts.size()) >= passes_, "looped_block::count_repetition: argument 'counts' has ", counts.size(), " entries; expected one per pass, ", passes_);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (pass_of_[i] != pass_of_[i + 1]) continue;
      repetition_count& count = counts[static_cast<std::size_t>(pass_of_[i]) - 1];
      const auto slot = static_cast<std::int64_t>(i);
      ++count.pairs, count.expected += overlap(logits()[slot], logits()[slot + 1], options_.temperature), count.equal += tokens[i] == tokens[i + 1];
    }
  }

  /// A causal head (causal_head.hpp) of samplers over this block: runs the next pass where its prefix is complete.
  class pass_head {
   public:
    static constexpr bool restricts_support = false;
    explicit pass_head(looped_block& block) : block_(&block) {}
    void start() {}
    void correct(std::int32_t slot, std::int32_t previous, std::span<const float>, std::span<float> logits) { block_->reach(slot, previous, logits); }

   private:
    looped_block* block_;
  };
  pass_head head() { return pass_head(*this); }

 private:
  /// Slot (0 ..) is next; `previous` is the token of the slot before.
  void reach(std::int32_t slot, std::int32_t previous, std::span<float> logits) {
    if (slot > 0) prefix_.push_back(previous);
    if (slot == length_ && passes_ < options_.passes) take(model_.predict_after(context_, prefix_, slots_), slot);
    if (passes_ > 1) std::copy_n(rows_.begin() + slot * vocabulary_, vocabulary_, logits.begin());
  }
  /// A pass has predicted the slots from `first` on; how far the next one's prefix reaches.
  void take(const block_prediction& block, std::int32_t first) {
    ++passes_;
    require(block.logits.extent(0) >= slots_ && block.logits.extent(1) == vocabulary_, "looped_block: pass ", passes_, " gave logits [", block.logits.extent(0), ", ", block.logits.extent(1), "]; expected [", slots_, ", ", vocabulary_, "]");
    for (std::int32_t slot = first; slot < slots_; ++slot) {
      for (std::int64_t v = 0; v < vocabulary_; ++v) rows_[static_cast<std::size_t>(slot * vocabulary_ + v)] = block.logits(slot, v);
      pass_of_[static_cast<std::size_t>(slot)] = passes_;
    }
    length_ = slots_;
    if (passes_ == options_.passes) return;
    length_ = first;
    while (length_ < slots_ && is_sure(length_)) ++length_;
    if (length_ == first) ++length_;
  }
  bool is_sure(std::int32_t slot) {
    block_max_.resize(static_cast<std::size_t>(sampling::detail::blocks_of(vocabulary_)));
    const detail::row_summary row = detail::summarise<false>(rows_.data() + slot * vocabulary_, vocabulary_, 1. / options_.temperature, block_max_.data());
    require(row.status == status::ok, "looped_block: pass ", passes_, ": the logits of slot ", slot, ": ", name_of(row.status));
    return math::exp(-row.log_sum) >= options_.sure;
  }

  Model& model_;
  looped_block_options options_;
  std::span<const std::int32_t> context_;
  std::int32_t slots_ = 0, passes_ = 0, length_ = 0;   // length_: slots that the next pass takes as given
  std::int64_t vocabulary_ = 0;
  aligned_vector<float> rows_, block_max_;
  aligned_vector<std::int32_t> pass_of_, prefix_;
};
template <class Model>
looped_block(Model&, const looped_block_options&) -> looped_block<Model>;

}  // namespace HEDDLE_ISA
}  // namespace heddle
