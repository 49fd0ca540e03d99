// The attributed target and its loss against the formulas, the laws of the projection, and planted evidence.
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/attribution_target.hpp>

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
using test::log_probs;
using all = std::array<log_probs, 4>;   // student, privileged, with, without

std::vector<char> common_support(const all& rows) {
  std::vector<char> in;
  for (std::size_t v = 0; v < rows[0].size(); ++v) in.push_back(rows[0][v] > -infinity && rows[1][v] > -infinity && rows[2][v] > -infinity && rows[3][v] > -infinity);
  return in;
}
struct projection {
  log_probs pi, u, delta;   // u and delta centred, on the common support
  std::vector<char> common;
  double alpha = 0;
  double inner(const log_probs& a, const log_probs& b) const {
    double sum = 0;
    for (std::size_t v = 0; v < a.size(); ++v)
      if (pi[v] > 0) sum += pi[v] * a[v] * b[v];
    return sum;
  }
};
projection project(const all& rows, const attribution_target& options) {
  projection p;
  p.common = common_support(rows);
  const std::size_t n = rows[0].size();
  std::vector<char> chosen(n, options.top_k == 0);
  for (const std::size_t j : {std::size_t{0}, std::size_t{1}}) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rows[j][a] > rows[j][b]; });
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(options.top_k); ++rank) chosen[order[rank]] = 1;
  }
  double mass = 0;
  for (std::size_t v = 0; v < n; ++v) p.pi.push_back(p.common[v] && chosen[v] ? (options.top_k ? std::exp(rows[0][v]) : 1) : 0), mass += p.pi[v];
  for (double& x : p.pi) x = mass > 0 ? x / mass : 0;
  double mean_u = 0, mean_delta = 0;
  for (std::size_t v = 0; v < n; ++v) {
    p.u.push_back(p.common[v] ? rows[2][v] - rows[3][v] : 0), p.delta.push_back(p.common[v] ? rows[1][v] - rows[0][v] : 0);
    mean_u += p.pi[v] * p.u[v], mean_delta += p.pi[v] * p.delta[v];
  }
  for (double& x : p.u) x -= mean_u;
  for (double& x : p.delta) x -= mean_delta;
  if (p.inner(p.u, p.u) > 0) p.alpha = p.inner(p.delta, p.u) / (p.inner(p.u, p.u) + options.epsilon);
  if (options.max_alpha > 0) p.alpha = std::clamp(p.alpha, 0., options.max_alpha);
  return p;
}
log_probs target(const all& rows, const attribution_target& options) {
  const projection p = project(rows, options);
  const log_probs& s = rows[0];
  double before = 0, after = 0;
  log_probs q = s;
  for (std::size_t v = 0; v < s.size(); ++v)
    if (p.common[v]) {
      q[v] += options.eta * std::clamp(p.alpha * p.u[v], -options.bound, options.bound);
      before += std::exp(s[v]), after += std::exp(q[v]);
    }
  for (std::size_t v = 0; v < s.size(); ++v)
    if (p.common[v]) q[v] += std::log(before / after);
  return q;
}
test::named_rows<4> random_rows(std::int64_t n, std::int64_t width, std::mt19937& random) {
  return {test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random)};
}
all log_rows(const test::named_rows<4>& rows, std::int64_t i) {
  all out;
  for (std::size_t j = 0; j < 4; ++j) out[j] = test::log_softmax(rows[j], i, 1);
  return out;
}

TEST(AttributionTarget, LossAndGradient) {
  std::mt19937 random(1);
  auto rows = random_rows(5, 19, random);
  rows[1](1, 3) = -infinity, rows[3](1, 4) = -infinity, rows[2](2, 0) = -infinity;   // tokens outside the common support
  rows[0](3, 6) = rows[1](3, 6) = -infinity;
  for (std::int64_t v = 0; v < 19; ++v) rows[2](4, v) = v % 2 ? -infinity : 0, rows[3](4, v) = v % 2 ? 0 : -infinity;   // no common support
  for (const attribution_target& f : {attribution_target{.mu = 0.3}, attribution_target{.eta = 0.5, .bound = 0.4, .mu = 0.1, .epsilon = 0.1, .max_alpha = 0.6}, attribution_target{.mu = 0.2, .top_k = 5}})
    test::check_laws<attribution_target, 4>(f, rows, [&](std::int64_t, const auto& base, const auto& at) { return test::kl(target(base, f), at) + f.mu * test::kl(base[1], at); }, {.temperature = 0.9});
}

