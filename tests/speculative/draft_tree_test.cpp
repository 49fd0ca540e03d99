// The check of trees: equal siblings are found wherever they stand, as a comparison of all pairs finds them.
#include <heddle/speculative/draft/draft_editing.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace {

using namespace heddle;

template <draft_law Law>
std::string complaint(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& parents) {
  draft_tree<Law> tree{};
  tree.tokens = tokens, tree.parents = parents;
  try {
    check("test", tree, 1 << 20);
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

TEST(DraftTree, EqualSiblingsAreFoundInTreesOfAnySize) {
  std::mt19937 random(4);
  int found = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const std::size_t nodes = trial % 50 == 0 ? 2030 + random() % 40 : 1 + random() % (trial % 3 ? 40 : 700);
    const std::int32_t parents_of = trial % 5 ? static_cast<std::int32_t>(nodes) : 1, ids = trial % 7 ? 1 << 20 : static_cast<std::int32_t>(nodes) + 1;
    std::vector<std::int32_t> tokens = {0}, parents = {-1};
    for (std::size_t u = 1; u < nodes; ++u) {
      tokens.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(ids)));
      parents.push_back(static_cast<std::int32_t>(random() % std::min<std::size_t>(u, static_cast<std::size_t>(parents_of))));
    }
    if (nodes > 3 && trial % 2) {   // one planted pair
      const std::size_t a = 1 + random() % (nodes - 2), b = a + 1 + random() % (nodes - a - 1);
      tokens[b] = tokens[a], parents[b] = parents[a];
    }
    bool same_token = false, same_parent = false;
    for (std::size_t u = 1; u < nodes; ++u)
      for (std::size_t v = 1; v < u; ++v)
        if (parents[u] == parents[v]) same_parent = true, same_token |= tokens[u] == tokens[v];
    found += same_token;
    ASSERT_EQ(!complaint<draft_law::deterministic>(tokens, parents).empty(), same_token) << nodes;
    ASSERT_EQ(!complaint<draft_law::without_replacement>(tokens, parents).empty(), same_token) << nodes;
    ASSERT_EQ(!complaint<draft_law::pruned>(tokens, parents).empty(), same_parent) << nodes;
    ASSERT_EQ(complaint<draft_law::independent>(tokens, parents), "");
  }
  EXPECT_GT(found, 200);
  EXPECT_LT(found, 500);
}

TEST(DraftTree, TheMessageNamesThePair) {
  EXPECT_EQ(complaint<draft_law::deterministic>({9, 4, 5, 4}, {-1, 0, 0, 0}), "test: argument 'tree': nodes 1 and 3 are children of node 0 with the same token 4");
  EXPECT_EQ(complaint<draft_law::deterministic>({9, 4, 5, 4}, {-1, 0, 0, 1}), "");
}

// Draws of different passes and slots of an edited block have different keys only up to 2^16 of each.
TEST(EditedBlock, MoreSlotsOrPassesThanKeysAreRefused) {
  struct {
    block_prediction predict(std::span<const std::int32_t>, std::int32_t) const { return {}; }
    block_prediction revise(std::span<const std::int32_t>, std::span<const std::int32_t>) const { return {}; }
  } model;
  const std::int32_t context[] = {1};
  edited_block edited{model, {.edits = 1}};
  EXPECT_THROW(edited.predict(context, 65537), error);
  EXPECT_NO_THROW(edited.predict(context, 65536));
  EXPECT_THROW((edited_block{model, {.edits = 65535}}), error);
}

}  // namespace
