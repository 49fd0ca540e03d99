// Several drafts at one node: K-SEQ, the optimum, and how recursive rejection compares with both.
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/optimal_transport.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/verify/worlds.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

const row p = {.6, .3, .1}, q = {.2, .3, .5};
constexpr draft_law with = draft_law::independent, without = draft_law::without_replacement;

TEST(MultiDraft, AcceptanceOfEachRule) {
  const double recursive[] = {.6, 17. / 25, 93. / 125}, removing[] = {.6, 19. / 25, 1}, best[] = {.6, 19. / 25, 111. / 125}, best_removing[] = {.6, 31. / 35, 1}, common[] = {.6, .708062, .789674};
  for (std::size_t k = 1; k <= 3; ++k) {
    const auto drafts = static_cast<std::int32_t>(k);
    EXPECT_NEAR(sibling_acceptance<with>(verify::token{}, p, q, k), recursive[k - 1], 1e-7);
    EXPECT_NEAR(sibling_acceptance<without>(verify::token{}, p, q, k), removing[k - 1], 1e-7);
    EXPECT_NEAR(verify::optimal_acceptance(p, q, drafts, with), best[k - 1], 1e-12);
    EXPECT_NEAR(verify::optimal_acceptance(p, q, drafts, without), best_removing[k - 1], 1e-12);
    EXPECT_NEAR(sibling_acceptance<with>(verify::optimal{}, p, q, k), best[k - 1], 1e-7);
    EXPECT_NEAR(sibling_acceptance<without>(verify::optimal{}, p, q, k), best_removing[k - 1], 1e-7);
    EXPECT_NEAR(verify::plan_k_seq(p, q, drafts).accept, common[k - 1], 5e-7);
    EXPECT_NEAR(sibling_acceptance<with>(verify::k_seq{}, p, q, k), common[k - 1], 5e-7);
  }
  EXPECT_NEAR(verify::plan_k_seq(p, q, 2).rho, 1.540312, 5e-7);
  EXPECT_EQ(verify::plan_k_seq(p, q, 1).rho, 1);
  EXPECT_EQ(verify::plan_k_seq(p, p, 3).rho, 1);
  const row disjoint = {0, 0, 1}, other = {.5, .5, 0};
  EXPECT_EQ(verify::plan_k_seq(other, disjoint, 3).accept, 0);
  EXPECT_EQ(verify::k_seq_residual(.5, 0, verify::plan_k_seq(other, disjoint, 3)), .5);
}

row random_law(std::mt19937& random, std::size_t n) {
  row x(n);
  for (double& v : x) v = random() % 4 ? std::uniform_real_distribution<double>(0, 1)(random) : 0;
  x[random() % n] += .1;
  return normalised(x);
}

// alpha* by all sets of tokens, and by the plan.
double over_all_sets(const row& a, const row& b, std::size_t k, draft_law law) {
  double worst = 0;
  for (std::uint32_t set = 0; set < 1u << a.size(); ++set) {
    double mass = 0, inside = 0;
    for (std::size_t v = 0; v < a.size(); ++v) mass += set >> v & 1u ? a[v] : 0;
    const auto add = [&](const tokens& drawn, double probability) {
      inside += std::all_of(drawn.begin(), drawn.end(), [&](std::int32_t v) { return set >> v & 1u; }) ? probability : 0;
    };
    law == with ? for_each_siblings<with>(b, k, add) : for_each_siblings<without>(b, k, add);
    worst = std::min(worst, mass - inside);
  }
  return 1 + worst;
}

TEST(MultiDraft, TheOptimumIsAttainedOnPrefixesAndByThePlan) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 150; ++trial) {
    const std::size_t n = 1 + random() % 5, k = 1 + random() % 3;
    const row a = random_law(random, n), b = random_law(random, n);
    for (const draft_law law : {with, without}) {
      const double bound = verify::optimal_acceptance(a, b, static_cast<std::int32_t>(k), law);
      ASSERT_NEAR(bound, over_all_sets(a, b, k, law), 1e-12);
      const verify::optimal_plan plan(a, b, static_cast<std::int32_t>(k), law);
      ASSERT_NEAR(plan.acceptance(), bound, 1e-12);
      double left = 0;
      for (std::size_t v = 0; v < n; ++v) left += plan.residual(v);
      ASSERT_NEAR(left, 1 - bound, 1e-12);
    }
  }
  // eight tokens, and more tokens than a plan takes
  const row many = random_law(random, 8), others = random_law(random, 8);
  EXPECT_NEAR(verify::optimal_plan(many, others, 3, with).acceptance(), verify::optimal_acceptance(many, others, 3, with), 1e-12);
  EXPECT_NEAR(verify::optimal_plan(many, others, 3, without).acceptance(), verify::optimal_acceptance(many, others, 3, without), 1e-12);
  const row nine(9, 1. / 9);
  EXPECT_THROW(verify::optimal_plan(nine, nine, 2, with), error);
  EXPECT_THROW(verify::optimal_acceptance(p, q, -1, with), error);
  EXPECT_THROW(verify::optimal_acceptance(p, q, 2, draft_law::deterministic), error);
}

