// DSpine: in every layer of a block drafter each slot hears what its predecessor is about to predict.
//
//   transfer space    V_r, the r first right singular vectors of the target's output embedding E [V, d] (transition_cache_fit.hpp);  Z = E V_r [V, r], the
//                     transition cache: row v is token v in that space; it never changes
//   layer l           after attention and MLP, all slots at once:   u_i = P_l h_i,  u_0 = Z[anchor]
//                     h_i <- h_i + sigma(a_l . [h_i; Q_l u_{i-1}] + b_l) Q_l u_{i-1},  i = 1 .. K, every u from before the injection
//   head              q_i(. | x_{i-1}) = softmax(U_i + Z (gamma(h_i) * W Z[x_{i-1}])),  gamma(h) = sigma(W_g h), or 1 without W_g
//
// transition_cache   Z from E and V_r^T                    spine_head     a causal head (causal_head.hpp), for block_sampler and the like
// transition_spine   the injection, for any backbone       spined_block   a block model of a backbone that runs layer by layer
// Backbones are callers' own:
//   begin(context, slots) -> tensor_view<float, 2>   hidden states [K, d] of the rows that predict slots, in the backbone's memory, rows contiguous
//   num_layers(), layer(l)                           attention and MLP of layer l on the whole block, in place
//   finish() -> block_prediction                     base logits U and hidden states h after the last layer
// Without attention among the rows, slot j reaches slot i after layer i - j, never a slot before it. Gates at 0 (b_l = -infinity: exactly) and W = 0 are DFlash
// bit for bit, and so is r = 0. K = 1: the anchor alone injects.
// Row-major float, views only; sums in float. Errors: shapes, tokens without a row. Cost: O(K r d) per layer beyond the backbone, O(V r + r^2 + r d) per slot for the
// head. Memory: Z is V r numbers. Loss: transition_spine_loss.hpp. Source: DSpine, after the abstract; shapes of gates and gamma are ours.
//
//     heddle::spined_block spined{backbone, heddle::transition_spine{cache, layers}};
//     heddle::block_sampler drafter{spined, heddle::spine_head{{.cache = cache, .transition = w}}, {.num_slots = 8}};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/causal_head.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace heddle {

struct spine_layer_weights {
  weight_matrix project{};         ///< P [r, d]
  weight_matrix inject{};          ///< Q [d, r]
  std::span<const float> gate{};   ///< a [2 d]
  float gate_bias = 0.f;           ///< b
};
struct spine_head_weights {
  weight_matrix cache{};           ///< Z [V, r]
  weight_matrix transition{};      ///< W [r, r]
  weight_matrix modulation{};      ///< W_g [r, d]; absent: gamma = 1
};

template <class B>
concept layered_block = requires(B& b, std::span<const std::int32_t> context, std::int32_t n) {
  { b.begin(context, n) } -> std::convertible_to<tensor_view<float, 2>>;
  { b.num_layers() } -> std::convertible_to<std::int64_t>;
  b.layer(n);
  { b.finish() } -> std::convertible_to<block_prediction>;
};

