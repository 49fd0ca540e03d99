// DDTree: the N most probable prefixes of a block drafter's slots. CaDDTree: as many of them as pay.
//
//   score of a prefix of ranks (r_1 .. r_i) = prod_j m_j(v_{r_j}),   m_j = softmax(U_j)
//
// Best first: pop the best prefix, emit it as a node, push its next sibling (r_i + 1) and its first child (slot i + 1, rank 0). Equal scores go by rank
// tuple, the lexicographically smaller (of two where one continues the other: the shorter) first. A prefix scores no more than its own prefixes, so the N
// nodes are a tree, and no other tree of N nodes has a larger Phi(N) = sum of scores: the expected number of accepted drafts if the target were
// prod_j m_j.
// With costs (C_d for the draft, C_v(N) for a target pass over N drafts) the tree stops growing when theta(N) = (1 + Phi(N)) / (C_d + C_v(N)), the tokens per
// unit of time, stops growing. Phi is concave, so for convex C_v that is the maximum over all N.
//
// Deterministic law (siblings differ). Sampling plays no part: verify with match, greedy or token. Scores are kept as logarithms in double.
// Cost: O(N log N) after the ranking (slot_ranking.hpp), which should list min(N, V) tokens per slot; fewer cut the tree at that width.
//
//     heddle::slot_ranker ranker;
//     heddle::ddtree tree;
//     const auto drafts = tree.build(context.back(), ranker.rank(logits, 64), 64);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/speculative/draft/block_model.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

/// What a round costs, in any one unit of time.
struct round_cost {
  double draft = 0;                       ///< C_d
  std::span<const double> verify{};       ///< C_v(N) for N = 0, 1, ..; empty: costs do not matter, the budget decides
};

