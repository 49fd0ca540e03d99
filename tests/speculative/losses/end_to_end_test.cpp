#include <heddle/speculative/losses/end_to_end.hpp>

#include "speculative/enumerate.hpp"
#include "speculative/losses/block_rows.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using numbers = std::vector<double>;
using test::array;
using test::random_logits;

double objective(const numbers& a) {   // sum of products, as it is written
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    double product = 1;
    for (std::size_t j = 0; j <= k; ++j) product *= a[j];
    sum += product;
  }
  return sum;
}

TEST(EndToEnd, WeightsAreTheDerivatives) {
  for (const numbers& a : {numbers{.3}, numbers{.9, .5, .7}, numbers{.4, 0, .8, 1}, numbers{1, 1, 1, 1, 1}, numbers{0, 0, .5}}) {
    numbers w(a.size());
    losses::acceptance_weights(a, w);
    EXPECT_NEAR(losses::expected_accepted(a), objective(a), 1e-15);
    for (std::size_t i = 0; i < a.size(); ++i) {   // J is linear in each acceptance
      numbers at_one = a, at_zero = a;
      at_one[i] = 1, at_zero[i] = 0;
      EXPECT_NEAR(w[i], objective(at_one) - objective(at_zero), 1e-14);
      EXPECT_GE(w[i], 0);
    }
  }
}

TEST(EndToEnd, GradientByFiniteDifferences) {
  const std::int64_t block = 3;
  array<double> z = random_logits(6, 5, 1), y = random_logits(6, 5, 2), gradient(6, 5);
  const std::vector<std::uint8_t> mask = {1, 1, 1, 1, 0, 1};
  const distillation::loss_options options{.temperature = 1.5, .mask = mask};
  const auto value = [&](array<double>& x) { return losses::end_to_end_tv(x.view(), y.view(), block, distillation::no_gradient, options).value; };
  const auto result = losses::end_to_end_tv(z.view(), y.view(), block, gradient.view(), options);
  for (std::int64_t r = 0; r < 6; ++r)
    for (std::int64_t c = 0; c < 5; ++c) {
      array<double> up = z, down = z;
      up(r, c) += 1e-6, down(r, c) -= 1e-6;
      EXPECT_NEAR(gradient(r, c), (value(up) - value(down)) / 2e-6, 1e-7);
    }
  numbers first, second;   // the masked slot is none
  for (std::size_t r = 0; r < 6; ++r)
    if (mask[r]) (r < 3 ? first : second).push_back(1 - result.row_values[r]);
  EXPECT_NEAR(result.value, -(objective(first) + objective(second)) / 2, 1e-15);
  EXPECT_EQ(result.rows_kept, 5);
}

TEST(EndToEnd, AnEqualDrafterIsAcceptedWhole) {
  array<double> z = random_logits(8, 6, 3), gradient(8, 6);
  EXPECT_NEAR(losses::end_to_end_tv(z.view(), z.view(), 4, gradient.view()).value, -4, 1e-12);
  for (const double g : gradient.values) EXPECT_EQ(g, 0);
}

TEST(EndToEnd, NothingSupervisedIsNothing) {
  array<double> z = random_logits(4, 3, 3), gradient(4, 3);
  const std::vector<std::uint8_t> none(4);
  EXPECT_EQ(losses::end_to_end_tv(z.view(), z.view(), 2, gradient.view(), {.mask = none}).value, 0);
  for (const double g : gradient.values) EXPECT_EQ(g, 0);
}

// Laws that do not depend on the history: J is the mean accepted length of token rejection. Laws that do: the estimate's mean is, over all drafts.
TEST(EndToEnd, MeasuresTheAcceptedLength) {
  const std::int64_t vocabulary = 3, slots = 3;
  for (const bool history : {false, true}) {
    const auto law = [&](std::uint64_t seed, const std::vector<std::int32_t>& text) {
      std::uint32_t state = static_cast<std::uint32_t>(text.size());
      if (history) for (const std::int32_t v : text) state = 31 * state + static_cast<std::uint32_t>(v) + 1;
      numbers p(static_cast<std::size_t>(vocabulary));
      double sum = 0;
      for (std::size_t v = 0; v < p.size(); ++v) sum += p[v] = uniform({.seed = seed, .position = state, .index = static_cast<std::uint32_t>(v)});
      for (double& x : p) x /= sum;
      return p;
    };
    double accepted = 0, estimated = 0, surrogate = 0;
    for (std::int32_t draft = 0; draft < 27; ++draft) {
      std::vector<std::int32_t> text;
      numbers target, proposal, acceptances;
      double drawn = 1, all_accepted = 1, length = 0;
      for (std::int64_t i = 0; i < slots; ++i) {
        const numbers p = law(1, text), q = law(2, text);
        const auto x = static_cast<std::size_t>(draft / static_cast<std::int32_t>(std::pow(3, i)) % 3);
        target.push_back(p[x]), proposal.push_back(q[x]), acceptances.push_back(verify::maximal_acceptance(p, q));
        drawn *= q[x];
        all_accepted *= verify::accept_probability(p[x], q[x]), length += all_accepted;
        text.push_back(static_cast<std::int32_t>(x));
      }
      accepted += drawn * length, estimated += drawn * losses::accepted_estimate(target, proposal, acceptances), surrogate += drawn * losses::expected_accepted(acceptances);
    }
    EXPECT_NEAR(estimated, accepted, 1e-14);
    if (history) EXPECT_GT(std::abs(surrogate - accepted), 1e-4);
    else EXPECT_NEAR(surrogate, accepted, 1e-14);
  }
}

TEST(EndToEnd, Errors) {
  array<double> z = random_logits(4, 3, 3);
  EXPECT_EQ(message_of([&] { losses::end_to_end_tv(z.view(), z.view(), 3, distillation::no_gradient); }), "losses::end_to_end_tv: argument 'drafter' has 4 rows; expected a multiple of the block of 3");
  EXPECT_EQ(message_of([&] { losses::end_to_end_tv(z.view(), z.view(), 0, distillation::no_gradient); }), "losses::end_to_end_tv: argument 'block' is 0; expected at least 1 slot");
  EXPECT_EQ(message_of([&] { losses::expected_accepted(numbers{1.5}); }), "losses::expected_accepted: argument 'acceptances': entry 0 is 1.5; expected 0 to 1");
  EXPECT_EQ(message_of([&] { losses::accepted_estimate(numbers{.5}, numbers{0}, numbers{.5}); }), "losses::accepted_estimate: argument 'proposal': entry 0 is 0; expected the positive probability of a drafted token");
}

}  // namespace
