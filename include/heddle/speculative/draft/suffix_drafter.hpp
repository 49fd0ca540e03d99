// Drafts that continue the latest tokens as they were continued before: in this context, or in a corpus.
//
//   in the context   the longest suffix that occurs earlier; drafts are the tokens after its first occurrence
//   in the corpus    the longest suffix that occurs in a finished suffix_automaton, carried along token by token
//   the corpus is taken if its match is longer than the context's by more than corpus_bias
//
// Deterministic law. The context of each call is that of the call before with more tokens at its end; then only those are read (amortised O(1) each).
// A context that is shorter, or whose tokens differ where the previous one ended, starts anew. Matches below min_match give no drafts.
// A drafter serves one request; the corpus may be shared, read-only.
// Source: Hu et al. 2024 (SAM Decoding).
//
//     heddle::suffix_drafter drafter{{.min_match = 2}};
//     auto tree = drafter.propose(context, 8);           // context 1 2 3 1 2: drafts 3 1 2
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/draft/suffix_automaton.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

inline namespace HEDDLE_ISA {

struct suffix_drafter_options {
  std::int32_t min_match = 2;                  ///< shortest match that is continued
  std::int64_t max_tokens = 0;                 ///< bound of the context's automaton (suffix_automaton_options)
  const suffix_automaton* corpus = nullptr;    ///< must outlive the drafter and stay as it is
  std::int32_t corpus_bias = 0;                ///< tokens by which the corpus's match must be longer; negative favours the corpus
};

class suffix_drafter {
 public:
  explicit suffix_drafter(const suffix_drafter_options& options = {}) : options_(options), text_(suffix_automaton_options{options.max_tokens}) {
    require(options.min_match >= 1, "suffix_drafter: option 'min_match' is ", options.min_match, "; expected 1 or more");
  }

  /// Drafts after `context`, which must not be empty. Valid until the next call.
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    require(!context.empty(), "suffix_drafter::propose: argument 'context' is empty; expected at least the last committed token");
    require(budget >= 0, "suffix_drafter::propose: argument 'budget' is ", budget, "; expected 0 or more");
    follow(context);
    match_ = text_.longest_repeat(), from_corpus_ = false;
    if (options_.corpus && cursor_.length > match_.length + options_.corpus_bias) match_ = options_.corpus->match_of(cursor_), from_corpus_ = true;
    if (match_.length < options_.min_match) match_ = {};
    return chain_.assign(context.back(), (from_corpus_ ? *options_.corpus : text_).continuation(match_, budget));
  }

  /// How many tokens the latest drafts rest on (0: there were none), and where they came from.
  std::int32_t match_length() const { return match_.length; }
  bool from_corpus() const { return from_corpus_; }

 private:
  void follow(std::span<const std::int32_t> context) {
    if (!continues(context)) text_.clear(), cursor_ = {}, seen_ = 0;
    text_.append(context.subspan(seen_));
    if (options_.corpus)
      for (const std::int32_t token : context.subspan(seen_)) cursor_ = options_.corpus->advance(cursor_, token);
    seen_ = context.size();
  }
  bool continues(std::span<const std::int32_t> context) const {
    if (context.size() < seen_) return false;
    const std::size_t compared = std::min<std::size_t>({seen_, text_.text().size(), 64});
    return std::equal(text_.text().end() - static_cast<std::ptrdiff_t>(compared), text_.text().end(), context.begin() + static_cast<std::ptrdiff_t>(seen_ - compared));
  }

  suffix_drafter_options options_;
  suffix_automaton text_;
  suffix_cursor cursor_{};
  std::size_t seen_ = 0;
  suffix_match match_{};
  bool from_corpus_ = false;
  draft_chain chain_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
