// The batched call with every rule: a request's verdict is the one it gets alone, whatever the batch, its order and its workers; sparse laws, trees.
#include <heddle/core/thread_team.hpp>
#include <heddle/speculative/verify/batch.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/saki.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <heddle/speculative/verify/typical.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
constexpr std::int64_t requests = 9, longest = 4, vocabulary = 11, nodes = longest + 1;
const sampling::chain<sampling::parameters> chains[] = {sampling::chain{sampling::parameters{.temperature = .9f, .top_p = .97f}}};

struct batch {
  std::vector<float> logits = std::vector<float>(requests * nodes * vocabulary), laws = logits;
  ids drafts = ids(requests * longest, -1), parents = drafts, lengths;
  std::vector<std::int64_t> positions;
  batch() {
    std::mt19937 random(12);
    for (float& z : logits) z = std::normal_distribution<float>(0.f, 1.f)(random);
    for (float& q : laws) q = random() % 3 ? 0.f : std::uniform_real_distribution<float>(.1f, 1.f)(random);
    for (std::size_t r = 0; r < requests; ++r) {
      lengths.push_back(static_cast<std::int32_t>(r % nodes)), positions.push_back(static_cast<std::int64_t>(3 + r));
      for (std::size_t u = 0; u < nodes; ++u) law(r)[u * vocabulary + (r + 3 * u) % vocabulary] = 1.f;
      for (std::size_t i = 0; i < longest; ++i) {
        const bool padding = static_cast<std::int32_t>(i) >= lengths[r];
        const std::size_t parent = i < 2 ? 0 : i - 1;   // 0 -> {1, 2}, 1 -> 3, 2 -> 4
        parents[r * longest + i] = padding ? 77 : static_cast<std::int32_t>(parent);
        drafts[r * longest + i] = padding ? -1 : static_cast<std::int32_t>((r + 3 * i) % vocabulary);
        if (padding) std::fill_n(law(r) + (i + 1) * vocabulary, vocabulary, -5.f);   // never read
        for (std::size_t u : {i, parent}) logits[(r * nodes + u) * vocabulary + (r + 3 * i) % vocabulary] = 3.f;
        if (i == 1 && r % 2 == 0) logits[r * nodes * vocabulary + (r + 3) % vocabulary] = 7.f;   // the second child of the root
        for (std::size_t u : {i, parent}) law(r)[u * vocabulary + (r + 3 * i) % vocabulary] = std::abs(law(r)[u * vocabulary + (r + 3 * i) % vocabulary]) + .5f;
      }
    }
  }
  float* law(std::size_t r) { return &laws[r * nodes * vocabulary]; }
};

struct result {
  ids tokens = ids(requests * nodes, -9), accepted = ids(requests, -9);
  std::vector<ids> paths = std::vector<ids>(requests);
  friend bool operator==(const result&, const result&) = default;
};

