// Tsubame: the shape of a planned tree, filled with sampled tokens.
//
//   plan       any score tree (EAGLE, DDTree, TAPS); only its shape is kept: k_u children per node, ordered by plan score, frozen
//   populate   from the root, at node u with the tokens drawn on the way and the law q_u: k_u draws, independent or without replacement; the j-th draw takes
//              the j-th child's place and its planned subtree
//   verify     a multi-draft rule at each node with that q_u, that scheme and that order: verify::token for both schemes, verify::k_seq for independent draws
//
// The shape depends on the context alone (C3 of draft_tree.hpp) and every law on the path drawn so far (C2), so the target's law is kept, by induction
// over the depth. What breaks it: ordering children by score after they were drawn, or planning again from the drawn tokens. Without replacement a
// node has no more children than q_u has tokens; the last children's subtrees are cut.
// q_u is the softmax over the tokens that the ranking lists (width: a top-k of the drafter, which is part of its law), at the drafter's temperature. At
// temperature 0 there is nothing to draw, and the planned tree itself is the draft: law deterministic, which is what <deterministic> returns.
//
// populated_tree   the second pass alone, for any plan, law source and chances:
//                    law(nodes, frontier, rows, row_of)   one row per node of the frontier (all of one depth), as numbers of rows added to `rows`
//                    draw(position, index, weights)       an index; position: of the first drafts, `index` numbers the planned node
// tsubame_block    over a block drafter: plan by DDTree or TAPS, laws are the slots' marginals or what a corrector makes of them given the path
// tsubame_head     over a head that conditions on paths: plan by EAGLE's tree, laws by a second walk of the head along the drawn tokens
// Cost of pass 2: O(width) per populated internal node, plus the head's own work.
//
//     heddle::tsubame_block<heddle::draft_law::without_replacement, block> drafter{model, {.num_slots = 16}};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/math.hpp>
#include <heddle/speculative/draft/ddtree.hpp>
#include <heddle/speculative/draft/eagle_tree.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>
#include <heddle/speculative/draft/taps.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace heddle {

constexpr bool is_drawn(draft_law law) { return law == draft_law::independent || law == draft_law::without_replacement; }

struct tsubame_options {
  std::int32_t num_slots = 16;     ///< of a block model
  std::int32_t width = 64;         ///< tokens with a probability in each law, and considered by the plan
  double temperature = 1.;         ///< of the laws drawn from and of the plan
  std::int32_t max_drafts = 64;
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
};

