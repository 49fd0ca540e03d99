// Count-based suffix tree: what followed the latest tokens, how often, as a tree of drafts.
//
//   match     the last m tokens, m = 1 .. max_match, where they occur earlier in the context, or in a corpus
//   from the node of a match: path probability = prod count(child) / count(node); best first (probability descending, depth ascending, parent, token) while it
//   is at least min_probability, at most min(budget, floor(m factor + offset)) drafts, max_depth deep
//   the drafts with the largest sum of probabilities win; ties to the longer match, then to the context
//
// count(s) is how often the string s occurs; in the context the latest tokens count as well, although nothing has followed them yet, so a single
// earlier occurrence has probability 1/2. The result is prefix-closed: a tree. Law deterministic.
// The tree is that of all strings of up to max_match + max_depth tokens; it is kept as a suffix automaton with counts (strings with the same occurrences
// share a state), so it grows token by token and its memory is that of suffix_automaton.hpp, bounded by max_tokens there. The corpus is a
// finished suffix_automaton whose count_depth is at least max_match + max_depth. Follows contexts as suffix_drafter does.
// Cost: O(max_match + max_depth) per token of the context; per proposal O(budget (children + log budget)) for each distinct match.
// Source: Oliaro et al. 2024 (SuffixDecoding).
//
//     heddle::suffix_tree_drafter drafter{{.max_match = 16}};
//     auto tree = drafter.propose(context, 16);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/speculative/draft/draft_nodes.hpp>
#include <heddle/speculative/draft/suffix_automaton.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace heddle {

inline namespace HEDDLE_ISA {

struct suffix_tree_options {
  std::int32_t max_match = 16;
  std::int32_t max_depth = 16;                 ///< of the drafts
  double factor = 1.;                          ///< f: drafts per matched token
  double offset = 0.;                          ///< o
  double min_probability = 0.1;                ///< of a draft's path
  std::int64_t max_tokens = 0;                 ///< bound of the context's tree
  const suffix_automaton* corpus = nullptr;    ///< must outlive the drafter and stay as it is
};

class suffix_tree_drafter {
 public:
  explicit suffix_tree_drafter(const suffix_tree_options& options = {}) : options_(checked(options)), text_(suffix_automaton_options{options.max_tokens, options.max_match + options.max_depth}) {}

  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "suffix_tree_drafter::propose: argument 'context' is empty; expected at least the last committed token");
    require(budget >= 0, "suffix_tree_drafter::propose: argument 'budget' is ", budget, "; expected 0 or more");
    follow(context);
    best_.start(context.back(), 1.);
    sum_ = 0., match_ = 0;
    try_matches(text_, text_.tail(), 2, budget);
    if (options_.corpus) try_matches(*options_.corpus, cursor_, 1, budget);
    return best_.tree<draft_law::deterministic>();
  }

  /// Of the latest drafts: the matched tokens (0: none), each node's path probability, their sum.
  std::int32_t match_length() const { return match_; }
  std::span<const double> probabilities() const { return best_.scores(); }
  double expected_accepted() const { return sum_; }

 private:
  struct candidate {
    double probability;
    std::int32_t depth, parent, token;
    suffix_cursor string;
  };
  static bool worse(const candidate& a, const candidate& b) {
    if (a.probability != b.probability) return a.probability < b.probability;
    if (a.depth != b.depth) return a.depth > b.depth;
    return a.parent != b.parent ? a.parent > b.parent : a.token > b.token;
  }
  static suffix_tree_options checked(const suffix_tree_options& o) {
    require(o.max_match >= 1 && o.max_depth >= 1, "suffix_tree_drafter: options 'max_match' and 'max_depth' are ", o.max_match, " and ", o.max_depth, "; expected 1 or more");
    require(o.min_probability > 0. && o.min_probability <= 1., "suffix_tree_drafter: option 'min_probability' is ", o.min_probability, "; expected more than 0, 1 at most");
    require(o.factor >= 0. && o.factor < 1e6, "suffix_tree_drafter: option 'factor' is ", o.factor, "; expected 0 or more");
    require(o.offset > -1e6 && o.offset < 1e6, "suffix_tree_drafter: option 'offset' is ", o.offset, "; expected a number of drafts");
    require(!o.corpus || o.corpus->count_depth() >= o.max_match + o.max_depth, "suffix_tree_drafter: option 'corpus' counts strings of up to ", o.corpus ? o.corpus->count_depth() : 0, " tokens; expected max_match + max_depth, ", o.max_match + o.max_depth);
    return o;
  }

  void follow(std::span<const std::int32_t> context) {
    const std::span<const std::int32_t> known = text_.text();
    const std::size_t compared = std::min<std::size_t>(known.size(), 64);
    if (context.size() < seen_ || !std::equal(known.end() - static_cast<std::ptrdiff_t>(compared), known.end(), context.begin() + static_cast<std::ptrdiff_t>(seen_ - compared))) text_.clear(), cursor_ = {}, seen_ = 0;
    text_.append(context.subspan(seen_));
    if (options_.corpus)
      for (const std::int32_t token : context.subspan(seen_)) cursor_ = options_.corpus->last_of(options_.corpus->advance(cursor_, token), options_.max_match);
    seen_ = context.size();
  }

  /// The suffixes of `string` that occur at least `least` times, the longest of each set with the same occurrences (shorter ones have no larger budget).
  void try_matches(const suffix_automaton& text, suffix_cursor string, std::int64_t least, std::int32_t budget) {
    for (string = text.last_of(string, options_.max_match); string.length > 0; string = text.shorter(string))
      if (text.count(string) >= least) grow(text, string, budget);
  }

  void grow(const suffix_automaton& text, suffix_cursor match, std::int32_t budget) {
    const double allowed = static_cast<double>(match.length) * options_.factor + options_.offset;
    const std::int32_t drafts = allowed < static_cast<double>(budget) ? static_cast<std::int32_t>(allowed < 0. ? 0. : allowed) : budget;
    trial_.start(best_.token(0), 1.), heap_.clear();
    double sum = 0;
    expand(text, 0, match);
    while (!heap_.empty() && trial_.size() <= drafts) {
      std::pop_heap(heap_.begin(), heap_.end(), worse);
      const candidate next = heap_.back();
      heap_.pop_back();
      sum += next.probability;
      expand(text, trial_.add(next.parent, next.token, next.probability), next.string);
    }
    if (sum > sum_ || (sum == sum_ && sum > 0. && match.length > match_)) std::swap(best_, trial_), sum_ = sum, match_ = match.length;
  }
  void expand(const suffix_automaton& text, std::int32_t node, suffix_cursor string) {
    const std::int32_t depth = trial_.depth(node) + 1;
    if (depth > options_.max_depth) return;
    const double scale = trial_.score(node) / static_cast<double>(text.count(string));
    text.for_each_continuation(string, [&](std::int32_t token, suffix_cursor next) {
      const double probability = scale * static_cast<double>(text.count(next));
      if (probability < options_.min_probability) return;
      heap_.push_back({probability, depth, node, token, next});
      std::push_heap(heap_.begin(), heap_.end(), worse);
    });
  }

  suffix_tree_options options_;
  suffix_automaton text_;
  suffix_cursor cursor_{};
  std::size_t seen_ = 0;
  draft_nodes best_, trial_;
  aligned_vector<candidate> heap_;
  double sum_ = 0.;
  std::int32_t match_ = 0;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
