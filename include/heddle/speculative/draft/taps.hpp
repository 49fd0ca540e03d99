// TAPS: a tree over a block drafter's slots that goes by estimated acceptance along paths, not by marginals.
//
//   node u = (v_1 .. v_i):  a^(u) = sigma(theta_i . phi(u)),   phi = [1, log m_i(v_i), rank, H(m_i), log m_i(v_i) - max, 1[v_i = v_{i-1}], b(v_{i-1}, v_i)]
//   a(u) = a^(u) / max(1, sum over u's siblings in the pool of a^)          exactly one child can be the target's token
//   R(u) = prod of a along the path: the probability that u is accepted
// The tree is the prefix-closed set S of at most N nodes with the largest sum of R: best first, order (R descending, depth ascending, index ascending;
// index: in order of generation, siblings best first). With costs it stops where (1 + sum R) / (C_d + C_v) stops growing, and below a least R.
//
// best_first_tree       the selection, for any estimate: acceptance(slot, previous token, ranking, a) fills a[rank] for the pool of a slot, after
//                       begin(ranking) where it has one
// marginal_acceptance   a = m: DDTree
// path_acceptance       the estimate above
// fit_acceptance        theta by logistic regression on events "accepted, given that the parent was": Newton steps on the log-likelihood less
//                       ridge/2 |theta|^2, one theta per slot; a slot without events has that of all events together
// The pool is what the ranking lists (width tokens per slot, with entropies). A token with probability 0 is not in it; a NaN is an error.
// Law deterministic. Cost: O(K V) for the ranking, O(N (pool + log N)).
// The estimator is ours; the selection is that of DDTree (ddtree.hpp) on R.
//
//     heddle::taps_drafter drafter{block, theta, {.num_slots = 16}};
//     auto tree = drafter.propose(context, 64);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/speculative/draft/ddtree.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

inline constexpr std::size_t acceptance_features = 7;

/// What was seen: a node whose parent was accepted.
struct acceptance_event {
  std::int32_t slot = 0;
  double features[acceptance_features] = {};
  bool accepted = false;
};

struct no_pair_feature {
  [[gnu::always_inline]] constexpr double operator()(std::int32_t, std::int32_t) const { return 0.; }
};

