// Masks against their definitions, by sorting and counting.
#include <heddle/distillation/supervision_masks.hpp>

#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/sampled_token.hpp>

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
using indices = std::vector<std::int32_t>;

mask prefix(std::size_t n, std::int64_t length, const indices& indptr = {}) {
  mask m(n, 9);
  prefix_mask(m, length, indptr);
  return m;
}

mask largest(const std::vector<double>& score, double fraction, const mask& among = {}, const indices& indptr = {}) {
  mask m(score.size(), 9);
  const auto kept = largest_scores_mask(score, m, fraction, among, indptr);
  EXPECT_EQ(kept, std::count(m.begin(), m.end(), 1));
  return m;
}

TEST(SupervisionMasks, Prefixes) {
  EXPECT_EQ(prefix(5, 2), (mask{1, 1, 0, 0, 0}));
  EXPECT_EQ(prefix(5, 0), mask(5, 0));
  EXPECT_EQ(prefix(5, 5), mask(5, 1));
  EXPECT_EQ(prefix(5, 99), mask(5, 1));
  EXPECT_EQ(prefix(6, 2, {0, 3, 3, 4, 6}), (mask{1, 1, 0, 1, 1, 1}));
}

// The abstracts' 2x to 47x fewer operations, and 99 % less sampling, are the reciprocal of this share for traces of such lengths.
TEST(SupervisionMasks, PrefixCostIsTheShareOfRows) {
  const std::vector<std::int64_t> lengths = {100, 3000, 12000};
  EXPECT_DOUBLE_EQ(prefix_cost(lengths, 256), (100 + 256 + 256) / 15100.);
  for (const std::int64_t length : {128, 1024, 4096}) EXPECT_TRUE(prefix_cost(lengths, length) < 1 / 2. && prefix_cost(lengths, length) > 1 / 47.);
  EXPECT_LT(prefix_cost(lengths, 32), 0.01);  // UPFT: 99 % less sampling
  EXPECT_EQ(prefix_cost(lengths, 1 << 20), 1);
  EXPECT_EQ(prefix_cost(lengths, 0), 0);
  EXPECT_EQ(prefix_cost({}, 4), 1);
  mask m(15100);
  prefix_mask(m, 256, indices{0, 100, 3100, 15100});
  EXPECT_DOUBLE_EQ(static_cast<double>(std::count(m.begin(), m.end(), 1)) / 15100., prefix_cost(lengths, 256));
}

TEST(SupervisionMasks, PrefixOrTrace) {
  constexpr int items = 20000;
  indices indptr(items + 1);
  for (std::size_t s = 0; s <= items; ++s) indptr[s] = static_cast<std::int32_t>(4 * s);
  for (const double share : {0., 0.25, 1.}) {
    mask m(4 * items, 9);
    prefix_or_trace_mask(m, 1, share, {.seed = 11}, indptr);
    int full = 0;
    for (std::size_t s = 0; s < items; ++s) {
      const mask item(m.begin() + static_cast<std::ptrdiff_t>(4 * s), m.begin() + static_cast<std::ptrdiff_t>(4 * s + 4));
      ASSERT_TRUE(item == (mask{1, 0, 0, 0}) || item == mask(4, 1));
      full += item[3];
    }
    EXPECT_NEAR(full, share * items, 5 * std::sqrt(share * (1 - share) * items));
    mask again(m.size()), other(m.size());
    prefix_or_trace_mask(again, 1, share, {.seed = 11}, indptr);
    prefix_or_trace_mask(other, 1, share, {.seed = 12}, indptr);
    EXPECT_EQ(again, m);
    EXPECT_EQ(other != m, share == 0.25);
  }
}

TEST(SupervisionMasks, LargestScoresEqualAStableSort) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t n = 1 + random() % 30;
    std::vector<double> score(n);
    mask among(n, 1);
    for (double& x : score) x = static_cast<double>(random() % 6);  // ties
    if (trial % 2) {
      for (auto& b : among) b = random() % 3 > 0;
      for (std::size_t i = 0; i < n; ++i)
        if (!among[i]) score[i] = std::nan("");
    }
    const double fraction = static_cast<double>(1 + random() % 100) / 100;
    indices rows;
    for (std::size_t i = 0; i < n; ++i)
      if (among[i]) rows.push_back(static_cast<std::int32_t>(i));
    std::stable_sort(rows.begin(), rows.end(), [&](auto a, auto b) { return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)]; });
    const auto hundredths = static_cast<std::size_t>(std::lround(100 * fraction));
    const std::size_t count = rows.empty() ? 0 : std::max<std::size_t>(1, (hundredths * rows.size() + 99) / 100);
    mask expected(n, 0);
    for (std::size_t k = 0; k < count; ++k) expected[static_cast<std::size_t>(rows[k])] = 1;
    ASSERT_EQ(largest(score, fraction, trial % 2 ? among : mask{}), expected) << trial;
    // Only the order of the scores matters.
    auto transformed = score;
    for (double& x : transformed) x = std::exp(3 * x) - 100;
    ASSERT_EQ(largest(transformed, fraction, trial % 2 ? among : mask{}), expected);
    auto in_place = among;
    largest_scores_mask(score, in_place, fraction, in_place);
    ASSERT_EQ(in_place, expected);
  }
}

