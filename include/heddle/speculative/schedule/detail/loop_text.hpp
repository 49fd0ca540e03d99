// What the schedules for looped models share: the text and where it ends, and the decision about the drafts that follow one node.
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/speculative/detail/tree_walk.hpp>
#include <heddle/speculative/draft/law_rows.hpp>
#include <heddle/speculative/schedule/looped_model.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::detail::inline HEDDLE_ISA {

class loop_text {
 public:
  loop_text(const char* function, std::span<const std::int32_t> prompt, std::int64_t max_new_tokens, std::span<const std::int32_t> end_tokens) : max_new_tokens_(max_new_tokens) {
    require(!prompt.empty(), function, ": option 'prompt' is empty; expected at least one token");
    require(max_new_tokens >= 0, function, ": option 'max_new_tokens' is ", max_new_tokens, "; expected 0 (no limit) or more");
    tokens_.assign(prompt.begin(), prompt.end());
    end_tokens_.assign(end_tokens.begin(), end_tokens.end());
  }

  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  bool done() const { return done_; }
  bool is_end(std::int32_t token) const {
    for (const std::int32_t end : end_tokens_)
      if (token == end) return true;
    return false;
  }
  /// Whether a token `ahead` places after the newest one may still have a successor.
  bool has_room(std::int32_t ahead) const { return max_new_tokens_ == 0 || emitted_ + ahead < max_new_tokens_; }
  void emit(std::int32_t token) {
    tokens_.push_back(token);
    ++emitted_;
    done_ = is_end(token) || emitted_ == max_new_tokens_;
  }

 private:
  std::int64_t max_new_tokens_, emitted_ = 0;
  aligned_vector<std::int32_t> tokens_, end_tokens_;
  bool done_ = false;
};

template <class Rule>
keyed_draws draws_of(const Rule& rule) {
  if constexpr (requires { rule.seed; }) return {rule.seed, rule.request};
  else return {};
}

struct slot_decision {
  std::int32_t child = -1;   // of the star, accepted; or -1
  std::int32_t token = -1;   // the next token of the text, in either case
  heddle::status status = heddle::status::ok;
};

/// The token after `text`. `star`: its last token and the drafts that follow; `row`: the target's logits after it.
template <class Rule, draft_law Law, class Row, class Chain, class Chance>
slot_decision decide_slot(const Rule& rule, const draft_tree<Law>& star, const Row& row, const Chain& policy, std::span<const std::int32_t> text, verify_workspace& memory, Chance& chance, loop_stats& stats) {
  const auto at = static_cast<std::int64_t>(text.size());
  // one row for all nodes: only the root's is read
  const tensor_view logits{row.data(), extents{static_cast<std::int64_t>(star.tokens.size()), row.extent(0)}, extents{std::int64_t{0}, row.stride(0)}};
  const verify::scored_draft<Law, decltype(logits), Chain> draft{star, logits, policy, text, at, memory};
  verify::detail::check_draft(rule, draft);
  memory.link(star.parents), memory.reserve_laws();
  std::int32_t fallbacks = 0;
  const verify::detail::decision decided = decide_at(rule, draft, 0, sampling::history{text, {}}, at, chance, fallbacks);
  if (decided.status != heddle::status::ok) return {.status = decided.status};
  const bool drafted = star.tokens.size() > 1, accepted = decided.child >= 0;
  stats.drafted += drafted, stats.accepted += accepted, stats.residual_fallback += fallbacks;
  return {.child = decided.child, .token = accepted ? star.tokens[static_cast<std::size_t>(decided.child)] : decided.token};
}

}  // namespace heddle::detail::inline HEDDLE_ISA
