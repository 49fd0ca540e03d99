#include <heddle/speculative/audit/exactness.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/verify/match.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "speculative/toy_model.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using toy::ids;
using numbers = std::vector<double>;

constexpr std::size_t vocabulary = 32, width = 64;

enum class flaw { none, batch_variant, wrong_context };

// A linear model of the last three tokens. `rounded`: logits in bfloat16. Batch-variant: passes of several rows sum in two parts, in half precision where
// logits are rounded. Wrong context: a row at depth 2 or more does not see its parent.
struct linear_model {
  flaw kind = flaw::none;
  bool rounded = true;
  ids cache{}, nodes{};
  std::vector<float> logits{};

  static float noise(std::uint64_t seed, std::uint32_t a, std::uint32_t b) { return static_cast<float>(uniform({.seed = seed, .position = a, .index = b}) * 2 - 1); }
  using table = std::vector<float>;   // [vocabulary, width]
  static table numbers_of(std::uint64_t seed) {
    table t;
    for (std::uint32_t v = 0; v < vocabulary; ++v)
      for (std::uint32_t c = 0; c < width; ++c) t.push_back(noise(seed, v, c));
    return t;
  }
  void row_after(const ids& text, bool in_parts, float* out) const {
    static const table weights = numbers_of(1), features[] = {numbers_of(2), numbers_of(3), numbers_of(4)};
    float hidden[width] = {};
    for (std::size_t back = 0; back < 3 && back < text.size(); ++back)
      for (std::size_t c = 0; c < width; ++c) hidden[c] += features[back][static_cast<std::size_t>(text[text.size() - 1 - back]) * width + c];
    for (std::size_t v = 0; v < vocabulary; ++v) {
      float part[2] = {0, 0};
      for (std::size_t c = 0; c < width; ++c) {
        float& sum = part[in_parts && c % 2];
        sum += weights[v * width + c] * hidden[c];
        if (in_parts && rounded) sum = float{float16{sum}};
      }
      out[v] = part[0] + part[1];
      if (rounded) out[v] = float{bfloat16{out[v]}};
    }
  }
  tensor_view<const float, 2> score(const token_tree& tree) {
    nodes.assign(tree.tokens.begin(), tree.tokens.end());
    logits.resize(nodes.size() * vocabulary);
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      ids path;
      for (auto v = static_cast<std::int32_t>(u); v >= 0; v = tree.parents[static_cast<std::size_t>(v)]) path.push_back(nodes[static_cast<std::size_t>(v)]);
      if (kind == flaw::wrong_context && tree.depths[u] >= 2) path.erase(path.begin() + 1);
      ids text = cache;
      text.insert(text.end(), path.rbegin(), path.rend());
      row_after(text, kind == flaw::batch_variant && nodes.size() > 1, &logits[u * vocabulary]);
    }
    return {logits.data(), extents{static_cast<std::int64_t>(nodes.size()), std::int64_t{vocabulary}}};
  }
  void keep(std::span<const std::int32_t> path) {
    cache.push_back(nodes[0]);
    for (const std::int32_t u : path) cache.push_back(nodes[static_cast<std::size_t>(u)]);
  }
};

constexpr int length = 30;
ids prompt_of(int i) { return {i % 32, (7 * i + 3) % 32, (i / 32 + i) % 32}; }
template <class Drafter>
ids decode(linear_model model, Drafter& drafter, const ids& prompt) {
  model.cache.assign(prompt.begin(), prompt.end() - 1);
  decode_loop loop{model, drafter, verify::greedy{}, sampling::chain{sampling::temperature(0.f)}, {.prompt = prompt, .max_new_tokens = length, .draft_length = 4}};
  while (!loop.done()) loop.step();
  return {loop.tokens().begin() + static_cast<std::ptrdiff_t>(prompt.size()), loop.tokens().end()};
}
// Logits before each token of `text`, one row at a time.
std::vector<float> sequential_logits(const linear_model& model, ids prompt, const ids& text) {
  std::vector<float> z(text.size() * vocabulary);
  for (std::size_t i = 0; i < text.size(); ++i) model.row_after(prompt, false, &z[i * vocabulary]), prompt.push_back(text[i]);
  return z;
}
auto view(const std::vector<float>& z) { return tensor_view{z.data(), extents{static_cast<std::int64_t>(z.size() / vocabulary), std::int64_t{vocabulary}}}; }

