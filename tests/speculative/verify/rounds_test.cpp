// Texts of several rounds: what one round has drawn and looked at must leave the next one free. 50,000 texts of four tokens against the target's law.
#include <heddle/sampling/sample.hpp>
#include <heddle/speculative/decode_loop.hpp>
#include <heddle/speculative/draft/block_sampler.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

using namespace heddle;

constexpr std::int64_t vocabulary = 3, length = 4, slots = 3;
constexpr std::uint32_t samples = 50000;
constexpr double target[] = {.5, .3, .2}, proposal[] = {.1, .2, .7};

// The same law after every token, as a target and as the slots of a block.
struct constant_model {
  std::vector<float> rows;
  explicit constant_model(const double (&law)[vocabulary]) {
    for (std::int64_t i = 0; i <= slots; ++i)
      for (const double p : law) rows.push_back(static_cast<float>(std::log(p)));
  }
  tensor_view<const float, 2> first(std::int64_t count) const { return {rows.data(), extents{count, vocabulary}}; }
  tensor_view<const float, 2> score(const token_tree& tree) const { return first(static_cast<std::int64_t>(tree.tokens.size())); }
  block_prediction predict(std::span<const std::int32_t>, std::int32_t count) const { return {first(count), {}}; }
  void keep(std::span<const std::int32_t>) const {}
};

template <class Rule>
void follows_the_target() {
  constant_model model(target), drafts(proposal);
  const sampling::chain policy{sampling::temperature(1.f)};
  const std::int32_t prompt[] = {0};
  double counts[81] = {};
  for (std::uint32_t request = 0; request < samples; ++request) {
    block_sampler drafter{drafts, no_correction{}, {.num_slots = slots, .seed = 3, .request = request}};
    decode_loop loop{model, drafter, Rule{.seed = 5, .request = request}, policy, {.prompt = prompt, .max_new_tokens = length, .draft_length = slots}};
    while (!loop.done()) loop.step();
    std::size_t text = 0;
    for (const std::int32_t token : loop.tokens().subspan(1)) text = text * 3 + static_cast<std::size_t>(token);
    ++counts[text];
  }
  double chi2 = 0;
  for (std::size_t text = 0; text < 81; ++text) {
    double expected = samples;
    for (std::size_t rest = text, i = 0; i < length; ++i, rest /= 3) expected *= target[rest % 3];
    chi2 += (counts[text] - expected) * (counts[text] - expected) / expected;
  }
  EXPECT_LT(chi2, 153.3) << Rule::name;   // 80 degrees of freedom: the quantile of probability 1e-6
}

TEST(Rounds, TokenRejection) { follows_the_target<verify::token>(); }
TEST(Rounds, BlockVerification) { follows_the_target<verify::block>(); }

}  // namespace
