#pragma once
// A target small enough to be read, and drafters of every quality for it.
#include <heddle/speculative/draft_tree.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace toy {

using namespace heddle;
using ids = std::vector<std::int32_t>;
inline constexpr std::int64_t vocabulary = 23;

// A target whose logits depend on the last three tokens, with a cache that can be inspected. Repetitive enough for lookups to succeed.
struct toy_model {
  ids cache;             // committed rows
  ids nodes, parents;    // rows of the last pass
  std::vector<float> logits;
  bool poisoned = false;

  tensor_view<const float, 2> score(const token_tree& tree) {
    nodes.assign(tree.tokens.begin(), tree.tokens.end()), parents.assign(tree.parents.begin(), tree.parents.end());
    logits.resize(nodes.size() * vocabulary);
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      ids text = cache;
      ids path;
      for (auto v = static_cast<std::int32_t>(u); v >= 0; v = parents[static_cast<std::size_t>(v)]) path.push_back(nodes[static_cast<std::size_t>(v)]);
      EXPECT_EQ(static_cast<std::size_t>(tree.depths[u]) + 1, path.size());
      text.insert(text.end(), path.rbegin(), path.rend());
      row_after(text, &logits[u * vocabulary]);
    }
    if (poisoned) logits[3] = std::numeric_limits<float>::quiet_NaN();
    return {logits.data(), extents{static_cast<std::int64_t>(nodes.size()), vocabulary}};
  }
  void keep(std::span<const std::int32_t> path) {
    cache.push_back(nodes[0]);
    std::int32_t last = 0;
    for (std::int32_t u : path) {
      ASSERT_EQ(parents[static_cast<std::size_t>(u)], last);
      cache.push_back(nodes[static_cast<std::size_t>(u)]), last = u;
    }
  }
  static void row_after(const ids& text, float* out) {
    std::seed_seq key{text.size() > 2 ? text[text.size() - 3] % 2 : 0, text.size() > 1 ? text[text.size() - 2] : 0, text.back()};
    std::mt19937 random(key);
    for (std::int64_t v = 0; v < vocabulary; ++v) out[v] = std::normal_distribution<float>(0.f, 2.5f)(random);
  }
};

// Random trees, or chains, of random size: good and bad drafts, any law that needs no rows.
template <draft_law Law>
struct random_drafter {
  std::mt19937 random{4};
  int max_children = 1;
  unsigned mistakes = 4;  // one draft in so many is anything
  ids tokens{}, parents{};
  std::vector<ids> kept{};
  draft_tree<Law> propose(std::span<const std::int32_t> context, std::int32_t budget) {
    tokens = {context.back()}, parents = {-1};
    for (std::int32_t i = 0; i < budget; ++i) {
      const auto parent = max_children == 1 ? i : static_cast<std::int32_t>(random() % tokens.size());
      // likely tokens: what the toy model would say after this node, or anything
      ids text(context.begin(), context.end() - 1), path;
      for (auto v = parent; v >= 0; v = parents[static_cast<std::size_t>(v)]) path.push_back(tokens[static_cast<std::size_t>(v)]);
      text.insert(text.end(), path.rbegin(), path.rend());
      float row[vocabulary];
      toy_model::row_after(text, row);
      auto token = static_cast<std::int32_t>(std::max_element(row, row + vocabulary) - row);
      if (random() % mistakes == 0) token = static_cast<std::int32_t>(random() % vocabulary);
      bool taken = false;
      for (std::size_t u = 1; u < tokens.size(); ++u) taken |= parents[u] == parent && tokens[u] == token;
      if (taken) continue;
      tokens.push_back(token), parents.push_back(parent);
    }
    return {tokens, parents};
  }
  void keep(std::span<const std::int32_t> path) { kept.emplace_back(path.begin(), path.end()); }
};

}  // namespace toy
