// Every drafter in the loop: the text is that of plain decoding, whatever is drafted; caches of drafters stay those of the text; laws of emitted tokens.
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/draft/ddtree.hpp>
#include <heddle/speculative/draft/eagle_tree.hpp>
#include <heddle/speculative/draft/suffix_drafter.hpp>
#include <heddle/speculative/draft/suffix_tree.hpp>
#include <heddle/speculative/draft/taps.hpp>
#include <heddle/speculative/draft/tsubame.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/drafted_laws.hpp"

#include <cmath>
#include <map>

namespace {

using namespace toy;

// A block drafter with a cache: features of the context, then those of the block's rows, which every slot reads. keep() must leave the context's alone.
struct cached_block {
  std::vector<float> cache{};          // one feature per context token but the newest
  ids cached{};
  std::vector<float> logits{};
  bool forgets_to_drop = false;        // planted fault

  static float feature(std::int32_t token, std::size_t position) { return static_cast<float>((static_cast<std::size_t>(token) * 7 + position * 3) % 11) / 11.f; }
  block_prediction predict(std::span<const std::int32_t> context, std::int32_t slots) {
    for (std::size_t i = cache.size(); i + 1 < context.size(); ++i) cache.push_back(feature(context[i], i)), cached.push_back(context[i]);
    std::vector<float> fresh;
    for (std::size_t i = 0; i + 1 < context.size(); ++i) fresh.push_back(feature(context[i], i));
    if (!forgets_to_drop) {
      EXPECT_EQ(cache, fresh);   // cached rows of the context are the computed ones
    }
    for (std::int32_t j = 0; j < slots; ++j) cache.push_back(feature(vocabulary, context.size() + static_cast<std::size_t>(j)));   // the block's own rows
    float sum = 0;
    for (const float x : cache) sum += x;
    logits.resize(static_cast<std::size_t>(slots) * vocabulary);
    ids text(context.begin(), context.end());
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      float* const row = &logits[static_cast<std::size_t>(slot) * vocabulary];
      toy_model::row_after(text, row);   // right for the first slot, a guess about the others
      row[static_cast<std::size_t>(sum) % vocabulary] += .3f;
      text.push_back(static_cast<std::int32_t>(std::max_element(row, row + vocabulary) - row));
    }
    if (!forgets_to_drop) cache.resize(context.size() - 1);
    return {{logits.data(), extents{static_cast<std::int64_t>(slots), vocabulary}}, {}};
  }
};

// A head that knows the target's last two tokens, and keeps rows per node like a drafter with a cache.
struct cached_head {
  ids cache{};             // committed rows: all of the context but the newest
  std::vector<float> logits{};
  tensor_view<const float, 2> expand(const token_tree& tree, std::span<const std::int32_t> frontier) {
    logits.resize(frontier.size() * vocabulary);
    for (std::size_t i = 0; i < frontier.size(); ++i) {
      ids path;
      for (std::int32_t u = frontier[i]; u >= 0; u = tree.parents[static_cast<std::size_t>(u)]) path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(u)]);
      ids text = cache;
      text.insert(text.end(), path.begin(), path.end());
      toy_model::row_after(text, &logits[i * vocabulary]);
      for (std::size_t v = 0; v < vocabulary; v += 3) logits[i * vocabulary + v] *= .5f;
    }
    return {logits.data(), extents{static_cast<std::int64_t>(frontier.size()), vocabulary}};
  }
  void keep(const token_tree& tree, std::span<const std::int32_t> path) {
    cache.push_back(tree.tokens[0]);
    std::int32_t last = 0;
    for (const std::int32_t u : path) {
      EXPECT_EQ(tree.parents[static_cast<std::size_t>(u)], last);
      cache.push_back(tree.tokens[static_cast<std::size_t>(u)]), last = u;
    }
  }
};