inline namespace HEDDLE_ISA {

/// Z [V, r] = E V_r, for E [V, d] and the singular vectors as rows [r, d].
inline void transition_cache(const weight_matrix& embedding, const weight_matrix& basis, tensor_view<float, 2> cache) {
  detail::require_weight("transition_cache", "embedding", embedding, -1, -1), detail::require_weight("transition_cache", "basis", basis, -1, embedding.extent(1));
  require_shape("transition_cache", "cache", cache, extents{embedding.extent(0), basis.extent(0)});
  for (std::int64_t v = 0; v < embedding.extent(0); ++v)
    for (std::int64_t k = 0; k < basis.extent(0); ++k) cache(v, k) = detail::dot(embedding.at(v), basis.at(k), embedding.extent(1));
}

class transition_spine {
 public:
  /// Views of cache and weights; `layers` is copied.
  transition_spine(const weight_matrix& cache, std::span<const spine_layer_weights> layers) : cache_(cache), layers_(layers.begin(), layers.end()) {
    const std::int64_t r = cache.extent(1);
    detail::require_weight("transition_spine", "cache", cache, -1, r);
    for (const spine_layer_weights& w : layers_) {
      const std::int64_t d = w.inject.extent(0);
      detail::require_weight("transition_spine", "project", w.project, r, d), detail::require_weight("transition_spine", "inject", w.inject, d, r);
      require(static_cast<std::int64_t>(w.gate.size()) == 2 * d, "transition_spine: argument 'gate' has ", w.gate.size(), " weights; expected two per channel, ", 2 * d);
      require(w.gate_bias == w.gate_bias, "transition_spine: argument 'gate_bias' is NaN");
    }
  }
  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }

  /// hidden [K, d]: the slots' states after layer `layer`.
  void inject(std::int32_t layer, std::int32_t anchor, tensor_view<float, 2> hidden) {
    require(layer >= 0 && layer < num_layers(), "transition_spine::inject: argument 'layer' is ", layer, "; expected 0 to ", num_layers() - 1);
    const spine_layer_weights& w = layers_[static_cast<std::size_t>(layer)];
    detail::require_weight("transition_spine::inject", "hidden", hidden, -1, w.inject.extent(0));
    const std::span<const float> first = detail::row_of("transition_spine::inject", cache_, anchor);
    const auto d = static_cast<std::size_t>(hidden.extent(1)), r = first.size();
    slots_ = hidden.extent(0);
    states_.assign((static_cast<std::size_t>(slots_) + 1) * r, 0.f);   // u_0 .. u_K
    std::copy(first.begin(), first.end(), states_.begin());
    for (std::int64_t i = 0; i < slots_; ++i) detail::add_product(w.project, {hidden.at(i), d}, std::span(states_).subspan((static_cast<std::size_t>(i) + 1) * r, r));
    if (r == 0) return;
    for (std::int64_t i = 0; i < slots_; ++i) {
      heard_.assign(d, 0.f);
      detail::add_product(w.inject, std::span<const float>(states_).subspan(static_cast<std::size_t>(i) * r, r), heard_);
      const float x = detail::dot(w.gate.data(), hidden.at(i), hidden.extent(1)) + detail::dot(w.gate.data() + d, heard_.data(), hidden.extent(1)) + w.gate_bias;
      if (x == -simd::infinity) continue;
      const float gate = detail::sigmoid(x);
      for (std::size_t k = 0; k < d; ++k) hidden.at(i)[k] = simd::fma(gate, heard_[k], hidden.at(i)[k]);
    }
  }
  /// u_1 .. u_K of the last call, [K, r]: what the loss compares with labels.
  tensor_view<const float, 2> transitions() const { return {states_.data() + cache_.extent(1), extents{slots_, cache_.extent(1)}}; }

 private:
  weight_matrix cache_;
  aligned_vector<spine_layer_weights> layers_;
  aligned_vector<float> states_, heard_;
  std::int64_t slots_ = 0;
};

class spine_head {
 public:
  static constexpr bool restricts_support = false;
  explicit spine_head(const spine_head_weights& weights) : w_(weights) {
    const std::int64_t r = w_.cache.extent(1);
    detail::require_weight("spine_head", "cache", w_.cache, -1, r), detail::require_weight("spine_head", "transition", w_.transition, r, r);
    if (w_.modulation.data()) detail::require_weight("spine_head", "modulation", w_.modulation, r, -1);
  }
  void start() {}
  void correct(std::int32_t, std::int32_t previous, std::span<const float> hidden, std::span<float> logits) {
    detail::require_vocabulary("spine_head", logits, w_.cache);
    const std::span<const float> z = detail::row_of("spine_head", w_.cache, previous);
    if (z.empty()) return;
    next_.assign(z.size(), 0.f);
    detail::add_product(w_.transition, z, next_);
    if (w_.modulation.data()) {
      detail::require_hidden("spine_head", hidden, w_.modulation.extent(1));
      gamma_.assign(z.size(), 0.f);
      detail::add_product(w_.modulation, hidden, gamma_);
      for (std::size_t k = 0; k < z.size(); ++k) next_[k] *= detail::sigmoid(gamma_[k]);
    }
    detail::add_product(w_.cache, next_, logits);
  }

 private:
  spine_head_weights w_;
  aligned_vector<float> next_, gamma_;
};

template <layered_block Backbone>
class spined_block {
 public:
  spined_block(Backbone& backbone, transition_spine spine) : backbone_(backbone), spine_(std::move(spine)) {}

  block_prediction predict(std::span<const std::int32_t> context, std::int32_t slots) {
    require(!context.empty(), "spined_block::predict: argument 'context' is empty; expected at least the anchor");
    require(static_cast<std::int64_t>(backbone_.num_layers()) == spine_.num_layers(), "spined_block: the backbone has ", backbone_.num_layers(), " layers; the spine has weights for ", spine_.num_layers());
    const tensor_view<float, 2> hidden = backbone_.begin(context, slots);
    for (std::int32_t layer = 0; layer < spine_.num_layers(); ++layer) {
      backbone_.layer(layer);
      spine_.inject(layer, context.back(), hidden);
    }
    return backbone_.finish();
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { backbone_.keep(path); }) backbone_.keep(path);
  }

 private:
  Backbone& backbone_;
  transition_spine spine_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
