// Prompt lookup: drafts copied from an earlier occurrence of the latest tokens.
//
//   the longest m in [min_match, max_match] such that the last m tokens occur earlier; the drafts are the tokens that followed there, up to the budget
//
// Of several occurrences the earliest (or the latest) is taken; an occurrence may overlap the last m tokens. Nothing found: no drafts. The law is
// deterministic. Knuth-Morris-Pratt on the reversed context: O(context) per call, O(max_match) memory.
// Source: Saxena 2023 (prompt lookup decoding); the n-gram proposers of vLLM and transformers.
//
//     heddle::prompt_lookup drafter{{.min_match = 2, .max_match = 3}};
//     auto tree = drafter.propose(context, 4);        // context 1 2 3 4 2 3: drafts 4 2 3
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <cstdint>
#include <span>

namespace heddle {

enum class occurrence : std::uint8_t { earliest, latest };

struct prompt_lookup_options {
  std::int32_t min_match = 2;
  std::int32_t max_match = 8;
  heddle::occurrence occurrence = heddle::occurrence::earliest;
};

inline namespace HEDDLE_ISA {

/// A chain of drafts in a drafter's memory.
class draft_chain {
 public:
  draft_tree<draft_law::deterministic> assign(std::int32_t root, std::span<const std::int32_t> drafts) {
    const std::size_t nodes = drafts.size() + 1;
    tokens_.resize(nodes), parents_.resize(nodes);
    tokens_[0] = root, parents_[0] = -1;
    for (std::size_t i = 1; i < nodes; ++i) tokens_[i] = drafts[i - 1], parents_[i] = static_cast<std::int32_t>(i) - 1;
    return {tokens_, parents_};
  }

 private:
  aligned_vector<std::int32_t> tokens_, parents_;
};

class prompt_lookup {
 public:
  explicit prompt_lookup(const prompt_lookup_options& options = {}) : options_(options) {
    require(options.min_match >= 1, "prompt_lookup: option 'min_match' is ", options.min_match, "; expected 1 or more");
    require(options.max_match >= options.min_match, "prompt_lookup: option 'max_match' is ", options.max_match, "; expected at least min_match, ", options.min_match);
  }

  /// Drafts after `context`, which must not be empty. Valid until the next call.
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "prompt_lookup::propose: argument 'context' is empty; expected at least the last committed token");
    require(budget >= 0, "prompt_lookup::propose: argument 'budget' is ", budget, "; expected 0 or more");
    match_ = 0;
    const std::size_t from = continuation(context);
    const std::size_t left = context.size() - from, count = left < static_cast<std::size_t>(budget) ? left : static_cast<std::size_t>(budget);
    return chain_.assign(context.back(), context.subspan(from, count));
  }

  /// How many tokens the latest drafts rest on (0: there were none).
  std::int32_t match_length() const { return match_; }

 private:
  /// Where the tokens that followed the best occurrence begin; context.size() if there is none.
  std::size_t continuation(std::span<const std::int32_t> context) {
    const std::size_t n = context.size();
    const auto reversed = [&](std::size_t i) { return context[n - 1 - i]; };
    const std::size_t longest = static_cast<std::size_t>(options_.max_match) < n ? static_cast<std::size_t>(options_.max_match) : n;
    // the pattern is reversed(0) .. reversed(longest - 1); border_[m]: the longest proper border of its first m tokens
    border_.resize(longest + 1);
    std::size_t best = 0, found = n, matched = 0;
    border_[0] = 0;
    for (std::size_t i = 1; i < n; ++i) {
      if (matched == longest) matched = border_[matched];
      while (matched > 0 && reversed(matched) != reversed(i)) matched = border_[matched];
      if (reversed(matched) == reversed(i)) ++matched;
      if (i + 1 <= longest) border_[i + 1] = matched;  // below `longest` the text is the pattern itself
      if (matched > best || (matched == best && options_.occurrence == occurrence::earliest)) best = matched, found = n - 1 - i + matched;
    }
    if (best < static_cast<std::size_t>(options_.min_match)) return n;
    match_ = static_cast<std::int32_t>(best);
    return found;
  }

  prompt_lookup_options options_;
  std::int32_t match_ = 0;
  draft_chain chain_;
  aligned_vector<std::size_t> border_;
};

/// Proposes nothing: plain decoding.
class no_drafter {
 public:
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t) { return chain_.assign(context.back(), {}); }

 private:
  draft_chain chain_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