inline namespace HEDDLE_ISA {

/// theta [slots][7].
class acceptance_weights {
 public:
  acceptance_weights() = default;
  acceptance_weights(std::int32_t slots, std::span<const double> theta) : theta_(theta.begin(), theta.end()) {
    require(theta.size() == static_cast<std::size_t>(slots) * acceptance_features, "acceptance_weights: argument 'theta' has ", theta.size(), " numbers; expected ", acceptance_features, " for each of ", slots, " slots");
    for (const double x : theta) require(x - x == 0., "acceptance_weights: argument 'theta' holds ", x, "; expected finite numbers");
  }
  std::int32_t num_slots() const { return static_cast<std::int32_t>(theta_.size() / acceptance_features); }
  std::span<const double> of(std::int32_t slot) const { return std::span<const double>(theta_).subspan(static_cast<std::size_t>(slot) * acceptance_features, acceptance_features); }

 private:
  aligned_vector<double> theta_;
};

inline double logistic(double x) { return 1. / (1. + math::exp(-x)); }

template <class Pair = no_pair_feature>
void features_of(const slot_ranking& slots, std::int32_t slot, std::int32_t rank, std::int32_t previous, const Pair& pair, double (&out)[acceptance_features]) {
  const auto r = static_cast<std::size_t>(rank);
  const std::int32_t token = slots.tokens_of(slot)[r];
  const double log_prob = slots.log_probs_of(slot)[r];
  const double values[] = {1., log_prob, static_cast<double>(rank), slots.entropies[static_cast<std::size_t>(slot)], log_prob - slots.log_probs_of(slot)[0], token == previous ? 1. : 0., pair(previous, token)};
  std::copy(values, values + acceptance_features, out);
}

/// a = m.
struct marginal_acceptance {
  void operator()(std::int32_t slot, std::int32_t, const slot_ranking& slots, std::span<double> a) const {
    for (std::size_t r = 0; r < a.size(); ++r) a[r] = math::exp(slots.log_probs_of(slot)[r]);
  }
};

template <class Pair = no_pair_feature>
class path_acceptance {
 public:
  explicit path_acceptance(const acceptance_weights& weights, const Pair& pair = {}) : weights_(weights), pair_(pair) {}

  /// Before a tree over these slots: what does not depend on the token before.
  void begin(const slot_ranking& slots) {
    require(slots.num_slots() <= weights_.num_slots(), "taps: the weights are for ", weights_.num_slots(), " slots; the block has ", slots.num_slots());
    require(slots.entropies.size() == slots.counts.size(), "taps: argument 'slots' has ", slots.entropies.size(), " entropies for ", slots.num_slots(), " slots; rank with entropies");
    width_ = static_cast<std::size_t>(slots.width);
    scores_.resize(static_cast<std::size_t>(slots.num_slots()) * width_), alone_.resize(scores_.size());
    for (std::int32_t slot = 0; slot < slots.num_slots(); ++slot)
      for (std::size_t r = 0; r < slots.tokens_of(slot).size(); ++r) {
        double phi[acceptance_features], score = 0;
        features_of(slots, slot, static_cast<std::int32_t>(r), -1, no_pair_feature{}, phi);
        for (std::size_t i = 0; i < acceptance_features; ++i) score = math::fma(weights_.of(slot)[i], phi[i], score);
        const std::size_t at = static_cast<std::size_t>(slot) * width_ + r;
        scores_[at] = score, alone_[at] = logistic(score);
      }
  }
  void operator()(std::int32_t slot, std::int32_t previous, const slot_ranking& slots, std::span<double> a) const {
    const std::span<const double> theta = weights_.of(slot);
    const std::span<const std::int32_t> tokens = slots.tokens_of(slot);
    double sum = 0;
    for (std::size_t r = 0; r < a.size(); ++r) {
      const std::size_t at = static_cast<std::size_t>(slot) * width_ + r;
      const double with_previous = (tokens[r] == previous ? theta[5] : 0.) + theta[6] * pair_(previous, tokens[r]);
      sum += a[r] = with_previous == 0. ? alone_[at] : logistic(scores_[at] + with_previous);
    }
    if (sum > 1.)
      for (double& x : a) x /= sum;
  }

 private:
  const acceptance_weights& weights_;
  Pair pair_;
  std::size_t width_ = 0;
  aligned_vector<double> scores_, alone_;
};

/// The `budget` prefixes with the largest products of acceptances.
class best_first_tree {
 public:
  template <class Acceptance>
  draft_tree<draft_law::deterministic> build(std::int32_t root, const slot_ranking& slots, std::int32_t budget, Acceptance&& acceptance, const round_cost& cost = {}, double least = 0.) {
    check_cost("best_first_tree::build", cost, budget);
    nodes_.start(root, 1.), pool_.clear(), families_.clear(), heap_.clear();
    expected_ = 0;
    if constexpr (requires { acceptance.begin(slots); }) acceptance.begin(slots);
    if (budget > 0) expand(0, slots, acceptance);
    while (!heap_.empty() && nodes_.size() <= budget) {
      std::pop_heap(heap_.begin(), heap_.end(), worse);
      const candidate best = heap_.back();
      heap_.pop_back();
      const auto drafts = static_cast<std::size_t>(nodes_.size()) - 1;
      if (best.reach < least || (!cost.verify.empty() && !(throughput(cost, drafts + 1, expected_ + best.reach) > throughput(cost, drafts, expected_)))) break;
      expected_ += best.reach;
      const std::int32_t node = nodes_.add(families_[best.family].parent, best.token, best.reach);
      push_next(best.family);
      if (nodes_.size() <= budget) expand(node, slots, acceptance);
    }
    return nodes_.tree<draft_law::deterministic>();
  }

  /// Sum of R over the latest tree, and each node's R (1 for the root).
  double expected_accepted() const { return expected_; }
  std::span<const double> reaches() const { return nodes_.scores(); }

 private:
  struct sibling {
    double acceptance;
    std::int32_t rank, token;
  };
  struct family {   // the siblings not yet in the heap, as a heap themselves
    std::int32_t parent;
    std::size_t first, last;
  };
  struct candidate {
    double reach;
    std::int32_t depth;
    std::size_t index, family;
    std::int32_t token;
  };
  static bool worse(const candidate& a, const candidate& b) {
    if (a.reach != b.reach) return a.reach < b.reach;
    return a.depth != b.depth ? a.depth > b.depth : a.index > b.index;
  }
  static bool worse_sibling(const sibling& a, const sibling& b) { return a.acceptance != b.acceptance ? a.acceptance < b.acceptance : a.rank > b.rank; }

  template <class Acceptance>
  void expand(std::int32_t node, const slot_ranking& slots, const Acceptance& acceptance) {
    const std::int32_t slot = nodes_.depth(node);
    if (slot >= slots.num_slots()) return;
    const std::span<const std::int32_t> tokens = slots.tokens_of(slot);
    acceptances_.resize(tokens.size());
    acceptance(slot, nodes_.token(node), slots, std::span<double>(acceptances_));
    const std::size_t first = pool_.size();
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const double a = acceptances_[r];
      require(a >= 0. && a <= 1., "best_first_tree::build: argument 'acceptance' gives ", a, " for slot ", slot, "; expected 0 to 1");
      if (a > 0.) pool_.push_back({a, static_cast<std::int32_t>(r), tokens[r]});
    }
    std::make_heap(pool_.begin() + static_cast<std::ptrdiff_t>(first), pool_.end(), worse_sibling);
    families_.push_back({node, first, pool_.size()});
    push_next(families_.size() - 1);
  }
  void push_next(std::size_t number) {
    family& f = families_[number];
    if (f.first == f.last) return;
    std::pop_heap(pool_.begin() + static_cast<std::ptrdiff_t>(f.first), pool_.begin() + static_cast<std::ptrdiff_t>(f.last), worse_sibling);
    const sibling next = pool_[--f.last];
    const double reach = nodes_.score(f.parent) * next.acceptance;
    // siblings come best first, so the index of a family's next one counts down from its end
    heap_.push_back({reach, nodes_.depth(f.parent) + 1, number * (std::size_t{1} << 32) + (pool_.size() - f.last), number, next.token});
    std::push_heap(heap_.begin(), heap_.end(), worse);
  }

  draft_nodes nodes_;
  aligned_vector<double> acceptances_;
  aligned_vector<sibling> pool_;
  aligned_vector<family> families_;
  aligned_vector<candidate> heap_;
  double expected_ = 0;
};

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// Solves A x = b for a symmetric positive definite A (overwritten) by Cholesky factors; x replaces b.
template <std::size_t n>
void solve_positive(double (&a)[n][n], double (&b)[n]) {
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t k = 0; k < j; ++k) a[j][j] -= a[j][k] * a[j][k];
    a[j][j] = __builtin_sqrt(a[j][j]);
    for (std::size_t i = j + 1; i < n; ++i) {
      for (std::size_t k = 0; k < j; ++k) a[i][j] -= a[i][k] * a[j][k];
      a[i][j] /= a[j][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// The maximum of sum ln P(event | theta) - ridge / 2 |theta|^2 over the events of one slot (of all for slot -1).
inline void fit_slot(std::span<const acceptance_event> events, std::int32_t slot, double ridge, std::span<double> theta) {
  constexpr std::size_t n = acceptance_features;
  const auto score = [&](const acceptance_event& e, const double (&at)[n]) {
    double s = 0;
    for (std::size_t i = 0; i < n; ++i) s = math::fma(at[i], e.features[i], s);
    return s;
  };
  const auto objective = [&](const double (&at)[n]) {
    double value = 0;
    for (const double x : at) value -= ridge / 2 * x * x;
    for (const acceptance_event& e : events)
      if (slot < 0 || e.slot == slot) {
        const double s = e.accepted ? score(e, at) : -score(e, at);
        value -= s > 0 ? math::log(1. + math::exp(-s)) : math::log(1. + math::exp(s)) - s;
      }
    return value;
  };
  double at[n] = {}, value = objective(at);
  for (int step = 0; step < 100; ++step) {
    double gradient[n], curvature[n][n] = {};
    for (std::size_t i = 0; i < n; ++i) gradient[i] = -ridge * at[i], curvature[i][i] = ridge;
    for (const acceptance_event& e : events)
      if (slot < 0 || e.slot == slot) {
        const double p = logistic(score(e, at)), error = (e.accepted ? 1. : 0.) - p;
        for (std::size_t i = 0; i < n; ++i) {
          gradient[i] += error * e.features[i];
          for (std::size_t j = 0; j <= i; ++j) curvature[i][j] += p * (1. - p) * e.features[i] * e.features[j];
        }
      }
    detail::solve_positive(curvature, gradient);
    double largest = 0, length = 1;
    for (; length > 1e-6; length /= 2) {
      double next[n];
      for (std::size_t i = 0; i < n; ++i) next[i] = at[i] + length * gradient[i];
      if (const double there = objective(next); there >= value) {
        for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::max(next[i] - at[i], at[i] - next[i])), at[i] = next[i];
        value = there;
        break;
      }
    }
    if (largest < 1e-10) break;
  }
  std::copy(at, at + n, theta.begin());
}

inline acceptance_weights fit_acceptance(std::span<const acceptance_event> events, std::int32_t slots, double ridge = 1e-2) {
  require(slots >= 1, "fit_acceptance: argument 'slots' is ", slots, "; expected 1 or more");
  require(ridge > 0. && ridge < math::infinity, "fit_acceptance: argument 'ridge' is ", ridge, "; expected a positive number (events that can be separated have no finite maximum without)");
  aligned_vector<double> theta(static_cast<std::size_t>(slots) * acceptance_features), pooled(acceptance_features);
  aligned_vector<std::int64_t> counts(static_cast<std::size_t>(slots));
  for (const acceptance_event& e : events) {
    require(e.slot >= 0 && e.slot < slots, "fit_acceptance: argument 'events': slot ", e.slot, "; expected 0 to ", slots - 1);
    for (const double x : e.features) require(x - x == 0., "fit_acceptance: argument 'events': a feature is ", x, "; expected finite numbers");
    ++counts[static_cast<std::size_t>(e.slot)];
  }
  fit_slot(events, -1, ridge, pooled);
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    const std::span<double> own = std::span<double>(theta).subspan(static_cast<std::size_t>(slot) * acceptance_features, acceptance_features);
    if (counts[static_cast<std::size_t>(slot)])
      fit_slot(events, slot, ridge, own);
    else
      std::copy(pooled.begin(), pooled.end(), own.begin());
  }
  return {slots, theta};
}

