// Every lossless rule against every kind of pair of laws, by enumeration of all drafts and all decisions, in double: the law of the emitted text is the
// target's.
#include <heddle/speculative/lossless.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/optimal_transport.hpp>
#include <heddle/speculative/verify/saki.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>
#include <heddle/speculative/verify/typical.hpp>

#include "speculative/verify/worlds.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

// --- which pairs are lossless ---

template <class Rule>
constexpr bool is(bool deterministic, bool independent, bool without_replacement, bool several, bool pruned, bool unpredictable) {
  return lossless<draft_law::deterministic, Rule> == deterministic && lossless<draft_law::independent, Rule> == independent && lossless<draft_law::without_replacement, Rule> == without_replacement &&
         lossless<draft_law::several, Rule> == several && lossless<draft_law::pruned, Rule> == pruned && lossless<draft_law::unpredictable, Rule> == unpredictable;
}
static_assert(is<verify::greedy>(true, true, true, true, true, true));
static_assert(is<verify::match>(true, true, true, true, true, true));
static_assert(is<verify::token>(true, true, true, true, true, false));
static_assert(is<verify::block>(true, true, true, false, false, false));
static_assert(is<verify::k_seq>(false, true, false, false, false, false));
static_assert(is<verify::optimal>(false, true, true, false, false, false));
static_assert(is<verify::typical>(false, false, false, false, false, false));
static_assert(is<verify::saki>(false, false, false, false, false, false));

// Where a lossless rule is required, another cannot be passed; a rule that cannot verify a law cannot be called with it.
template <draft_law Law, lossless_rule<Law> Rule>
constexpr bool accepts_lossless(const Rule&) {
  return true;
}
template <class Rule, draft_law Law>
concept passes = requires(Rule rule) { accepts_lossless<Law>(rule); };
static_assert(passes<verify::token, draft_law::independent> && !passes<verify::typical, draft_law::independent> && !passes<verify::k_seq, draft_law::without_replacement>);
template <class Rule, draft_law Law>
concept callable = requires(const Rule rule, draft_tree<Law> tree, tensor_view<const float, 2> logits, sampling::chain<> policy, verify_workspace& memory) { rule(tree, logits, policy, {}, memory); };
static_assert(callable<verify::match, draft_law::unpredictable> && !callable<verify::token, draft_law::unpredictable> && !callable<verify::block, draft_law::pruned>);
static_assert(!callable<verify::k_seq, draft_law::deterministic> && !callable<verify::saki, draft_law::deterministic> && callable<verify::typical, draft_law::unpredictable>);

// --- chains and trees ---

template <draft_law Law, class Rule>
void keeps_the_target_on_chains(const Rule& rule, std::size_t longest = 3) {
  for (const std::size_t vocabulary : {2u, 4u})
    for (std::size_t length = 1; length <= longest - (vocabulary == 4); ++length)
      for (const char* kind : kinds) {
        const world w = make_world(vocabulary, kind, 11 * static_cast<unsigned>(vocabulary + length));
        every_choice chance;
        EXPECT_LT(distance(chain_law<Law>(rule, w, length, chance), target_law(w, length + 1)), 1e-12) << Rule::name << ' ' << kind << " V " << vocabulary << " K " << length;
      }
}

template <draft_law Law, class Rule>
void keeps_the_target_on_trees(const Rule& rule) {
  for (const char* kind : kinds)
    for (const std::size_t width : {2u, 3u}) {
      const world w = make_world(3, kind, 5);
      every_choice chance;
      EXPECT_LT(distance(tree_law<Law>(rule, w, width, chance), target_law(w, 3)), 1e-12) << Rule::name << ' ' << kind << " width " << width;
    }
}

TEST(Conformance, BlockOnChains) { keeps_the_target_on_chains<draft_law::independent>(verify::block{}); }
TEST(Conformance, KSeqOnChainsAndTrees) {
  keeps_the_target_on_chains<draft_law::independent>(verify::k_seq{}, 2);
  keeps_the_target_on_trees<draft_law::independent>(verify::k_seq{});
}
TEST(Conformance, TheOptimumOnChainsAndTrees) {
  keeps_the_target_on_chains<draft_law::independent>(verify::optimal{}, 2);
  keeps_the_target_on_trees<draft_law::independent>(verify::optimal{});
  keeps_the_target_on_trees<draft_law::without_replacement>(verify::optimal{});
}
TEST(Conformance, MatchOnTrees) { keeps_the_target_on_trees<draft_law::independent>(verify::match{}); }

// Deterministic chains of three, all of them, and without any draft.
TEST(Conformance, BlockOfDeterministicDrafts) {
  for (const char* kind : kinds) {
    const world w = make_world(3, kind, 8);
    for (std::int32_t code = 0; code < 27; ++code) {
      drafted<draft_law::deterministic> chain;
      chain.add(0, code % 3), chain.add(1, code / 3 % 3), chain.add(2, code / 9);
      std::map<tokens, double> out;
      every_choice chance;
      chain.verify(verify::block{}, w, chance, 1, 4, out);
      EXPECT_LT(distance(out, target_law(w, 4)), 1e-12) << kind;
    }
  }
  const world w = make_world(3, "random", 8);
  std::map<tokens, double> out;
  every_choice chance;
  drafted<draft_law::deterministic>{}.verify(verify::block{}, w, chance, 1, 1, out);
  EXPECT_LT(distance(out, target_law(w, 1)), 1e-12);
}

// Typical acceptance is typed as lossy because it is.
TEST(Conformance, TypicalAcceptanceChangesTheLaw) {
  const world w = constant_world({.6, .3, .1}, {.2, .3, .5});
  every_choice chance;
  EXPECT_GT(distance(chain_law(verify::typical{}, w, 2, chance), target_law(w, 3)), 1e-2);
}

}  // namespace
