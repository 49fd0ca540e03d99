// The dynamic tree of EAGLE-2: a drafter that conditions on paths, expanded level by level, the best N nodes kept.
//
//   score s(u) = sum of log q along the path to u
//   level 1: the k most probable tokens after the root; level l = 2 .. D: the k best nodes of level l - 1 are expanded, k children each; all go to a pool
//   the tree: the best N of the pool by (score descending, depth ascending, insertion ascending)
//
// s(child) <= s(parent), and a child whose log q is 0 ties with its parent: in that order, and only in that, every node's parent comes before it, so the N
// nodes are a tree. Siblings are the most probable tokens, not draws: law deterministic. A NaN among the logits is an error (slot_ranking.hpp), it
// would leave orphans. Cost: D passes of the head, over 1 + (D - 1) k rows; O(D k^2 log k).
//
// head   h.expand(tree, frontier) -> logits [frontier.size(), V]   rows after the nodes `frontier` of a token_tree that grows from call to call within a
//                                                                  round; the first frontier is {0}
//        h.keep(tree, path)   optional: the root and the nodes `path` of the round's whole tree are now context, all others are forgotten. Only nodes
//                             that were in a frontier have rows; of the others (leaves) the head has not heard before
//
//     heddle::eagle_drafter drafter{head, {.width = 10, .depth = 6}};
//     auto tree = drafter.propose(context, 60);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/slot_ranking.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

template <class H>
concept draft_head = requires(H& head, const token_tree& tree, std::span<const std::int32_t> frontier) {
  { head.expand(tree, frontier) } -> tensor_of<2>;
};

struct eagle_options {
  std::int32_t width = 10;         ///< k
  std::int32_t depth = 6;          ///< D
  double temperature = 1.;         ///< of the head's logits
};

inline namespace HEDDLE_ISA {

template <draft_head Head>
class eagle_drafter {
 public:
  explicit eagle_drafter(Head& head, const eagle_options& options = {}) : head_(head), options_(options) {
    require(options.width >= 1, "eagle_drafter: option 'width' is ", options.width, "; expected 1 or more");
    require(options.depth >= 1, "eagle_drafter: option 'depth' is ", options.depth, "; expected 1 or more");
  }

  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "eagle_drafter::propose: argument 'context' is empty; expected at least the last committed token");
    require(budget >= 0, "eagle_drafter::propose: argument 'budget' is ", budget, "; expected 0 or more");
    pool_.start(context.back());
    frontier_.assign(1, 0);
    for (std::int32_t level = 1; level <= options_.depth && budget > 0 && !frontier_.empty(); ++level) {
      const std::int32_t first = pool_.size();
      expand();
      frontier_.clear();
      for (std::int32_t node = first; node < pool_.size(); ++node) frontier_.push_back(node);
      keep_best(frontier_, options_.width);
    }
    return best_of_pool(budget);
  }

  void keep(std::span<const std::int32_t> path) {
    if constexpr (requires { head_.keep(pool_.shape(), path); }) {
      frontier_.clear();
      for (const std::int32_t node : path) frontier_.push_back(chosen_[static_cast<std::size_t>(node)]);
      head_.keep(pool_.shape(), std::span<const std::int32_t>(frontier_));
    }
  }
  /// The logarithm of the score of each node of the latest tree.
  std::span<const double> log_scores() const { return tree_.scores(); }

 private:
  void expand() {
    const auto logits = head_.expand(pool_.shape(), std::span<const std::int32_t>(frontier_));
    require_shape("eagle_drafter: the head", "logits", view_of(logits), extents{static_cast<std::int64_t>(frontier_.size()), -1});
    const slot_ranking best = ranker_.rank(logits, options_.width, options_.temperature);
    for (std::size_t i = 0; i < frontier_.size(); ++i) {
      const auto row = static_cast<std::int32_t>(i);
      const double score = pool_.score(frontier_[i]);
      for (std::size_t rank = 0; rank < best.tokens_of(row).size(); ++rank) pool_.add(frontier_[i], best.tokens_of(row)[rank], score + best.log_probs_of(row)[rank]);
    }
  }

  /// The first `count` by (score descending, depth ascending, insertion ascending), in order of insertion.
  void keep_best(aligned_vector<std::int32_t>& nodes, std::int32_t count) const {
    if (nodes.size() <= static_cast<std::size_t>(count)) return;
    const auto comes_before = [&](std::int32_t a, std::int32_t b) {
      if (pool_.score(a) != pool_.score(b)) return pool_.score(a) > pool_.score(b);
      return pool_.depth(a) != pool_.depth(b) ? pool_.depth(a) < pool_.depth(b) : a < b;
    };
    std::nth_element(nodes.begin(), nodes.begin() + count, nodes.end(), comes_before);
    nodes.resize(static_cast<std::size_t>(count));
    std::sort(nodes.begin(), nodes.end());
  }

  draft_tree<draft_law::deterministic> best_of_pool(std::int32_t budget) {
    chosen_.clear();
    for (std::int32_t node = 1; node < pool_.size(); ++node) chosen_.push_back(node);
    keep_best(chosen_, budget);
    chosen_.insert(chosen_.begin(), 0);
    place_.resize(static_cast<std::size_t>(pool_.size()));
    tree_.start(pool_.token(0));
    place_[0] = 0;
    for (std::size_t i = 1; i < chosen_.size(); ++i) {
      const std::int32_t node = chosen_[i];
      place_[static_cast<std::size_t>(node)] = tree_.add(place_[static_cast<std::size_t>(pool_.parent(node))], pool_.token(node), pool_.score(node));
    }
    return tree_.tree<draft_law::deterministic>();
  }

  Head& head_;
  eagle_options options_;
  slot_ranker ranker_;
  draft_nodes pool_, tree_;
  aligned_vector<std::int32_t> frontier_, chosen_, place_;   // chosen_: nodes of the tree in the pool; place_: the reverse
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
