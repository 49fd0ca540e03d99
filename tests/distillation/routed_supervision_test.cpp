// Both routes against their formulas, and a rollout with its events from end to end.
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/core/random.hpp>
#include <heddle/distillation/interpolation.hpp>
#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/routed_supervision.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::infinity;

TEST(RoutedSupervision, EachRouteHasItsLoss) {
  std::mt19937 random(1);
  const std::int64_t n = 5, width = 18;
  test::named_rows<2> rows{test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random)};
  rows[1](1, 4) = rows[1](1, 11) = 6;   // a tie of the teacher's first choice
  const std::vector<std::int32_t> tokens{3, 11, 0, 17, 5};
  const std::vector<std::uint8_t> corrected{0, 1, 1, 0, 1};
  const routed_supervision functional{.tokens = tokens, .corrected = corrected, .accepted_weight = 0.7, .corrected_weight = 1.6};
  test::check_laws<routed_supervision, 2>(functional, rows, [&](std::int64_t i, const auto& base, const auto& at) {
    const auto row = static_cast<std::size_t>(i), x = static_cast<std::size_t>(tokens[row]);
    if (!corrected[row]) return -0.7 * (base[1][x] - base[0][x]) * at[x];
    return -1.6 * at[static_cast<std::size_t>(std::max_element(base[1].begin(), base[1].end()) - base[1].begin())];
  }, {.temperature = 1.2});
}

TEST(RoutedSupervision, EdgesAndErrors) {
  test::named_rows<2> rows{array<double>(3, 4), array<double>(3, 4)};
  rows[1](0, 2) = -infinity;   // accepted, but impossible for the teacher
  rows[1](1, 1) = 5, rows[0](1, 1) = -infinity;   // corrected to a token that the student cannot say
  const std::vector<std::int32_t> tokens{2, 0, 0};
  const std::vector<std::uint8_t> corrected{0, 1, 0};
  const auto out = test::evaluate<double>(routed_supervision{.tokens = tokens, .corrected = corrected}, rows, {});
  EXPECT_EQ(out.status[0], status::infinite_divergence);
  EXPECT_EQ(out.status[1], status::infinite_divergence);
  EXPECT_EQ(out.status[2], status::ok);
  for (std::int64_t v = 0; v < 4; ++v) EXPECT_EQ(out.gradient(0, v), 0);
  const auto off = test::evaluate<double>(routed_supervision{.tokens = tokens, .corrected = corrected, .accepted_weight = 0, .corrected_weight = 0}, rows, {});
  for (const auto s : off.status) EXPECT_EQ(s, status::ok);
  EXPECT_EQ(off.gradient.values, array<double>(3, 4).values);

  const auto fails = [&](const routed_supervision& f) { return message_of([&] { test::evaluate<double>(f, rows, {}); }); };
  EXPECT_NE(fails({.tokens = tokens, .corrected = std::span(corrected).first(2)}).find("'corrected' has 2"), std::string::npos);
  EXPECT_NE(fails({.tokens = std::vector<std::int32_t>{0, 4, 0}, .corrected = corrected}).find("entry 1 is 4"), std::string::npos);
  EXPECT_NE(fails({.tokens = tokens, .corrected = corrected, .accepted_weight = -1}).find("'accepted_weight' is -1"), std::string::npos);
  EXPECT_NE(fails({.tokens = tokens, .corrected = corrected, .corrected_weight = NAN}).find("'corrected_weight' is NaN"), std::string::npos);
}

// Rollout from the ball around the student, then training on its tokens and events: the student comes closer to the teacher, and corrections become rarer.
TEST(RoutedSupervision, TrainsAStudentOnItsOwnRollouts) {
  std::mt19937 random(2);
  const std::int64_t n = 64, width = 16;
  array<float> z(n, width), y(n, width), gradient(n, width);
  const auto one = test::gaussian<float>(1, width, random);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t v = 0; v < width; ++v) y(i, v) = 2 * one(0, v);
  std::vector<double> share;
  for (std::uint32_t step = 0; step < 200; ++step) {
    std::vector<std::int32_t> tokens;
    std::vector<std::uint8_t> corrected;
    for (std::int64_t i = 0; i < n; ++i) {
      const interpolated_law law{z.view()[i], y.view()[i], 0.2};
      const random_key key{.seed = step, .request = static_cast<std::uint32_t>(i)};
      std::int32_t proposed = 0;
      for (double u = uniform(key); proposed + 1 < width && (u -= law.student_prob(proposed)) > 0;) ++proposed;
      random_key accept = key, residual = key;
      accept.purpose = purpose::accept, residual.purpose = purpose::residual;
      const auto next = law.couple(proposed, uniform(accept), uniform(residual));
      tokens.push_back(next.token), corrected.push_back(next.corrected);
    }
    double count = 0;
    for (const auto c : corrected) count += c;
    share.push_back(count / static_cast<double>(n));
    loss(z.view(), y.view(), routed_supervision{.tokens = tokens, .corrected = corrected}, gradient.view());
    for (std::int64_t v = 0; v < width; ++v) {   // all rows share their logits
      float sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += gradient(i, v);
      for (std::int64_t i = 0; i < n; ++i) z(i, v) -= 0.3f * sum;
    }
  }
  double first = 0, last = 0;
  for (std::size_t i = 0; i < 20; ++i) first += share[i] / 20, last += share[share.size() - 1 - i] / 20;
  EXPECT_GT(first, 0.1);
  EXPECT_LT(last, first / 3);
}

}  // namespace
