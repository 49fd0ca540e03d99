#include <heddle/speculative/draft/suffix_automaton.hpp>
#include <heddle/speculative/draft/suffix_drafter.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
using documents = std::vector<ids>;

ids random_text(std::mt19937& random, std::size_t n, unsigned alphabet) {
  ids text(n);
  for (auto& t : text) t = static_cast<std::int32_t>(random() % alphabet) * 40000;
  return text;
}

// Where a string first ends in a document: the index after it, or -1.
std::ptrdiff_t first_end(const ids& text, const ids& pattern, std::size_t before) {
  for (std::size_t end = pattern.size(); end <= text.size() && end < before; ++end)
    if (std::equal(pattern.begin(), pattern.end(), text.begin() + static_cast<std::ptrdiff_t>(end - pattern.size()))) return static_cast<std::ptrdiff_t>(end);
  return -1;
}

ids up_to(const ids& text, std::ptrdiff_t from, std::int32_t budget) {
  return {text.begin() + from, text.begin() + std::min<std::ptrdiff_t>(from + budget, static_cast<std::ptrdiff_t>(text.size()))};
}

// The definition: the longest suffix of `context` that ends in one of the documents (in the last of them before its end), and what followed first.
std::pair<std::int32_t, ids> definition(const documents& all, const ids& context, std::int32_t budget, bool last_is_context) {
  for (std::size_t m = context.size(); m > 0; --m) {
    const ids pattern(context.end() - static_cast<std::ptrdiff_t>(m), context.end());
    for (std::size_t d = 0; d < all.size(); ++d) {
      const bool own = last_is_context && d + 1 == all.size();
      if (const auto end = first_end(all[d], pattern, own ? all[d].size() : all[d].size() + 1); end >= 0) return {static_cast<std::int32_t>(m), up_to(all[d], end, budget)};
    }
  }
  return {0, {}};
}

ids as_vector(std::span<const std::int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

TEST(SuffixAutomaton, Golden) {
  suffix_automaton text;
  text.append(ids{1, 2, 3, 1, 2});
  const suffix_match match = text.longest_repeat();
  EXPECT_EQ(match.length, 2);
  EXPECT_EQ(as_vector(text.continuation(match, 8)), (ids{3, 1, 2}));
  EXPECT_EQ(as_vector(text.continuation(match, 2)), (ids{3, 1}));
  EXPECT_TRUE(text.continuation(match, 0).empty());
  EXPECT_EQ(suffix_automaton{}.longest_repeat().length, 0);
}

TEST(SuffixAutomaton, LongestRepeatIsThatOfTheDefinitionAfterEveryToken) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const ids text = random_text(random, 1 + random() % 60, 1 + static_cast<unsigned>(trial) % 40);
    suffix_automaton automaton;
    ids so_far;
    for (const std::int32_t token : text) {
      automaton.append(token), so_far.push_back(token);
      const auto [length, drafts] = definition({so_far}, so_far, 5, true);
      ASSERT_EQ(automaton.longest_repeat().length, length);
      ASSERT_EQ(as_vector(automaton.continuation(automaton.longest_repeat(), 5)), drafts);
    }
    ASSERT_LE(automaton.num_states(), std::max<std::int64_t>(2, 2 * automaton.size() - 1) + (automaton.size() == 1));
  }
}

TEST(SuffixAutomaton, StatesAreTheClassesOfSubstringsWithEqualEnds) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 60; ++trial) {
    const ids text = random_text(random, 3 + random() % 25, 2 + static_cast<unsigned>(trial) % 3);
    std::set<std::vector<std::size_t>> ends;
    for (std::size_t a = 0; a < text.size(); ++a)
      for (std::size_t b = a + 1; b <= text.size(); ++b) {
        std::vector<std::size_t> where;
        for (std::size_t e = b - a; e <= text.size(); ++e)
          if (std::equal(text.begin() + static_cast<std::ptrdiff_t>(a), text.begin() + static_cast<std::ptrdiff_t>(b), text.begin() + static_cast<std::ptrdiff_t>(e - (b - a)))) where.push_back(e);
        ends.insert(where);
      }
    suffix_automaton automaton;
    automaton.append(text);
    EXPECT_EQ(automaton.num_states(), static_cast<std::int64_t>(ends.size()) + 1);
    EXPECT_LE(automaton.num_states(), 2 * automaton.size() - 1);
  }
}

TEST(SuffixAutomaton, CursorCarriesTheLongestMatchInACorpusOfDocuments) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const unsigned alphabet = 2 + static_cast<unsigned>(trial) % 12;
    documents all(1 + random() % 4);
    suffix_automaton corpus;
    for (auto& document : all) {
      document = random_text(random, random() % 30, alphabet);
      corpus.append(document);
      corpus.end_document();
    }
    suffix_cursor cursor;
    ids context;
    for (const std::int32_t token : random_text(random, 40, alphabet + 1)) {
      context.push_back(token);
      cursor = corpus.advance(cursor, token);
      const auto [length, drafts] = definition(all, context, 4, false);
      ASSERT_EQ(cursor.length, length);
      ASSERT_EQ(as_vector(corpus.continuation(corpus.match_of(cursor), 4)), drafts);
    }
  }
}

