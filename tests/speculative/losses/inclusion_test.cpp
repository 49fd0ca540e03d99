#include <heddle/speculative/losses/inclusion.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using mask = std::vector<std::uint8_t>;

TEST(Inclusion, EachTakesSlotsAway) {
  mask prefix = {1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1}, horizon(12, 1), shown = {1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1};
  losses::valid_prefix(prefix, 4);
  EXPECT_EQ(prefix, (mask{1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  losses::within_horizon(horizon, 4, std::vector<std::int32_t>{3, 0, 4});
  EXPECT_EQ(horizon, (mask{1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  losses::not_revealed(shown, mask{0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0});
  EXPECT_EQ(shown, (mask{1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1}));
}

TEST(Inclusion, UntilTheFirstFailure) {
  mask included = {1, 1, 1, 1, /**/ 1, 0, 1, 1, /**/ 0, 1, 1, 1, /**/ 1, 1, 1, 1};
  losses::until_failure(included, 4, mask{1, 0, 1, 1, /**/ 1, 0, 1, 0, /**/ 0, 0, 1, 1, /**/ 1, 1, 1, 1});
  EXPECT_EQ(included, (mask{1, 1, 0, 0, /**/ 1, 0, 1, 1, /**/ 0, 1, 0, 0, /**/ 1, 1, 1, 1}));
}

TEST(Inclusion, HorizonsFollowTheirLaw) {
  const std::vector<double> law = {1, 0, 2, 5, 0};   // sums to 8
  const int draws = 20000;
  std::vector<int> seen(law.size());
  for (int n = 0; n < draws; ++n) {
    const std::int32_t h = losses::draw_horizon({.seed = 3, .position = static_cast<std::uint32_t>(n)}, law);
    ASSERT_TRUE(h >= 1 && h <= 5);
    ++seen[static_cast<std::size_t>(h - 1)];
  }
  double chi_squared = 0;
  for (std::size_t h = 0; h < law.size(); ++h) {
    const double expected = draws * law[h] / 8;
    if (expected == 0) {
      EXPECT_EQ(seen[h], 0);
      continue;
    }
    chi_squared += (seen[h] - expected) * (seen[h] - expected) / expected;
  }
  EXPECT_LT(chi_squared, 27.6);   // p = 1e-6 with 2 degrees of freedom
}

TEST(Inclusion, RevealedSlotsAreARandomShare) {
  const double highest = .6;
  double mean = 0, square = 0;
  const int draws = 20000, slots = 8;
  for (int n = 0; n < draws; ++n) {
    mask revealed(slots);
    losses::draw_revealed({.seed = 4, .request = static_cast<std::uint32_t>(n)}, highest, revealed);
    int count = 0;
    for (const std::uint8_t r : revealed) count += r;
    mean += count / double{draws}, square += count * count / double{draws};
    mask longer(slots + 3);   // slot i is decided by its own number
    losses::draw_revealed({.seed = 4, .request = static_cast<std::uint32_t>(n)}, highest, longer);
    ASSERT_EQ(mask(longer.begin(), longer.begin() + slots), revealed);
  }
  // count | rate is binomial, rate ~ U[0, .6]: mean 8 * .3, variance E[8 r (1 - r)] + 64 Var r
  const double variance = 8 * (.3 - .12) + 64 * .03, error = 5 * std::sqrt(variance / draws);
  EXPECT_NEAR(mean, 2.4, error);
  EXPECT_NEAR(square - mean * mean, variance, .12);
  mask none(4, 1);
  losses::draw_revealed({}, 0, none);
  EXPECT_EQ(none, mask(4));
}

TEST(Inclusion, Errors) {
  mask three(3), four(4);
  EXPECT_EQ(message_of([&] { losses::valid_prefix(three, 2); }), "losses::valid_prefix: 3 rows are no whole number of blocks of 2 slots");
  EXPECT_EQ(message_of([&] { losses::valid_prefix(three, 0); }), "losses::valid_prefix: argument 'block' is 0; expected at least 1 slot");
  EXPECT_EQ(message_of([&] { losses::within_horizon(four, 2, std::vector<std::int32_t>{2, 3}); }), "losses::within_horizon: argument 'horizons': entry 1 is 3; expected 0 to 2");
  EXPECT_EQ(message_of([&] { losses::not_revealed(four, three); }), "losses::not_revealed: argument 'revealed' has 3 entries; expected 4");
  EXPECT_EQ(message_of([&] { losses::until_failure(four, 2, three); }), "losses::until_failure: argument 'correct' has 3 entries; expected 4");
  EXPECT_EQ(message_of([&] { losses::draw_horizon({}, std::vector<double>{0, 0}); }), "losses::draw_horizon: argument 'probabilities' sums to 0; expected a positive finite number");
  EXPECT_EQ(message_of([&] { losses::draw_revealed({}, 1.5, four); }), "losses::draw_revealed: argument 'highest_rate' is 1.5; expected 0 to 1");
}

}  // namespace