TEST(SupervisionMasks, LargestScoresOfRaggedBatches) {
  EXPECT_EQ(largest({1, 3, 2, 9, 9, 9, 5}, 0.5, {}, {0, 3, 3, 6, 7}), (mask{0, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(largest({1, 3, 2}, 1e-9), (mask{0, 1, 0}));
  EXPECT_EQ(largest({INFINITY, 3, INFINITY}, 0.34), (mask{1, 0, 1}));
  EXPECT_EQ(largest({1, 3, 2}, 1, {0, 0, 0}), mask(3, 0));
  // One or two rows of a long trajectory, as in the abstract: 0.05 %.
  std::vector<double> score(4000);
  std::iota(score.begin(), score.end(), 0.);
  const auto m = largest(score, 0.0005);
  EXPECT_EQ(std::accumulate(m.begin(), m.end(), 0), 2);
  EXPECT_TRUE(m[3998] && m[3999]);
}

TEST(SupervisionMasks, MasksCompose) {
  const mask a = {1, 1, 0, 0}, b = {1, 0, 1, 0};
  mask both(4), either(4);
  intersect_masks(a, b, both);
  unite_masks(a, b, either);
  EXPECT_EQ(both, (mask{1, 0, 0, 0}));
  EXPECT_EQ(either, (mask{1, 1, 1, 0}));
  // A prefix of what a selection leaves.
  const std::vector<double> score = {0, 5, 1, 7};
  intersect_masks(prefix(4, 3), largest(score, 0.5), both);
  EXPECT_EQ(both, (mask{0, 1, 0, 0}));
  EXPECT_THROW(intersect_masks(a, mask(3), both), error);
  EXPECT_THROW(unite_masks(a, b, std::span(either).first(3)), error);
}

// What masks do to a loss: rows outside have gradient exactly 0 and are not read, a prefix as long as the trajectory is the full loss, an empty one none.
template <class T>
void masks_select_rows_of_the_loss() {
  std::mt19937 random(2);
  const std::int64_t n = 12, vocabulary = 19;
  auto [z, exact] = test::same_numbers<T>(test::gaussian<double>(n, vocabulary, random));
  auto [y, exact_teacher] = test::same_numbers<T>(test::gaussian<double>(n, vocabulary, random));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n), 4);
  const auto check = [&](const auto& functional, const mask& m, auto&... rows) {
    test::array<T> gradient(n, vocabulary), full(n, vocabulary);
    const auto all = loss_over(functional, full.view(), {.reduction = reduction::sum}, rows...), part = loss_over(functional, gradient.view(), {.mask = m, .reduction = reduction::sum}, rows...);
    double expected = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      const bool on = m[static_cast<std::size_t>(r)];
      expected += on ? all.row_values[static_cast<std::size_t>(r)] : 0;
      for (std::int64_t v = 0; v < vocabulary; ++v) ASSERT_EQ(gradient(r, v), on ? full(r, v) : T(0)) << r;
    }
    EXPECT_NEAR(part.value, expected, 1e-12 * (1 + expected));
    EXPECT_EQ(part.rows_kept, std::count(m.begin(), m.end(), 1));
  };
  const auto rows = per_row(reverse_kl{}, z.view(), y.view());
  const std::vector<double> divergence(rows.values().begin(), rows.values().end());
  auto student = z.view(), teacher = y.view();
  for (const std::int64_t length : {0, 1, 5, 12, 100}) check(reverse_kl{}, prefix(12, length), student, teacher);
  for (const double fraction : {0.01, 0.3, 1.}) check(reverse_kl{}, largest(divergence, fraction), student, teacher);
  mask unsupervised(12);   // prefixes of two samples of the model itself, one of them whole
  prefix_or_trace_mask(unsupervised, 2, 0.5, {.seed = 2}, indices{0, 6, 12});
  check(nll{tokens}, unsupervised, student);
}
TEST(SupervisionMasks, SelectRowsOfTheLossInFloat) { masks_select_rows_of_the_loss<float>(); }
TEST(SupervisionMasks, SelectRowsOfTheLossInDouble) { masks_select_rows_of_the_loss<double>(); }

TEST(SupervisionMasks, BadInput) {
  mask m(3, 9);
  const std::vector<double> score = {1, std::nan(""), 2};
  EXPECT_THROW(prefix_mask(m, -1), error);
  EXPECT_THROW(prefix_mask(m, 1, indices{0, 2}), error);
  EXPECT_THROW(prefix_cost(std::vector<std::int64_t>{-1}, 1), error);
  EXPECT_THROW(prefix_cost(std::vector<std::int64_t>{1}, -1), error);
  EXPECT_THROW(prefix_or_trace_mask(m, -1, 0.5, {}), error);
  EXPECT_THROW(prefix_or_trace_mask(m, 1, 1.5, {}), error);
  for (const double fraction : {0., -1., 1.5, std::nan("")}) EXPECT_THROW(largest_scores_mask(std::vector<double>(3), m, fraction), error);
  EXPECT_NE(message_of([&] { largest_scores_mask(score, m, 0.5); }).find("row 1"), std::string::npos);
  EXPECT_THROW(largest_scores_mask(score, std::span(m).first(2), 0.5), error);
  EXPECT_THROW(largest_scores_mask(score, m, 0.5, mask(2)), error);
  EXPECT_EQ(m, mask(3, 9));
}

}  // namespace