struct outcome {
  ids text;
  decode_stats stats;
};
template <class Drafter, class Rule>
outcome decode(Drafter& drafter, const Rule& rule, const sampling::parameters& p, std::int32_t draft_length, std::int64_t count, cached_head* head = nullptr) {
  toy_model model;
  model.cache.assign(prompt.begin(), prompt.end() - 1);
  decode_loop loop{model, drafter, rule, sampling::chain{p}, {.prompt = prompt, .max_new_tokens = count, .draft_length = draft_length}};
  while (!loop.done()) {
    loop.step();
    const ids held(loop.tokens().begin(), loop.tokens().end() - 1);
    EXPECT_EQ(model.cache, held);
    if (head) {
      EXPECT_EQ(head->cache, held);
    }
  }
  EXPECT_EQ(loop.stats().residual_fallback, 0);
  return {ids(loop.tokens().begin(), loop.tokens().end()), loop.stats()};
}

const sampling::parameters policies[] = {{.temperature = 0.f}, {}, {.temperature = .5f, .top_k = 6}, {.temperature = 1.4f, .top_p = .85f, .repetition_penalty = 1.2f}};

// f(drafter, its head or none) for every drafter, made anew.
template <class F>
void for_each_drafter(std::mt19937& random, const F& f) {
  const auto size = [&](std::int32_t most) { return 1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(most)); };
  const double temperature = .4 + .1 * size(10);
  const std::uint64_t seed = random();
  suffix_automaton corpus{{.count_depth = 12}};
  corpus.append(plain({}, 5, 40));
  corpus.end_document();
  suffix_drafter suffix{{.min_match = size(3), .corpus = &corpus, .corpus_bias = size(3) - 2}};
  f(suffix, nullptr);
  suffix_tree_drafter counted{{.max_match = size(6), .max_depth = size(6), .min_probability = .1, .corpus = &corpus}};
  f(counted, nullptr);
  cached_block block;
  ddtree_drafter by_marginals{block, {.num_slots = size(6), .width = size(8), .temperature = temperature, .max_drafts = size(20)}};
  f(by_marginals, nullptr);
  std::vector<double> theta;
  for (int slot = 0; slot < 6; ++slot) theta.insert(theta.end(), {.5, .8, -.1, -.1, .2, -.5, 0.});
  const acceptance_weights weights(6, theta);
  cached_block again;
  taps_drafter by_paths{again, weights, {.num_slots = size(6), .pool = size(8), .temperature = temperature}};
  f(by_paths, nullptr);
  cached_head head;
  head.cache.assign(prompt.begin(), prompt.end() - 1);
  eagle_drafter eagle{head, {.width = size(4), .depth = size(4), .temperature = temperature}};
  f(eagle, &head);
  cached_block chain, greedy_chain, cut_chain;
  block_sampler sampled{chain, no_correction{}, {.num_slots = size(6), .temperature = temperature, .seed = seed}};
  f(sampled, nullptr);
  block_sampler cut{cut_chain, no_correction{}, {.num_slots = size(6), .top_k = size(5), .temperature = temperature, .seed = seed}};
  f(cut, nullptr);
  greedy_block_sampler likely{greedy_chain, no_correction{}, size(6)};
  f(likely, nullptr);
  cached_block first, second;
  tsubame_block<draft_law::independent, cached_block> with{first, {.num_slots = size(5), .width = size(9), .temperature = temperature, .seed = seed}};
  f(with, nullptr);
  tsubame_block<draft_law::without_replacement, cached_block> without{second, {.num_slots = size(5), .width = size(9), .temperature = temperature, .seed = seed}};
  f(without, nullptr);
  cached_head planner;
  planner.cache.assign(prompt.begin(), prompt.end() - 1);
  tsubame_head<draft_law::without_replacement, cached_head> conditional{planner, {.width = size(3), .depth = size(3)}, {.width = size(9), .temperature = temperature, .seed = seed}};
  f(conditional, &planner);
}

