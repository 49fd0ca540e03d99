// Draft heads: small blocks that carry the target's last hidden state forward, a token each.
//
//   s_0 = h,  the final hidden state of the last token whose row is known (what the target's unembedding U reads)
//   s_i = s_{i-1} + W_out^i silu(W_in^i [s_{i-1}; e_i / rms(e_i)])        i = 1 .. K, e_i the target's embedding of the token that follows
//   law of the token after that one: softmax(U s_i), over the draft vocabulary: the rows of U that the heads keep, or all
//
// With x_n the newest token and h the state of row n - 1 (which decided x_n), head 1 reads x_n and speaks of x_{n+1}, head 2 reads x_{n+1}: the laws are
// conditional on the drafts before (condition C2 of draft_tree.hpp). Embedding and unembedding are the target's, frozen, and the caller's; W_out = 0 makes
// s_i = h. The residual block is Medusa's (2401.10774), reading the drafted tokens Hydra's (2402.05109), the draft vocabulary FR-Spec's (2502.14856).
//
// Shapes: W_in [width, 2 d], W_out [d, width], float, rows contiguous; state and embedding [d]. rms(e) = sqrt(mean e^2); an embedding of zeros stays zero.
// Sums: chains of sixteen lanes (draft/detail/dense_layer.hpp): bits do not depend on threads, nor, with fused multiply-add, on the instruction set.
// Errors: sizes out of range, tokens of the draft vocabulary that do not ascend strictly within the vocabulary. NaN in the state stays NaN.
// Cost of advance(): the 3 width d weights of the head once; no allocation after the first call with the same scratch.
//
//     heddle::draft_heads heads({.hidden_size = 576, .width = 288, .num_heads = 3, .vocabulary_size = 49152});
//     heddle::draft_head_scratch scratch;
//     std::vector<float> state = last_hidden;
//     for (std::int32_t i = 0; i < 3; ++i) {
//       heads.advance(i, embedding_of(token), state, scratch);
//       token = argmax(unembed(state));
//     }
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/draft/detail/dense_layer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct draft_head_shape {
  std::int64_t hidden_size = 0;      ///< d of the target, 1 to 2^20
  std::int64_t width = 0;            ///< of a block's inner layer, 1 to 2^20
  std::int64_t num_heads = 0;        ///< K, 1 to 64
  std::int64_t vocabulary_size = 0;  ///< of the target, 1 to 2^30
  friend bool operator==(const draft_head_shape&, const draft_head_shape&) = default;
};

namespace detail::inline HEDDLE_ISA {

inline void check_shape(const char* function, const draft_head_shape& s) {
  const auto within = [&](const char* name, std::int64_t value, std::int64_t most) { require(value >= 1 && value <= most, function, ": '", name, "' is ", value, "; expected 1 to ", most); };
  within("hidden_size", s.hidden_size, std::int64_t{1} << 20), within("width", s.width, std::int64_t{1} << 20);
  within("num_heads", s.num_heads, 64), within("vocabulary_size", s.vocabulary_size, std::int64_t{1} << 30);
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

struct draft_head_scratch {
  aligned_vector<float> input, inner;
};

class draft_heads {
 public:
  /// Weights are zero. `tokens`: the draft vocabulary, ascending; empty: the whole one.
  explicit draft_heads(const draft_head_shape& shape, std::span<const std::int32_t> tokens = {}) : shape_(shape) {
    detail::check_shape("draft_heads", shape);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      require(tokens[i] >= 0 && tokens[i] < shape.vocabulary_size && (i == 0 || tokens[i - 1] < tokens[i]), "draft_heads: argument 'tokens': entry ", i, " is ", tokens[i], "; expected tokens of the vocabulary, ascending, each once");
    tokens_.assign(tokens.begin(), tokens.end());
    weights_.assign(static_cast<std::size_t>(shape.num_heads * weights_per_head()), 0.f);
  }

  const draft_head_shape& shape() const { return shape_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  /// Columns of the heads' laws: the draft vocabulary.
  std::int64_t draft_vocabulary_size() const { return tokens_.empty() ? shape_.vocabulary_size : static_cast<std::int64_t>(tokens_.size()); }
  std::int32_t token_of(std::int64_t column) const { return tokens_.empty() ? static_cast<std::int32_t>(column) : tokens_[static_cast<std::size_t>(column)]; }

  /// All weights: of head 1 W_in, W_out, then those of head 2, ...
  std::span<float> weights() { return weights_; }
  std::span<const float> weights() const { return weights_; }
  tensor_view<const float, 2> in(std::int64_t head) const { return {at(head), extents{shape_.width, 2 * shape_.hidden_size}}; }
  tensor_view<const float, 2> out(std::int64_t head) const { return {at(head) + 2 * shape_.width * shape_.hidden_size, extents{shape_.hidden_size, shape_.width}}; }

  /// state <- s_{head+1} from s_head.
  void advance(std::int64_t head, std::span<const float> embedding, std::span<float> state, draft_head_scratch& scratch) const {
    const auto d = static_cast<std::size_t>(shape_.hidden_size);
    require(head >= 0 && head < shape_.num_heads, "draft_heads::advance: argument 'head' is ", head, "; expected 0 to ", shape_.num_heads - 1);
    require(embedding.size() == d, "draft_heads::advance: argument 'embedding' has ", embedding.size(), " channels; expected ", d);
    require(state.size() == d, "draft_heads::advance: argument 'state' has ", state.size(), " channels; expected ", d);
    scratch.input.resize(2 * d), scratch.inner.assign(static_cast<std::size_t>(shape_.width), 0.f);
    const float scale = inverse_rms(embedding);
    for (std::size_t k = 0; k < d; ++k) scratch.input[k] = state[k], scratch.input[d + k] = scale * embedding[k];
    detail::add_product(in(head), scratch.input, scratch.inner);
    for (float& a : scratch.inner) a *= detail::sigmoid(a);
    detail::add_product(out(head), scratch.inner, state);
  }

  /// 1 / rms(x); 0 for zeros.
  static float inverse_rms(std::span<const float> x) {
    double sum = 0;
    for (const float v : x) sum = math::fma(static_cast<double>(v), static_cast<double>(v), sum);
    return sum > 0 ? static_cast<float>(1. / __builtin_sqrt(sum / static_cast<double>(x.size()))) : 0.f;
  }

 private:
  std::int64_t weights_per_head() const { return 3 * shape_.width * shape_.hidden_size; }
  const float* at(std::int64_t head) const { return weights_.data() + head * weights_per_head(); }

  draft_head_shape shape_;
  aligned_vector<std::int32_t> tokens_;
  aligned_vector<float> weights_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