TEST(SuffixAutomaton, LaterDocumentsRepeatEarlierOnes) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    documents all;
    suffix_automaton automaton;
    for (int d = 0; d < 3; ++d) {
      all.emplace_back();
      for (const std::int32_t token : random_text(random, 1 + random() % 25, 3)) {
        automaton.append(token), all.back().push_back(token);
        const auto [length, drafts] = definition(all, all.back(), 6, true);
        ASSERT_EQ(automaton.longest_repeat().length, length);
        ASSERT_EQ(as_vector(automaton.continuation(automaton.longest_repeat(), 6)), drafts);
      }
      automaton.end_document();
      EXPECT_EQ(automaton.longest_repeat().length, 0);
      automaton.end_document();   // an empty document leaves no trace
    }
    EXPECT_EQ(automaton.size(), static_cast<std::int64_t>(all[0].size() + all[1].size() + all[2].size()) + 3);
  }
}

TEST(SuffixAutomaton, BoundedTextForgetsItsOlderHalf) {
  std::mt19937 random(5);
  const ids text = random_text(random, 900, 30);
  suffix_automaton bounded{{.max_tokens = 100}};
  std::size_t kept_from = 0, most = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i - kept_from == 100) kept_from = i - 50;
    bounded.append(text[i]);
    const ids kept(text.begin() + static_cast<std::ptrdiff_t>(kept_from), text.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ASSERT_EQ(as_vector(bounded.text()), kept);
    const auto [length, drafts] = definition({kept}, kept, 5, true);
    ASSERT_EQ(bounded.longest_repeat().length, length);
    ASSERT_EQ(as_vector(bounded.continuation(bounded.longest_repeat(), 5)), drafts);
    most = std::max(most, bounded.bytes());
    if (i == 300) most = bounded.bytes();
  }
  EXPECT_LE(bounded.bytes(), most);
  EXPECT_LT(most, 30000u);
}

TEST(SuffixAutomaton, ManyEdgesOfOneState) {   // tables grow past the searched sizes, are copied by splits and used again
  suffix_automaton automaton;
  ids text;
  for (std::int32_t i = 0; i < 3000; ++i) text.insert(text.end(), {7, 8, 10 + i});   // 7 8 has 3000 continuations
  text.insert(text.end(), {8, 5, 7, 8});                                             // splits the state of 7 8
  automaton.append(text);
  EXPECT_EQ(automaton.longest_repeat().length, 2);
  EXPECT_EQ(as_vector(automaton.continuation(automaton.longest_repeat(), 2)), (ids{10, 7}));
  for (std::int32_t i = 0; i < 3000; ++i) {
    suffix_cursor cursor;
    for (const std::int32_t token : {7, 8, 10 + i}) cursor = automaton.advance(cursor, token);
    ASSERT_EQ(cursor.length, 3);
    ASSERT_EQ(automaton.match_of(cursor).next, 3 * i + 3);
  }
}

TEST(SuffixAutomaton, BadInput) {
  suffix_automaton automaton;
  EXPECT_THROW(automaton.append(-1), error);
  EXPECT_EQ(automaton.size(), 0);
  EXPECT_THROW((suffix_automaton{{.max_tokens = 1}}), error);
  EXPECT_THROW((suffix_automaton{{.max_tokens = -5}}), error);
}

ids drafts_of(suffix_drafter& drafter, const ids& context, std::int32_t budget) {
  const auto tree = drafter.propose(context, budget);
  EXPECT_EQ(tree.tokens[0], context.back());
  for (std::size_t u = 0; u < tree.parents.size(); ++u) EXPECT_EQ(tree.parents[u], static_cast<std::int32_t>(u) - 1);
  return {tree.tokens.begin() + 1, tree.tokens.end()};
}

TEST(SuffixDrafter, ContinuesTheContextOrTheCorpusWhicheverMatchesLonger) {
  suffix_automaton corpus;
  corpus.append(ids{1, 2, 3, 9, 9});
  corpus.end_document();
  const ids context = {2, 3, 4, 1, 2, 3};   // 2 3 in the context, 1 2 3 in the corpus
  suffix_drafter alone{{.min_match = 2}}, both{{.min_match = 2, .corpus = &corpus}}, biased{{.min_match = 2, .corpus = &corpus, .corpus_bias = 1}}, demanding{{.min_match = 3}};
  EXPECT_EQ(drafts_of(alone, context, 4), (ids{4, 1, 2, 3}));
  EXPECT_EQ(drafts_of(both, context, 4), (ids{9, 9}));
  EXPECT_TRUE(both.from_corpus());
  EXPECT_EQ(both.match_length(), 3);
  EXPECT_EQ(drafts_of(biased, context, 4), (ids{4, 1, 2, 3}));
  EXPECT_EQ(drafts_of(demanding, context, 4), ids{});
  EXPECT_EQ(demanding.match_length(), 0);
}

TEST(SuffixDrafter, FollowsAContextThatGrowsAndStartsAnewWithAnother) {
  std::mt19937 random(6);
  suffix_drafter follower{{.min_match = 1}};
  ids context;
  for (int step = 0; step < 300; ++step) {
    if (random() % 40 == 0) context.resize(context.size() / 2);                             // shorter
    if (random() % 40 == 0) context = random_text(random, context.size() + random() % 3, 9);   // another text
    const ids more = random_text(random, 1 + random() % 5, 5);
    context.insert(context.end(), more.begin(), more.end());
    suffix_drafter fresh{{.min_match = 1}};
    ASSERT_EQ(drafts_of(follower, context, 6), drafts_of(fresh, context, 6)) << step;
  }
}

TEST(SuffixDrafter, BadInput) {
  suffix_drafter drafter;
  const ids context = {1};
  EXPECT_THROW(drafter.propose({}, 3), error);
  EXPECT_THROW(drafter.propose(context, -1), error);
  EXPECT_THROW((suffix_drafter{{.min_match = 0}}), error);
}

}  // namespace
