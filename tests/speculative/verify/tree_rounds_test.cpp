// Trees that branch, their siblings drawn afresh in every round, over three rounds and more: 20,000 texts of five tokens against the target's law.
#include <heddle/speculative/draft/tsubame.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/verify/round_texts.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace {

using namespace rounds;

// A root with two children, the first of which has two: at most three tokens a round.
constexpr std::int32_t nodes = 4;
class branching_plan {
 public:
  branching_plan() { plan_.freeze(parents_, scores_); }
  const frozen_plan& operator()() const { return plan_; }

 private:
  const std::vector<std::int32_t> parents_ = {-1, 0, 0, 1, 1};
  const std::vector<double> scores_ = {0., -1., -2., -3., -4.};
  frozen_plan plan_;
};

// The drafter's law at every node; draws by the number of tokens before the round's first, as tsubame_block does, or (a fault) by the same numbers always.
template <draft_law Law>
struct siblings {
  std::uint32_t request;
  bool fresh = true;
  populated_tree<Law> tree{};

  draft_tree<Law> propose(std::span<const std::int32_t> context, std::int32_t) {
    static const branching_plan plan;
    const auto law = [](const draft_nodes&, std::span<const std::int32_t> frontier, law_rows& rows, std::span<std::int32_t> row_of) {
      static constexpr std::int32_t tokens[] = {0, 1, 2};
      for (std::size_t i = 0; i < frontier.size(); ++i) row_of[i] = rows.add(tokens, proposal);
    };
    return tree.populate(context.back(), plan(), fresh ? static_cast<std::int64_t>(context.size()) : 1, law, keyed_draws{3, request});
  }
};

constexpr double chi_square_limit = 362.;   // 242 degrees of freedom: the quantile of probability 1e-6

template <draft_law Law, class Rule>
void follows_the_target() {
  const outcome found = texts_of<Rule>([](constant_model&, std::uint32_t request) { return siblings<Law>{request}; }, 5, nodes, 20000);
  EXPECT_LT(found.chi_square, chi_square_limit) << Rule::name;
  EXPECT_GT(found.rounds_per_text, 2.2);
}

TEST(TreeRounds, IndependentSiblings) { follows_the_target<draft_law::independent, verify::token>(); }
TEST(TreeRounds, SiblingsWithoutReplacement) { follows_the_target<draft_law::without_replacement, verify::token>(); }
TEST(TreeRounds, KSequential) { follows_the_target<draft_law::independent, verify::k_seq>(); }

TEST(TreeRounds, TheDraftersOfBlocksDrawAfresh) {
  const auto drafter_of = [](constant_model& drafts, std::uint32_t request) { return tsubame_block<draft_law::without_replacement, constant_model>{drafts, {.num_slots = 2, .max_drafts = nodes, .seed = 3, .request = request}}; };
  EXPECT_LT(texts_of<verify::token>(drafter_of, 5, nodes, 20000).chi_square, chi_square_limit);
}

// That the test sees it: a drafter that draws by the same numbers in every round does not give the target's law.
TEST(TreeRounds, DrawingByTheSameNumbersAgainIsSeen) {
  const outcome found = texts_of<verify::token>([](constant_model&, std::uint32_t request) { return siblings<draft_law::independent>{request, false}; }, 5, nodes, 20000);
  EXPECT_GT(found.chi_square, 2 * chi_square_limit);
}

}  // namespace
