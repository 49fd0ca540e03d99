// Suffix automaton: every substring of a text, built token by token, and where each occurred first.
//
//   state     a set of substrings that end at the same positions; length: of the longest, min_end: the first of those positions;
//             link: the state of the longest suffix that also ends elsewhere
//   append    one token; at most 2 n - 1 states and 3 n - 4 edges for n >= 3 tokens, amortised O(1) (edges: detail/edge_table.hpp)
//
// longest_repeat   the longest suffix of the text that occurs earlier (an overlap is allowed), with the place that follows its first occurrence
// advance          carries a match through a finished text, the corpus: the longest suffix of the tokens fed so far that occurs in it. A token without an
//                  edge falls back along links; amortised O(1)
// end_document     what follows is another document: matches and continuations never cross the boundary
// count            how often a string occurs (count_depth), for_each_continuation: what follows it; tail: the latest tokens, shorter: their suffixes
// continuation     the tokens that followed a match, to the end of its document at most
//
// max_tokens bounds memory (0: no bound): a full text forgets its older half and the automaton is built anew, which costs one more append per token on
// average and invalidates cursors. Memory in use: at most 68 bytes per token for states and text (76 with counts), and 21 to 43 for each edge of a state
// beyond its second.
// Tokens are ids of any size, 0 or more. Blumer et al. 1985; for decoding: Hu et al. 2024 (SAM Decoding).
//
//     heddle::suffix_automaton text;
//     for (std::int32_t token : {1, 2, 3, 1, 2}) text.append(token);
//     text.continuation(text.longest_repeat(), 8);                     // the match is 1 2, continued by 3 1 2
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/speculative/draft/detail/large_vector.hpp>
#include <heddle/speculative/draft/detail/edge_table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct suffix_match {
  std::int32_t length = 0;   ///< matched tokens; 0: no match
  std::int32_t next = 0;     ///< index, in the automaton's text, of the token that followed
};

/// A position in an automaton: begins at the root with nothing matched.
struct suffix_cursor {
  std::int32_t state = 0;
  std::int32_t length = 0;
};

struct suffix_automaton_options {
  std::int64_t max_tokens = 0;    ///< 0: no bound; otherwise at least 2
  std::int32_t count_depth = 0;   ///< occurrences of strings up to this length are counted, which costs append O(count_depth) at most; 0: none are
};

