#include <heddle/speculative/draft/prompt_lookup.hpp>

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;

ids drafts(const ids& context, const prompt_lookup_options& options, std::int32_t budget) {
  prompt_lookup drafter{options};
  const auto tree = drafter.propose(context, budget);
  EXPECT_EQ(tree.tokens[0], context.back());
  for (std::size_t u = 0; u < tree.parents.size(); ++u) EXPECT_EQ(tree.parents[u], static_cast<std::int32_t>(u) - 1);
  return {tree.tokens.begin() + 1, tree.tokens.end()};
}

// The definition, by trying everything.
ids brute_force(const ids& context, const prompt_lookup_options& options, std::int32_t budget) {
  const std::size_t n = context.size();
  for (auto m = static_cast<std::size_t>(options.max_match); m >= static_cast<std::size_t>(options.min_match); --m) {
    ids best;
    bool found = false;
    for (std::size_t start = 0; m < n && start + m < n; ++start) {
      if (!std::equal(context.end() - static_cast<std::ptrdiff_t>(m), context.end(), context.begin() + static_cast<std::ptrdiff_t>(start))) continue;
      if (found && options.occurrence == occurrence::earliest) continue;
      found = true;
      const auto from = context.begin() + static_cast<std::ptrdiff_t>(start + m);
      best.assign(from, from + std::min<std::ptrdiff_t>(budget, context.end() - from));
    }
    if (found) return best;
  }
  return {};
}

TEST(PromptLookup, Golden) {
  EXPECT_EQ(drafts({1, 2, 3, 4, 2, 3}, {.min_match = 2, .max_match = 3}, 4), (ids{4, 2, 3}));
  EXPECT_EQ(drafts({1, 2, 3}, {.min_match = 1, .max_match = 3}, 4), ids{});
  EXPECT_EQ(drafts({5, 5, 5}, {.min_match = 2, .max_match = 3}, 4), ids{5});  // the occurrence overlaps the last tokens
  EXPECT_EQ(drafts({7}, {}, 4), ids{});
  EXPECT_EQ(drafts({1, 2, 1, 2}, {.min_match = 1, .max_match = 3}, 0), ids{});
}

TEST(PromptLookup, EqualsTheDefinition) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 20000; ++trial) {
    ids context(1 + random() % 30);
    for (auto& t : context) t = static_cast<std::int32_t>(random() % (2 + trial % 3));
    prompt_lookup_options options{.min_match = 1 + static_cast<std::int32_t>(random() % 3), .occurrence = random() % 2 ? occurrence::earliest : occurrence::latest};
    options.max_match = options.min_match + static_cast<std::int32_t>(random() % 6);
    const auto budget = static_cast<std::int32_t>(random() % 6);
    ASSERT_EQ(drafts(context, options, budget), brute_force(context, options, budget)) << "trial " << trial;
  }
}

TEST(PromptLookup, BadInput) {
  EXPECT_THROW((prompt_lookup{{.min_match = 0}}), error);
  EXPECT_THROW((prompt_lookup{{.min_match = 3, .max_match = 2}}), error);
  prompt_lookup drafter;
  const ids context = {1};
  EXPECT_THROW(drafter.propose({}, 3), error);
  EXPECT_THROW(drafter.propose(context, -1), error);
}

}  // namespace
