#include <heddle/speculative/draft/suffix_tree.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
using documents = std::vector<ids>;

// How often a string occurs.
std::int64_t occurrences(const documents& text, const ids& string) {
  std::int64_t count = 0;
  for (const ids& d : text)
    for (auto at = d.begin(); (at = std::search(at, d.end(), string.begin(), string.end())) != d.end(); ++at) ++count;
  return count;
}

struct drafts {
  std::vector<ids> paths{};   // in order
  double sum = 0;
  std::size_t match = 0;
};

// The definition, from counts of strings.
void improve(drafts& best, const documents& text, const ids& context, std::int64_t least, const suffix_tree_options& o, std::int32_t budget) {
  for (std::size_t m = std::min<std::size_t>(context.size(), static_cast<std::size_t>(o.max_match)); m > 0; --m) {
    const ids match(context.end() - static_cast<std::ptrdiff_t>(m), context.end());
    if (occurrences(text, match) < least) continue;
    const auto allowed = std::min<std::int64_t>(budget, std::max<std::int64_t>(0, static_cast<std::int64_t>(static_cast<double>(m) * o.factor + o.offset)));
    struct open {
      double p;
      ids path;
      std::size_t parent;
    };
    std::vector<open> frontier;
    drafts found{.match = m};
    const auto expand = [&](const ids& path, double p, std::size_t number) {
      if (path.size() == static_cast<std::size_t>(o.max_depth)) return;
      ids string = match;
      string.insert(string.end(), path.begin(), path.end());
      const auto whole = static_cast<double>(occurrences(text, string));
      for (std::int32_t v = 0; v < 6; ++v) {
        ids next = string;
        next.push_back(v);
        const double q = p / whole * static_cast<double>(occurrences(text, next));
        if (q > 0 && q >= o.min_probability) frontier.push_back({q, path, number}), frontier.back().path.push_back(v);
      }
    };
    expand({}, 1, 0);
    while (!frontier.empty() && static_cast<std::int64_t>(found.paths.size()) < allowed) {
      const auto next = std::min_element(frontier.begin(), frontier.end(), [](const open& a, const open& b) {
        if (a.p != b.p) return a.p > b.p;
        if (a.path.size() != b.path.size()) return a.path.size() < b.path.size();
        return a.parent != b.parent ? a.parent < b.parent : a.path.back() < b.path.back();
      });
      const open taken = *next;
      frontier.erase(next);
      found.sum += taken.p, found.paths.push_back(taken.path);
      expand(taken.path, taken.p, found.paths.size());
    }
    if (found.sum > best.sum || (found.sum == best.sum && found.sum > 0 && m > best.match)) best = found;
  }
}

std::vector<ids> paths_of(const draft_tree<draft_law::deterministic>& tree) {
  std::vector<ids> paths(1);
  for (std::size_t u = 1; u < tree.tokens.size(); ++u) paths.push_back(paths[static_cast<std::size_t>(tree.parents[u])]), paths.back().push_back(tree.tokens[u]);
  paths.erase(paths.begin());
  return paths;
}

TEST(SuffixTree, Golden) {
  // 1 2 is followed by 3 twice and by 4 once, and stands at the end: 2/4 and 1/4
  suffix_tree_drafter drafter{{.max_match = 2, .factor = 2., .min_probability = .2}};
  const ids context = {1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2};
  const auto tree = drafter.propose(context, 9);
  EXPECT_EQ(drafter.match_length(), 2);
  EXPECT_EQ(paths_of(tree), (std::vector<ids>{{3}, {4}, {3, 1}, {3, 5}}));
  EXPECT_EQ(drafter.probabilities()[1], .5);
  EXPECT_EQ(drafter.expected_accepted(), 1.25);
  check("test", tree, 6);
  EXPECT_EQ(drafter.propose(context, 1).tokens.size(), 2u);
  EXPECT_EQ(drafter.propose(context, 0).tokens.size(), 1u);
}

