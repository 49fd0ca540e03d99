#include <heddle/speculative/draft/prefix_schedule.hpp>
#include <heddle/speculative/verify/acceptance.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using numbers = std::vector<double>;

std::vector<std::int32_t> lengths(const numbers& chances, std::int64_t requests, const numbers& passes, double* rate = nullptr) {
  prefix_schedule schedule;
  const auto found = schedule.lengths(tensor_view<const double, 2>{chances.data(), extents{requests, static_cast<std::int64_t>(chances.size()) / requests}}, passes);
  if (rate) *rate = schedule.tokens_per_second();
  return {found.begin(), found.end()};
}

TEST(PrefixSchedule, Golden) {
  EXPECT_EQ(lengths({.8}, 1, {1, .5, .45}), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(lengths({.8, .9}, 1, {1, .5, .45}), (std::vector<std::int32_t>{0}));       // two drafts would pay, 2.52 * .45, but the first alone does not
  EXPECT_EQ(lengths({.8, .9}, 1, {1, .6, .55}), (std::vector<std::int32_t>{2}));
  EXPECT_EQ(lengths({.9, .9, .2, .1}, 2, {1, 1, .9, .8, .7, .6}), (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(lengths({0., 1.}, 1, {1, 1, 1}), (std::vector<std::int32_t>{0}));
}

// The rule as written: one pair at a time, by the largest survival.
TEST(PrefixSchedule, FollowsTheRule) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int trial = 0; trial < 500; ++trial) {
    const std::int64_t requests = 1 + static_cast<std::int64_t>(random() % 4), slots = 1 + static_cast<std::int64_t>(random() % 5);
    numbers chances, passes{1.};
    for (std::int64_t i = 0; i < requests * slots; ++i) chances.push_back(random() % 5 ? uniform(random) : 1.);
    while (static_cast<std::int64_t>(passes.size()) < requests + requests * slots) passes.push_back(passes.back() * (.9 + .1 * uniform(random)));
    std::vector<std::int32_t> expected(static_cast<std::size_t>(requests), 0);
    double tau = static_cast<double>(requests), best = tau * passes[static_cast<std::size_t>(requests) - 1];
    for (std::size_t rows = static_cast<std::size_t>(requests);; ++rows) {
      double top = 0;
      std::size_t who = 0;
      for (std::size_t r = 0; r < expected.size(); ++r) {
        if (expected[r] == slots) continue;
        double a = 1;
        for (std::int32_t j = 0; j <= expected[r]; ++j) a *= chances[r * static_cast<std::size_t>(slots) + static_cast<std::size_t>(j)];
        if (a > top || (a == top && a > 0 && expected[r] < expected[who])) top = a, who = r;
      }
      if (top <= 0 || rows == passes.size()) break;
      tau += top;
      if (tau * passes[rows] <= best) break;
      best = tau * passes[rows], ++expected[who];
    }
    double rate = 0;
    ASSERT_EQ(lengths(chances, requests, passes, &rate), expected);
    ASSERT_NEAR(rate, best, 1e-12);
  }
}

// c_2 is .9 after token 0 and 0 after token 1; p = (.7, .3), q = (.5, .5). Taking the best prefix of all drafts only where the second is likely, that is,
// depending on the first draft itself, and gives (.85, .15).
TEST(PrefixSchedule, TheBestOfAllPrefixesWouldChangeTheLaw) {
  const numbers p = {.7, .3}, q = {.5, .5}, passes = {1, .5, .45};
  const auto first_token = [&](const auto& scheduled) {
    numbers law(2, 0.);
    for (std::size_t x = 0; x < 2; ++x) {
      if (scheduled(x == 0 ? .9 : 0.) == 0) {
        for (std::size_t v = 0; v < 2; ++v) law[v] += q[x] * p[v];
        continue;
      }
      const double accept = verify::accept_probability(p[x], q[x]);
      numbers rest = p;
      verify::subtract_proposal(rest, q);
      law[x] += q[x] * accept;
      for (std::size_t v = 0; v < 2; ++v) law[v] += q[x] * (1 - accept) * rest[v];
    }
    return law;
  };
  const numbers exact = first_token([&](double c2) { return lengths({.8, c2}, 1, passes)[0]; });
  EXPECT_NEAR(exact[0], .7, 1e-12);
  const numbers wrong = first_token([&](double c2) {
    const double rates[] = {passes[0], 1.8 * passes[1], (1.8 + .8 * c2) * passes[2]};
    return std::max_element(rates, rates + 3) - rates;
  });
  EXPECT_NEAR(wrong[0], .85, 1e-12);
  EXPECT_NEAR(wrong[1], .15, 1e-12);
}

TEST(PrefixSchedule, CalibrationFindsTheTemperatures) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(0, 1);
  const std::int64_t rounds = 20000;
  numbers chances;
  std::vector<std::int32_t> accepted;
  const double temperatures[] = {2., .5};
  for (std::int64_t n = 0; n < rounds; ++n) {
    std::int32_t count = 0;
    bool open = true;
    for (const double t : temperatures) {
      const double truth = .2 + .75 * uniform(random);
      chances.push_back(1 / (1 + std::exp(-t * std::log(truth / (1 - truth)))));   // too sure, or not sure enough
      open = open && uniform(random) < truth;
      count += open;
    }
    accepted.push_back(count);
  }
  const confidence_calibration fitted({chances.data(), extents{rounds, std::int64_t{2}}}, accepted);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(fitted.temperatures()[i], temperatures[i], .2 * temperatures[i]);
    EXPECT_LT(fitted.calibration_errors()[i], .02);
  }
  EXPECT_EQ(fitted(0, 0.), 0);
  EXPECT_EQ(fitted(0, 1.), 1);
  EXPECT_NEAR(fitted(0, .5), .5, 1e-15);
}

TEST(PrefixSchedule, BadInput) {
  EXPECT_THROW(lengths({.8, 1.1}, 1, {1, 1, 1}), error);
  EXPECT_THROW(lengths({.8, NAN}, 1, {1, 1, 1}), error);
  EXPECT_THROW(lengths({.8, .7}, 1, {1, 0, 1}), error);
  EXPECT_THROW(lengths({.8, .7}, 2, {1}), error);
  EXPECT_EQ(lengths({.9, .9}, 1, {1, 1}), (std::vector<std::int32_t>{1}));   // the table ends: no more rows
  const numbers chances = {.5};
  const std::vector<std::int32_t> none, one = {1};
  EXPECT_THROW(confidence_calibration({chances.data(), extents{1, 1}}, none), error);
  EXPECT_THROW(confidence_calibration({chances.data(), extents{1, 1}}, one, 0), error);
}

}  // namespace