// Half of the drafts follow the model, so that rounds have several rows and some of them are accepted.
struct half_right_drafter {
  linear_model model{};
  std::uint32_t round = 0;
  ids tokens{}, parents{};
  draft_tree<draft_law::deterministic> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    ids text(context.begin(), context.end());
    tokens = {text.back()}, parents = {-1};
    std::vector<float> z(vocabulary);
    for (std::int32_t i = 0; i < budget; ++i) {
      model.row_after(text, false, z.data());
      const auto best = static_cast<std::int32_t>(std::max_element(z.begin(), z.end()) - z.begin());
      text.push_back(linear_model::noise(9, ++round, 0) < 0.6f ? best : (best + 1) % 32);
      parents.push_back(static_cast<std::int32_t>(tokens.size()) - 1), tokens.push_back(text.back());
    }
    return {tokens, parents};
  }
};

struct audit_result {
  std::vector<audit::run_comparison> runs;
  std::int64_t bugs = 0, near_ties = 0;
};
audit_result audit_of(flaw kind, bool rounded) {
  const linear_model model{.kind = kind, .rounded = rounded};
  const audit::exactness_options precision{.mantissa_bits = rounded ? 7 : 23};
  audit_result r;
  for (int i = 0; i < 100; ++i) {
    no_drafter none;
    half_right_drafter drafter{.model = {.rounded = rounded}};
    const ids prompt = prompt_of(i), reference = decode(model, none, prompt), speculative = decode(model, drafter, prompt);
    r.runs.push_back(audit::compare_runs(reference, speculative, view(sequential_logits(model, prompt, reference)), precision));
    const auto check = audit::check_teacher_forced(view(sequential_logits(model, prompt, speculative)), speculative, precision);
    EXPECT_EQ(check.exact + check.near_ties + check.bugs, length);
    r.bugs += check.bugs, r.near_ties += check.near_ties;
    const audit::run_comparison& run = r.runs.back();
    if (run.match) { EXPECT_EQ(check.exact, length); }
    if (check.bugs == 0 && !run.match) { EXPECT_LE(run.margin_ulps, 2); }
  }
  return r;
}

TEST(Exactness, BatchInvariantModelsMatchAlways) {
  for (const bool rounded : {true, false}) {
    const audit_result r = audit_of(flaw::none, rounded);
    EXPECT_EQ(audit::summarise(r.runs).matches, 100);
    EXPECT_EQ(r.bugs + r.near_ties, 0);
  }
}

TEST(Exactness, BatchVariantSumsDifferAtNearTiesOnly) {
  const audit_result coarse = audit_of(flaw::batch_variant, true), fine = audit_of(flaw::batch_variant, false);
  const auto coarse_summary = audit::summarise(coarse.runs), fine_summary = audit::summarise(fine.runs);
  EXPECT_LT(coarse_summary.matches, 100);
  EXPECT_GT(coarse_summary.matches, 0);
  EXPECT_GT(coarse.near_ties, 0);
  EXPECT_EQ(coarse.bugs, 0);
  EXPECT_EQ(fine.bugs, 0);
  EXPECT_GE(fine_summary.matches, coarse_summary.matches);
  EXPECT_LT(audit::mcnemar(coarse.runs, fine.runs), 0.05);
  EXPECT_EQ(audit::mcnemar(fine.runs, fine.runs), 1);
}

TEST(Exactness, ABugIsNotTakenForRounding) {
  EXPECT_GT(audit_of(flaw::wrong_context, true).bugs, 0);
  EXPECT_GT(audit_of(flaw::wrong_context, false).bugs, 0);
}

// --- the pieces, by hand ---

TEST(Exactness, UnitsInTheLastPlace) {
  for (const float x : {1.f, 1.5f, -3.f, 100.25f, 0.01f}) {
    EXPECT_EQ(audit::detail::unit_in_last_place(static_cast<double>(x), 23), static_cast<double>(std::nextafter(std::abs(x), 1e9f) - std::abs(x)));
    EXPECT_EQ(audit::detail::unit_in_last_place(static_cast<double>(x), 7), std::ldexp(1., std::ilogb(x) - 7));
  }
}

