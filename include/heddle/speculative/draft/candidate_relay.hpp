// DRelay: the candidates of all slots are read together, then a causal selector decides slot by slot whether the drafter's own choice stays or is repaired.
//
//   pools      C_i = the k best tokens of U_i (logit descending, ties to the lowest id); native n_i = C_i[0]; a token at -infinity is in no pool
//   embed      z_{i,c} = W_e e(c) + W_u [U_i(c), m_i(c), rank] + W_h h_i + pos_i                 m_i = softmax U_i, rank = 0 .. k - 1
//   read       g = reader(z): all K k candidates see each other, no token has been chosen        candidate_attention: g = z + W_o Attn(W_q z, W_k z, W_v z)
//   select     s_i = GRU(s_{i-1}, [e(x_{i-1}); g_{i-1, x_{i-1}}]),  s_0 = 0, x_0 the anchor, g of a token outside its pool (the anchor) 0
//              rho_i = sigma((w . [s_i; g_{i,n_i}] + b) / T)                                     the native token stays
//              pi_i(c) = softmax over C_i without n_i of (s_i . W g_{i,c}) / T                   otherwise: which alternative
//   draw       q_i = rho_i delta_{n_i} + (1 - rho_i) pi_i,  x_i ~ q_i                            candidate_relay: a sampled chain
//              T = 0: n_i if rho_i >= 1/2, else argmax pi_i (ties to the better rank)            greedy_candidate_relay: deterministic
// Slot i depends on x_<i and all pools, never on its own or later draws, and q_i, over the pool, is the row handed to the verifier as it was drawn from (C2, C3 of
// draft_tree.hpp): verify::token and verify::block keep the target's law. rho = 1 is the native drafter; so is k = 1, or a pool of one token.
//
// The reader is any callable reader(tensor_view<float, 2> z, const slot_ranking& pools), in place; row i k + c belongs to candidate c of slot i, rows beyond
// counts[i] are no candidates (they hold 0 and must not be read). GRU as in causal_head.hpp. All weights row-major float, views only; sums in float, laws in
// double, stored as float. Keys: {seed, request, position of slot 1, purpose::draft, slot - 1}. NaN, +infinity or an empty row is an error that names the slot.
// Losses: candidate_relay_loss.hpp. Cost: O((K k)^2 d) for the reader, O(K k d) for the selector besides its K GRU steps, one ranking of the block.
// Source: DRelay, after the abstract; shapes of the modules are ours.
//
//     heddle::candidate_relay drafter{model, weights, heddle::candidate_attention{attention}, {.num_slots = 8, .candidates = 16}};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/causal_head.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace heddle {

struct relay_weights {
  weight_matrix embedding{};            ///< e [V, e]
  weight_matrix from_embedding{};       ///< W_e [d, e]
  weight_matrix from_scores{};          ///< W_u [d, 3]
  weight_matrix from_hidden{};          ///< W_h [d, h]; absent: hidden states are not read
  weight_matrix positions{};            ///< pos [slots, d]
  weight_matrix reset{};                ///< W_r [s, e + d + s]
  weight_matrix update{};               ///< W_z [s, e + d + s]
  weight_matrix candidate{};            ///< W_n [s, e + d + s]
  std::span<const float> keep{};        ///< w [s + d]
  float keep_bias = 0.f;                ///< b
  weight_matrix alternative{};          ///< W [s, d]
};

struct candidate_attention_weights {
  weight_matrix query{}, key{}, value{};   ///< [heads a, d]
  weight_matrix output{};                  ///< [d, heads a]
  std::int32_t heads = 1;
};

struct relay_options {
  std::int32_t num_slots = 15;     ///< K
  std::int32_t candidates = 16;    ///< k
  double temperature = 1.;         ///< T of the selector
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
};

template <class R>
concept candidate_reader = requires(R& reader, tensor_view<float, 2> z, const slot_ranking& pools) { reader(z, pools); };

