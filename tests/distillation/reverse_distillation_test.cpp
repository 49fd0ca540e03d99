// The amplified gradient against its formula and its laws; a bandit whose optimum stays and is reached sooner.
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/reverse_distillation.hpp>
#include <heddle/distillation/sampled_token.hpp>

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
using row = std::vector<double>;

// g + kappa P g as written
row direction(const test::log_probs& s, const test::log_probs& t, const test::log_probs& reference, double limit) {
  row d;
  double mean = 0;
  for (std::size_t v = 0; v < s.size(); ++v) {
    d.push_back(std::clamp(t[v] == reference[v] ? 0 : t[v] - reference[v], -limit, limit));
    mean += std::exp(s[v]) * d[v];
  }
  for (std::size_t v = 0; v < s.size(); ++v) d[v] = std::exp(s[v]) * (d[v] - mean);
  return d;
}
double dot(const row& a, const row& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += a[v] * b[v];
  return sum;
}
row amplified(const row& g, const row& d, const policy_shift& along) {
  row out = g;
  if (along.gated && -dot(g, d) <= 0) return out;
  if (dot(d, d) == 0) return out;
  for (std::size_t v = 0; v < g.size(); ++v) out[v] += along.kappa * dot(d, g) / (dot(d, d) + along.epsilon) * d[v];
  return out;
}
row row_of(const array<double>& a, std::int64_t i) { return {a.values.begin() + i * a.columns, a.values.begin() + (i + 1) * a.columns}; }

test::named_rows<3> random_rows(std::int64_t n, std::int64_t width, std::mt19937& random) {
  test::named_rows<3> rows{test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random)};
  return rows;
}

TEST(ReverseDistillation, GradientFollowsTheFormulaAndItsLaws) {
  std::mt19937 random(1);
  const std::int64_t n = 40, width = 21;
  auto rows = random_rows(n, width, random);
  rows[1](1, 5) = -infinity, rows[2](2, 6) = -infinity, rows[1](3, 7) = rows[2](3, 7) = -infinity;   // mass on one side, on neither
  std::vector<std::int32_t> tokens;
  std::vector<double> advantages;
  for (std::int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<std::int32_t>(random() % 21)), advantages.push_back(i == 9 ? 0 : std::normal_distribution<double>()(random));
  const double tau = 0.7;
  const auto plain = test::evaluate<double>(policy_gradient{.tokens = tokens, .advantages = advantages}, test::named_rows<1>{rows[0]}, {.temperature = tau});
  for (const bool gated : {true, false}) {
    const policy_shift along{.kappa = 1.5, .limit = 3, .gated = gated};
    const auto out = test::evaluate<double>(reverse_distillation{.tokens = tokens, .advantages = advantages, .along = along}, rows, {.temperature = tau});
    const auto rounded = test::evaluate<float>(reverse_distillation{.tokens = tokens, .advantages = advantages, .along = along}, rows, {.temperature = tau});
    array<double> in_place = plain.gradient;
    for (const auto s : amplify(rows[0].view(), rows[1].view(), rows[2].view(), in_place.view(), along, {.temperature = tau})) EXPECT_EQ(s, status::ok);
    int amplified_rows = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto d = direction(test::log_softmax(rows[0], i, tau), test::log_softmax(rows[1], i, tau), test::log_softmax(rows[2], i, tau), along.limit);
      const row g = row_of(plain.gradient, i), h = row_of(out.gradient, i), expected = amplified(g, d, along);
      double sum = 0;
      for (std::size_t v = 0; v < g.size(); ++v) {
        EXPECT_NEAR(h[v], expected[v], 1e-13);
        EXPECT_NEAR(in_place(i, static_cast<std::int64_t>(v)), expected[v], 1e-13);
        EXPECT_NEAR(rounded.gradient(i, static_cast<std::int64_t>(v)), expected[v], 1e-5);
        sum += h[v];
      }
      EXPECT_EQ(out.values[static_cast<std::size_t>(i)], plain.values[static_cast<std::size_t>(i)]);
      EXPECT_NEAR(sum, 0, 1e-13);
      const double gg = dot(g, g), hh = dot(h, h);
      EXPECT_EQ(hh == 0, gg == 0);   // stationary points stay
      EXPECT_GE(dot(h, g), gg * (1 - 1e-12));
      EXPECT_GE(hh, gg * (1 - 1e-12));
      EXPECT_LE(std::sqrt(hh), (1 + along.kappa) * std::sqrt(gg) * (1 + 1e-12));
      for (std::size_t v = 0; v < g.size(); ++v)   // orthogonal parts are equal
        EXPECT_NEAR(h[v] - dot(h, d) / dot(d, d) * d[v], g[v] - dot(g, d) / dot(d, d) * d[v], 1e-12);
      amplified_rows += hh > gg * 1.0001;
    }
    EXPECT_GT(amplified_rows, 10);
    if (gated) {
      EXPECT_LT(amplified_rows, 30);
    }
  }
}

