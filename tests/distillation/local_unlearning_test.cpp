#include <heddle/distillation/local_unlearning.hpp>

#include <heddle/distillation/divergence.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using mask = std::vector<std::uint8_t>;

mask heads_of(const mask& sensitive, std::int64_t n, const std::vector<std::int32_t>& indptr = {}) {
  mask heads(sensitive.size(), 9);
  interval_heads(sensitive, n, heads, indptr);
  return heads;
}

TEST(LocalUnlearning, HeadsOfIntervals) {
  const mask sensitive = {1, 1, 1, 0, 0, 1, 0, 1, 1};
  EXPECT_EQ(heads_of(sensitive, 2), (mask{1, 1, 0, 0, 0, 1, 0, 1, 1}));
  EXPECT_EQ(heads_of(sensitive, 1), (mask{1, 0, 0, 0, 0, 1, 0, 1, 0}));
  for (const std::int64_t n : {0, -3, 9}) EXPECT_EQ(heads_of(sensitive, n), sensitive) << n;
  EXPECT_EQ(heads_of(sensitive, 1, {0, 2, 8, 9}), (mask{1, 0, 1, 0, 0, 1, 0, 1, 1}));  // an interval ends with its sequence
  mask heads(8, 9);
  EXPECT_THROW(interval_heads(sensitive, 1, heads), error);
  EXPECT_THROW(interval_heads(mask(8), 1, heads, std::vector<std::int32_t>{0, 7}), error);
  EXPECT_EQ(heads, mask(8, 9));
}

std::vector<std::int64_t> top(const test::array<double>& z, std::int64_t row, std::int64_t k) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(z.columns));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return z(row, a) > z(row, b); });
  order.resize(static_cast<std::size_t>(std::min(k, z.columns)));
  return order;
}

// rows: head, head, sensitive but behind the heads, not sensitive, not sensitive
const mask sensitive = {1, 1, 1, 0, 0}, heads = {1, 1, 0, 0, 0};

template <class T>
void equals_the_definition(double tolerance) {
  std::mt19937 random(1);
  auto z = test::gaussian<double>(5, 37, random), y = test::gaussian<double>(5, 37, random);
  y(0, 3) = y(0, 9) = y(0, 20) = 9;  // a tie at the border of the selection: the lowest ids
  y(4, 2) = z(4, 2) = -INFINITY;
  auto [student, exact] = test::same_numbers<T>(z);
  auto [reference, exact_reference] = test::same_numbers<T>(y);
  for (const std::int64_t k : {1, 2, 20, 37, 1000})
    for (const double tau : {1., 1.6}) {
      const local_unlearning functional{heads, sensitive, k, 0.7, 0.3};
      const auto rows = per_row(functional, {.temperature = tau}, student.view(), reference.view());
      test::array<double> gradient(5, 37);
      rows.backward(std::vector<double>(5, 1.), gradient.view());
      for (std::int64_t r = 0; r < 5; ++r) {
        double value = 0;
        std::vector<double> expected(37);
        if (r < 2) {
          const auto best = top(exact_reference, r, k);
          double mean = 0, sum = 0;
          for (std::int64_t v = 0; v < 37; ++v) mean += exact(r, v) / 37;
          for (const auto j : best) value += 0.7 * std::pow(exact(r, j) - mean, 2) / static_cast<double>(best.size()), sum += exact(r, j) - mean;
          for (double& g : expected) g = -0.7 * 2 / static_cast<double>(best.size()) * sum / 37;
          for (const auto j : best) expected[static_cast<std::size_t>(j)] += 0.7 * 2 / static_cast<double>(best.size()) * (exact(r, j) - mean);
        } else if (r > 2) {
          const auto s = test::softmax(exact, r, tau), t = test::softmax(exact_reference, r, tau);
          const double kl = test::kl(s, t);
          value = 0.3 * kl;
          for (std::size_t v = 0; v < 37; ++v)
            if (s[v] > 0) expected[v] = 0.3 * s[v] * (std::log(s[v] / t[v]) - kl) / tau;
        }
        EXPECT_NEAR(rows.values()[static_cast<std::size_t>(r)], value, tolerance * (1 + value)) << k << " row " << r;
        for (std::int64_t v = 0; v < 37; ++v) EXPECT_NEAR(gradient(r, v), expected[static_cast<std::size_t>(v)], tolerance) << k << " row " << r << " column " << v;
      }
      EXPECT_EQ(rows.status()[4], status::ok);
    }
}
TEST(LocalUnlearning, EqualsTheDefinitionInFloat) { equals_the_definition<float>(4e-6); }
TEST(LocalUnlearning, EqualsTheDefinitionInDouble) { equals_the_definition<double>(1e-12); }

TEST(LocalUnlearning, GradientLaws) {
  std::mt19937 random(2);
  const auto z = test::gaussian<double>(5, 12, random);
  auto y = test::gaussian<double>(5, 12, random);
  for (const std::int64_t k : {1, 5, 12}) test::expect_gradient(local_unlearning{heads, sensitive, k, 0.7, 0.3}, {.temperature = 1.3}, z, y.view());
}

