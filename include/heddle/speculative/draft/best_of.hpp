// Several drafters that continue repeated texts, as one: per round the one whose drafts have the best outlook.
//
// Each drafter says how many tokens its match covers (match_length()); how often drafts with that much evidence came true is counted per drafter
// (acceptance_history.hpp). Every drafter's proposal is compared with the tokens that were emitted after it, chosen or not, drafted or not: what is
// learnt costs nothing, and never needs a trial. Deterministic law.
//
//   outlook(context, budget)   the probabilities that drafts 1, 2, ... of the chosen drafter are accepted; what a draft_pacer decides by
//   propose(context, budget)   that drafter's first drafts
//
// A drafter serves one request; contexts grow as in suffix_drafter. The drafters are referred to and must outlive this.
//
//     heddle::prompt_lookup lookup;
//     heddle::suffix_drafter suffix;
//     heddle::best_of drafter{lookup, suffix};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/speculative/acceptance_history.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

namespace heddle {

template <class D>
concept matching_drafter = requires(D& d, std::span<const std::int32_t> context, std::int32_t budget) {
  { d.propose(context, budget) } -> std::same_as<draft_tree<draft_law::deterministic>>;
  { d.match_length() } -> std::convertible_to<std::int64_t>;
};

inline namespace HEDDLE_ISA {

template <matching_drafter... Drafters>
class best_of {
  static_assert(sizeof...(Drafters) > 0);

 public:
  explicit best_of(Drafters&... drafters) : drafters_(&drafters...) {}

  std::span<const double> outlook(std::span<const std::int32_t> context, std::int32_t budget) {
    learn(context);
    chosen_ = 0;
    double best = -1;
    std::size_t i = 0;
    std::apply([&](auto*... d) { (consider(*d, i++, context, budget, best), ...); }, drafters_);
    seen_ = context.size(), ready_ = true;
    return views_[chosen_].outlook;
  }

  /// Valid until the next call. After outlook() of the same context nothing is searched again.
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    if (!ready_ || context.size() != seen_) outlook(context, budget);
    ready_ = false;
    const auto& tree = views_[chosen_].tree;
    const std::size_t most = static_cast<std::size_t>(budget > 0 ? budget : 0) + 1, nodes = tree.tokens.size() < most ? tree.tokens.size() : most;
    return {tree.tokens.first(nodes), tree.parents.first(nodes)};
  }

  /// Which drafter the latest outlook or drafts are of.
  std::size_t chosen() const { return chosen_; }

 private:
  struct proposal {
    draft_tree<draft_law::deterministic> tree{};   // a chain, in the drafter's memory
    std::int64_t match = 0;
    match_acceptance acceptance{};
    aligned_vector<double> outlook{};
  };

  /// The proposals of the call before, against what came after them.
  void learn(std::span<const std::int32_t> context) {
    if (seen_ == 0 || context.size() <= seen_) return;
    const auto came = context.subspan(seen_);
    for (proposal& p : views_)
      for (std::size_t i = 0; i < came.size() && i + 1 < p.tree.tokens.size(); ++i) {
        const bool right = p.tree.tokens[i + 1] == came[i];
        p.acceptance.observe(p.match + static_cast<std::int64_t>(i), right);
        if (!right) break;
      }
  }
  template <class Drafter>
  void consider(Drafter& drafter, std::size_t index, std::span<const std::int32_t> context, std::int32_t budget, double& best) {
    proposal& p = views_[index];
    p.tree = drafter.propose(context, budget);
    p.match = drafter.match_length();
    p.outlook.clear();
    double survival = 1, sum = 0;
    for (std::size_t i = 1; i < p.tree.tokens.size(); ++i) {
      survival *= p.acceptance.probability(p.match + static_cast<std::int64_t>(i) - 1);
      p.outlook.push_back(survival), sum += survival;
    }
    if (sum > best) best = sum, chosen_ = index;
  }

  std::tuple<Drafters*...> drafters_;
  proposal views_[sizeof...(Drafters)];
  std::size_t chosen_ = 0, seen_ = 0;
  bool ready_ = false;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