// The requests `order` of the batch, in that order; the result in the order of the batch.
template <class Rule, class Laws>
result run(const batch& b, const std::vector<std::size_t>& order, const Laws& laws_of, std::size_t workers, bool trees) {
  const auto n = static_cast<std::int64_t>(order.size());
  std::vector<float> logits;
  ids drafts, parents;
  std::vector<std::int64_t> positions;
  std::vector<Rule> rules;
  for (const std::size_t r : order) {
    const auto at = static_cast<std::ptrdiff_t>(r);
    logits.insert(logits.end(), b.logits.begin() + at * nodes * vocabulary, b.logits.begin() + (at + 1) * nodes * vocabulary);
    drafts.insert(drafts.end(), b.drafts.begin() + at * longest, b.drafts.begin() + (at + 1) * longest);
    parents.insert(parents.end(), b.parents.begin() + at * longest, b.parents.begin() + (at + 1) * longest);
    positions.push_back(b.positions[r]);
    rules.push_back({.seed = 6, .request = static_cast<std::uint32_t>(r)});
  }
  thread_team team(workers);
  std::vector<verify_workspace> memory;
  for (std::size_t i = 0; i < workers; ++i) memory.emplace_back(vocabulary);
  ids tokens(order.size() * nodes), accepted(order.size());
  result out;
  verify_options<host> options{.positions = positions, .memory = memory, .executor = team};
  if (trees) options.parents = {parents.data(), extents{n, longest}};
  verify_batch(std::span<const Rule>(rules), tensor_view<const std::int32_t, 2>{drafts.data(), extents{n, longest}}, laws_of(order), tensor_view<const float, 3>{logits.data(), extents{n, nodes, vocabulary}},
               std::span<const sampling::chain<sampling::parameters>>(chains), tensor_view<std::int32_t, 2>{tokens.data(), extents{n, nodes}}, tensor_view<std::int32_t, 1>{accepted.data(), extents{n}}, options,
               [&](std::int64_t r, const auto& v) { out.paths[order[static_cast<std::size_t>(r)]] = {v.path.begin(), v.path.end()}; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::copy_n(&tokens[i * nodes], nodes, &out.tokens[order[i] * nodes]);
    out.accepted[order[i]] = accepted[i];
  }
  return out;
}

// Laws of the requests in dense rows, and as lists.
struct dense_laws {
  const batch& b;
  mutable std::vector<float> rows{};
  tensor_view<const float, 3> operator()(const std::vector<std::size_t>& order) const {
    rows.clear();
    for (const std::size_t r : order) rows.insert(rows.end(), &b.laws[r * nodes * vocabulary], &b.laws[r * nodes * vocabulary] + nodes * vocabulary);
    return {rows.data(), extents{static_cast<std::int64_t>(order.size()), nodes, vocabulary}};
  }
};
struct listed_laws {
  const batch& b;
  mutable std::vector<std::int64_t> indptr{};
  mutable ids tokens{};
  mutable std::vector<float> probabilities{};
  sparse_drafts operator()(const std::vector<std::size_t>& order) const {
    indptr = {0}, tokens.clear(), probabilities.clear();
    for (const std::size_t r : order)
      for (std::size_t u = 0; u < nodes; ++u) {
        for (std::int32_t v = vocabulary; v-- > 0;)   // from the end: the order of entries is free
          if (const float q = b.laws[(r * nodes + u) * vocabulary + static_cast<std::size_t>(v)]; q != 0.f) tokens.push_back(v), probabilities.push_back(q);
        indptr.push_back(static_cast<std::int64_t>(tokens.size()));
      }
    return {nodes, indptr, tokens, probabilities};
  }
};

template <class Rule>
class BatchOf : public testing::Test {};
using rules = testing::Types<verify::token, verify::block, verify::k_seq, verify::match, verify::typical, verify::saki>;
TYPED_TEST_SUITE(BatchOf, rules);

TYPED_TEST(BatchOf, RequestsIsDecidedAsIfAlone) {
  const batch b;
  const dense_laws dense{b};
  const listed_laws listed{b};
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (const bool trees : {false, true}) {
    if (trees && requires { TypeParam::chains_only; }) continue;
    const result together = run<TypeParam>(b, order, dense, 2, trees);
    result alone;
    int emitted = 0;
    for (const std::size_t r : order) {
      const result one = run<TypeParam>(b, {r}, dense, 1, trees);
      std::copy_n(&one.tokens[r * nodes], nodes, &alone.tokens[r * nodes]);
      alone.accepted[r] = one.accepted[r], alone.paths[r] = one.paths[r];
      for (std::size_t i = 0; i < nodes; ++i) emitted += one.tokens[r * nodes + i] >= 0;
      EXPECT_LE(one.accepted[r], b.lengths[r]);
    }
    EXPECT_TRUE(together == alone) << TypeParam::name;
    EXPECT_GT(emitted, requests);
    std::vector<std::size_t> reversed(order.rbegin(), order.rend());
    EXPECT_TRUE(run<TypeParam>(b, reversed, listed, 2, trees) == together) << TypeParam::name << ": lists, another order";
  }
}

TEST(BatchOfTrees, PathsAreThoseOfTheTree) {
  const batch b;
  const dense_laws dense{b};
  const std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const result trees = run<verify::match>(b, order, dense, 1, true);
  bool branched = false;
  for (std::size_t r = 0; r < requests; ++r) {
    std::int32_t node = 0;
    for (std::size_t i = 0; i < trees.paths[r].size(); ++i) {
      const std::int32_t next = trees.paths[r][i];
      EXPECT_EQ(b.parents[r * longest + static_cast<std::size_t>(next) - 1], node);
      EXPECT_EQ(trees.tokens[r * nodes + i], b.drafts[r * longest + static_cast<std::size_t>(next) - 1]);
      branched |= next != node + 1;
      node = next;
    }
  }
  EXPECT_TRUE(branched);
}

}  // namespace