inline namespace HEDDLE_ISA {

class suffix_automaton {
 public:
  explicit suffix_automaton(const suffix_automaton_options& options = {}) : options_(options) {
    require(options.max_tokens == 0 || options.max_tokens >= 2, "suffix_automaton: option 'max_tokens' is ", options.max_tokens, "; expected 0 (no bound) or at least 2");
    require(options.count_depth >= 0, "suffix_automaton: option 'count_depth' is ", options.count_depth, "; expected 0 (off) or more");
    clear();
  }

  void clear() {
    text_.clear(), states_.clear(), counts_.clear(), edges_.clear();
    last_ = add({}), tail_ = {};
  }

  void append(std::int32_t token) { append(std::span<const std::int32_t>{&token, 1}); }
  void append(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) require(token >= 0, "suffix_automaton::append: argument 'token' is ", token, "; expected 0 or more");
    expect(tokens.size());
    for (auto& depth : ahead_)
      for (std::int32_t& s : depth) s = -1;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      make_room();
      text_.push_back(tokens[i]);
      fetch_ahead(tokens, i);
      last_ = extend(last_, tokens[i]);
      if (options_.count_depth > 0) count_occurrences(tokens[i]);
    }
  }
  void end_document() {
    if (text_.empty() || text_.back() == boundary) return;
    make_room();
    text_.push_back(boundary);
    last_ = root, tail_ = {};
  }

  /// Tokens held; a boundary between documents counts as one.
  std::int64_t size() const { return static_cast<std::int64_t>(text_.size()); }
  std::int64_t num_states() const { return static_cast<std::int64_t>(states_.size()); }
  std::size_t bytes() const { return states_.capacity() * sizeof(state) + text_.capacity() * sizeof(std::int32_t) + edges_.bytes(); }
  std::span<const std::int32_t> text() const { return text_; }

  suffix_match longest_repeat() const {
    const state& whole = states_[at(last_)];   // the document so far
    if (whole.length == 0) return {};
    return match_of(whole.min_end + 1 < static_cast<std::int32_t>(text_.size()) ? last_ : whole.link);
  }

  std::int32_t count_depth() const { return options_.count_depth; }
  /// Occurrences of a string of at most count_depth tokens (of the empty one: the tokens held).
  std::int64_t count(suffix_cursor string) const { return string.state == root ? size() : counts_[at(string.state)]; }
  /// f(token, string with that token) for everything that follows the string, in no particular order.
  template <class F>
  void for_each_continuation(suffix_cursor string, const F& f) const {
    edges_.for_each(string.state, states_[at(string.state)].edges, [&](std::int32_t token, std::int32_t target) { f(token, suffix_cursor{target, string.length + 1}); });
  }
  /// The latest tokens of the document, count_depth at most.
  suffix_cursor tail() const { return tail_; }
  /// The last `length` tokens of a string.
  suffix_cursor last_of(suffix_cursor string, std::int32_t length) const {
    if (string.length > length) string.length = length;
    while (string.state != root && states_[at(states_[at(string.state)].link)].length >= string.length) string.state = states_[at(string.state)].link;
    return string;
  }
  /// The longest suffix of a string that also occurs elsewhere.
  suffix_cursor shorter(suffix_cursor string) const {
    if (string.state == root) return {};
    return {states_[at(string.state)].link, states_[at(states_[at(string.state)].link)].length};
  }

  suffix_cursor advance(suffix_cursor cursor, std::int32_t token) const {
    std::int32_t next = find(cursor.state, token);
    while (next < 0 && cursor.state != root) {
      cursor.state = states_[at(cursor.state)].link;
      next = find(cursor.state, token);
      cursor.length = states_[at(cursor.state)].length;
    }
    return next < 0 ? suffix_cursor{} : suffix_cursor{next, cursor.length + 1};
  }
  suffix_match match_of(suffix_cursor cursor) const { return {cursor.length, cursor.length ? states_[at(cursor.state)].min_end + 1 : 0}; }

  std::span<const std::int32_t> continuation(const suffix_match& match, std::int32_t budget) const {
    if (match.length == 0) return {};
    const std::span<const std::int32_t> rest = std::span<const std::int32_t>(text_).subspan(at(match.next));
    std::size_t count = 0;
    while (count < rest.size() && count < at(budget) && rest[count] != boundary) ++count;
    return rest.first(count);
  }

 private:
  static constexpr std::int32_t root = 0, boundary = -1;
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

  struct alignas(32) state {
    std::int32_t length = 0;
    std::int32_t link = -1;
    std::int32_t min_end = -1;
    detail::own_edges edges{};
  };

  suffix_match match_of(std::int32_t s) const { return match_of({s, states_[at(s)].length}); }
  std::int32_t add(const state& s) {
    states_.push_back(s);
    if (options_.count_depth > 0) counts_.push_back(0);
    return static_cast<std::int32_t>(states_.size()) - 1;
  }

  [[gnu::always_inline]] inline std::int32_t find(std::int32_t s, std::int32_t token) const {
    edges_.prefetch(s, token);
    return edges_.find(s, states_[at(s)].edges, token);
  }

  /// The state of from's longest string and `token`, which now ends the text.
  std::int32_t extend(std::int32_t from, std::int32_t token) {
    if (const std::int32_t known = find(from, token); known >= 0)   // an earlier document begins alike
      return states_[at(known)].length == states_[at(from)].length + 1 ? known : split(from, token, known);
    const std::int32_t whole = add({.length = states_[at(from)].length + 1, .link = root, .min_end = static_cast<std::int32_t>(text_.size()) - 1});
    std::int32_t p = from, next = -1;
    for (; p >= 0; p = states_[at(p)].link) {
      next = find(p, token);
      if (next >= 0) break;
      edges_.insert(p, states_[at(p)].edges, token, whole);
    }
    if (p >= 0) {
      const std::int32_t link = states_[at(next)].length == states_[at(p)].length + 1 ? next : split(p, token, next);
      states_[at(whole)].link = link;
    }
    return whole;
  }

  /// The strings of q that are no longer than p's and `token` become a state of their own.
  std::int32_t split(std::int32_t p, std::int32_t token, std::int32_t q) {
    const std::int32_t clone = add(state{states_[at(q)]});
    states_[at(clone)].length = states_[at(p)].length + 1;
    if (options_.count_depth > 0) counts_[at(clone)] = counts_[at(q)];   // up to now they have ended at the same places
    edges_.copy(q, clone, states_[at(clone)].edges);
    states_[at(q)].link = clone;
    for (; p >= 0 && find(p, token) == q; p = states_[at(p)].link) edges_.replace(p, states_[at(p)].edges, token, clone);
    return clone;
  }

  /// One more occurrence of each suffix of the last count_depth tokens, the latest included.
  void count_occurrences(std::int32_t token) {
    tail_ = last_of(tail_, tail_.length);   // its state may have been split
    tail_ = last_of({edges_.find(tail_.state, states_[at(tail_.state)].edges, token), tail_.length + 1}, options_.count_depth);
    for (std::int32_t s = tail_.state; s != root; s = states_[at(s)].link) ++counts_[at(s)];
  }

  /// New text mostly repeats short strings: the states of the next strings of one to three tokens, and their edges, are on their way to the cache
  /// when append() comes to them. Four steps of a walk from the root, for four places ahead.
  void fetch_ahead(std::span<const std::int32_t> tokens, std::size_t i) {
    const auto step = [&](std::size_t start, std::size_t length, std::int32_t from) {
      const std::size_t next = start + length;
      const std::int32_t s = from < 0 || next > tokens.size() ? -1 : length ? edges_.find(from, states_[at(from)].edges, tokens[next - 1]) : root;
      if (s >= 0 && next < tokens.size()) __builtin_prefetch(&states_[at(s)]), edges_.prefetch(s, tokens[next]);
      return s;
    };
    ahead_[0][(i + 7) % 8] = step(i + 7, 0, root);
    ahead_[1][(i + 5) % 8] = step(i + 5, 1, ahead_[0][(i + 5) % 8]);
    ahead_[2][(i + 3) % 8] = step(i + 3, 2, ahead_[1][(i + 3) % 8]);
    step(i + 1, 3, ahead_[2][(i + 1) % 8]);
  }
  void expect(std::size_t more) {
    if (options_.max_tokens > 0 || text_.size() + more <= text_.capacity()) return;
    const std::size_t length = std::max(text_.size() + more, 2 * text_.capacity());
    text_.reserve(length), states_.reserve(length + length / 2);
  }
  void make_room() {
    require(text_.size() < std::size_t{1} << 29, "suffix_automaton: the text has ", text_.size(), " tokens, which is the most it can have; bound it with 'max_tokens'");
    if (options_.max_tokens == 0 || size() < options_.max_tokens) return;
    const aligned_vector<std::int32_t> newer(text_.end() - static_cast<std::ptrdiff_t>(options_.max_tokens / 2), text_.end());
    clear();
    for (const std::int32_t token : newer)
      if (token == boundary)
        end_document();
      else
        append(token);
  }

  suffix_automaton_options options_;
  detail::large_vector<std::int32_t> text_;
  detail::large_vector<state> states_;
  detail::large_vector<std::int32_t> counts_;
  detail::edge_table edges_;
  suffix_cursor tail_{};
  std::int32_t last_ = root;
  std::int32_t ahead_[3][8];   // states of strings that will come: of 0 to 2 tokens, by the place where they start
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
