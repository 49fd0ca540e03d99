#include <heddle/speculative/draft/proposal_mix.hpp>

#include "distillation/arrays.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using tokens = std::vector<std::int32_t>;

TEST(ProposalMix, TokensAreMixedByConfidence) {
  const std::size_t n = 40000;
  tokens proposals(n, 7), labels(n, 9), mixed(n);
  std::vector<double> confidences(n);
  for (std::size_t i = 0; i < n; ++i) confidences[i] = i % 2 ? .8 : .1;
  const auto shares = [&](const auto& g) {
    mix_proposals(proposals, confidences, labels, {.seed = 3}, mixed, g);
    double of[2] = {};
    for (std::size_t i = 0; i < n; ++i) of[i % 2] += mixed[i] == 7 ? 2. / static_cast<double>(n) : 0.;
    return std::pair{of[0], of[1]};
  };
  const double five_deviations = 5 * std::sqrt(.25 / 20000.);
  EXPECT_NEAR(shares(by_confidence{}).first, .1, five_deviations);
  EXPECT_NEAR(shares(by_confidence{}).second, .8, five_deviations);
  EXPECT_NEAR(shares(by_doubt{}).first, .9, five_deviations);
  EXPECT_EQ(shares([](double) { return 0.; }), std::pair(0., 0.));
  EXPECT_NEAR(shares([](double) { return 1.; }).first, 1., 1e-9);
  EXPECT_THROW(shares([](double) { return 1.5; }), error);
  EXPECT_THROW(mix_proposals(proposals, {}, labels, {}, mixed), error);
  const std::vector<float> z = {0, 2, 2, -1, 0, 0, 0, 5};
  tokens best(2);
  std::vector<double> kappa(2);
  first_proposals(tensor_view<const float, 2>{z.data(), extents{2, 4}}, best, kappa);
  EXPECT_EQ(best, (tokens{1, 3}));
  EXPECT_NEAR(kappa[0], std::exp(2) / (1 + 2 * std::exp(2) + std::exp(-1)), 1e-4);
}

TEST(ProposalMix, GradientsByFiniteDifferences) {
  std::mt19937 random(4);
  auto m = test::gaussian<double>(5, 4, random), r = test::gaussian<double>(5, 4, random);
  test::array<double> dm(5, 4), dr(5, 4);
  const tokens labels = {0, 3, -1, 2, 1};
  const std::vector<double> v = {1, .6, .4, .2, .1};
  const std::vector<std::uint8_t> mask = {1, 1, 0, 1, 1};
  const distillation::loss_options options{.mask = mask, .weights = v, .reduction = distillation::reduction::weighted_mean};
  const double lambda = .7;
  const auto value = [&] { return losses::proposal_mix_loss(m.view(), r.view(), labels, lambda, distillation::no_gradient, distillation::no_gradient, options).value; };
  const auto result = losses::proposal_mix_loss(m.view(), r.view(), labels, lambda, dm.view(), dr.view(), options);
  double expected = 0;
  for (const auto& [z, factor] : {std::pair{&m, 1.}, {&r, lambda}})
    for (std::int64_t i = 0; i < 5; ++i) {
      double sum = 0;
      for (std::int64_t c = 0; c < 4; ++c) sum += std::exp((*z)(i, c));
      if (mask[static_cast<std::size_t>(i)]) expected += factor * v[static_cast<std::size_t>(i)] / 1.9 * (std::log(sum) - (*z)(i, labels[static_cast<std::size_t>(i)]));
    }
  EXPECT_NEAR(result.value, expected, 1e-14);
  EXPECT_EQ(result.value, value());
  for (auto [z, d] : {std::pair{&m, &dm}, {&r, &dr}})
    for (std::size_t i = 0; i < z->values.size(); ++i) EXPECT_NEAR(d->values[i], test::central_difference(z->values[i], 1e-5, value), 1e-9);
  losses::proposal_mix_loss(m.view(), r.view(), labels, 0., dm.view(), dr.view(), options);
  for (const double g : dr.values) EXPECT_EQ(g, 0);
  EXPECT_THROW(losses::proposal_mix_loss(m.view(), r.view(), labels, -1., dm.view(), dr.view(), options), error);
  const std::vector<std::uint8_t> nothing(5);
  EXPECT_EQ(losses::proposal_mix_loss(m.view(), r.view(), labels, 1., dm.view(), dr.view(), {.mask = nothing, .weights = v, .reduction = distillation::reduction::weighted_mean}).value, 0);
}

}  // namespace