inline namespace HEDDLE_ISA {

/// The children of every node of a tree in order of score (equal scores: as numbered).
class frozen_plan {
 public:
  void freeze(std::span<const std::int32_t> parents, std::span<const double> scores) {
    const std::size_t n = parents.size();
    require(scores.size() == n, "tsubame: the plan has ", n, " nodes and ", scores.size(), " scores");
    begin_.assign(n + 1, 0), children_.resize(n ? n - 1 : 0);
    for (std::size_t u = 1; u < n; ++u) {
      require(parents[u] >= 0 && static_cast<std::size_t>(parents[u]) < u, "tsubame: the plan's node ", u, " has parent ", parents[u], "; expected an earlier node");
      ++begin_[static_cast<std::size_t>(parents[u]) + 1];
    }
    for (std::size_t u = 0; u < n; ++u) begin_[u + 1] += begin_[u];
    next_.assign(begin_.begin(), begin_.end());
    for (std::size_t u = 1; u < n; ++u) children_[next_[static_cast<std::size_t>(parents[u])]++] = static_cast<std::int32_t>(u);
    for (std::size_t u = 0; u < n; ++u)
      std::sort(children_.begin() + static_cast<std::ptrdiff_t>(begin_[u]), children_.begin() + static_cast<std::ptrdiff_t>(begin_[u + 1]), [&](std::int32_t a, std::int32_t b) {
        const double x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
        return x != y ? x > y : a < b;
      });
  }
  std::span<const std::int32_t> children(std::int32_t node) const {
    const auto u = static_cast<std::size_t>(node);
    return std::span<const std::int32_t>(children_).subspan(begin_[u], begin_[u + 1] - begin_[u]);
  }

 private:
  aligned_vector<std::size_t> begin_, next_;
  aligned_vector<std::int32_t> children_;
};

template <draft_law Law>
  requires(is_drawn(Law))
class populated_tree {
 public:
  /// `position` is that of the first draft (the number of committed tokens).
  template <class LawOf, class Draw>
  draft_tree<Law> populate(std::int32_t root, const frozen_plan& plan, std::int64_t position, const LawOf& law, const Draw& draw) {
    nodes_.start(root), rows_.start();
    planned_.assign(1, 0);
    for (std::int32_t first = 0; first < nodes_.size();) {
      const std::int32_t last = nodes_.size();   // one depth at a time
      frontier_.clear();
      for (std::int32_t u = first; u < last; ++u)
        if (!plan.children(planned_[static_cast<std::size_t>(u)]).empty()) frontier_.push_back(u);
      row_of_.resize(frontier_.size());
      if (!frontier_.empty()) law(static_cast<const draft_nodes&>(nodes_), std::span<const std::int32_t>(frontier_), rows_, std::span<std::int32_t>(row_of_));
      for (std::size_t i = 0; i < frontier_.size(); ++i) draw_children(frontier_[i], row_of_[i], plan, position, draw);
      first = last;
    }
    return {nodes_.tokens(), nodes_.parents(), rows_.laws(nodes_.size())};
  }
  const draft_nodes& nodes() const { return nodes_; }

 private:
  template <class Draw>
  void draw_children(std::int32_t node, std::int32_t row, const frozen_plan& plan, std::int64_t position, const Draw& draw) {
    rows_.give(node, row);
    const std::span<const std::int32_t> tokens = rows_.tokens(row);
    const std::span<const float> q = rows_.probabilities(row);
    weights_.assign(q.begin(), q.end());
    std::size_t left = weights_.size();
    for (const std::int32_t child : plan.children(planned_[static_cast<std::size_t>(node)])) {
      if (left == 0) break;   // no token left for the subtrees that follow
      const std::size_t drawn = draw(position, static_cast<std::uint32_t>(child), std::span<const double>(weights_));
      nodes_.add(node, tokens[drawn]);
      planned_.push_back(child);
      if constexpr (Law == draft_law::without_replacement) weights_[drawn] = 0., --left;
    }
  }

  draft_nodes nodes_;
  law_rows rows_;
  aligned_vector<std::int32_t> planned_, frontier_, row_of_;
  aligned_vector<double> weights_;
};

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

template <draft_law Law>
struct populated_if_drawn {
  populated_tree<Law> tree;
};
template <>
struct populated_if_drawn<draft_law::deterministic> {};

inline void check_tsubame(const tsubame_options& options, bool drawn) {
  require(!drawn || options.temperature > 0., "tsubame: option 'temperature' is ", options.temperature, "; expected more than 0 (at 0 the planned tree is the draft: draft_law::deterministic)");
  require(options.width >= 1, "tsubame: option 'width' is ", options.width, "; expected 1 or more");
  require(options.max_drafts >= 0, "tsubame: option 'max_drafts' is ", options.max_drafts, "; expected 0 or more");
}
inline std::int32_t add_ranked_row(const slot_ranking& ranking, std::int32_t slot, aligned_vector<double>& weights, law_rows& rows) {
  weights.clear();
  for (const double log_prob : ranking.log_probs_of(slot)) weights.push_back(math::exp(log_prob));
  return rows.add(ranking.tokens_of(slot), weights);
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

/// Plans from the ranking of a block's slots: (root, ranking, budget) -> a deterministic tree, and its nodes' scores.
struct plan_by_ddtree {
  ddtree tree{};
  draft_tree<draft_law::deterministic> operator()(std::int32_t root, const slot_ranking& slots, std::int32_t budget) { return tree.build(root, slots, budget); }
  std::span<const double> scores() const { return tree.log_scores(); }
  static constexpr bool needs_entropies = false;
};

/// TAPS on given weights, which must outlive the plan.
template <class Acceptance>
struct plan_by_taps {
  Acceptance acceptance;
  best_first_tree tree{};
  draft_tree<draft_law::deterministic> operator()(std::int32_t root, const slot_ranking& slots, std::int32_t budget) { return tree.build(root, slots, budget, acceptance); }
  std::span<const double> scores() const { return tree.reaches(); }
  static constexpr bool needs_entropies = true;
};

template <draft_law Law, block_model Model, class Plan = plan_by_ddtree>
  requires(is_drawn(Law) || Law == draft_law::deterministic)
class tsubame_block {
 public:
  explicit tsubame_block(Model& model, const tsubame_options& options = {}, Plan plan = {}) : model_(model), options_(options), plan_(std::move(plan)) {
    detail::check_tsubame(options, is_drawn(Law));
    require(options.num_slots >= 1, "tsubame: option 'num_slots' is ", options.num_slots, "; expected 1 or more");
  }
  draft_tree<Law> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "tsubame_block::propose: argument 'context' is empty; expected at least the last committed token");
    require(budget >= 0, "tsubame_block::propose: argument 'budget' is ", budget, "; expected 0 or more");
    const std::int32_t drafts = std::min(budget, options_.max_drafts);
    const slot_ranking slots = drafts ? ranker_.rank(model_.predict(context, options_.num_slots).logits, options_.width, Law == draft_law::deterministic && options_.temperature == 0. ? 1. : options_.temperature, Plan::needs_entropies) : slot_ranking{};
    const auto planned = plan_(context.back(), slots, drafts);
    if constexpr (Law == draft_law::deterministic) {
      return planned;
    } else {
      frozen_.freeze(planned.parents, plan_.scores());
      row_of_slot_.assign(static_cast<std::size_t>(slots.num_slots()), -1);
      const auto marginal = [&](const draft_nodes& nodes, std::span<const std::int32_t> frontier, law_rows& rows, std::span<std::int32_t> row_of) {
        std::int32_t& row = row_of_slot_[static_cast<std::size_t>(nodes.depth(frontier[0]))];
        if (row < 0) row = detail::add_ranked_row(slots, nodes.depth(frontier[0]), weights_, rows);
        std::fill(row_of.begin(), row_of.end(), row);
      };
      return drawn_.tree.populate(context.back(), frozen_, static_cast<std::int64_t>(context.size()), marginal, keyed_draws{options_.seed, options_.request});
    }
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { model_.keep(path); }) model_.keep(path);
  }

 private:
  Model& model_;
  tsubame_options options_;
  Plan plan_;
  slot_ranker ranker_;
  frozen_plan frozen_;
  detail::populated_if_drawn<Law> drawn_;
  aligned_vector<std::int32_t> row_of_slot_;
  aligned_vector<double> weights_;
};

