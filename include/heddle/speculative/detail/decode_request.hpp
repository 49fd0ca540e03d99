// What one request of a decode loop has: its tokens, where it ends, and what is counted about it. decode_loop and decode_batch are made of these.
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/speculative/acceptance_history.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace heddle {

namespace detail {
template <class T>
inline constexpr bool is_draft_tree = false;
template <draft_law Law>
inline constexpr bool is_draft_tree<draft_tree<Law>> = true;
template <class D>
inline constexpr draft_law law_of_drafter = decltype(std::declval<D&>().propose({}, 0))::law;
}  // namespace detail

template <class D>
concept drafter = requires(D& d, std::span<const std::int32_t> context, std::int32_t budget) { requires detail::is_draft_tree<decltype(d.propose(context, budget))>; };
template <class D>
concept foreseeing_drafter = drafter<D> && requires(D& d, std::span<const std::int32_t> context, std::int32_t budget) {
  { d.outlook(context, budget) } -> std::convertible_to<std::span<const double>>;
};

struct decode_options {
  std::span<const std::int32_t> prompt{};       ///< at least one token; copied
  std::int64_t max_new_tokens = 0;              ///< 0: no limit
  std::int32_t draft_length = 8;                ///< drafts per round at most; 0: plain decoding
  std::span<const std::int32_t> end_tokens{};   ///< copied
};

struct decode_stats {
  static constexpr std::int32_t num_slots = 64;
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;  ///< drafts accepted by the rule, those cut off by an end token or max_new_tokens included
  std::int64_t emitted = 0;
  std::int64_t residual_fallback = 0;
  /// Rounds that drafted a token for slot i + 1 (a node of that depth), and rounds that accepted it. Unconditional: slots behind a rejection count as drafted.
  std::int64_t drafted_at[num_slots] = {};
  std::int64_t accepted_at[num_slots] = {};
  /// Emitted tokens per target pass.
  [[gnu::always_inline]] constexpr double mean_accepted_tokens() const { return rounds ? static_cast<double>(emitted) / static_cast<double>(rounds) : 0.; }
  /// The share of drafts for slot `slot` (1 .. num_slots) that were accepted; 0 where there were none.
  [[gnu::always_inline]] constexpr double acceptance(std::int32_t slot) const {
    return slot >= 1 && slot <= num_slots && drafted_at[slot - 1] ? static_cast<double>(accepted_at[slot - 1]) / static_cast<double>(drafted_at[slot - 1]) : 0.;
  }
};

namespace detail::inline HEDDLE_ISA {

class decode_request {
 public:
  decode_request(const char* function, const decode_options& options) : max_new_tokens_(options.max_new_tokens), draft_length_(options.draft_length) {
    require(!options.prompt.empty(), function, ": option 'prompt' is empty; expected at least one token");
    require(options.max_new_tokens >= 0, function, ": option 'max_new_tokens' is ", options.max_new_tokens, "; expected 0 (no limit) or more");
    require(options.draft_length >= 0, function, ": option 'draft_length' is ", options.draft_length, "; expected 0 or more");
    tokens_.assign(options.prompt.begin(), options.prompt.end());
    end_tokens_.assign(options.end_tokens.begin(), options.end_tokens.end());
  }

  bool done() const { return done_; }
  void give_up() { done_ = true; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  const decode_stats& stats() const { return stats_; }
  std::int32_t draft_length() const { return draft_length_; }

  /// What the next drafts promise, of as many as may still be emitted.
  template <class Drafter>
  std::span<const double> outlook(Drafter& drafter) {
    std::int64_t most = draft_length_;
    if (max_new_tokens_ > 0 && max_new_tokens_ - stats_.emitted - 1 < most) most = max_new_tokens_ - stats_.emitted - 1;
    const auto budget = static_cast<std::int32_t>(most);
    if constexpr (foreseeing_drafter<Drafter>) return drafter.outlook(tokens_, budget);
    else return ranks_.outlook(budget);
  }

  template <class Tree>
  token_tree shape_of(const char* function, const Tree& tree, std::int32_t budget) {
    depths_.resize(tree.tokens.size());
    require(tree.tokens.size() <= static_cast<std::size_t>(budget) + 1, function, ": the drafter's tree has ", tree.tokens.size() - 1, " drafts; its budget was ", budget);
    require(!tree.tokens.empty() && tree.parents.size() == tree.tokens.size() && tree.tokens[0] == tokens_.back(), function, ": the drafter's tree does not start with the last committed token, ", tokens_.back());
    depths_[0] = 0;
    for (std::size_t u = 1; u < depths_.size(); ++u) {
      require(tree.parents[u] >= 0 && static_cast<std::size_t>(tree.parents[u]) < u, function, ": the drafter's tree: parent of node ", u, " is ", tree.parents[u], "; expected an earlier node");
      depths_[u] = depths_[static_cast<std::size_t>(tree.parents[u])] + 1;
    }
    return {tree.tokens, tree.parents, depths_};
  }

  struct round {
    std::span<const std::int32_t> emitted, kept;   // tokens; nodes of the tree whose rows stay
  };
  /// Takes in a verdict on the tree that shape_of() has seen last.
  template <class Verdict>
  round take(const Verdict& decided) {
    const std::size_t emitted = cut(decided.tokens), before = tokens_.size(), nodes = depths_.size();
    tokens_.insert(tokens_.end(), decided.tokens.begin(), decided.tokens.begin() + static_cast<std::ptrdiff_t>(emitted));
    ++stats_.rounds;
    stats_.drafted += static_cast<std::int64_t>(nodes) - 1;
    stats_.accepted += decided.accepted;
    stats_.emitted += static_cast<std::int64_t>(emitted);
    stats_.residual_fallback += decided.residual_fallback;
    std::int32_t deepest = 0;
    for (const std::int32_t depth : depths_) deepest = depth > deepest ? depth : deepest;
    for (std::int32_t slot = 0; slot < deepest && slot < decode_stats::num_slots; ++slot) {
      ++stats_.drafted_at[slot];
      stats_.accepted_at[slot] += slot < decided.accepted;
    }
    ranks_.observe(static_cast<std::int32_t>(nodes) - 1, decided.path);
    return {std::span<const std::int32_t>(tokens_).subspan(before), decided.path.first(emitted - 1 < decided.path.size() ? emitted - 1 : decided.path.size())};
  }

 private:
  /// How many of the tokens are emitted; sets done_.
  std::size_t cut(std::span<const std::int32_t> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool full = max_new_tokens_ > 0 && stats_.emitted + static_cast<std::int64_t>(i) + 1 == max_new_tokens_;
      if (full || is_end(tokens[i])) return done_ = true, i + 1;
    }
    return tokens.size();
  }
  bool is_end(std::int32_t token) const {
    for (const std::int32_t end : end_tokens_)
      if (token == end) return true;
    return false;
  }

  std::int64_t max_new_tokens_;
  std::int32_t draft_length_;
  aligned_vector<std::int32_t> tokens_, end_tokens_, depths_;
  decode_stats stats_;
  rank_acceptance ranks_;
  bool done_ = false;
};

}  // namespace detail::inline HEDDLE_ISA
}  // namespace heddle
