#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/verify/worlds.hpp"


namespace {

using namespace heddle;
using namespace enumeration;

const verify::block rule{};

// p = (1/3, 2/3), q = (2/3, 1/3): E[L] 10/9 by tokens, 11/9 by the block.
TEST(Block, AcceptsMoreThanTokenRejection) {
  const world w = constant_world({1. / 3, 2. / 3}, {2. / 3, 1. / 3});
  EXPECT_NEAR(mean_accepted(verify::token{}, w, 2), 10. / 9, 1e-7);
  EXPECT_NEAR(mean_accepted(rule, w, 2), 11. / 9, 1e-7);
  const world other = constant_world({.5, .3, .2}, {.1, .2, .7});
  EXPECT_NEAR(mean_accepted(verify::token{}, other, 2), 3. / 4, 1e-7);
  EXPECT_NEAR(mean_accepted(rule, other, 2), 41. / 50, 1e-7);
}

TEST(Block, NeverAcceptsLessThanTokenRejection) {
  for (const char* kind : kinds)
    for (unsigned seed = 0; seed < 8; ++seed) {
      const world w = make_world(3, kind, seed);
      EXPECT_NEAR(mean_accepted(rule, w, 1), mean_accepted(verify::token{}, w, 1), 1e-12) << kind;
      for (const std::size_t length : {2u, 3u}) {
        const double by_block = mean_accepted(rule, w, length), by_token = mean_accepted(verify::token{}, w, length);
        EXPECT_GE(by_block, by_token - 1e-12) << kind << " K " << length;
        if (std::string(kind) == "one-hot" || std::string(kind) == "equal") {
          EXPECT_NEAR(by_block, by_token, 1e-12);
        }
      }
    }
}

TEST(Block, ItsPiecesAreTheFormulas) {
  const row p = {.5, .3, .2}, q = {.1, .2, .7};
  EXPECT_DOUBLE_EQ(verify::block_weight(.5, .3, .2), .75);
  EXPECT_EQ(verify::block_weight(.5, .5, .1), 1);
  EXPECT_EQ(verify::block_weight(1, 0, .1), 0);
  EXPECT_EQ(verify::block_weight(1, .1, 0), 0);
  EXPECT_NEAR(verify::block_excess(.5, p, q), .15, 1e-15);
  EXPECT_NEAR(verify::block_acceptance(.15, .5), .15 / .65, 1e-15);
  EXPECT_EQ(verify::block_acceptance(0, 1), 1);
  EXPECT_EQ(verify::block_acceptance(0, 0), 0);
}

// A chance that a mistaken verifier would have.
struct stops_at_the_first_failure : every_choice {
  bool failed = false;
  bool accept(std::int64_t position, std::uint32_t index, double p, double q) {
    if (index == 0) failed = false;   // the first slot of a new decision
    if (failed) return false;
    const bool accepted = every_choice::accept(position, index, p, q);
    failed = !accepted;
    return accepted;
  }
};

TEST(BlockMutants, BreakingAtTheFirstFailure) {
  const world w = constant_world({1. / 3, 2. / 3}, {2. / 3, 1. / 3});
  stops_at_the_first_failure chance;
  double first_is_a = 0;
  for (const auto& [text, probability] : chain_law(rule, w, 2, chance)) first_is_a += text[0] == 0 ? probability : 0;
  EXPECT_NEAR(first_is_a, 0, 1e-6);   // the target says 1/3
}

TEST(BlockMutants, ResidualWithoutTheWeight) {
  const row p = {.5, .3, .2}, q = {.1, .2, .7};
  const world w = constant_world(p, q);
  struct : every_choice {
    row residual;
    std::size_t pick(std::int64_t, std::span<const double>, purpose = purpose::residual) { return choose(residual); }
  } chance;
  chance.residual = p;
  verify::subtract_proposal(chance.residual, q);
  row second(3);
  for (const auto& [text, probability] : chain_law(rule, w, 2, chance)) second[static_cast<std::size_t>(text[1])] += probability;
  EXPECT_NEAR(second[0], 247. / 500, 1e-6);
  EXPECT_NEAR(second[1], 153. / 500, 1e-6);
  EXPECT_NEAR(second[2], 1. / 5, 1e-6);
}

TEST(Block, TreesAreRefusedAndImpossibleDraftsRejected) {
  const world w = constant_world({.5, .3, .2}, {.1, .2, .7});
  every_choice chance;
  drafted<draft_law::independent> branching;
  branching.add(0, 1), branching.add(0, 2);
  EXPECT_THROW(branching.decide(rule, w, chance, 1, [](const auto&, double) {}), error);
  drafted<draft_law::independent> impossible;
  impossible.add(0, 1), impossible.add(1, 2);
  const world without = constant_world({.5, .3, .2}, {.5, 0, .5});
  EXPECT_THROW(impossible.decide(rule, without, chance, 1, [](const auto&, double) {}), error);
  every_choice again;
  impossible.decide(verify::block{.mode = strictness::lenient}, without, again, 1, [](const auto& v, double) { EXPECT_EQ(v.accepted, 0); });
}

}  // namespace