inline namespace HEDDLE_ISA {

/// Every candidate attends to all, itself included, in both directions; softmax of q . k / sqrt(a).
class candidate_attention {
 public:
  explicit candidate_attention(const candidate_attention_weights& weights) : w_(weights) {
    const std::int64_t width = w_.query.extent(0), d = w_.query.extent(1);
    require(w_.heads >= 1 && width % w_.heads == 0, "candidate_attention: argument 'heads' is ", w_.heads, "; expected a divisor of the rows of 'query', ", width);
    detail::require_weight("candidate_attention", "query", w_.query, width, d), detail::require_weight("candidate_attention", "key", w_.key, width, d);
    detail::require_weight("candidate_attention", "value", w_.value, width, d), detail::require_weight("candidate_attention", "output", w_.output, d, width);
  }
  void operator()(tensor_view<float, 2> z, const slot_ranking& pools) {
    require(z.extent(1) == w_.query.extent(1), "candidate_attention: candidates have ", z.extent(1), " channels; the weights are for ", w_.query.extent(1));
    rows_.clear();
    for (std::int32_t slot = 0; slot < pools.num_slots(); ++slot)
      for (std::int32_t c = 0; c < pools.counts[static_cast<std::size_t>(slot)]; ++c) rows_.push_back(std::int64_t{slot} * pools.width + c);
    const auto width = static_cast<std::size_t>(w_.query.extent(0));
    queries_.assign(rows_.size() * width, 0.f), keys_.assign(queries_.size(), 0.f), values_.assign(queries_.size(), 0.f);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::span<const float> x(z.at(rows_[i]), static_cast<std::size_t>(z.extent(1)));
      detail::add_product(w_.query, x, std::span(queries_).subspan(i * width, width));
      detail::add_product(w_.key, x, std::span(keys_).subspan(i * width, width));
      detail::add_product(w_.value, x, std::span(values_).subspan(i * width, width));
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      mixed_.assign(width, 0.f);
      for (std::int32_t head = 0; head < w_.heads; ++head) mix(i, static_cast<std::size_t>(head), width);
      detail::add_product(w_.output, mixed_, std::span(z.at(rows_[i]), static_cast<std::size_t>(z.extent(1))));
    }
  }

 private:
  void mix(std::size_t i, std::size_t head, std::size_t width) {
    const std::size_t a = width / static_cast<std::size_t>(w_.heads), first = head * a;
    const float scale = 1.f / std::sqrt(static_cast<float>(a));
    scores_.clear();
    float max = -simd::infinity, sum = 0.f;
    for (std::size_t j = 0; j < rows_.size(); ++j) {
      scores_.push_back(scale * detail::dot(&queries_[i * width + first], &keys_[j * width + first], static_cast<std::int64_t>(a)));
      max = std::max(max, scores_.back());
    }
    for (float& s : scores_) sum += s = simd::exp(s - max);
    for (std::size_t j = 0; j < rows_.size(); ++j)
      for (std::size_t k = first; k < first + a; ++k) mixed_[k] = simd::fma(scores_[j] / sum, values_[j * width + k], mixed_[k]);
  }

  candidate_attention_weights w_;
  aligned_vector<std::int64_t> rows_;
  aligned_vector<float> queries_, keys_, values_, scores_, mixed_;
};

/// What the selector says about one slot: before the softmax, at temperature 1.
struct relay_scores {
  double keep = 0;                         ///< logit of rho
  std::span<const double> alternatives{};  ///< per candidate of the pool; the native one's entry, the first, means nothing
};

/// q over the pool, the native token first.
inline void relay_law(const relay_scores& scores, double temperature, aligned_vector<double>& q) {
  const std::size_t n = scores.alternatives.size();
  q.assign(n, 0.);
  if (n == 1) return void(q[0] = 1.);
  const double x = scores.keep / temperature, e = math::exp(x < 0. ? x : -x), keep = (x < 0. ? e : 1.) / (1. + e), leave = (x < 0. ? 1. : e) / (1. + e);
  double max = -math::infinity, sum = 0.;
  for (std::size_t c = 1; c < n; ++c) max = std::max(max, scores.alternatives[c]);
  for (std::size_t c = 1; c < n; ++c) sum += q[c] = math::exp((scores.alternatives[c] - max) / temperature);
  for (std::size_t c = 1; c < n; ++c) q[c] *= leave / sum;
  q[0] = keep;
}