TEST(MultiDraft, NoRuleBeatsTheOptimumAndMoreDraftsNeverHurt) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 400; ++trial) {
    const std::size_t n = 1 + random() % 6;
    const row a = random_law(random, n), b = random_law(random, n);
    row rest(n);
    double before = 0, before_removing = 0;
    for (std::int32_t k = 1; k <= 4; ++k) {
      const double best = verify::optimal_acceptance(a, b, k, with), common = verify::plan_k_seq(a, b, k).accept, recursive = verify::recursive_acceptance(a, b, k, rest);
      ASSERT_LE(recursive, best + 1e-12);
      ASSERT_LE(common, best + 1e-12);
      ASSERT_GE(common, (1 - std::pow(1 - 1. / k, k)) * best - 1e-12);
      const verify::k_seq_plan plan = verify::plan_k_seq(a, b, k);
      ASSERT_LE(plan.accept, plan.rho * plan.beta + 1e-15);
      ASSERT_TRUE(plan.rho >= 1 && plan.rho <= k);
      if (k == 1) {
        const double one = verify::maximal_acceptance(a, b);
        ASSERT_NEAR(best, one, 1e-12);
        ASSERT_NEAR(common, one, 1e-12);
        ASSERT_NEAR(recursive, one, 1e-12);
      }
      ASSERT_GE(best, before - 1e-12);
      before = best;
      const double removing = verify::optimal_acceptance(a, b, k, without);
      ASSERT_GE(removing, before_removing - 1e-12);
      ASSERT_GE(removing, best - 1e-12);
      before_removing = removing;
    }
  }
}

TEST(MultiDraft, DeterministicSiblingsAreAcceptedWithTheSumOfTheirProbabilities) {
  const world w = constant_world(p, q);
  for (const tokens& children : {tokens{2}, tokens{2, 0}, tokens{1, 2}, tokens{0, 1, 2}}) {
    drafted<draft_law::deterministic> tree;
    double expected = 0, accepted = 0;
    for (std::int32_t v : children) tree.add(0, v), expected += p[static_cast<std::size_t>(v)];
    every_choice chance;
    row of_child(3);
    tree.decide(verify::token{}, w, chance, 1, [&](const auto& v, double of) {
      accepted += of * v.accepted;
      if (v.accepted) of_child[static_cast<std::size_t>(v.tokens[0])] += of;
    });
    EXPECT_NEAR(accepted, expected, 1e-7);
    for (std::int32_t v : children) EXPECT_NEAR(of_child[static_cast<std::size_t>(v)], p[static_cast<std::size_t>(v)], 1e-7);
  }
}

// --- mistakes ---

TEST(MultiDraftMutants, ThresholdOfOneTrialForTwo) {   // rho = 1 is not valid for two drafts
  const world w = constant_world(p, q);
  struct : every_choice {
    bool accept(std::int64_t, std::uint32_t, double a, double b) { return choose({verify::accept_probability(a, b / rho), 1 - verify::accept_probability(a, b / rho)}) == 0; }
    double rho = 1.540312;
  } chance;
  EXPECT_GT(distance(tree_law<with>(verify::k_seq{}, w, 2, chance), target_law(w, 3)), 1e-2);
}

TEST(MultiDraftMutants, TargetInsteadOfTheRest) {
  const world w = constant_world(p, q);
  struct : every_choice {
    std::size_t pick(std::int64_t, std::span<const double> weights, purpose = purpose::residual) { return choose({p.begin(), p.begin() + static_cast<std::ptrdiff_t>(weights.size())}); }
  } chance;
  EXPECT_GT(distance(tree_law<with>(verify::k_seq{}, w, 2, chance), target_law(w, 3)), 1e-2);
  EXPECT_GT(distance(tree_law<with>(verify::optimal{}, w, 2, chance), target_law(w, 3)), 1e-2);
}

TEST(MultiDraft, VocabulariesBeyondThePlanAreRefused) {
  const row nine(9, 1. / 9);
  const world w = constant_world(nine, nine);
  drafted<with> tree;
  tree.add(0, 1);
  every_choice chance;
  EXPECT_THROW(tree.decide(verify::optimal{}, w, chance, 1, [](const auto&, double) {}), error);
}

}  // namespace
