// A drafter of trees whose own probabilities are corrected by what came true.
//
// Its tree is compared with the tokens that were emitted after it, whether or not it was verified. The share of nodes that were on the emitted path is
// counted per class: stated probability (eighths), matched tokens (1-2, 3-5, more), depth (1, 2-3, 4-7, more). Where little is known the stated
// probability counts as two events.
//
//   outlook(context, budget)   the corrected probabilities of nodes 1, 2, ..., made to fall: what a draft_pacer decides by
//   propose(context, budget)   the first nodes of that tree; nodes come best first, parents before children
//
// The drafter: propose() -> deterministic draft_tree, probabilities() -> per node of it (the root's first), match_length(). It is referred to and must
// outlive this; one request each.
//
//     heddle::suffix_tree_drafter tree;
//     heddle::calibrated drafter{tree};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/speculative/acceptance_history.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

template <class D>
concept confident_drafter = requires(D& d, std::span<const std::int32_t> context, std::int32_t budget) {
  { d.propose(context, budget) } -> std::same_as<draft_tree<draft_law::deterministic>>;
  { d.probabilities() } -> std::convertible_to<std::span<const double>>;
  { d.match_length() } -> std::convertible_to<std::int64_t>;
};

inline namespace HEDDLE_ISA {

template <confident_drafter Drafter>
class calibrated {
 public:
  explicit calibrated(Drafter& drafter) : drafter_(drafter) {}

  std::span<const double> outlook(std::span<const std::int32_t> context, std::int32_t budget) {
    learn(context);
    tree_ = drafter_.propose(context, budget);
    match_ = drafter_.match_length();
    const std::span<const double> stated = drafter_.probabilities();
    const std::size_t nodes = tree_.tokens.size();
    depths_.assign(nodes, 0), stated_.assign(stated.begin(), stated.end()), outlook_.clear();
    double least = 1;
    for (std::size_t u = 1; u < nodes; ++u) {
      depths_[u] = depths_[static_cast<std::size_t>(tree_.parents[u])] + 1;
      const double p = share_of(u).with_prior(stated_[u]);
      outlook_.push_back(least = p < least ? p : least);
    }
    seen_ = context.size(), ready_ = true;
    return outlook_;
  }

  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    if (!ready_ || context.size() != seen_) outlook(context, budget);
    ready_ = false;
    const std::size_t most = static_cast<std::size_t>(budget > 0 ? budget : 0) + 1, nodes = tree_.tokens.size() < most ? tree_.tokens.size() : most;
    return {tree_.tokens.first(nodes), tree_.parents.first(nodes)};
  }

 private:
  static constexpr std::size_t shares = 9, matches = 3, levels = 4;

  faded_share& share_of(std::size_t node) {
    const std::int32_t depth = depths_[node];
    const std::size_t eighth = static_cast<std::size_t>(stated_[node] * 8), match = match_ < 3 ? 0 : match_ < 6 ? 1 : 2, level = depth < 2 ? 0 : depth < 4 ? 1 : depth < 8 ? 2 : 3;
    return classes_[((eighth < shares ? eighth : shares - 1) * matches + match) * levels + level];
  }
  /// The nodes of the call before, as deep as tokens have come since.
  void learn(std::span<const std::int32_t> context) {
    if (seen_ == 0 || context.size() <= seen_) return;
    const auto came = context.subspan(seen_);
    on_path_.assign(tree_.tokens.size(), 0);
    for (std::size_t u = 0; u < tree_.tokens.size(); ++u) {
      const auto depth = static_cast<std::size_t>(depths_[u]);
      if (depth > came.size()) continue;
      on_path_[u] = u == 0 || (on_path_[static_cast<std::size_t>(tree_.parents[u])] && tree_.tokens[u] == came[depth - 1]);
      if (u > 0) share_of(u).observe(on_path_[u] != 0);
    }
  }

  Drafter& drafter_;
  draft_tree<draft_law::deterministic> tree_{};
  std::int64_t match_ = 0;
  faded_share classes_[shares * matches * levels];
  aligned_vector<std::int32_t> depths_;
  aligned_vector<double> stated_, outlook_;
  aligned_vector<char> on_path_;
  std::size_t seen_ = 0;
  bool ready_ = false;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