/// Reader and selector over the pools of one block: read() once, then select() slot by slot with the token chosen (or, in training, the label) before it.
template <candidate_reader Reader>
class relay_selector {
 public:
  relay_selector(const relay_weights& weights, Reader reader) : w_(weights), reader_(std::move(reader)) {
    const std::int64_t e = w_.embedding.extent(1), d = w_.from_embedding.extent(0), s = w_.reset.extent(0), all = e + d + s;
    const auto check = [](const char* name, const weight_matrix& w, std::int64_t rows, std::int64_t columns) { detail::require_weight("candidate_relay", name, w, rows, columns); };
    check("embedding", w_.embedding, -1, e), check("from_embedding", w_.from_embedding, d, e), check("from_scores", w_.from_scores, d, 3), check("positions", w_.positions, -1, d);
    if (w_.from_hidden.data()) check("from_hidden", w_.from_hidden, d, -1);
    check("reset", w_.reset, s, all), check("update", w_.update, s, all), check("candidate", w_.candidate, s, all), check("alternative", w_.alternative, s, d);
    require(static_cast<std::int64_t>(w_.keep.size()) == s + d, "candidate_relay: argument 'keep' has ", w_.keep.size(), " weights; expected one per state and channel, ", s + d);
  }

  void read(const block_prediction& block, const slot_ranking& pools) {
    const std::int64_t d = w_.positions.extent(1);
    require(pools.num_slots() <= w_.positions.extent(0), "candidate_relay: the block has ", pools.num_slots(), " slots; 'positions' has ", w_.positions.extent(0), " rows");
    pools_ = pools;
    candidates_.assign(static_cast<std::size_t>(std::int64_t{pools.num_slots()} * pools.width * d), 0.f);
    for (std::int32_t slot = 0; slot < pools.num_slots(); ++slot) {
      slot_.assign(w_.positions.at(slot), w_.positions.at(slot) + d);
      if (w_.from_hidden.data()) {
        hidden_.resize(static_cast<std::size_t>(block.hidden.data() ? block.hidden.extent(1) : 0));
        detail::require_hidden("candidate_relay", hidden_, w_.from_hidden.extent(1));
        for (std::size_t k = 0; k < hidden_.size(); ++k) hidden_[k] = block.hidden(slot, static_cast<std::int64_t>(k));
        detail::add_product(w_.from_hidden, hidden_, slot_);
      }
      for (std::int32_t c = 0; c < pools.counts[static_cast<std::size_t>(slot)]; ++c) embed(block, slot, c);
    }
    reader_(tensor_view<float, 2>{candidates_.data(), extents{std::int64_t{pools.num_slots()} * pools.width, d}}, static_cast<const slot_ranking&>(pools_));
    state_.assign(static_cast<std::size_t>(w_.reset.extent(0)), 0.f);
  }

  relay_scores select(std::int32_t slot, std::int32_t previous) {
    advance(slot, previous);
    const std::size_t n = pools_.tokens_of(slot).size();
    input_.clear(), input_.add(state_).add(representation(slot, 0));
    weighed_.assign(static_cast<std::size_t>(w_.alternative.extent(1)), 0.f);   // W^T s
    for (std::size_t i = 0; i < state_.size(); ++i)
      for (std::size_t k = 0; k < weighed_.size(); ++k) weighed_[k] = simd::fma(state_[i], w_.alternative(static_cast<std::int64_t>(i), static_cast<std::int64_t>(k)), weighed_[k]);
    alternatives_.assign(n, 0.);
    for (std::size_t c = 1; c < n; ++c) alternatives_[c] = static_cast<double>(detail::dot(weighed_.data(), representation(slot, static_cast<std::int32_t>(c)).data(), static_cast<std::int64_t>(weighed_.size())));
    const double keep = static_cast<double>(detail::dot(w_.keep.data(), input_.all().data(), static_cast<std::int64_t>(w_.keep.size())) + w_.keep_bias);
    for (const double x : alternatives_) require(x - x == 0. && keep == keep, "candidate_relay: the selector's scores for slot ", slot, " are NaN or infinite");
    return {keep, alternatives_};
  }
  const slot_ranking& pools() const { return pools_; }