TEST(Exactness, DifferencesAndMargins) {
  const std::vector<float> z = {3, 1, 0, 2, 2, 0, 0, 1, 4, 5, 0, 0};   // three columns
  const tensor_view logits{z.data(), extents{4, 3}};
  const ids reference = {0, 0, 2, 0};
  const auto margin = [&](const ids& speculative) { return audit::compare_runs(reference, speculative, logits); };
  EXPECT_TRUE(margin(reference).match);
  EXPECT_EQ(margin(reference).first_difference, -1);
  EXPECT_EQ(margin({0, 1, 2, 0}).first_difference, 1);
  EXPECT_EQ(margin({0, 1, 2, 0}).margin, 0);        // a tie
  EXPECT_EQ(margin({0, 0, 1, 0}).margin, 3);
  EXPECT_EQ(margin({0, 0, 1, 0}).margin_ulps, 3 / std::ldexp(1., 2 - 23));
  EXPECT_EQ(margin({0, 0}).first_difference, 2);    // one ended early: the shorter end
  EXPECT_EQ(margin({0, 0, 2, 0, 1}).first_difference, 4);
  EXPECT_EQ(margin({0, 0, 2, 0, 1}).margin, 0);
  double log_prob = 0;
  for (int i = 0; i < 4; ++i) log_prob += static_cast<double>(z[static_cast<std::size_t>(3 * i + reference[static_cast<std::size_t>(i)])]) - std::log(std::exp(static_cast<double>(z[static_cast<std::size_t>(3 * i)])) + std::exp(static_cast<double>(z[static_cast<std::size_t>(3 * i + 1)])) + std::exp(static_cast<double>(z[static_cast<std::size_t>(3 * i + 2)])));
  EXPECT_NEAR(margin(reference).perplexity, std::exp(-log_prob / 4), 1e-12);
  EXPECT_TRUE(audit::compare_runs({}, {}, tensor_view<const float, 2>{nullptr, extents{0, 3}}).match);

  const auto tie = audit::check_teacher_forced(logits, ids{0, 1, 2, 0});
  EXPECT_EQ(tie.exact, 3);
  EXPECT_EQ(tie.near_ties, 1);
  const auto bug = audit::check_teacher_forced(logits, ids{0, 0, 1, 1});
  EXPECT_EQ(bug.bugs, 2);
  EXPECT_EQ(bug.first_bug, 2);
}

TEST(Exactness, Statistics) {
  const audit::interval wilson = audit::wilson_interval(540, 1190);
  EXPECT_NEAR(wilson.low, 0.42564, 2e-4);
  EXPECT_NEAR(wilson.high, 0.48222, 2e-4);
  // the bounds solve |p - rate| = z sqrt(p (1 - p) / n)
  for (const double p : {wilson.low, wilson.high}) EXPECT_NEAR(std::abs(p - 540. / 1190), 1.959963984540054 * std::sqrt(p * (1 - p) / 1190), 1e-12);
  EXPECT_EQ(audit::wilson_interval(0, 0).high, 1);
  EXPECT_NEAR(audit::sign_test(1, 5), 2 * 7 / 64., 1e-12);
  EXPECT_EQ(audit::sign_test(3, 3), 1);
  EXPECT_NEAR(audit::sign_test(0, 10), 2 / 1024., 1e-12);

  const std::vector<audit::run_comparison> runs = {{.match = true, .perplexity = 1, .length = 4}, {.match = false, .first_difference = 1, .perplexity = 3, .length = 4}, {.match = false, .first_difference = 2, .perplexity = 1.5, .length = 3},
                                                   {.match = true, .perplexity = 2, .length = 2}};
  numbers hazard(4);
  const auto s = audit::summarise(runs, hazard);
  EXPECT_EQ(s.match_rate(), 0.5);
  EXPECT_EQ(s.auc, 3. / 4);
  EXPECT_EQ(hazard, (numbers{0, 1. / 4, 1. / 2, 0}));
}

TEST(Exactness, Errors) {
  const std::vector<float> z = {0, NAN};
  const tensor_view logits{z.data(), extents{1, 2}};
  EXPECT_EQ(message_of([&] { audit::check_teacher_forced(logits, ids{0}); }), "audit::check_teacher_forced: argument 'logits': row 0, column 1 is NaN");
  EXPECT_EQ(message_of([&] { audit::check_teacher_forced(logits, ids{2}); }), "audit::check_teacher_forced: argument 'speculative': entry 0 is 2; expected 0 to 1");
  EXPECT_EQ(message_of([&] { audit::compare_runs(ids{0, 1}, ids{}, logits); }), "audit::compare_runs: argument 'logits' has 1 rows; expected one per token, 2");
  EXPECT_EQ(message_of([&] { audit::mcnemar({}, std::vector<audit::run_comparison>(1)); }), "audit::mcnemar: arguments 'a' and 'b' have 0 and 1 entries; expected the same prompts");
}

}  // namespace
