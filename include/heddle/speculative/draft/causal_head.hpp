// Heads that turn a block drafter's independent slots into a chain: q_i(v | x_<i) proportional to exp(U_i(v) + b_i(x_<i, v)).
//
//   no_correction   b = 0: DFlash
//   markov_head     e = W_1[x_{i-1}];  b = W_2 e                              (DSpark), gated: b = W_2 (sigma(W_g [h_i; e]) * e)
//   rnn_head        c = [s_{i-1}; W_1[x_{i-1}]; h_i];  g = sigma(W_g c);  s_i = g s_{i-1} + (1 - g) tanh(W_s c);  b = W_2 tanh(W_o c)    (DSpark, recurrent)
//   domino_head     s_i = GRU(s_{i-1}, E[x_{i-1}]);  b = W_b silu(W_a [h_i; s_i])                                             (Domino)
//   candidate_head  C_i = the k best tokens of U_i;  U_i(c) + <A[x_{i-1}] * W_h h_i, S[c]> on C_i, -infinity elsewhere           (DFlash V2)
// x_0 is the anchor, the last committed token; states start at 0. With rank 0, or weights that are zero, every head but the last is DFlash, bit for bit.
// GRU (Cho et al. 2014): r = sigma(W_r [x; s]), z = sigma(W_z [x; s]), n = tanh(W_n [x; r * s]), s' = (1 - z) n + z s.
//
// All matrices are row-major float: tables [V, r], W_2, W_b and S as [V, r] too (row v makes the logit of v). Sums over r in float.
// Interface: start() before a block; correct(slot, previous, hidden, logits) once per slot, in order, changes the slot's logits.
// markov_head also estimates the chance that the slot is accepted, confidence c_i = sigma(w . [h_i; e]), for prefix_schedule.hpp. It looks at x_{i-1}, not at
// x_i, as C3 of draft_tree.hpp demands.
// Sources: DFlash, DSpark, Domino, DFlash V2.
//
//     heddle::markov_head head{{.embedding = w1, .projection = w2}};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/draft/detail/dense_layer.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle {

using weight_matrix = tensor_view<const float, 2>;

template <class H>
concept causal_head = requires(H& head, std::int32_t slot, std::span<const float> hidden, std::span<float> logits) {
  head.start();
  head.correct(slot, slot, hidden, logits);
  { H::restricts_support } -> std::convertible_to<bool>;
};

struct no_correction {
  static constexpr bool restricts_support = false;
  [[gnu::always_inline]] constexpr void start() {}
  [[gnu::always_inline]] constexpr void correct(std::int32_t, std::int32_t, std::span<const float>, std::span<float>) {}
};

struct markov_weights {
  weight_matrix embedding{};            ///< W_1 [V, r]
  weight_matrix projection{};           ///< W_2 [V, r]
  weight_matrix gate{};                 ///< W_g [r, d + r]; absent: no gate
  std::span<const float> confidence{};  ///< w [d + r]; absent: no estimate
};
struct rnn_weights {
  weight_matrix embedding{};     ///< W_1 [V, r]
  weight_matrix projection{};    ///< W_2 [V, o]
  weight_matrix gate{};          ///< W_g [s, s + r + d]
  weight_matrix state{};         ///< W_s [s, s + r + d]
  weight_matrix output{};        ///< W_o [o, s + r + d]
};
struct domino_weights {
  weight_matrix embedding{};     ///< E [V, e]
  weight_matrix reset{};         ///< W_r [s, e + s]
  weight_matrix update{};        ///< W_z [s, e + s]
  weight_matrix candidate{};     ///< W_n [s, e + s]
  weight_matrix hidden{};        ///< W_a [a, d + s]
  weight_matrix projection{};    ///< W_b [V, a]
};
struct candidate_weights {
  weight_matrix previous{};      ///< A [V, r]
  weight_matrix hidden{};        ///< W_h [r, d]
  weight_matrix candidate{};     ///< S [V, r]
  std::int32_t candidates = 16;  ///< k
};

namespace detail::inline HEDDLE_ISA {

/// A concatenation of vectors.
class joined {
 public:
  void clear() { values_.clear(); }
  joined& add(std::span<const float> part) {
    values_.insert(values_.end(), part.begin(), part.end());
    return *this;
  }
  std::span<const float> all() const { return values_; }