 private:
  std::span<float> representation(std::int32_t slot, std::int32_t c) {
    const auto d = static_cast<std::size_t>(w_.positions.extent(1));
    return std::span(candidates_).subspan((static_cast<std::size_t>(slot) * static_cast<std::size_t>(pools_.width) + static_cast<std::size_t>(c)) * d, d);
  }
  void embed(const block_prediction& block, std::int32_t slot, std::int32_t c) {
    const std::int32_t token = pools_.tokens_of(slot)[static_cast<std::size_t>(c)];
    const float scores[] = {block.logits(slot, token), static_cast<float>(math::exp(pools_.log_probs_of(slot)[static_cast<std::size_t>(c)])), static_cast<float>(c)};
    const std::span<float> z = representation(slot, c);
    std::copy(slot_.begin(), slot_.end(), z.begin());
    detail::add_product(w_.from_embedding, detail::row_of("candidate_relay", w_.embedding, token), z);
    detail::add_product(w_.from_scores, scores, z);
  }
  /// s_i
  void advance(std::int32_t slot, std::int32_t previous) {
    seen_.assign(static_cast<std::size_t>(w_.positions.extent(1)), 0.f);
    if (slot > 0) {
      const auto pool = pools_.tokens_of(slot - 1);
      const auto at = std::find(pool.begin(), pool.end(), previous);
      if (at != pool.end()) {
        const std::span<float> g = representation(slot - 1, static_cast<std::int32_t>(at - pool.begin()));
        seen_.assign(g.begin(), g.end());
      }
    }
    const std::span<const float> e = detail::row_of("candidate_relay", w_.embedding, previous);
    reset_.assign(state_.size(), 0.f), update_.assign(state_.size(), 0.f), next_.assign(state_.size(), 0.f);
    input_.clear(), input_.add(e).add(seen_).add(state_);
    detail::add_product(w_.reset, input_.all(), reset_), detail::add_product(w_.update, input_.all(), update_);
    for (std::size_t i = 0; i < state_.size(); ++i) reset_[i] = detail::sigmoid(reset_[i]) * state_[i];
    input_.clear(), input_.add(e).add(seen_).add(reset_);
    detail::add_product(w_.candidate, input_.all(), next_);
    for (std::size_t i = 0; i < state_.size(); ++i) {
      const float z = detail::sigmoid(update_[i]), n = detail::tanh(next_[i]);
      state_[i] = simd::fma(z, state_[i] - n, n);
    }
  }

  relay_weights w_;
  Reader reader_;
  slot_ranking pools_{};
  aligned_vector<float> candidates_, slot_, hidden_, state_, seen_, reset_, update_, next_, weighed_;
  aligned_vector<double> alternatives_;
  detail::joined input_;
};

