#include <heddle/speculative/audit/information_floor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/errors.hpp"

namespace {

using namespace heddle;
using numbers = std::vector<double>;

double number(std::uint64_t seed, std::uint32_t index) { return uniform({.seed = seed, .position = index, .purpose = purpose::user}); }

// Laws with some zeros, some of them peaked.
numbers random_laws(std::uint64_t seed, std::int64_t rows, std::int64_t vocabulary) {
  numbers laws(static_cast<std::size_t>(rows * vocabulary));
  for (std::int64_t h = 0; h < rows; ++h) {
    double sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const double u = number(seed, static_cast<std::uint32_t>(h * vocabulary + v));
      sum += laws[static_cast<std::size_t>(h * vocabulary + v)] = u < 0.2 ? 0. : std::pow(u, 3.);
    }
    if (sum == 0) sum = laws[static_cast<std::size_t>(h * vocabulary)] = 1;
    for (std::int64_t v = 0; v < vocabulary; ++v) laws[static_cast<std::size_t>(h * vocabulary + v)] /= sum;
  }
  return laws;
}
auto view(const numbers& laws, std::int64_t rows) { return tensor_view{laws.data(), extents{rows, static_cast<std::int64_t>(laws.size()) / rows}}; }

TEST(InformationFloor, ThreePeakedLaws) {
  const numbers laws{.8, .1, .1, .1, .8, .1, .1, .1, .8}, w{.5, .3, .2};
  EXPECT_NEAR(audit::information_floor(view(laws, 3), w), 7. / 20, 1e-15);
  EXPECT_NEAR(audit::rejection(view(laws, 3), w, numbers{.45, .31, .24}), 217. / 500, 1e-15);  // the mean law
}

// Every law on a grid is a candidate; none does better, and the proposal that comes with the floor attains it.
TEST(InformationFloor, NoProposalDoesBetter) {
  constexpr int steps = 40;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto rows = static_cast<std::int64_t>(1 + seed % 5);
    const numbers laws = random_laws(seed, rows, 3);
    numbers w(static_cast<std::size_t>(rows));
    for (std::size_t h = 0; h < w.size(); ++h) w[h] = number(seed + 1000, static_cast<std::uint32_t>(h));
    numbers best(3);
    const double floor = audit::information_floor(view(laws, rows), w, best);
    EXPECT_NEAR(best[0] + best[1] + best[2], 1., 1e-12);
    EXPECT_NEAR(audit::rejection(view(laws, rows), w, best), floor, 1e-12);
    double grid = 1;
    for (int a = 0; a <= steps; ++a)
      for (int b = 0; a + b <= steps; ++b)
        grid = std::min(grid, audit::rejection(view(laws, rows), w, numbers{a / double{steps}, b / double{steps}, (steps - a - b) / double{steps}}));
    EXPECT_LE(floor, grid + 1e-12);
    EXPECT_GE(floor, grid - 2. / steps);
    if (rows == 1) { EXPECT_NEAR(floor, 0., 1e-15); }
  }
}

TEST(InformationFloor, HistoriesWithoutWeightAreNotRead) {
  const numbers laws{.5, .5, NAN, -3., .25, .75};
  EXPECT_DOUBLE_EQ(audit::information_floor(view(laws, 3), numbers{1, 0, 1}), audit::information_floor(view(numbers{.5, .5, .25, .75}, 2)));
}

// An order-2 target over two tokens: slot 3 after blocks of two tokens.
struct markov_target {
  numbers laws, weights;
  std::vector<std::int32_t> histories;
};
markov_target order_two(std::uint64_t seed, std::int64_t vocabulary) {
  markov_target t;
  for (std::int32_t a = 0; a < vocabulary; ++a)
    for (std::int32_t b = 0; b < vocabulary; ++b) {
      t.histories.insert(t.histories.end(), {a, b});
      t.weights.push_back(number(seed + 50, static_cast<std::uint32_t>(a * vocabulary + b)));
    }
  t.laws = random_laws(seed, vocabulary * vocabulary, vocabulary);
  return t;
}

