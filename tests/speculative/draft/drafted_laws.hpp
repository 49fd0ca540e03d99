// A drafter with its chances enumerated: the law of the text that a rule emits from its drafts, to be compared with the target's; and the text that the
// decode loop makes with it, to be compared with plain decoding.
#pragma once
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/verify/match.hpp>

#include "speculative/toy_model.hpp"
#include "speculative/verify/worlds.hpp"

namespace enumeration {

/// A drafter's draws, every one of them in turn.
struct scripted_draws {
  every_choice* choices;
  template <class Weight>
  std::size_t operator()(std::int64_t, std::uint32_t, std::span<const Weight> weights) const {
    return choices->choose(row(weights.begin(), weights.end()));
  }
};

struct as_drafted {
  template <class Tree>
  void operator()(Tree&) const {}
};

/// Everything the drafter may draw times everything the rule may decide, extended by the target to `length` tokens. tamper(tree) may plant a fault.
template <class Drafter, class Rule, class Tamper = as_drafted>
std::map<tokens, double> emitted_law(Drafter& drafter, every_choice& draws, const world& w, const Rule& rule, std::int32_t budget, std::size_t length, const Tamper& tamper = {}) {
  every_choice chances;
  std::map<tokens, double> out;
  const tokens context = {0};
  draws.run([&] {
    auto tree = drafter.propose(context, budget);
    tamper(tree);
    std::vector<float> logits;
    tokens prefix;
    for (std::size_t u = 0; u < tree.tokens.size(); ++u) {
      ASSERT_EQ(tree.parents[u], static_cast<std::int32_t>(u) - 1);
      if (u) prefix.push_back(tree.tokens[u]);
      for (const double x : w.raw_target(prefix)) logits.push_back(logit(x));
    }
    const heddle::extents shape{static_cast<std::int64_t>(tree.tokens.size()), static_cast<std::int64_t>(w.vocabulary)};
    heddle::verify_workspace memory(shape[1]);
    const heddle::sampling::chain policy{};
    const heddle::verify::scored_draft<decltype(tree)::law, heddle::tensor_view<const float, 2>, heddle::sampling::chain<>> draft{tree, {logits.data(), shape}, policy, {}, 1, memory};
    heddle::verify::detail::check_draft(rule, draft);
    const double drawn = draws.probability();
    chances.run([&] {
      const auto v = walk(rule, draft, chances);
      extend({v.tokens.begin(), v.tokens.end()}, drawn * chances.probability(), length, target_of(w), out);
    });
  });
  return out;
}

}  // namespace enumeration

namespace toy {

inline const ids prompt = {1, 2, 3, 1, 2, 3, 1};

inline ids plain(const sampling::parameters& p, std::uint64_t seed, std::int64_t count) {
  ids text = prompt;
  sampling::row_workspace memory(vocabulary);
  const sampling::chain policy{p};
  float row[vocabulary];
  for (std::int64_t i = 0; i < count; ++i) {
    toy_model::row_after(text, row);
    text.push_back(sampling::sample_row(tensor_view<const float, 1>{row, extents{vocabulary}}, policy, {text, {}}, {.seed = seed, .position = static_cast<std::uint32_t>(text.size())}, memory).token);
  }
  return text;
}

/// Match verification with this drafter makes plain decoding's text and caches, at any temperature. Returns how many drafts were accepted.
template <class Drafter>
std::int64_t expect_plain_text(Drafter& drafter, const sampling::parameters& p, std::int32_t draft_length) {
  const std::int64_t count = 40;
  toy_model model;
  model.cache.assign(prompt.begin(), prompt.end() - 1);
  decode_loop loop{model, drafter, verify::match{.seed = 7}, sampling::chain{p}, {.prompt = prompt, .max_new_tokens = count, .draft_length = draft_length}};
  while (!loop.done()) {
    loop.step();
    EXPECT_EQ(model.cache, ids(loop.tokens().begin(), loop.tokens().end() - 1));
  }
  EXPECT_EQ(ids(loop.tokens().begin(), loop.tokens().end()), plain(p, 7, count));
  return loop.stats().accepted;
}

}  // namespace toy