TEST(LocalUnlearning, ZeroExactlyWhereTheBestEqualTheMeanAndTheVarianceForTheWholeVocabulary) {
  test::array<double> z(2, 6), y(2, 6);
  y(0, 1) = y(0, 4) = y(1, 1) = y(1, 4) = 5;
  const double flat[] = {-3, 1, 3, 4, 1, 0}, off[] = {-3, 1, 3, 4, 1.25, -0.25};  // means of 1
  for (std::int64_t v = 0; v < 6; ++v) z(0, v) = flat[v], z(1, v) = off[v];
  const mask both = {1, 1};
  const auto value = test::values_of(local_unlearning{both, both, 2}, {}, z.view(), y.view());
  EXPECT_NEAR(value[0], 0, 1e-28);
  EXPECT_NEAR(value[1], 0.25 * 0.25 / 2, 1e-14);
  const auto gradient = test::gradient_of(local_unlearning{both, both, 2}, {}, z, y.view());
  for (std::int64_t v = 0; v < 6; ++v) EXPECT_NEAR(gradient(0, v), 0, 1e-14);
  const auto variance = test::values_of(local_unlearning{both, both, 6}, {}, z.view(), y.view());
  EXPECT_NEAR(variance[0], (16 + 0 + 4 + 9 + 0 + 1) / 6., 1e-13);
}

TEST(LocalUnlearning, OtherRowsAreUntouchedAndWeightsOfZeroSwitchOff) {
  std::mt19937 random(3);
  auto z = test::gaussian<double>(5, 9, random), y = test::gaussian<double>(5, 9, random);
  z(2, 1) = -INFINITY;  // a sensitive row behind the heads has no term: no value, no status
  auto functional = local_unlearning{heads, sensitive, 3};
  const auto gradient = test::gradient_of(functional, {}, z, y.view());
  for (std::int64_t v = 0; v < 9; ++v) EXPECT_EQ(gradient(2, v), 0);
  EXPECT_EQ(per_row(functional, z.view(), y.view()).status()[2], status::ok);
  functional.alpha = 0, y(3, 4) = -INFINITY;  // an infinite KL that nobody asks for
  const auto off = per_row(functional, z.view(), y.view());
  EXPECT_EQ(off.status()[3], status::ok);
  EXPECT_EQ(off.values()[3], 0);
  EXPECT_GT(off.values()[0], 0);
  const auto masked = per_row(functional, {.mask = mask{0, 1, 1, 1, 1}}, z.view(), y.view());
  EXPECT_EQ(masked.values()[0], 0);
}

// Descending L_f makes the sensitive token no likelier than any other of the reference's best, and changes other rows little.
TEST(LocalUnlearning, TheSensitiveTokenLosesItsLead) {
  std::mt19937 random(4);
  auto z = test::gaussian<double>(5, 20, random);
  for (std::int64_t r = 0; r < 5; ++r) z(r, 7) = 8;
  const auto reference = z;
  for (int step = 0; step < 400; ++step) {
    auto y = reference;
    const auto gradient = test::gradient_of(local_unlearning{heads, sensitive, 5}, {}, z, y.view());
    for (std::size_t i = 0; i < z.values.size(); ++i) z.values[i] -= 0.2 * gradient.values[i];
  }
  EXPECT_GT(test::softmax(reference, 0)[7], 0.95);
  for (std::int64_t r = 0; r < 2; ++r) EXPECT_LT(test::softmax(z, r)[7], 0.15);
  for (std::int64_t r = 2; r < 5; ++r)
    for (std::int64_t v = 0; v < 20; ++v) EXPECT_NEAR(z(r, v), reference(r, v), 1e-12);
}

TEST(LocalUnlearning, BadInput) {
  std::mt19937 random(5);
  auto z = test::gaussian<double>(5, 6, random), y = test::gaussian<double>(5, 6, random);
  EXPECT_THROW(per_row(local_unlearning{heads, mask(4), 2}, z.view(), y.view()), error);
  EXPECT_THROW(per_row(local_unlearning{mask(6), sensitive, 2}, z.view(), y.view()), error);
  EXPECT_NE(message_of([&] { per_row(local_unlearning{heads, sensitive, 0}, z.view(), y.view()); }).find("'k'"), std::string::npos);
  EXPECT_THROW(per_row(local_unlearning{heads, sensitive, 2, -1}, z.view(), y.view()), error);
  EXPECT_THROW(per_row(local_unlearning{heads, sensitive, 2, 1, std::nan("")}, z.view(), y.view()), error);
  z(0, 5) = -INFINITY;  // no mean, whether or not the column is among the best
  for (const std::int64_t k : {1, 6}) {
    const local_unlearning functional{heads, sensitive, k};
    EXPECT_EQ(per_row(functional, z.view(), y.view()).status()[0], status::infinite_divergence);
    EXPECT_EQ(per_row(functional, z.view(), y.view()).status()[1], status::ok);
    const auto gradient = test::gradient_of(functional, {}, z, y.view());
    for (std::int64_t v = 0; v < 6; ++v) EXPECT_EQ(gradient(0, v), 0);
  }
}

}  // namespace