TEST(AttributionTarget, LawsOfTheProjection) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    auto rows = random_rows(1, 31, random);
    array<double> measured(1, 3);
    measure(attribution_share{{.epsilon = 0}}, {}, measured.view(), rows[0].view(), rows[1].view(), rows[2].view(), rows[3].view());
    const projection p = project(log_rows(rows, 0), {.epsilon = 0});
    const double alpha = measured(0, 0);
    log_probs aligned, residual;
    for (std::size_t v = 0; v < p.u.size(); ++v) aligned.push_back(alpha * p.u[v]), residual.push_back(p.delta[v] - aligned[v]);
    EXPECT_NEAR(p.inner(residual, p.u), 0, 1e-9);
    EXPECT_NEAR(p.inner(p.delta, p.delta), p.inner(aligned, aligned) + p.inner(residual, residual), 1e-9);
    EXPECT_NEAR(measured(0, 1), p.inner(aligned, aligned) / p.inner(p.delta, p.delta), 1e-12);
    EXPECT_EQ(measured(0, 2), 31);

    // delta parallel to u, no clips: the privileged teacher itself
    for (std::int64_t v = 0; v < 31; ++v) rows[2](0, v) = rows[3](0, v) + 0.4 * (rows[1](0, v) - rows[0](0, v));
    const auto parallel = test::evaluate<double>(attribution_target{.bound = 1e6, .mu = 0, .epsilon = 0}, rows, {});
    const auto s = test::log_softmax(rows[0], 0, 1), t = test::log_softmax(rows[1], 0, 1);
    for (std::int64_t v = 0; v < 31; ++v) EXPECT_NEAR(parallel.gradient(0, v), std::exp(s[static_cast<std::size_t>(v)]) - std::exp(t[static_cast<std::size_t>(v)]), 1e-12);

    // the evidence changes nothing: the student itself
    const auto idle = test::evaluate<double>(attribution_target{.mu = 0}, test::named_rows<4>{rows[0], rows[1], rows[3], rows[3]}, {});
    EXPECT_NEAR(idle.values[0], 0, 1e-15);
    for (const double g : idle.gradient.values) EXPECT_NEAR(g, 0, 1e-15);
  }
}

TEST(AttributionTarget, Errors) {
  std::mt19937 random(3);
  const auto rows = random_rows(2, 7, random);
  const auto fails = [&](const attribution_target& f) { return message_of([&] { test::evaluate<double>(f, rows, {}); }); };
  EXPECT_NE(fails({.eta = -1}).find("'eta' is -1"), std::string::npos);
  EXPECT_NE(fails({.bound = 0}).find("'bound' is 0"), std::string::npos);
  EXPECT_NE(fails({.mu = NAN}).find("'mu' is NaN"), std::string::npos);
  EXPECT_NE(fails({.epsilon = -1}).find("'epsilon' is -1"), std::string::npos);
  EXPECT_NE(fails({.max_alpha = -1}).find("'max_alpha' is -1"), std::string::npos);
  EXPECT_NE(fails({.top_k = -1}).find("'top_k' is -1"), std::string::npos);
}

// Planted: the teacher corrects eight tokens because of the evidence and eight others out of a prior of its own. The aligned part moves mass on the former.
TEST(AttributionTarget, TheAlignedPartIsEnrichedInEvidence) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  const std::int64_t states = 100, width = 64;
  double enriched = 0, whole = 0;
  auto rows = random_rows(states, width, random);
  for (std::int64_t i = 0; i < states; ++i)
    for (std::int64_t v = 0; v < width; ++v) {
      const double evidence = v < 8 ? 2 * normal(random) : 0, prior = v >= 8 && v < 16 ? 2 * normal(random) : 0;
      rows[3](i, v) = rows[0](i, v) + prior, rows[2](i, v) = rows[3](i, v) + evidence + 0.05 * normal(random), rows[1](i, v) = rows[2](i, v);
    }
  const auto out = test::evaluate<double>(attribution_target{.mu = 0}, rows, {});
  for (std::int64_t i = 0; i < states; ++i) {
    const auto s = test::log_softmax(rows[0], i, 1), t = test::log_softmax(rows[1], i, 1);
    double moved = 0, moved_by_evidence = 0, asked = 0, asked_by_evidence = 0;
    for (std::int64_t v = 0; v < 16; ++v) {
      const auto at = static_cast<std::size_t>(v);
      const double shift = std::abs(out.gradient(i, v)), correction = std::abs(std::exp(s[at]) - std::exp(t[at]));   // |q - s|, |t - s|
      moved += shift, asked += correction;
      if (v < 8) moved_by_evidence += shift, asked_by_evidence += correction;
    }
    enriched += moved_by_evidence / moved / static_cast<double>(states), whole += asked_by_evidence / asked / static_cast<double>(states);
  }
  RecordProperty("share_of_evidence_tokens", std::to_string(whole) + " -> " + std::to_string(enriched));
  EXPECT_GT(enriched, whole + 0.2);
}

}  // namespace