TEST(ReverseDistillation, EndsAndLinearity) {
  std::mt19937 random(2);
  const std::int64_t n = 6, width = 13;
  const auto rows = random_rows(n, width, random);
  const auto g = test::gaussian<double>(n, width, random), other = test::gaussian<double>(n, width, random);
  const auto amplify_copy = [&](array<double> gradient, const test::named_rows<3>& z, const policy_shift& along) {
    auto in = z;
    amplify(in[0].view(), in[1].view(), in[2].view(), gradient.view(), along);
    return gradient;
  };
  EXPECT_EQ(amplify_copy(g, {rows[0], rows[1], rows[1]}, {.kappa = 5}).values, g.values);              // no shift
  EXPECT_EQ(amplify_copy(g, rows, {.kappa = 0}).values, g.values);
  EXPECT_EQ(amplify_copy(array<double>(n, width), rows, {.gated = false}).values, array<double>(n, width).values);   // the teacher alone moves nothing
  array<double> mix(n, width);
  for (std::size_t i = 0; i < mix.values.size(); ++i) mix.values[i] = 2 * g.values[i] - 3 * other.values[i];
  const auto a = amplify_copy(g, rows, {.gated = false}), b = amplify_copy(other, rows, {.gated = false}), both = amplify_copy(mix, rows, {.gated = false});
  for (std::size_t i = 0; i < mix.values.size(); ++i) EXPECT_NEAR(both.values[i], 2 * a.values[i] - 3 * b.values[i], 1e-12);

  const std::vector<std::int32_t> tokens{0, 1, 2, 3, 4, 5};
  std::vector<double> advantages(6, 1);
  const auto fails = [&](const policy_shift& along) { return message_of([&] { test::evaluate<double>(reverse_distillation{.tokens = tokens, .advantages = advantages, .along = along}, rows, {}); }); };
  EXPECT_NE(fails({.kappa = -0.5}).find("'kappa' is -0.5"), std::string::npos);
  EXPECT_NE(fails({.limit = 0}).find("'limit' is 0"), std::string::npos);
  EXPECT_NE(fails({.epsilon = -1}).find("'epsilon' is -1"), std::string::npos);
  advantages[4] = std::nan("");
  EXPECT_NE(fails({}).find("'advantages': entry 4 is NaN"), std::string::npos);
}

TEST(ReverseDistillation, ScalarForm) {
  const policy_shift along{.kappa = 2, .limit = 4};
  EXPECT_EQ(reverse_distilled_advantage(0, -1, -5, along), 0);
  EXPECT_NEAR(reverse_distilled_advantage(0.5, -1, -3, along), 0.5 * (1 + 2 * 2. / 4), 1e-15);     // supported
  EXPECT_EQ(reverse_distilled_advantage(0.5, -3, -1, along), 0.5);                                  // not supported
  EXPECT_NEAR(reverse_distilled_advantage(-0.5, -3, -1, along), -0.5 * (1 + 2 * 2. / 4), 1e-15);
  EXPECT_EQ(reverse_distilled_advantage(1, -1, -infinity, along), 3);                               // clipped
  EXPECT_EQ(reverse_distilled_advantage(-1, -infinity, -1, along), -3);
  EXPECT_EQ(reverse_distilled_advantage(1, -infinity, -infinity, along), 1);
  EXPECT_NE(message_of([&] { reverse_distilled_advantage(std::nan(""), -1, -1, along); }).find("'advantage' is NaN"), std::string::npos);
  EXPECT_NE(message_of([&] { reverse_distilled_advantage(1, -1, -1, {.kappa = -1}); }).find("'kappa' is -1"), std::string::npos);
}

// Exact policy gradient on ten arms. The teacher is weak: it gives the best arm a third of its mass, but a larger share than its reference does. The student ends
// at the best arm in fewer updates; with a teacher whose shift points away from it, at the same place.
TEST(ReverseDistillation, ABanditIsSolvedSoonerAndTheSameWay) {
  const std::int64_t arms = 10;
  const row reward{0.1, 0.2, 0.9, 1, 0, 0.3, 0.2, 0.1, 0.4, 0.2};
  const auto updates = [&](const row& shift, const policy_shift& along) {
    test::named_rows<3> rows{array<double>(1, arms), array<double>(1, arms), array<double>(1, arms)};
    rows[1].values = shift;
    array<double>& z = rows[0];
    int count = 0;
    for (; count < 20000; ++count) {
      const auto s = test::log_softmax(z, 0, 1);
      if (std::exp(s[3]) > 0.99) break;
      double mean = 0;
      for (std::size_t v = 0; v < s.size(); ++v) mean += std::exp(s[v]) * reward[v];
      array<double> g(1, arms);   // of minus the expected reward
      for (std::int64_t v = 0; v < arms; ++v) g(0, v) = -std::exp(s[static_cast<std::size_t>(v)]) * (reward[static_cast<std::size_t>(v)] - mean);
      amplify(z.view(), rows[1].view(), rows[2].view(), g.view(), along);
      for (std::int64_t v = 0; v < arms; ++v) z(0, v) -= 0.5 * g(0, v);
    }
    return count;
  };
  const row aligned{0, 0, 0.8, 1.6, 0, 0, 0, 0, 0.2, 0}, misaligned{1, 0, 0, -1, 0, 1, 0, 0, 0, 0};
  const int alone = updates(aligned, {.kappa = 0}), helped = updates(aligned, {.kappa = 3}), ungated = updates(aligned, {.kappa = 3, .gated = false}), astray = updates(misaligned, {.kappa = 3});
  RecordProperty("updates", std::to_string(alone) + " alone, " + std::to_string(helped) + " with the teacher, " + std::to_string(ungated) + " ungated, " + std::to_string(astray) + " misaligned");
  EXPECT_LT(2 * helped, alone);
  EXPECT_LT(2 * ungated, alone);
  EXPECT_LT(astray, 20000);
}

}  // namespace
