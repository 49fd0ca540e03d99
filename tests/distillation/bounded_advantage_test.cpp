// The shapes, the two identities that justify them by enumeration of the vocabulary, and what they do to a toy student.
#include "distillation/system_laws.hpp"
#include "support/reference/softmax.hpp"
#include "support/errors.hpp"

#include <heddle/core/random.hpp>
#include <heddle/distillation/bounded_advantage.hpp>
#include <heddle/distillation/divergence.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::infinity;

constexpr advantage_shape shapes[] = {advantage_shape::sign, advantage_shape::tanh, advantage_shape::coupling};

double formula(double log_s, double log_t, advantage_shape shape, double kappa) {
  const double s = std::exp(log_s), t = std::exp(log_t);
  if (shape == advantage_shape::sign) return t > s ? 1 : t < s ? -1 : 0;
  if (shape == advantage_shape::tanh) return std::tanh((log_t - log_s) / (2 * kappa));
  return (t - s) / std::max(t, s);
}

TEST(BoundedAdvantage, ShapesAreBoundedOddAndIncreasing) {
  for (const auto shape : shapes) {
    double before = -2;
    for (double r = -40; r <= 40; r += 0.01) {
      const double a = bounded_advantage(-50, -50 + r, shape);
      EXPECT_LE(std::abs(a), 1);
      EXPECT_EQ(a, -bounded_advantage(-50 + r, -50, shape));
      EXPECT_GE(a, before);
      EXPECT_NEAR(a, formula(-50, -50 + r, shape, 1), 1e-13);
      before = a;
    }
    EXPECT_EQ(bounded_advantage(-3, -3, shape), 0);
    EXPECT_EQ(bounded_advantage(-3, -infinity, shape), -1);
  }
  for (const double r : {1e-300, 1e-20, 1e-9, 1e-5, 9.99e-4, 1.001e-3, 0.3, 5., 700.}) {
    EXPECT_LE(bounded_advantage(0, r), r);
    EXPECT_LE(bounded_advantage(0, r, advantage_shape::tanh), r / 2);
    EXPECT_GT(bounded_advantage(0, r), 0);
    EXPECT_NEAR(bounded_advantage(0, r) / -std::expm1(-r), 1, 1e-12);
    EXPECT_NEAR(bounded_advantage(0, r, advantage_shape::tanh, 0.25) / std::tanh(2 * r), 1, 1e-12);
  }
  const double s = std::log(0.2), t = std::log(0.5);
  EXPECT_NEAR(bounded_advantage(s, t, advantage_shape::tanh), 0.3 / 0.7, 1e-15);   // (t - s) / (t + s)
  EXPECT_NEAR(bounded_advantage(s, t), 0.3 / 0.5, 1e-15);                            // (t - s) / max(t, s)
}

TEST(BoundedAdvantage, SignDescendsTotalVariationAndCouplingMeasuresIt) {
  std::mt19937 random(1);
  const std::int64_t width = 23;
  array<double> z(width, width), y(width, width);   // the same row once per sampled token
  const auto one = test::gaussian<double>(1, width, random), other = test::gaussian<double>(1, width, random);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(width));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (std::int64_t i = 0; i < width; ++i)
    for (std::int64_t v = 0; v < width; ++v) z(i, v) = 2 * one(0, v), y(i, v) = v == 3 ? -infinity : other(0, v);
  const double tau = 1.3;
  const auto s = test::log_softmax(z, 0, tau), t = test::log_softmax(y, 0, tau);

  const auto rows = test::evaluate<double>(bounded_policy_gradient{.tokens = tokens, .shape = advantage_shape::sign}, test::named_rows<2>{z, y}, {.temperature = tau});
  const auto direct = test::evaluate<double>(total_variation{}, test::named_rows<2>{z, y}, {.temperature = tau});
  for (std::int64_t v = 0; v < width; ++v) {
    double expected = 0;
    for (std::int64_t x = 0; x < width; ++x) expected += std::exp(s[static_cast<std::size_t>(x)]) * rows.gradient(x, v) / 2;
    EXPECT_NEAR(expected, direct.gradient(0, v), 1e-12);
  }
  double refused = 0;
  for (std::size_t x = 0; x < s.size(); ++x) refused += std::exp(s[x]) * std::max(-bounded_advantage(s[x], t[x]), 0.);
  EXPECT_NEAR(refused, test::tv(s, t), 1e-12);
  EXPECT_NEAR(direct.values[0], test::tv(s, t), 1e-12);
}

TEST(BoundedAdvantage, LossAndGradient) {
  std::mt19937 random(2);
  const std::int64_t n = 4, width = 19;
  const test::named_rows<2> rows{test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random)};
  const std::vector<std::int32_t> tokens{3, 18, 0, 7};
  for (const auto shape : shapes)
    for (const bool scaled : {false, true}) {
      const double kappa = 0.7;
      test::check_laws<bounded_policy_gradient, 2>({.tokens = tokens, .shape = shape, .kappa = kappa, .scale_by_total_variation = scaled}, rows, [&](std::int64_t i, const auto& base, const auto& at) {
        const auto x = static_cast<std::size_t>(tokens[static_cast<std::size_t>(i)]);
        return -formula(base[0][x], base[1][x], shape, kappa) * (scaled ? test::tv(base[0], base[1]) : 1) * at[x];
      }, {.temperature = 0.8});
    }
}