/// The pools of a block and what the selector says about them, slot after slot.
template <block_model Model, candidate_reader Reader>
class relayed_block {
 public:
  relayed_block(Model& model, const relay_weights& weights, Reader reader, const relay_options& options) : model_(model), selector_(weights, std::move(reader)), num_slots_(options.num_slots), candidates_(options.candidates) {
    require(num_slots_ >= 1, "candidate_relay: option 'num_slots' is ", num_slots_, "; expected 1 or more");
    require(candidates_ >= 1, "candidate_relay: option 'candidates' is ", candidates_, "; expected 1 or more");
  }
  /// Slots of a new block.
  std::int32_t begin(std::span<const std::int32_t> context, std::int32_t budget) {
    const std::int32_t wanted = std::min(budget, num_slots_);
    if (wanted == 0) return 0;
    const block_prediction block = model_.predict(context, wanted);
    selector_.read(block, ranker_.rank(block.logits.slice(0, std::min<std::int64_t>(wanted, block.logits.extent(0))), candidates_));
    return selector_.pools().num_slots();
  }
  relay_scores select(std::int32_t slot, std::int32_t previous) { return selector_.select(slot, previous); }
  std::span<const std::int32_t> pool(std::int32_t slot) const { return selector_.pools().tokens_of(slot); }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }

 private:
  Model& model_;
  relay_selector<Reader> selector_;
  std::int32_t num_slots_, candidates_;
  slot_ranker ranker_;
};

template <block_model Model, candidate_reader Reader, class Draw = keyed_draws>
class candidate_relay {
 public:
  candidate_relay(Model& model, const relay_weights& weights, Reader reader, const relay_options& options = {})
    requires std::same_as<Draw, keyed_draws>
      : candidate_relay(model, weights, std::move(reader), options, keyed_draws{options.seed, options.request}) {}
  candidate_relay(Model& model, const relay_weights& weights, Reader reader, const relay_options& options, Draw draw) : block_(model, weights, std::move(reader), options), temperature_(options.temperature), draw_(std::move(draw)) {
    require(temperature_ >= 1e-6 && temperature_ <= 1e6, "candidate_relay: option 'temperature' is ", temperature_, "; expected 1e-6 to 1e6 (0: greedy_candidate_relay)");
  }
  draft_tree<draft_law::independent> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    check_proposal("candidate_relay::propose", context, budget);
    nodes_.start(context.back()), rows_.start();
    const std::int32_t slots = block_.begin(context, budget);
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      relay_law(block_.select(slot, nodes_.token(slot)), temperature_, q_);
      const std::int32_t row = rows_.add(block_.pool(slot), q_);
      rows_.give(slot, row);
      nodes_.add(slot, rows_.tokens(row)[draw_(static_cast<std::int64_t>(context.size()), static_cast<std::uint32_t>(slot), rows_.probabilities(row))]);
    }
    return {nodes_.tokens(), nodes_.parents(), rows_.laws(nodes_.size())};
  }
  void keep(std::span<const std::int32_t> path) { block_.keep(path); }

 private:
  relayed_block<Model, Reader> block_;
  double temperature_;
  Draw draw_;
  draft_nodes nodes_;
  law_rows rows_;
  aligned_vector<double> q_;
};
template <class Model, class Reader>
candidate_relay(Model&, const relay_weights&, Reader, const relay_options&) -> candidate_relay<Model, Reader, keyed_draws>;

/// Temperature 0. options.temperature, seed and request are not used.
template <block_model Model, candidate_reader Reader>
class greedy_candidate_relay {
 public:
  greedy_candidate_relay(Model& model, const relay_weights& weights, Reader reader, const relay_options& options = {}) : block_(model, weights, std::move(reader), options) {}
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    check_proposal("greedy_candidate_relay::propose", context, budget);
    nodes_.start(context.back());
    const std::int32_t slots = block_.begin(context, budget);
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      const relay_scores scores = block_.select(slot, nodes_.token(slot));
      const auto all = scores.alternatives;
      const std::size_t best = scores.keep >= 0. || all.size() == 1 ? 0 : static_cast<std::size_t>(std::max_element(all.begin() + 1, all.end()) - all.begin());
      nodes_.add(slot, block_.pool(slot)[best]);
    }
    return nodes_.tree<draft_law::deterministic>();
  }
  void keep(std::span<const std::int32_t> path) { block_.keep(path); }

 private:
  relayed_block<Model, Reader> block_;
  draft_nodes nodes_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
