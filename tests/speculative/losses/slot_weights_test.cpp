#include <heddle/speculative/losses/slot_weights.hpp>

#include <heddle/speculative/losses/end_to_end.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using losses::weighting;
using numbers = std::vector<double>;

numbers weights_of(const losses::slot_weighting& w, const numbers& a, const std::vector<std::uint8_t>& included = {}) {
  numbers out(a.size());
  losses::slot_weights(w, a, included, out);
  return out;
}
double product(const numbers& a, std::size_t first, std::size_t end) {
  double p = 1;
  for (std::size_t i = first; i < end; ++i) p *= a[i];
  return p;
}

TEST(SlotWeights, AsWritten) {
  for (const double s : {0., .3, 1.})
    for (const numbers& a : {numbers{.3}, numbers{.9, .5, .7, .2}, numbers{.4, 0, .8, 1}, numbers{1, 1, 1}}) {
      numbers smoothed = a;
      for (double& x : smoothed) x = (1 - s) * x + s;
      const numbers survival = weights_of({weighting::survival, 1, s}, a), omega = weights_of({weighting::acceptance, 1, s}, a), pace = weights_of({weighting::d_pace, 1, s}, a);
      numbers derivative(a.size());
      losses::acceptance_weights(smoothed, derivative);
      for (std::size_t i = 0; i < a.size(); ++i) {
        double sum = 0;
        for (std::size_t j = i; j < a.size(); ++j) sum += product(smoothed, 0, j + 1);
        EXPECT_NEAR(survival[i], product(smoothed, 0, i), 1e-15);
        EXPECT_NEAR(omega[i], derivative[i], 1e-14);
        EXPECT_NEAR(pace[i], sum, 1e-14);
        EXPECT_NEAR(pace[i], smoothed[i] * omega[i], 1e-14);
      }
      EXPECT_NEAR(pace[0], losses::expected_accepted(smoothed), 1e-14);
    }
}

TEST(SlotWeights, DecayGoesByPlace) {
  const numbers v = weights_of({.gamma = 4}, numbers(5), {1, 1, 0, 1, 1});
  for (std::size_t i = 0; i < 5; ++i) EXPECT_DOUBLE_EQ(v[i], i == 2 ? 0 : std::exp(-static_cast<double>(i) / 4));
  EXPECT_EQ(weights_of({}, numbers(3)), numbers(3, 1.));
}

// The others pass over slots that are none, whatever stands there.
TEST(SlotWeights, SlotsThatAreNone) {
  for (const weighting kind : {weighting::survival, weighting::acceptance, weighting::d_pace}) {
    const numbers with = weights_of({kind, 1, .1}, {.5, NAN, .25, -3, .75}, {1, 0, 1, 0, 1}), without = weights_of({kind, 1, .1}, {.5, .25, .75});
    EXPECT_EQ((numbers{with[0], with[2], with[4]}), without);
    EXPECT_EQ(with[1], 0);
    EXPECT_EQ(with[3], 0);
    EXPECT_EQ(weights_of({kind}, {.5, .5}, {0, 0}), numbers(2));
  }
}

TEST(SlotWeights, Errors) {
  EXPECT_EQ(message_of([] { weights_of({.gamma = 0}, {.5}); }), "losses::slot_weights: option 'gamma' is 0; expected a positive number, or infinity (no decay)");
  EXPECT_EQ(message_of([] { weights_of({.smoothing = 2}, {.5}); }), "losses::slot_weights: option 'smoothing' is 2; expected 0 to 1");
  EXPECT_EQ(message_of([] { weights_of({.kind = weighting::survival}, {.5, NAN}); }), "losses::slot_weights: argument 'acceptances': entry 1 is NaN; expected 0 to 1");
  EXPECT_EQ(message_of([] { weights_of({}, {.5, .5}, {1}); }), "losses::slot_weights: argument 'included' has 1 entries; expected none or 2");
}

}  // namespace