TEST(Drafters, MatchAndGreedyGiveThePlainTextForEveryDrafter) {
  std::mt19937 random(1);
  double accepted = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const sampling::parameters& p = policies[static_cast<std::size_t>(trial) % std::size(policies)];
    const ids expected = plain(p, 7, 40);
    const std::int32_t budget = trial == 0 ? 0 : static_cast<std::int32_t>(random() % 14);
    for_each_drafter(random, [&](auto& drafter, cached_head* head) {
      const outcome out = p.temperature == 0.f && trial % 8 == 0 ? decode(drafter, verify::greedy{}, p, budget, 40, head) : decode(drafter, verify::match{.seed = 7}, p, budget, 40, head);
      ASSERT_EQ(out.text, expected);
      accepted += static_cast<double>(out.stats.accepted);
      ASSERT_LE(out.stats.drafted, out.stats.rounds * budget);
    });
  }
  EXPECT_GT(accepted, 1000);
}

// Token rejection at temperature 0 is greedy as well, whatever law the drafts have.
TEST(Drafters, TokenRejectionAtTemperatureZeroIsGreedy) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 3; ++trial) {
    const ids expected = plain(policies[0], 0, 30);
    for_each_drafter(random, [&](auto& drafter, cached_head* head) { ASSERT_EQ(decode(drafter, verify::token{.seed = 3}, policies[0], 6, 30, head).text, expected); });
  }
}

// Token rejection above it: the second token emitted has the law of plain sampling, for sampled trees drawn anew each time.
TEST(Drafters, SampledTreesKeepTheLawOfTheText) {
  const sampling::parameters p{.temperature = .7f, .top_k = 5};
  const int rounds = 6000;
  std::map<ids, double> expected, found;
  float row[vocabulary];
  verify_workspace memory(vocabulary);
  const sampling::chain policy{p};
  const auto law_after = [&](const ids& text) {
    toy_model::row_after(text, row);
    const auto law = sampling::law_of(tensor_view<const float, 1>{row, extents{vocabulary}}, policy, {text, {}}, {}, memory.row());
    std::map<std::int32_t, double> out;
    for (std::size_t i = 0; i < law.tokens.size(); ++i) out[law.tokens[i]] = law.probability(i);
    return out;
  };
  for (const auto& [first, x] : law_after(prompt)) {
    ids text = prompt;
    text.push_back(first);
    for (const auto& [second, y] : law_after(text)) expected[{first, second}] = x * y;
  }
  for (int i = 0; i < rounds; ++i) {
    cached_block block;
    tsubame_block<draft_law::without_replacement, cached_block> drafter{block, {.num_slots = 2, .width = 8, .seed = static_cast<std::uint64_t>(i)}};
    const ids text = decode(drafter, verify::token{.seed = static_cast<std::uint64_t>(i)}, p, 5, 2).text;
    found[{text[text.size() - 2], text.back()}] += 1. / rounds;
  }
  double chi2 = 0, merged = 0, merged_found = 0, cells = 0;
  for (const auto& [text, probability] : found) ASSERT_TRUE(expected.count(text)) << "a text that plain sampling never gives";
  for (const auto& [text, probability] : expected) {
    const double seen = found.count(text) ? found[text] : 0.;
    if (probability * rounds < 5) {
      merged += probability, merged_found += seen;
      continue;
    }
    chi2 += rounds * (seen - probability) * (seen - probability) / probability, ++cells;
  }
  if (merged * rounds >= 1) chi2 += rounds * (merged_found - merged) * (merged_found - merged) / merged, ++cells;
  EXPECT_LT(chi2, cells + 5 * std::sqrt(2 * cells) + 12);   // p > 1e-6
}

// The test above would see rows of a block that stay in the drafter's cache.
TEST(Drafters, ABlockThatKeepsItsRowsIsNoticed) {
  cached_block block, faulty;
  faulty.forgets_to_drop = true;
  const ids context = {1, 2, 3, 4};
  block.predict(context, 3), faulty.predict(context, 3);
  EXPECT_EQ(block.cache.size(), 3u);
  EXPECT_NE(faulty.cache, block.cache);
}

}  // namespace