TEST(BoundedAdvantage, EdgesAndErrors) {
  std::vector<double> log_s{-1, -2}, log_t{-2, -infinity}, out(2, 5);
  bounded_advantages(log_s, log_t, out, advantage_shape::coupling, 1, std::vector<double>{0.5, 0.25});
  EXPECT_NEAR(out[0], -0.5 * (1 - std::exp(-1.)), 1e-15);
  EXPECT_EQ(out[1], -0.25);
  log_s[1] = -infinity;
  out = {5, 5};
  EXPECT_NE(message_of([&] { bounded_advantages(log_s, log_t, out); }).find("'log_student': entry 1 is -infinity"), std::string::npos);
  EXPECT_EQ(out[0], 5);   // nothing was written
  log_s[1] = -2, log_t[0] = std::nan("");
  EXPECT_NE(message_of([&] { bounded_advantages(log_s, log_t, out); }).find("'log_teacher': entry 0 is NaN"), std::string::npos);
  EXPECT_NE(message_of([&] { bounded_advantages(log_s, log_s, out, advantage_shape::tanh, 0); }).find("'kappa' is 0"), std::string::npos);
  EXPECT_NE(message_of([&] { bounded_advantages(log_s, log_s, std::span(out).first(1)); }).find("'out' has 1"), std::string::npos);

  for (const double impossible : {-infinity, infinity, std::nan("")}) EXPECT_NE(message_of([&] { bounded_advantage(impossible, -1); }).find("'log_student' is"), std::string::npos);
  EXPECT_NE(message_of([&] { bounded_advantage(-1, std::nan("")); }).find("'log_teacher' is NaN"), std::string::npos);
  EXPECT_NE(message_of([&] { bounded_advantage(-1, -1, advantage_shape::tanh, -1); }).find("'kappa' is -1"), std::string::npos);
  out = {5, 5};
  for (const double share : {std::nan(""), -0.1, 1.5}) EXPECT_NE(message_of([&] { bounded_advantages(log_s, log_s, out, advantage_shape::sign, 1, std::vector<double>{0.5, share}); }).find("'total_variation': entry 1"), std::string::npos);
  EXPECT_EQ(out[0], 5);

  // as rows: a token that the student cannot sample is marked, one that the teacher cannot gets A = -1
  array<double> z(2, 3), y(2, 3);
  z(0, 1) = -infinity, y(1, 1) = -infinity;
  const std::vector<std::int32_t> tokens{1, 1};
  const auto rows = test::evaluate<double>(bounded_policy_gradient{.tokens = tokens}, test::named_rows<2>{z, y}, {});
  EXPECT_EQ(rows.status[0], status::proposal_outside_support);
  EXPECT_EQ(rows.gradient(0, 1), 0);
  EXPECT_EQ(rows.status[1], status::ok);
  EXPECT_NEAR(rows.gradient(1, 1), 1 - 1. / 3, 1e-15);
  const std::vector<std::int32_t> outside{1, 3};
  EXPECT_NE(message_of([&] { test::evaluate<double>(bounded_policy_gradient{.tokens = outside}, test::named_rows<2>{z, y}, {}); }).find("entry 1 is 3"), std::string::npos);
}

// One student for four contexts whose teachers all but forbid different tokens, so that no student matches them all: log-ratios stay large to the end, bounded
// advantages do not. Mean distance to the teachers late in training, and its spread over seeds and steps.
TEST(BoundedAdvantage, LateTrainingIsSteadier) {
  constexpr std::size_t width = 12, contexts = 4;
  constexpr int seeds = 12, steps = 4000, late = 1000;
  std::vector<std::vector<double>> teachers;
  for (std::size_t c = 0; c < contexts; ++c) {
    std::vector<double> y;
    for (std::size_t v = 0; v < width; ++v) y.push_back(v % contexts == c ? -9 : 0.2 * static_cast<double>(v));
    teachers.push_back(reference::softmax(y));
  }
  struct arm {
    double mean, spread;
  };
  const auto train = [&](auto advantage) {
    double sum = 0, squares = 0;
    for (std::uint32_t seed = 0; seed < seeds; ++seed) {
      std::vector<double> z(width, 0.);
      for (std::uint32_t step = 0; step < steps; ++step) {
        const auto s = reference::softmax(z);
        const auto& t = teachers[step % contexts];
        std::size_t x = 0;
        for (double u = uniform({.seed = seed, .position = step}); x + 1 < width && (u -= s[x]) > 0;) ++x;
        const double a = advantage(std::log(s[x]), std::log(t[x]));
        for (std::size_t v = 0; v < width; ++v) z[v] += 0.02 * a * ((v == x) - s[v]);
        if (step < steps - late) continue;
        double distance = 0;
        for (const auto& teacher : teachers)
          for (std::size_t v = 0; v < width; ++v) distance += std::abs(s[v] - teacher[v]) / (2 * contexts);
        sum += distance, squares += distance * distance;
      }
    }
    const double mean = sum / (seeds * late);
    return arm{mean, std::sqrt(squares / (seeds * late) - mean * mean)};
  };
  const auto ratio = train([](double s, double t) { return t - s; });
  const auto sign = train([](double s, double t) { return bounded_advantage(s, t, advantage_shape::sign); });
  const auto coupling = train([](double s, double t) { return bounded_advantage(s, t); });
  RecordProperty("log_ratio", std::to_string(ratio.mean) + " +- " + std::to_string(ratio.spread));
  RecordProperty("sign", std::to_string(sign.mean) + " +- " + std::to_string(sign.spread));
  RecordProperty("coupling", std::to_string(coupling.mean) + " +- " + std::to_string(coupling.spread));
  EXPECT_LT(sign.mean, ratio.mean + 0.01);   // retaining the sign is enough
  EXPECT_LT(coupling.mean, ratio.mean + 0.01);
  EXPECT_LT(coupling.spread, 0.5 * ratio.spread);
}

}  // namespace