struct taps_options {
  std::int32_t num_slots = 16;           ///< slots asked of the model
  std::int32_t pool = 32;                ///< tokens considered per slot
  double temperature = 1.;               ///< of the model's logits
  std::int32_t max_drafts = 64;
  double least_reach = 0.;               ///< nodes with a smaller R are not drafted
  double draft_cost = 0.;                ///< C_d
  std::span<const double> verify_cost{}; ///< C_v(N), N = 0 .. max_drafts; empty: the budget decides. Must outlive the drafter
};

template <block_model Model, class Pair = no_pair_feature>
class taps_drafter {
 public:
  /// Refers to model and weights.
  taps_drafter(Model& model, const acceptance_weights& weights, const taps_options& options = {}, const Pair& pair = {}) : model_(model), options_(options), acceptance_(weights, pair) {
    require(options.num_slots >= 1 && options.num_slots <= weights.num_slots(), "taps_drafter: option 'num_slots' is ", options.num_slots, "; expected 1 to the ", weights.num_slots(), " slots of the weights");
    require(options.max_drafts >= 0, "taps_drafter: option 'max_drafts' is ", options.max_drafts, "; expected 0 or more");
    check_cost("taps_drafter", {options.draft_cost, options.verify_cost}, options.max_drafts);
  }
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "taps_drafter::propose: argument 'context' is empty; expected at least the last committed token");
    const std::int32_t drafts = std::min(budget, options_.max_drafts);
    if (drafts <= 0) return tree_.build(context.back(), {}, drafts, acceptance_);
    const block_prediction block = model_.predict(context, options_.num_slots);
    return tree_.build(context.back(), ranker_.rank(block.logits, options_.pool, options_.temperature, true), drafts, acceptance_, {options_.draft_cost, options_.verify_cost}, options_.least_reach);
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }
  const best_first_tree& tree() const { return tree_; }

 private:
  Model& model_;
  taps_options options_;
  path_acceptance<Pair> acceptance_;
  slot_ranker ranker_;
  best_first_tree tree_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