TEST(InformationFloor, FallsWithTheOrderToZero) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const markov_target t = order_two(seed, 4);
    const auto laws = view(t.laws, 16);
    const tensor_view histories{t.histories.data(), extents{16, 2}};
    numbers floor;
    for (const std::int64_t order : {0, 1, 2}) floor.push_back(audit::information_floor_of_order(laws, histories, t.weights, order));
    EXPECT_NEAR(floor[0], audit::information_floor(laws, t.weights), 1e-12);
    EXPECT_LE(floor[1], floor[0] + 1e-12);
    EXPECT_NEAR(floor[2], 0., 1e-12);

    // A drafter of order 1 that proposes the mean law of its group is rejected at least as often: the gap is not negative.
    double rejected = 0, total = 0;
    for (std::int32_t last = 0; last < 4; ++last) {
      numbers w(16), mean(4);
      double mass = 0;
      for (std::size_t h = 0; h < 16; ++h)
        if (t.histories[2 * h + 1] == last) {
          mass += w[h] = t.weights[h];
          for (std::size_t v = 0; v < 4; ++v) mean[v] += w[h] * t.laws[4 * h + v];
        }
      for (double& m : mean) m /= mass;
      rejected += mass * audit::rejection(laws, w, mean), total += mass;
    }
    EXPECT_GE(rejected / total - floor[1], -1e-12);
  }
}

// Slot 1 has one history: the empty one.
TEST(InformationFloor, FirstSlotHasNone) {
  const numbers law{.2, .3, .5};
  const tensor_view<const std::int32_t, 2> nothing{nullptr, extents{1, 0}};
  EXPECT_NEAR(audit::information_floor_of_order(view(law, 1), nothing, {}, 0), 0., 1e-15);
}

TEST(InformationFloor, EstimatesLieAroundTheTruth) {
  const std::int64_t kinds = 5, vocabulary = 6, drawn = 8, repeats = 4000;
  const numbers laws = random_laws(3, kinds, vocabulary);
  const numbers w{.3, .25, .2, .15, .1};
  const double truth = audit::information_floor(view(laws, kinds), w);
  double plug_in = 0, cross_fitted = 0;
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(repeats); ++r) {
    numbers sample;
    for (std::uint32_t i = 0; i < drawn; ++i) {
      double u = number(r + 7, i);
      std::size_t kind = 0;
      while (kind + 1 < w.size() && u > w[kind]) u -= w[kind++];
      sample.insert(sample.end(), laws.begin() + static_cast<std::ptrdiff_t>(kind) * vocabulary, laws.begin() + static_cast<std::ptrdiff_t>(kind + 1) * vocabulary);
    }
    const audit::floor_estimate e = audit::estimate_floor(view(sample, drawn));
    EXPECT_LE(e.plug_in, e.cross_fitted + 1e-12);
    plug_in += e.plug_in / static_cast<double>(repeats), cross_fitted += e.cross_fitted / static_cast<double>(repeats);
  }
  EXPECT_LT(plug_in, truth);
  EXPECT_GT(cross_fitted, truth);
  EXPECT_GT(plug_in, 0.3 * truth);
  EXPECT_LT(cross_fitted, 3 * truth);
}

TEST(InformationFloor, BootstrapCoversTheMean) {
  numbers values;
  for (std::uint32_t i = 0; i < 400; ++i) values.push_back(number(11, i));
  const audit::interval ci = audit::bootstrap_interval(values, {.seed = 5});
  double mean = 0;
  for (const double v : values) mean += v / 400;
  EXPECT_LT(ci.low, mean);
  EXPECT_GT(ci.high, mean);
  EXPECT_NEAR(ci.high - ci.low, 2 * 1.96 * std::sqrt(1. / 12 / 400), 0.01);  // of uniform numbers
  const audit::interval again = audit::bootstrap_interval(values, {.seed = 5});
  EXPECT_EQ(again.low, ci.low);
  const audit::interval one = audit::bootstrap_interval(numbers{.5}, {});
  EXPECT_EQ(one.low, .5);
  EXPECT_EQ(one.high, .5);
}

TEST(InformationFloor, Errors) {
  const numbers laws{.5, .5, -.25, 1.25};
  EXPECT_EQ(message_of([&] { audit::information_floor(view(laws, 2)); }), "audit::information_floor: argument 'laws': row 1, column 0 is -0.25; expected a probability");
  EXPECT_EQ(message_of([&] { audit::information_floor(view(laws, 2), numbers{0, 0}); }), "audit::information_floor: argument 'weights' has sum 0; expected a history with mass");
  EXPECT_EQ(message_of([&] { audit::information_floor(view(laws, 2), numbers{1}); }), "audit::information_floor: argument 'weights' has 1 entries; expected 2 or none");
  EXPECT_EQ(message_of([&] { audit::estimate_floor(view(laws, 1)); }), "audit::estimate_floor: argument 'laws' has 1 rows; expected at least 2 sampled histories");
  EXPECT_EQ(message_of([&] { audit::bootstrap_interval({}, {}); }), "audit::bootstrap_interval: argument 'values' is empty; expected one value per context");
}

}  // namespace