 private:
  aligned_vector<float> values_;
};

inline std::span<const float> row_of(const char* function, const weight_matrix& table, std::int32_t token) {
  require(token >= 0 && token < table.extent(0), function, ": token ", token, " has no row in a table of ", table.extent(0));
  return {table.at(token), static_cast<std::size_t>(table.extent(1))};
}
inline void require_hidden(const char* function, std::span<const float> hidden, std::int64_t d) {
  require(static_cast<std::int64_t>(hidden.size()) == d, function, ": the block's hidden states have ", hidden.size(), " channels; the weights are for ", d);
}
inline void require_vocabulary(const char* function, std::span<const float> logits, const weight_matrix& projection) {
  require(static_cast<std::int64_t>(logits.size()) == projection.extent(0), function, ": the block's rows have ", logits.size(), " logits; the weights are for ", projection.extent(0));
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

class markov_head {
 public:
  static constexpr bool restricts_support = false;
  explicit markov_head(const markov_weights& weights) : w_(weights), rank_(weights.embedding.extent(1)) {
    detail::require_weight("markov_head", "embedding", w_.embedding, -1, rank_), detail::require_weight("markov_head", "projection", w_.projection, w_.embedding.extent(0), rank_);
    if (w_.gate.data()) hidden_ = w_.gate.extent(1) - rank_, detail::require_weight("markov_head", "gate", w_.gate, rank_, -1);
    if (!w_.confidence.empty()) {
      const std::int64_t d = static_cast<std::int64_t>(w_.confidence.size()) - rank_;
      require(d >= 0 && (hidden_ < 0 || d == hidden_), "markov_head: argument 'confidence' has ", w_.confidence.size(), " weights; expected one per hidden channel and rank");
      hidden_ = d;
    }
    require(hidden_ >= -1, "markov_head: argument 'gate' has ", w_.gate.extent(1), " columns; expected more than the rank, ", rank_);
  }
  void start() {}
  void correct(std::int32_t, std::int32_t previous, std::span<const float> hidden, std::span<float> logits) {
    detail::require_vocabulary("markov_head", logits, w_.projection);
    const std::span<const float> e = detail::row_of("markov_head", w_.embedding, previous);
    if (hidden_ >= 0) detail::require_hidden("markov_head", hidden, hidden_), input_.clear(), input_.add(hidden).add(e);
    if (!w_.confidence.empty()) confidence_ = static_cast<double>(detail::sigmoid(detail::dot(w_.confidence.data(), input_.all().data(), hidden_ + rank_)));
    if (rank_ == 0) return;
    if (!w_.gate.data()) return detail::add_product(w_.projection, e, logits);
    gated_.assign(e.size(), 0.f);
    detail::add_product(w_.gate, input_.all(), gated_);
    for (std::size_t k = 0; k < e.size(); ++k) gated_[k] = detail::sigmoid(gated_[k]) * e[k];
    detail::add_product(w_.projection, gated_, logits);
  }
  bool estimates_confidence() const { return !w_.confidence.empty(); }
  /// Of the slot corrected last.
  double confidence() const { return confidence_; }

 private:
  markov_weights w_;
  std::int64_t rank_, hidden_ = -1;
  detail::joined input_;
  aligned_vector<float> gated_;
  double confidence_ = 1.;
};

class rnn_head {
 public:
  static constexpr bool restricts_support = false;
  explicit rnn_head(const rnn_weights& weights) : w_(weights), state_(static_cast<std::size_t>(weights.state.extent(0))) {
    const std::int64_t s = w_.state.extent(0), r = w_.embedding.extent(1), all = w_.state.extent(1), o = w_.output.extent(0);
    hidden_ = all - s - r;
    require(hidden_ >= 0, "rnn_head: argument 'state' has ", all, " columns; expected at least state and rank, ", s + r);
    detail::require_weight("rnn_head", "embedding", w_.embedding, -1, r), detail::require_weight("rnn_head", "projection", w_.projection, w_.embedding.extent(0), o);
    detail::require_weight("rnn_head", "gate", w_.gate, s, all), detail::require_weight("rnn_head", "state", w_.state, s, all), detail::require_weight("rnn_head", "output", w_.output, o, all);
  }
  void start() { state_.assign(state_.size(), 0.f); }
  void correct(std::int32_t, std::int32_t previous, std::span<const float> hidden, std::span<float> logits) {
    detail::require_vocabulary("rnn_head", logits, w_.projection), detail::require_hidden("rnn_head", hidden, hidden_);
    input_.clear(), input_.add(state_).add(detail::row_of("rnn_head", w_.embedding, previous)).add(hidden);
    gate_.assign(state_.size(), 0.f), next_.assign(state_.size(), 0.f), output_.assign(static_cast<std::size_t>(w_.output.extent(0)), 0.f);
    detail::add_product(w_.gate, input_.all(), gate_), detail::add_product(w_.state, input_.all(), next_), detail::add_product(w_.output, input_.all(), output_);
    for (std::size_t i = 0; i < state_.size(); ++i) {
      const float g = detail::sigmoid(gate_[i]);
      state_[i] = simd::fma(g, state_[i] - detail::tanh(next_[i]), detail::tanh(next_[i]));
    }
    for (float& x : output_) x = detail::tanh(x);
    if (!output_.empty()) detail::add_product(w_.projection, output_, logits);
  }

 private:
  rnn_weights w_;
  std::int64_t hidden_ = 0;
  detail::joined input_;
  aligned_vector<float> state_, gate_, next_, output_;
};

class domino_head {
 public:
  static constexpr bool restricts_support = false;
  explicit domino_head(const domino_weights& weights) : w_(weights), state_(static_cast<std::size_t>(weights.reset.extent(0))) {
    const std::int64_t s = w_.reset.extent(0), e = w_.embedding.extent(1), a = w_.hidden.extent(0);
    hidden_ = w_.hidden.extent(1) - s;
    require(hidden_ >= 0, "domino_head: argument 'hidden' has ", w_.hidden.extent(1), " columns; expected at least the state, ", s);
    detail::require_weight("domino_head", "embedding", w_.embedding, -1, e), detail::require_weight("domino_head", "reset", w_.reset, s, e + s);
    detail::require_weight("domino_head", "update", w_.update, s, e + s), detail::require_weight("domino_head", "candidate", w_.candidate, s, e + s);
    detail::require_weight("domino_head", "hidden", w_.hidden, a, hidden_ + s), detail::require_weight("domino_head", "projection", w_.projection, w_.embedding.extent(0), a);
  }
  void start() { state_.assign(state_.size(), 0.f); }
  void correct(std::int32_t, std::int32_t previous, std::span<const float> hidden, std::span<float> logits) {
    detail::require_vocabulary("domino_head", logits, w_.projection), detail::require_hidden("domino_head", hidden, hidden_);
    const std::span<const float> x = detail::row_of("domino_head", w_.embedding, previous);
    const std::size_t s = state_.size();
    reset_.assign(s, 0.f), update_.assign(s, 0.f), candidate_.assign(s, 0.f), middle_.assign(static_cast<std::size_t>(w_.hidden.extent(0)), 0.f);
    input_.clear(), input_.add(x).add(state_);
    detail::add_product(w_.reset, input_.all(), reset_), detail::add_product(w_.update, input_.all(), update_);
    for (std::size_t i = 0; i < s; ++i) reset_[i] = detail::sigmoid(reset_[i]) * state_[i];
    input_.clear(), input_.add(x).add(reset_);
    detail::add_product(w_.candidate, input_.all(), candidate_);
    for (std::size_t i = 0; i < s; ++i) {
      const float z = detail::sigmoid(update_[i]), n = detail::tanh(candidate_[i]);
      state_[i] = simd::fma(z, state_[i] - n, n);
    }
    input_.clear(), input_.add(hidden).add(state_);
    detail::add_product(w_.hidden, input_.all(), middle_);
    for (float& m : middle_) m *= detail::sigmoid(m);
    if (!middle_.empty()) detail::add_product(w_.projection, middle_, logits);
  }

 private:
  domino_weights w_;
  std::int64_t hidden_ = 0;
  detail::joined input_;
  aligned_vector<float> state_, reset_, update_, candidate_, middle_;
};

class candidate_head {
 public:
  static constexpr bool restricts_support = true;
  explicit candidate_head(const candidate_weights& weights) : w_(weights) {
    const std::int64_t r = w_.previous.extent(1);
    require(w_.candidates >= 1, "candidate_head: argument 'candidates' is ", w_.candidates, "; expected 1 or more");
    detail::require_weight("candidate_head", "previous", w_.previous, -1, r), detail::require_weight("candidate_head", "hidden", w_.hidden, r, -1);
    detail::require_weight("candidate_head", "candidate", w_.candidate, w_.previous.extent(0), r);
  }
  void start() {}
  void correct(std::int32_t, std::int32_t previous, std::span<const float> hidden, std::span<float> logits) {
    detail::require_vocabulary("candidate_head", logits, w_.candidate), detail::require_hidden("candidate_head", hidden, w_.hidden.extent(1));
    const std::span<const float> a = detail::row_of("candidate_head", w_.previous, previous);
    query_.assign(a.size(), 0.f);
    detail::add_product(w_.hidden, hidden, query_);
    for (std::size_t k = 0; k < a.size(); ++k) query_[k] *= a[k];
    const slot_ranking best = ranker_.rank(tensor_view<const float, 2>{logits.data(), extents{1, static_cast<std::int64_t>(logits.size())}}, w_.candidates);
    scores_.clear();
    for (const std::int32_t c : best.tokens_of(0)) scores_.push_back(logits[static_cast<std::size_t>(c)] + detail::dot(w_.candidate.at(c), query_.data(), w_.candidate.extent(1)));
    for (float& z : logits) z = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < scores_.size(); ++i) logits[static_cast<std::size_t>(best.tokens_of(0)[i])] = scores_[i];
  }

 private:
  candidate_weights w_;
  slot_ranker ranker_;
  aligned_vector<float> query_, scores_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
