// Chains over several rounds: 50,000 texts of four tokens against the target's law.
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/verify/round_texts.hpp"

#include <gtest/gtest.h>

namespace {

using namespace rounds;

template <class Rule>
void follows_the_target() {
  const auto drafter_of = [](constant_model& drafts, std::uint32_t request) { return block_sampler{drafts, no_correction{}, {.num_slots = slots, .seed = 3, .request = request}}; };
  EXPECT_LT(texts_of<Rule>(drafter_of, 4, slots, 50000).chi_square, 153.3) << Rule::name;   // 80 degrees of freedom: the quantile of probability 1e-6
}

TEST(Rounds, TokenRejection) { follows_the_target<verify::token>(); }
TEST(Rounds, BlockVerification) { follows_the_target<verify::block>(); }

}  // namespace
