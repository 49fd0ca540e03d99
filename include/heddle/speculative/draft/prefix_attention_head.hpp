// A causal head (causal_head.hpp) that reads the committed text again in the light of the token before: a drafter of order one.
//
//   q = W_q [W_1[x_{i-1}]; h_i]        o = per head, softmax(q . k_j / sqrt(a)) over the rows j of the committed text, of v_j        b_i = W_2 o
//
// It takes the place of the row of a Markov head, which knows x_{i-1} and nothing of the text: much of what an order-one drafter loses beyond its floor
// (audit/information_floor.hpp) is the model's, not the order's. b_i depends on x_{i-1}, h_i and the text, on no other token of the block.
// Keys k [n, heads a] and values v [n, heads c] are linear maps of the text's context features (block_model.hpp). Whoever owns them appends rows as tokens are
// committed and sets the views in prefix_features, which the head refers to and reads at every slot. Without rows or value channels, or with W_2 = 0, it is
// DFlash, bit for bit.
// Row-major float, views only; sums in float, rows in their order. Errors: shapes, tokens without a row. NaN among keys or values reaches the logits, where the
// sampler names the slot. Cost: O(heads (a + c) n + V heads c) per slot.
// Source: the prefix-attention head of the information-floor study, after the abstract; its shapes are ours.
//
//     heddle::prefix_features text{keys, values};
//     heddle::block_sampler drafter{model, heddle::prefix_attention_head{{.embedding = w1, .query = wq, .projection = w2}, text}, {.num_slots = 8}};
#pragma once
#include <heddle/speculative/draft/causal_head.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct prefix_features {
  weight_matrix keys{};     ///< [n, heads a]
  weight_matrix values{};   ///< [n, heads c]
};

struct prefix_attention_weights {
  weight_matrix embedding{};    ///< W_1 [V, r]
  weight_matrix query{};        ///< W_q [heads a, r + d]
  weight_matrix projection{};   ///< W_2 [V, heads c]
  std::int32_t heads = 1;
};

inline namespace HEDDLE_ISA {

class prefix_attention_head {
 public:
  static constexpr bool restricts_support = false;
  /// `text` is referred to.
  prefix_attention_head(const prefix_attention_weights& weights, const prefix_features& text) : w_(weights), text_(&text) {
    const std::int64_t r = w_.embedding.extent(1);
    detail::require_weight("prefix_attention_head", "embedding", w_.embedding, -1, r), detail::require_weight("prefix_attention_head", "query", w_.query, -1, -1);
    detail::require_weight("prefix_attention_head", "projection", w_.projection, w_.embedding.extent(0), -1);
    require(w_.query.extent(1) >= r, "prefix_attention_head: argument 'query' has ", w_.query.extent(1), " columns; expected at least the rank, ", r);
    require(w_.heads >= 1 && w_.query.extent(0) % w_.heads == 0 && w_.projection.extent(1) % w_.heads == 0, "prefix_attention_head: argument 'heads' is ", w_.heads, "; expected a divisor of the rows of 'query', ", w_.query.extent(0),
            ", and the columns of 'projection', ", w_.projection.extent(1));
  }
  void start() {}
  void correct(std::int32_t, std::int32_t previous, std::span<const float> hidden, std::span<float> logits) {
    detail::require_vocabulary("prefix_attention_head", logits, w_.projection);
    const std::span<const float> e = detail::row_of("prefix_attention_head", w_.embedding, previous);
    detail::require_hidden("prefix_attention_head", hidden, w_.query.extent(1) - w_.embedding.extent(1));
    const std::int64_t n = text_->keys.extent(0), width = w_.query.extent(0), values = w_.projection.extent(1);
    if (n == 0 || width == 0 || values == 0) return;
    detail::require_weight("prefix_attention_head", "keys", text_->keys, n, width), detail::require_weight("prefix_attention_head", "values", text_->values, n, values);
    input_.clear(), input_.add(e).add(hidden);
    query_.assign(static_cast<std::size_t>(width), 0.f), read_.assign(static_cast<std::size_t>(values), 0.f);
    detail::add_product(w_.query, input_.all(), query_);
    for (std::int64_t head = 0; head < w_.heads; ++head) attend(head * (width / w_.heads), width / w_.heads, head * (values / w_.heads), values / w_.heads);
    detail::add_product(w_.projection, read_, logits);
  }

 private:
  /// Channels first .. first + a - 1 of query and keys, to .. to + c - 1 of the values.
  void attend(std::int64_t first, std::int64_t a, std::int64_t to, std::int64_t c) {
    const float scale = 1.f / std::sqrt(static_cast<float>(a));
    float max = -simd::infinity, sum = 0.f;
    scores_.clear();
    for (std::int64_t j = 0; j < text_->keys.extent(0); ++j) {
      scores_.push_back(scale * detail::dot(query_.data() + first, text_->keys.at(j) + first, a));
      if (scores_.back() > max) max = scores_.back();
    }
    for (float& s : scores_) sum += s = simd::exp(s - max);
    for (std::size_t j = 0; j < scores_.size(); ++j) {
      const float share = scores_[j] / sum, *const v = text_->values.at(static_cast<std::int64_t>(j)) + to;
      for (std::int64_t k = 0; k < c; ++k) read_[static_cast<std::size_t>(to + k)] = simd::fma(share, v[k], read_[static_cast<std::size_t>(to + k)]);
    }
  }
  prefix_attention_weights w_;
  const prefix_features* text_;
  detail::joined input_;
  aligned_vector<float> query_, read_, scores_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
