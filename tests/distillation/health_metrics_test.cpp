#include <heddle/distillation/health_metrics.hpp>

#include <heddle/distillation/divergence.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using numbers = std::vector<double>;
using ids = std::vector<std::int32_t>;
using mask = std::vector<std::uint8_t>;

TEST(HealthMetrics, SummariesEqualSorting) {
  std::mt19937 random(1);
  for (const std::size_t n : {1u, 2u, 19u, 20u, 21u, 100u, 500u}) {
    numbers x(n);
    for (double& v : x) v = std::normal_distribution<double>(2, 3)(random);
    const auto s = summarise(x);
    auto sorted = x;
    std::sort(sorted.begin(), sorted.end());
    const auto rank = [&](std::size_t percent) { return sorted[std::max<std::size_t>(1, (percent * n + 99) / 100) - 1]; };
    EXPECT_EQ(s.minimum, sorted.front());
    EXPECT_EQ(s.low, rank(5));
    EXPECT_EQ(s.median, rank(50));
    EXPECT_EQ(s.high, rank(95));
    EXPECT_EQ(s.maximum, sorted.back());
    EXPECT_NEAR(s.mean, std::accumulate(x.begin(), x.end(), 0.) / static_cast<double>(n), 1e-12);
    EXPECT_EQ(s.count, static_cast<std::int64_t>(n));
  }
  const auto s = summarise(numbers{1, INFINITY, 3, -INFINITY});
  EXPECT_EQ(s.mean, 2);
  EXPECT_EQ(s.infinite_share, 0.5);
  EXPECT_EQ(summarise(numbers{}).count, 0);
  EXPECT_EQ(summarise(numbers{INFINITY}).mean, 0);
  EXPECT_EQ(summarise(numbers{INFINITY}).infinite_share, 1);
  EXPECT_EQ(summarise(numbers{1, std::nan(""), 5}, mask{1, 0, 1}).mean, 3);
  EXPECT_NE(message_of([] { summarise(numbers{1, std::nan("")}); }).find("row 1"), std::string::npos);
  EXPECT_THROW(summarise(numbers{1}, mask(2)), error);
}

struct batch {
  test::array<double> z, y;
  ids tokens;
  explicit batch(std::int64_t rows, std::mt19937& random) : z(test::gaussian<double>(rows, 23, random)), y(test::gaussian<double>(rows, 23, random)), tokens(static_cast<std::size_t>(rows)) {
    for (double& x : y.values) x *= 2;
    for (auto& t : tokens) t = static_cast<std::int32_t>(random() % 23);
    for (std::int64_t r = 0; r < rows; r += 3)
      for (std::int64_t v = 0; v < 23; ++v) y(r, v) = z(r, v) + 0.1 * y(r, v);
  }
};

template <class T>
void equal_the_definitions(double tolerance) {
  std::mt19937 random(2);
  batch b(30, random);
  b.y(4, 7) = -INFINITY;   // infinite KL(s || t)
  b.z(5, 7) = -INFINITY;   // infinite KL(t || s)
  b.tokens[4] = b.tokens[5] = 3;
  auto [z, exact] = test::same_numbers<T>(b.z);
  auto [y, exact_teacher] = test::same_numbers<T>(b.y);
  const double tau = 1.3;
  numbers out(30 * row_health::num_terms);
  measure(row_health{b.tokens}, {.temperature = tau}, tensor_view{out.data(), extents{30, row_health::num_terms}}, z.view(), y.view());
  int same = 0;
  numbers ratios;
  for (std::int64_t r = 0; r < 30; ++r) {
    const auto s = test::softmax(exact, r, tau), t = test::softmax(exact_teacher, r, tau);
    double tv = 0, hs = 0, ht = 0;
    for (std::size_t v = 0; v < 23; ++v) tv += std::abs(s[v] - t[v]) / 2, hs -= s[v] > 0 ? s[v] * std::log(s[v]) : 0, ht -= t[v] > 0 ? t[v] * std::log(t[v]) : 0;
    const auto x = static_cast<std::size_t>(b.tokens[static_cast<std::size_t>(r)]);
    const bool equal = std::max_element(s.begin(), s.end()) - s.begin() == std::max_element(t.begin(), t.end()) - t.begin();
    same += equal;
    ratios.push_back(std::log(t[x] / s[x]));
    const double expected[] = {ratios.back(), tv, r == 5 ? INFINITY : test::kl(t, s), r == 4 ? INFINITY : test::kl(s, t), hs, ht, equal ? 1. : 0.};
    for (int i = 0; i < 7; ++i) {
      const double got = out[static_cast<std::size_t>(7 * r + i)];
      if (std::isinf(expected[i])) EXPECT_EQ(got, expected[i]) << "row " << r << " term " << i;
      else EXPECT_NEAR(got, expected[i], tolerance * (1 + std::abs(expected[i]))) << "row " << r << " term " << i;
    }
  }
  const auto h = health_of(z.view(), y.view(), {.tokens = b.tokens, .rows = {.temperature = tau}});
  EXPECT_EQ(h.rows, 30);
  EXPECT_EQ(h.bad_rows, 0);
  EXPECT_DOUBLE_EQ(h.infinite_kl_share, 2 / 30.);
  EXPECT_DOUBLE_EQ(h.forward_kl.infinite_share, 1 / 30.);
  EXPECT_DOUBLE_EQ(h.same_argmax_share, same / 30.);
  EXPECT_TRUE(same > 0 && same < 30);
  EXPECT_NEAR(h.log_ratio.mean, std::accumulate(ratios.begin(), ratios.end(), 0.) / 30, 10 * tolerance);
  std::sort(ratios.begin(), ratios.end());
  EXPECT_NEAR(h.log_ratio.high, ratios[28], 10 * tolerance);
}
TEST(HealthMetrics, EqualTheirDefinitionsInFloat) { equal_the_definitions<float>(3e-6); }
TEST(HealthMetrics, EqualTheirDefinitionsInDouble) { equal_the_definitions<double>(1e-13); }

