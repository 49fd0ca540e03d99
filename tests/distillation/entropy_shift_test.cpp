// Masks against sorting, entropies against their definition.
#include <heddle/distillation/entropy_shift.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using numbers = std::vector<double>;
using mask = std::vector<std::uint8_t>;

mask kept(const numbers& s, const numbers& t, const entropy_shift_options& options, entropy_shift_result* result = nullptr) {
  mask keep(s.size(), 9);
  const auto r = entropy_shift_mask(std::span(s), std::span(t), keep, options);
  EXPECT_EQ(r.kept, std::count(keep.begin(), keep.end(), 1));
  if (result) *result = r;
  return keep;
}

double entropy(const numbers& p) {
  double h = 0;
  for (const double x : p) h -= x > 0 ? x * std::log(x) : 0;
  return h;
}

TEST(EntropyShift, KeepsTheRankedShareOfRows) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const std::size_t n = 1 + random() % 40;
    numbers s(n), t(n), shift;
    for (std::size_t i = 0; i < n; ++i) s[i] = std::uniform_real_distribution<double>(0, 5)(random), t[i] = std::uniform_real_distribution<double>(0, 5)(random), shift.push_back(s[i] - t[i]);
    const int percent = 1 + static_cast<int>(random() % 100);
    const std::size_t rank = (static_cast<std::size_t>(percent) * n + 99) / 100;
    auto order = shift;
    std::sort(order.begin(), order.end());
    entropy_shift_result result;
    const auto keep = kept(s, t, {.share = percent / 100.}, &result);
    ASSERT_EQ(result.kept, static_cast<std::int64_t>(rank)) << percent << " of " << n;
    ASSERT_EQ(result.ties, 0);
    ASSERT_EQ(result.threshold, order[rank - 1]);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(keep[i], shift[i] <= order[rank - 1]);
    // The other sign keeps the other end.
    const auto other = kept(s, t, {.share = percent / 100., .keep_sharpening = true});
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(other[i], shift[i] >= order[n - rank]);
  }
}

TEST(EntropyShift, TiesAreKeptAndReported) {
  const numbers s = {1, 2, 2, 2, 3}, t(5, 0.);
  entropy_shift_result result;
  EXPECT_EQ(kept(s, t, {.share = 0.4}, &result), (mask{1, 1, 1, 1, 0}));
  EXPECT_EQ(result.kept, 4);
  EXPECT_EQ(result.ties, 2);
  EXPECT_EQ(kept(s, t, {.share = 1}), mask(5, 1));
  const mask valid = {0, 1, 0, 1, 1};
  EXPECT_EQ(kept(s, t, {.share = 0.5, .mask = valid}, &result), (mask{0, 1, 0, 1, 0}));
  EXPECT_EQ(result.valid, 3);
  EXPECT_EQ(kept({}, {}, {}), mask{});
  EXPECT_EQ(kept(s, t, {.mask = mask(5, 0)}, &result), mask(5, 0));
  EXPECT_EQ(result.ties, 0);
}

template <class T>
void entropies_equal_the_definition(double tolerance) {
  std::mt19937 random(2);
  auto z = test::gaussian<double>(20, 37, random), y = test::gaussian<double>(20, 37, random);
  for (double& x : z.values) x = 3 * x + 300;
  z(3, 5) = z(4, 0) = -INFINITY;
  for (std::int64_t c = 1; c < 37; ++c) z(5, c) = -INFINITY;
  for (std::int64_t c = 0; c < 37; ++c) y(6, c) = 0.5;
  auto [narrow, exact] = test::same_numbers<T>(z);
  auto [narrow_teacher, exact_teacher] = test::same_numbers<T>(y);
  numbers out(40);
  measure(entropies{}, {.temperature = 1.5}, tensor_view{out.data(), extents{20, 2}}, narrow.view(), narrow_teacher.view());
  for (std::int64_t r = 0; r < 20; ++r) {
    EXPECT_NEAR(out[static_cast<std::size_t>(2 * r)], entropy(test::softmax(exact, r, 1.5)), tolerance);
    EXPECT_NEAR(out[static_cast<std::size_t>(2 * r + 1)], entropy(test::softmax(exact_teacher, r, 1.5)), tolerance);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(out[static_cast<std::size_t>(2 * r + i)] >= 0 && out[static_cast<std::size_t>(2 * r + i)] <= std::log(37.) + tolerance);
  }
  EXPECT_NEAR(out[10], 0, tolerance);
  EXPECT_NEAR(out[13], std::log(37.), tolerance);
}
TEST(EntropyShift, EntropiesOfFloats) { entropies_equal_the_definition<float>(1e-5); }
TEST(EntropyShift, EntropiesOfDoubles) { entropies_equal_the_definition<double>(1e-12); }

// Rows where the teacher knows more and rows where it only repeats the student, more sharply.
TEST(EntropyShift, RowsThatMerelySharpenAreLeftOut) {
  std::mt19937 random(3);
  auto z = test::gaussian<double>(12, 9, random), y = test::gaussian<double>(12, 9, random);
  mask expected(12, 1), keep(12, 9);
  for (std::int64_t r = 0; r < 12; ++r)
    for (std::int64_t c = 0; c < 9; ++c) y(r, c) = r % 3 == 0 ? 4 * z(r, c) : 0.2 * y(r, c);
  for (std::size_t r = 0; r < 12; r += 3) expected[r] = 0;
  z(1, 2) = NAN, y(2, 3) = INFINITY;  // bad rows are not valid
  expected[1] = expected[2] = 0;
  const auto result = entropy_shift_mask(z.view(), y.view(), keep, {.share = 0.6});
  EXPECT_EQ(keep, expected);
  EXPECT_EQ(result.valid, 10);
  const mask given = {1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1};
  const auto masked = entropy_shift_mask(z.view(), y.view(), keep, {.share = 1, .mask = given});
  EXPECT_EQ(masked.kept, 8);
  EXPECT_EQ(keep[4] + keep[8] + keep[1], 0);
}

TEST(EntropyShift, BadInput) {
  const numbers h = {1, std::nan("")};
  mask keep(2, 9);
  for (const double share : {0., -1., 1.1, std::nan("")}) EXPECT_THROW(entropy_shift_mask(std::span(h), std::span(h), keep, {.share = share}), error);
  EXPECT_NE(message_of([&] { entropy_shift_mask(std::span(h), std::span(h), keep); }).find("row 1"), std::string::npos);
  EXPECT_THROW(entropy_shift_mask(std::span(h), std::span(h).first(1), keep), error);
  EXPECT_THROW(entropy_shift_mask(std::span(h), std::span(h), std::span(keep).first(1)), error);
  EXPECT_THROW(entropy_shift_mask(std::span(h), std::span(h), keep, {.mask = mask(3)}), error);
  EXPECT_EQ(keep, mask(2, 9));
}

}  // namespace
