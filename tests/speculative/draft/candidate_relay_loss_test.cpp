#include <heddle/speculative/draft/candidate_relay_loss.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using tokens = std::vector<std::int32_t>;
using row = std::vector<double>;
double sigma(double x) { return 1 / (1 + std::exp(-x)); }

TEST(CandidateRelayLoss, SupervisionOfThePool) {
  std::mt19937 random(2);
  auto u = test::gaussian<double>(8, 7, random);
  tokens labels;
  for (std::int32_t i = 0; i < 8; ++i) labels.push_back(i % 7);
  const losses::pool_supervision functional{labels, 3, .5, 2.};
  const auto values = test::values_of(functional, {}, u.view());
  int inside = 0, outside = 0;
  for (std::int64_t i = 0; i < 8; ++i) {
    row z(u.values.begin() + i * 7, u.values.begin() + (i + 1) * 7), sorted = z;
    std::sort(sorted.rbegin(), sorted.rend());
    double sum = 0;
    for (const double x : z) sum += std::exp(x);
    const double y = z[static_cast<std::size_t>(labels[static_cast<std::size_t>(i)])], hinge = std::max(0., .5 + sorted[2] - y);
    EXPECT_NEAR(values[static_cast<std::size_t>(i)], std::log(sum) - y + 2 * hinge, 1e-12);
    ++(hinge > 0 ? outside : inside);
  }
  EXPECT_GT(inside, 0);
  EXPECT_GT(outside, 2);
  test::expect_gradient(functional, {}, u);
  const losses::pool_supervision all{labels, 100};
  EXPECT_NO_THROW(test::values_of(all, {}, u.view()));
  for (const losses::pool_supervision& bad : {losses::pool_supervision{labels, 0}, {labels, 3, -1.}, {labels, 3, 1., NAN}, {{}, 3}}) EXPECT_THROW(test::values_of(bad, {}, u.view()), error);
}

TEST(CandidateRelayLoss, RepairsWhereTheAcceptedLengthGains) {
  constexpr std::size_t n = 8, k = 3;
  const std::int64_t block = 4;
  std::mt19937 random(5);
  auto u = test::gaussian<double>(n, 7, random);
  slot_ranker ranker;
  const slot_ranking pools = ranker.rank(u.view(), k);
  const auto place = [&](std::int32_t i, std::size_t c) { return pools.tokens_of(i)[c]; };
  std::int32_t foreign = 0;
  while (std::count(pools.tokens_of(6).begin(), pools.tokens_of(6).end(), foreign)) ++foreign;
  const tokens labels = {place(0, 0), place(1, 2), place(2, 1), place(3, 0), place(4, 1), place(5, 0), foreign, place(7, 2)};
  const std::vector<std::uint8_t> mask = {1, 1, 0, 1, 1, 1, 1, 1};
  row keep(n), alternatives(n * k), d_keep(n), d_alternatives(n * k);
  for (double& x : keep) x = std::normal_distribution<double>()(random);
  for (double& x : alternatives) x = std::normal_distribution<double>()(random);
  const auto result = losses::relay_repair_loss(keep, alternatives, pools, labels, block, d_keep, d_alternatives, mask);

  const auto slot_loss = [&](std::size_t i, double* acceptance = nullptr) {   // as it is written
    const double rho = sigma(keep[i]), a = std::exp(alternatives[i * k + 1]), b = std::exp(alternatives[i * k + 2]);
    const bool native = labels[i] == place(static_cast<std::int32_t>(i), 0), pooled = i != 6;
    const double pi = (labels[i] == place(static_cast<std::int32_t>(i), 1) ? a : b) / (a + b);
    if (acceptance) *acceptance = native ? rho : pooled ? (1 - rho) * pi : 0;
    return native ? -std::log(rho) : -std::log(1 - rho) - (pooled ? std::log(pi) : 0);
  };
  const auto accepted_length = [](const row& a) {
    double reached = 1, sum = 0;
    for (const double x : a) sum += reached *= x;
    return sum;
  };
  row omega(n);
  double value = 0;
  for (const std::vector<std::size_t>& of_block : {std::vector<std::size_t>{0, 1, 3}, {4, 5, 6, 7}}) {
    row a;
    for (const std::size_t i : of_block) {
      slot_loss(i, &a.emplace_back());
      EXPECT_NEAR(result.acceptances[i], a.back(), 1e-15);
    }
    for (std::size_t j = 0; j < a.size(); ++j) {
      row up = a, down = a;
      up[j] += 1e-4, down[j] -= 1e-4;
      omega[of_block[j]] = (accepted_length(up) - accepted_length(down)) / 2e-4;
      EXPECT_NEAR(result.weights[of_block[j]], omega[of_block[j]], 1e-11);
      value += omega[of_block[j]] * slot_loss(of_block[j]) / 2;
    }
  }
  EXPECT_NEAR(result.value, value, 1e-11);
  EXPECT_EQ(result.weights[2], 0);
  const auto expect_slope = [&](std::size_t i, double& parameter, double found) {   // omega is a constant
    const double at = parameter;
    parameter = at + 1e-5;
    const double up = slot_loss(i);
    parameter = at - 1e-5;
    const double down = slot_loss(i);
    parameter = at;
    EXPECT_NEAR(found, result.weights[i] / 2 * (up - down) / 2e-5, 1e-9);
  };
  for (std::size_t i = 0; i < n; ++i) {
    expect_slope(i, keep[i], d_keep[i]);
    for (std::size_t c = 1; c < k; ++c) expect_slope(i, alternatives[i * k + c], d_alternatives[i * k + c]);
    EXPECT_EQ(d_alternatives[i * k], 0);
  }
  EXPECT_GT(d_keep[6], 0);   // outside the pool: the native token is wrong, no alternative is right
  EXPECT_EQ(d_alternatives[6 * k + 1], 0);
  EXPECT_EQ(d_alternatives[6 * k + 2], 0);

  EXPECT_THROW(losses::relay_repair_loss(keep, alternatives, pools, labels, 3), error);
  EXPECT_THROW(losses::relay_repair_loss(keep, keep, pools, labels, 4), error);
  keep[1] = NAN;
  EXPECT_NE(message_of([&] { losses::relay_repair_loss(keep, alternatives, pools, labels, 4, d_keep); }).find("'keep': entry 1"), std::string::npos);
  const std::vector<std::uint8_t> none(n);
  EXPECT_EQ(losses::relay_repair_loss(keep, alternatives, pools, labels, 4, d_keep, d_alternatives, none).value, 0);
  EXPECT_EQ(d_keep, row(n));
}

}  // namespace