template <class Row>
bool same_bits(const Row& a, const Row& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST(HealthMetrics, PermutingTheRowsChangesNoBit) {
  std::mt19937 random(3);
  batch b(101, random);
  b.z(3, 0) = NAN;
  b.y(8, 1) = -INFINITY;
  mask given(101, 1);
  given[17] = 0;
  const auto h = health_of(b.z.view(), b.y.view(), {.tokens = b.tokens, .rows = {.mask = given}});
  EXPECT_EQ(h.rows, 99);
  EXPECT_EQ(h.bad_rows, 1);
  std::vector<std::int32_t> order(101);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  ids tokens;
  mask permuted;
  for (const auto r : order) tokens.push_back(b.tokens[static_cast<std::size_t>(r)]), permuted.push_back(given[static_cast<std::size_t>(r)]);
  test::array<double> z(101, 23), y(101, 23);
  for (std::int64_t r = 0; r < 101; ++r)
    for (std::int64_t v = 0; v < 23; ++v) z(r, v) = b.z(order[static_cast<std::size_t>(r)], v), y(r, v) = b.y(order[static_cast<std::size_t>(r)], v);
  const auto g = health_of(z.view(), y.view(), {.tokens = tokens, .rows = {.mask = permuted}});
  EXPECT_TRUE(same_bits(g, h));
}

TEST(HealthMetrics, GradientRms) {
  std::mt19937 random(4);
  batch b(6, random);
  const auto g = test::gradient_of(reverse_kl{}, {}, b.z, b.y.view()), f = test::gradient_of(forward_kl{}, {}, b.z, b.y.view());
  auto a = g, c = f;
  numbers rms(6), change(6);
  gradient_rms(rms, {}, a.view());
  gradient_rms(change, {}, a.view(), c.view());
  for (std::int64_t r = 0; r < 6; ++r) {
    double own = 0, difference = 0;
    for (std::int64_t v = 0; v < 23; ++v) own += g(r, v) * g(r, v), difference += std::pow(g(r, v) - f(r, v), 2);
    EXPECT_NEAR(rms[static_cast<std::size_t>(r)], std::sqrt(own / 23), 1e-14);
    EXPECT_NEAR(change[static_cast<std::size_t>(r)], std::sqrt(difference / 23), 1e-14);
  }
  test::array<float> zero(6, 23);
  gradient_rms(rms, {}, zero.view());
  EXPECT_EQ(rms, numbers(6, 0.));
  zero(2, 1) = NAN;
  EXPECT_EQ(gradient_rms(rms, {}, zero.view())[2], status::nan_logit);
  EXPECT_THROW(gradient_rms(std::span(rms).first(3), {}, zero.view()), error);
}

TEST(HealthMetrics, SharesAndEdges) {
  EXPECT_EQ(kept_share(mask{1, 0, 0, 1}), 0.5);
  EXPECT_EQ(kept_share(mask{}), 0);
  std::mt19937 random(5);
  batch b(2, random);
  const auto without_tokens = health_of(b.z.view(), b.y.view());
  EXPECT_EQ(without_tokens.log_ratio.maximum, 0);
  EXPECT_GT(without_tokens.forward_kl.mean, 0);
  EXPECT_THROW(health_of(b.z.view(), b.y.view(), {.tokens = ids{0, 23}}), error);
  b.z(0, 0) = b.y(1, 0) = INFINITY;
  const auto bad = health_of(b.z.view(), b.y.view());
  EXPECT_EQ(bad.bad_rows, 2);
  EXPECT_EQ(bad.rows, 0);
  EXPECT_EQ(bad.forward_kl.count, 0);
  EXPECT_EQ(bad.same_argmax_share, 0);
}

}  // namespace