inline namespace HEDDLE_ISA {

/// Tokens per unit of time of a round that verifies `drafts` drafts and is expected to accept `expected` of them.
inline double throughput(const round_cost& cost, std::size_t drafts, double expected) { return (1. + expected) / (cost.draft + cost.verify[drafts]); }

inline void check_cost(const char* function, const round_cost& cost, std::int32_t budget) {
  require(budget >= 0, function, ": argument 'budget' is ", budget, "; expected 0 or more");
  if (cost.verify.empty()) return;
  require(cost.verify.size() > static_cast<std::size_t>(budget), function, ": argument 'cost' has ", cost.verify.size(), " entries in 'verify'; expected one for each of 0 to ", budget, " drafts");
  for (std::size_t n = 0; n <= static_cast<std::size_t>(budget); ++n)
    require(cost.draft >= 0. && cost.draft + cost.verify[n] > 0. && cost.draft + cost.verify[n] < math::infinity, function, ": argument 'cost': ", n, " drafts cost ", cost.draft, " + ", cost.verify[n], "; expected a positive finite time");
}

class ddtree {
 public:
  /// At most `budget` drafts; `root` is the last committed token. Valid until the next call.
  draft_tree<draft_law::deterministic> build(std::int32_t root, const slot_ranking& slots, std::int32_t budget, const round_cost& cost = {}) {
    check_cost("ddtree::build", cost, budget);
    nodes_.start(root), ranks_.assign(1, 0), heap_.clear();
    expected_ = 0;
    push(slots, 0, 0);
    while (!heap_.empty() && nodes_.size() <= budget) {
      const auto worse = [&](const candidate& a, const candidate& b) { return comes_before(b, a); };
      std::pop_heap(heap_.begin(), heap_.end(), worse);
      const candidate best = heap_.back();
      heap_.pop_back();
      const double gain = math::exp(best.score);
      const auto drafts = static_cast<std::size_t>(nodes_.size()) - 1;
      if (!cost.verify.empty() && !(throughput(cost, drafts + 1, expected_ + gain) > throughput(cost, drafts, expected_))) break;
      expected_ += gain;
      const std::int32_t slot = nodes_.depth(best.parent);
      const std::int32_t node = nodes_.add(best.parent, slots.tokens_of(slot)[static_cast<std::size_t>(best.rank)], best.score);
      ranks_.push_back(best.rank);
      push(slots, best.parent, best.rank + 1);
      push(slots, node, 0);
    }
    return nodes_.tree<draft_law::deterministic>();
  }

  /// Phi of the latest tree, and the logarithm of each node's score.
  double expected_accepted() const { return expected_; }
  std::span<const double> log_scores() const { return nodes_.scores(); }

 private:
  struct candidate {
    double score;
    std::int32_t parent, rank;
  };

  void push(const slot_ranking& slots, std::int32_t parent, std::int32_t rank) {
    const std::int32_t slot = nodes_.depth(parent);
    if (slot >= slots.num_slots()) return;
    const std::span<const double> log_probs = slots.log_probs_of(slot);
    if (static_cast<std::size_t>(rank) >= log_probs.size()) return;
    heap_.push_back({nodes_.score(parent) + log_probs[static_cast<std::size_t>(rank)], parent, rank});
    std::push_heap(heap_.begin(), heap_.end(), [&](const candidate& a, const candidate& b) { return comes_before(b, a); });
  }

  bool comes_before(const candidate& a, const candidate& b) const { return a.score != b.score ? a.score > b.score : smaller_ranks(a, b); }

  bool smaller_ranks(candidate a, candidate b) const {
    const std::int32_t surplus = nodes_.depth(a.parent) - nodes_.depth(b.parent);
    const auto up = [&](candidate& c) { c.rank = ranks_[static_cast<std::size_t>(c.parent)], c.parent = nodes_.parent(c.parent); };
    for (std::int32_t i = 0; i < surplus; ++i) up(a);
    for (std::int32_t i = 0; i < -surplus; ++i) up(b);
    while (a.parent != b.parent) up(a), up(b);
    return a.rank != b.rank ? a.rank < b.rank : surplus < 0;
  }

  draft_nodes nodes_;
  aligned_vector<std::int32_t> ranks_;
  aligned_vector<candidate> heap_;
  double expected_ = 0;
};

struct ddtree_options {
  std::int32_t num_slots = 16;          ///< slots asked of the model
  std::int32_t width = 64;              ///< tokens considered per slot
  double temperature = 1.;              ///< of the model's logits
  std::int32_t max_drafts = 64;         ///< at most; the loop's budget may be smaller
  double draft_cost = 0.;               ///< C_d (CaDDTree)
  std::span<const double> verify_cost{};///< C_v(N), N = 0 .. max_drafts; empty: DDTree. Must outlive the drafter
};

template <block_model Model>
class ddtree_drafter {
 public:
  explicit ddtree_drafter(Model& model, const ddtree_options& options = {}) : model_(model), options_(options) {
    require(options.num_slots >= 1, "ddtree_drafter: option 'num_slots' is ", options.num_slots, "; expected 1 or more");
    require(options.max_drafts >= 0, "ddtree_drafter: option 'max_drafts' is ", options.max_drafts, "; expected 0 or more");
    check_cost("ddtree_drafter", {options.draft_cost, options.verify_cost}, options.max_drafts);
  }

  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "ddtree_drafter::propose: argument 'context' is empty; expected at least the last committed token");
    const std::int32_t drafts = std::min(budget, options_.max_drafts);
    if (drafts <= 0) return tree_.build(context.back(), {}, drafts);
    const block_prediction block = model_.predict(context, options_.num_slots);
    return tree_.build(context.back(), ranker_.rank(block.logits, std::min(options_.width, drafts), options_.temperature), drafts, {options_.draft_cost, options_.verify_cost});
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }
  const ddtree& tree() const { return tree_; }

 private:
  Model& model_;
  ddtree_options options_;
  slot_ranker ranker_;
  ddtree tree_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