/// Plans with EAGLE's tree over the head, then walks the head once more along the drawn tokens.
template <draft_law Law, draft_head Head>
  requires(is_drawn(Law))
class tsubame_head {
 public:
  tsubame_head(Head& head, const eagle_options& plan, const tsubame_options& options = {}) : head_(head), planner_(head, plan), options_(options) { detail::check_tsubame(options, true); }

  draft_tree<Law> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    const auto planned = planner_.propose(context, std::min(budget, options_.max_drafts));
    frozen_.freeze(planned.parents, planner_.log_scores());
    const auto conditional = [&](const draft_nodes& nodes, std::span<const std::int32_t> frontier, law_rows& rows, std::span<std::int32_t> row_of) {
      const slot_ranking ranking = ranker_.rank(head_.expand(nodes.shape(), frontier), options_.width, options_.temperature);
      for (std::size_t i = 0; i < frontier.size(); ++i) row_of[i] = detail::add_ranked_row(ranking, static_cast<std::int32_t>(i), weights_, rows);
    };
    return drawn_.populate(context.back(), frozen_, static_cast<std::int64_t>(context.size()), conditional, keyed_draws{options_.seed, options_.request});
  }
  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { head_.keep(drawn_.nodes().shape(), path); }) head_.keep(drawn_.nodes().shape(), path);
  }

 private:
  Head& head_;
  eagle_drafter<Head> planner_;
  tsubame_options options_;
  slot_ranker ranker_;
  frozen_plan frozen_;
  populated_tree<Law> drawn_;
  aligned_vector<double> weights_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
