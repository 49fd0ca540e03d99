// The keyed rules on float rows: 200,000 texts of three tokens each against the target's law, chi-square and total variation.
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/optimal_transport.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/verify/worlds.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

constexpr std::size_t vocabulary = 3, length = 3;
constexpr std::uint32_t samples = 200000;

// Target and proposal after every prefix of up to two tokens.
struct tables {
  std::vector<float> logits, laws;
  tables(const world& w) {
    for (std::size_t i = 0; i < 13; ++i) {
      tokens prefix;
      if (i >= 4) prefix = {static_cast<std::int32_t>((i - 4) / 3), static_cast<std::int32_t>((i - 4) % 3)};
      else if (i >= 1) prefix = {static_cast<std::int32_t>(i - 1)};
      for (double x : w.raw_target(prefix)) logits.push_back(logit(x));
      for (double x : w.raw_proposal(prefix)) laws.push_back(static_cast<float>(x));
    }
  }
  static std::int32_t number(std::span<const std::int32_t> prefix) { return prefix.empty() ? 0 : prefix.size() == 1 ? 1 + prefix[0] : 4 + 3 * prefix[0] + prefix[1]; }
};

// `width` children of the root and of each of its children (1: a chain of two), drawn from the proposal; then as many plain draws as are missing.
template <draft_law Law, class Rule>
void follows_the_target(std::int32_t width, const world& w, bool empty_tree = false) {
  const tables table(w);
  verify_workspace memory(vocabulary);
  sampling::row_workspace row_memory(vocabulary);
  const sampling::chain policy{sampling::temperature(1.f)};
  std::vector<double> counts(27, 0);
  for (std::uint32_t sample = 0; sample < samples; ++sample) {
    std::uint32_t index = 0;
    tokens nodes = {0}, parents = {-1}, numbers = {0};   // numbers: which prefix a node ends
    for (std::size_t u = 0; u < nodes.size() && nodes.size() < 1 + static_cast<std::size_t>(width + width * width) && !empty_tree; ++u) {
      double left[vocabulary], sum = 0;
      for (std::size_t v = 0; v < vocabulary; ++v) sum += left[v] = static_cast<double>(table.laws[static_cast<std::size_t>(numbers[u]) * vocabulary + v]);
      for (std::int32_t child = 0; child < width && sum > 1e-9; ++child) {
        double at = uniform({.seed = 3, .request = sample, .position = static_cast<std::uint32_t>(u), .purpose = purpose::draft, .index = index++}) * sum;
        std::int32_t token = 0;
        while (token + 1 < static_cast<std::int32_t>(vocabulary) && (at -= left[token]) > 0) ++token;
        if (left[token] <= 0) break;
        nodes.push_back(token), parents.push_back(static_cast<std::int32_t>(u));
        numbers.push_back(numbers[u] == 0 ? 1 + token : 4 + 3 * (numbers[u] - 1) + token);
        if (Law == draft_law::without_replacement) sum -= left[token], left[token] = 0;
      }
    }
    std::vector<float> rows;
    for (const std::int32_t number : numbers) rows.insert(rows.end(), table.logits.begin() + number * 3, table.logits.begin() + number * 3 + 3);
    draft_tree<Law> tree{nodes, parents};
    if constexpr (is_sampled(Law)) tree.laws = {.row_of = numbers, .dense = {table.laws.data(), extents{13, vocabulary}}};
    const auto v = Rule{.seed = 5, .request = sample}(tree, tensor_view<const float, 2>{rows.data(), extents{static_cast<std::int64_t>(nodes.size()), vocabulary}}, policy, {}, memory, 10);
    ASSERT_EQ(v.status, status::ok);
    ASSERT_EQ(v.residual_fallback, 0);
    tokens text(v.tokens.begin(), v.tokens.end());
    while (text.size() < length) {
      const std::size_t number = static_cast<std::size_t>(tables::number(text));
      text.push_back(sampling::sample_row(tensor_view<const float, 1>{&table.logits[3 * number], extents{vocabulary}}, policy, {}, {.seed = 5, .request = sample, .position = static_cast<std::uint32_t>(10 + text.size())}, row_memory).token);
    }
    ++counts[static_cast<std::size_t>(9 * text[0] + 3 * text[1] + text[2])];
  }
  double chi2 = 0, merged_count = 0, merged = 0, variation = 0, cells = 0;
  for (const auto& [text, probability] : target_law(w, length)) {
    const double expected = probability * samples, count = counts[static_cast<std::size_t>(9 * text[0] + 3 * text[1] + text[2])];
    variation += std::abs(count - expected) / samples / 2;
    if (expected < 5)
      merged += expected, merged_count += count;
    else
      chi2 += (count - expected) * (count - expected) / expected, ++cells;
  }
  if (merged > 0) chi2 += (merged_count - merged) * (merged_count - merged) / merged, ++cells;
  const double freedom = cells - 1, z = 4.7534, part = 2 / (9 * freedom);   // the quantile of probability 1e-6 (Wilson, Hilferty)
  EXPECT_LT(chi2, freedom * std::pow(1 - part + z * std::sqrt(part), 3)) << Rule::name << ' ' << static_cast<int>(Law) << " width " << width;
  EXPECT_LT(variation, .5 * std::sqrt(cells / samples) + std::sqrt(std::log(1e6) / (2. * samples)));
}

TEST(Statistics, Chains) {
  const world w = make_world(3, "random", 31);
  follows_the_target<draft_law::independent, verify::token>(1, w);
  follows_the_target<draft_law::independent, verify::block>(1, w);
  follows_the_target<draft_law::independent, verify::match>(1, w);
  follows_the_target<draft_law::deterministic, verify::token>(1, w, true);
}

TEST(Statistics, Trees) {
  const world w = make_world(3, "zero in q", 32);
  follows_the_target<draft_law::independent, verify::token>(2, w);
  follows_the_target<draft_law::without_replacement, verify::token>(2, w);
  follows_the_target<draft_law::independent, verify::k_seq>(3, w);
  follows_the_target<draft_law::independent, verify::optimal>(2, w);
}

}  // namespace