TEST(SuffixTree, CountsAreOccurrences) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int32_t depth = 1 + trial % 7;
    suffix_automaton text{{.count_depth = depth}};
    documents all;
    for (int d = 0; d < 3; ++d) {
      all.emplace_back();
      const auto length = random() % 40;
      for (std::size_t i = 0; i < length; ++i) {
        const auto token = static_cast<std::int32_t>(random() % (1 + static_cast<unsigned>(trial) % 4));
        text.append(token), all.back().push_back(token);
        ids tail(all.back().end() - std::min<std::ptrdiff_t>(depth, static_cast<std::ptrdiff_t>(all.back().size())), all.back().end());
        ASSERT_EQ(text.tail().length, static_cast<std::int32_t>(tail.size()));
        ASSERT_EQ(text.count(text.tail()), occurrences(all, tail));
      }
      text.end_document();
    }
    std::map<ids, std::int64_t> seen;
    for (const ids& d : all)
      for (std::size_t a = 0; a < d.size(); ++a)
        for (std::size_t n = 1; n <= static_cast<std::size_t>(depth) && a + n <= d.size(); ++n) ++seen[ids(d.begin() + static_cast<std::ptrdiff_t>(a), d.begin() + static_cast<std::ptrdiff_t>(a + n))];
    std::size_t visited = 0;
    const auto visit = [&](const auto& self, suffix_cursor at, const ids& string) -> void {
      if (string.size() == static_cast<std::size_t>(depth)) return;
      text.for_each_continuation(at, [&](std::int32_t token, suffix_cursor next) {
        ids longer = string;
        longer.push_back(token);
        ++visited;
        ASSERT_EQ(text.count(next), seen[longer]);
        self(self, next, longer);
      });
    };
    visit(visit, {}, {});
    ASSERT_EQ(visited, seen.size());
  }
}

TEST(SuffixTree, EqualsTheDefinition) {
  std::mt19937 random(2);
  int drafted = 0, branching = 0;
  for (int trial = 0; trial < 250; ++trial) {
    suffix_tree_options o{.max_match = 1 + static_cast<std::int32_t>(random() % 5), .max_depth = 1 + static_cast<std::int32_t>(random() % 5), .factor = .5 * static_cast<double>(random() % 5), .offset = static_cast<double>(random() % 3) - 1, .min_probability = .05 + .1 * static_cast<double>(random() % 4)};
    const unsigned alphabet = 2 + static_cast<unsigned>(trial) % 5;
    const auto random_text = [&](std::size_t n) {
      ids text(n);
      for (auto& t : text) t = static_cast<std::int32_t>(random() % alphabet);
      return text;
    };
    suffix_automaton corpus{{.count_depth = o.max_match + o.max_depth}};
    documents all;
    if (trial % 2) {
      for (int d = 0; d < 2; ++d) all.push_back(random_text(random() % 30)), corpus.append(all.back()), corpus.end_document();
      o.corpus = &corpus;
    }
    suffix_tree_drafter drafter{o};
    ids context;
    for (int step = 0; step < 12; ++step) {
      const ids more = random_text(1 + random() % 4);
      context.insert(context.end(), more.begin(), more.end());
      const auto budget = static_cast<std::int32_t>(random() % 8);
      drafts expected;
      improve(expected, {context}, context, 2, o, budget);
      improve(expected, all, context, 1, o, budget);
      const auto tree = drafter.propose(context, budget);
      ASSERT_EQ(paths_of(tree), expected.paths) << trial << " " << step;
      ASSERT_EQ(drafter.match_length(), static_cast<std::int32_t>(expected.match));
      ASSERT_NEAR(drafter.expected_accepted(), expected.sum, 1e-12);
      check("test", tree, 6);
      drafted += tree.tokens.size() > 1;
      for (std::size_t u = 2; u < tree.tokens.size(); ++u) branching += tree.parents[u] != static_cast<std::int32_t>(u) - 1;
    }
  }
  EXPECT_GT(drafted, 500);
  EXPECT_GT(branching, 300);
}

TEST(SuffixTree, BoundedTextCountsWhatItHolds) {
  std::mt19937 random(3);
  suffix_tree_options o{.max_match = 4, .max_depth = 4, .max_tokens = 64};
  suffix_tree_drafter drafter{o};
  ids context;
  std::size_t kept_from = 0;
  for (int i = 0; i < 400; ++i) {
    if (context.size() - kept_from == 64) kept_from = context.size() - 32;
    context.push_back(static_cast<std::int32_t>(random() % 5));
    const ids held(context.begin() + static_cast<std::ptrdiff_t>(kept_from), context.end());
    drafts expected;
    improve(expected, {held}, held, 2, o, 6);
    ASSERT_EQ(paths_of(drafter.propose(context, 6)), expected.paths) << i;
  }
}

TEST(SuffixTree, BadInput) {
  EXPECT_THROW((suffix_tree_drafter{{.max_match = 0}}), error);
  EXPECT_THROW((suffix_tree_drafter{{.max_depth = 0}}), error);
  EXPECT_THROW((suffix_tree_drafter{{.factor = -1.}}), error);
  EXPECT_THROW((suffix_tree_drafter{{.min_probability = 0.}}), error);
  suffix_automaton uncounted;
  EXPECT_THROW((suffix_tree_drafter{{.corpus = &uncounted}}), error);
  EXPECT_THROW((suffix_automaton{{.count_depth = -1}}), error);
  suffix_tree_drafter drafter;
  const ids context = {1};
  EXPECT_THROW(drafter.propose({}, 3), error);
  EXPECT_THROW(drafter.propose(context, -1), error);
}

}  // namespace
