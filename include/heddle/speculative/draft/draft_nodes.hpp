// The memory in which drafters build a tree: tokens, parents, depths and scores of the nodes, parents first.
//
//     heddle::draft_nodes nodes;
//     nodes.start(root);
//     nodes.add(0, token, score);                 // a child of the root
//     const auto tree = nodes.tree<heddle::draft_law::deterministic>();
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline HEDDLE_ISA {

class draft_nodes {
 public:
  void start(std::int32_t root, double score = 0.) {
    tokens_.assign(1, root), parents_.assign(1, -1), depths_.assign(1, 0), scores_.assign(1, score);
  }
  std::int32_t add(std::int32_t parent, std::int32_t token, double score = 0.) {
    tokens_.push_back(token), parents_.push_back(parent), scores_.push_back(score);
    depths_.push_back(depths_[static_cast<std::size_t>(parent)] + 1);
    return size() - 1;
  }
  /// Nodes, the root included.
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::int32_t token(std::int32_t node) const { return tokens_[static_cast<std::size_t>(node)]; }
  std::int32_t parent(std::int32_t node) const { return parents_[static_cast<std::size_t>(node)]; }
  std::int32_t depth(std::int32_t node) const { return depths_[static_cast<std::size_t>(node)]; }
  double score(std::int32_t node) const { return scores_[static_cast<std::size_t>(node)]; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::span<const std::int32_t> parents() const { return parents_; }
  std::span<const std::int32_t> depths() const { return depths_; }
  std::span<const double> scores() const { return scores_; }

  token_tree shape() const { return {tokens_, parents_, depths_}; }
  template <draft_law Law>
    requires(!is_sampled(Law))
  draft_tree<Law> tree() const { return {tokens_, parents_}; }

 private:
  aligned_vector<std::int32_t> tokens_, parents_, depths_;
  aligned_vector<double> scores_;
};

}  // namespace heddle::inline HEDDLE_ISA
