// Buckets and renormalised supports: definitions, laws, choices of the support.
#include "distillation/fixture.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/support.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;

const loss_options sums{.reduction = reduction::sum};

/// Bucket probabilities of a row: those of the columns, then the tail if any is left.
reference::row buckets(const reference::row& p, const std::vector<std::size_t>& columns) {
  reference::row out;
  double inside = 0;
  for (const std::size_t c : columns) out.push_back(p[c]), inside += p[c];
  if (columns.size() < p.size()) out.push_back(1 - inside);
  return out;
}

std::vector<std::size_t> chosen(const reference::row& z, const reference::row& y, std::size_t k, support from) {
  auto columns = from == support::student ? reference::top_k(z, k) : reference::top_k(y, k);
  if (from == support::both)
    for (const std::size_t c : reference::top_k(z, k)) columns.push_back(c);
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  return columns;
}

template <class D, class Reference>
void check(const D& divergence, Reference reference_of) {
  const std::int64_t rows = 3, columns = 41;
  auto z = noise(rows, columns, 1), y = noise(rows, columns, 2);
  for (float& x : y.data) x = std::round(x);   // ties
  const auto wide = z.as<double>(), wide_teacher = y.as<double>();
  for (const std::int64_t k : {1, 5, 40, 41, 100})
    for (const support from : {support::teacher, support::student, support::both}) {
      const top_k_tail<D> tail{.k = k, .from = from, .divergence = divergence};
      const auto exact = evaluate(tail, sums, wide, wide_teacher);
      const auto single = evaluate(tail, sums, z, y), full = evaluate(divergence, sums, z, y);
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const auto support_columns = chosen(z.row(r), y.row(r), static_cast<std::size_t>(k), from);
        const double expected = reference_of(buckets(reference::softmax(z.row(r), 1), support_columns), buckets(reference::softmax(y.row(r), 1), support_columns)).value;
        EXPECT_NEAR(exact.result.row_values[i], expected, 1e-10) << k;
        EXPECT_NEAR(single.result.row_values[i], expected, 1e-5 * (1 + expected)) << k;
        EXPECT_LE(exact.result.row_values[i], full.result.row_values[i] + 1e-5);   // merging columns loses information
        EXPECT_TRUE(k < columns || std::abs(single.result.row_values[i] - full.result.row_values[i]) < 1e-5 * (1 + expected));
        EXPECT_NEAR(row_sum(exact.gradient, r), 0, 1e-12);
      }
      if (k == 5 && from != support::teacher) {   // the support must not change within the differences: keep the student's ranking strict
        EXPECT_LT(difference_to_finite_differences(tail, sums, wide, wide_teacher), 1e-8);
        EXPECT_LT(difference_to_finite_differences(renormalised<D>{.k = k, .from = from, .divergence = divergence}, sums, wide, wide_teacher), 1e-8);
      }
    }
  const auto restricted = evaluate(renormalised<D>{.k = 6, .from = support::student, .divergence = divergence}, sums, z, y);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto support_columns = reference::top_k(z.row(r), 6);
    reference::row s, t;
    for (const std::size_t c : support_columns) s.push_back(z.row(r)[c]), t.push_back(y.row(r)[c]);
    const auto expected = reference_of(reference::softmax(s, 1), reference::softmax(t, 1));
    EXPECT_NEAR(restricted.result.row_values[static_cast<std::size_t>(r)], expected.value, 1e-5);
    std::size_t j = 0;
    for (std::int64_t v = 0; v < columns; ++v) {
      const bool inside = j < 6 && support_columns[j] == static_cast<std::size_t>(v);
      ASSERT_NEAR(restricted.gradient(r, v), inside ? expected.gradient[j] : 0, inside ? 1e-5 : 0);
      j += inside;
    }
  }
}

TEST(Support, BucketsAndRenormalisedLawsAreAsDefined) {
  check(forward_kl{}, [](const auto& s, const auto& t) { return reference::forward_kl(s, t, 1); });
  check(reverse_kl{}, [](const auto& s, const auto& t) { return reference::reverse_kl(s, t, 1); });
  check(generalized_jsd{.beta = 0.3}, [](const auto& s, const auto& t) { return reference::generalized_jsd(s, t, 0.3, 1); });
  check(total_variation{}, [](const auto& s, const auto& t) { return reference::total_variation(s, t, 1); });
}

struct choose_columns {   // the sum of the selected columns + 1, so that a test sees which they are
  std::int64_t k;
  std::int64_t selected_columns() const { return k; }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    double sum = 0;
    std::int32_t last = -1;
    for (const std::int32_t c : row.top_k(s, k)) {
      EXPECT_GT(c, last);
      last = c, sum += std::ldexp(1., c);
    }
    return outcome{sum};
  }
};
TEST(Support, TopKTakesLargerValuesThenLowerColumns) {
  logits<float> z(1, 6);
  z.data = {1, 3, 2, 3, 2, 2};
  const auto columns = [&](std::int64_t k) { return per_row(choose_columns{k}, z.view()).values()[0]; };
  EXPECT_EQ(columns(1), 2);
  EXPECT_EQ(columns(2), 2 + 8);
  EXPECT_EQ(columns(3), 2 + 8 + 4);
  EXPECT_EQ(columns(4), 2 + 8 + 4 + 16);
  EXPECT_EQ(columns(6), 63);
  EXPECT_EQ(columns(60), 63);
  const auto wide = noise(4, 40, 9);
  const auto rows = per_row(choose_columns{7}, wide.view());
  for (std::int64_t r = 0; r < 4; ++r) {
    double expected = 0;
    for (const std::size_t c : reference::top_k(wide.row(r), 7)) expected += std::ldexp(1., static_cast<int>(c));
    EXPECT_EQ(rows.values()[static_cast<std::size_t>(r)], expected);
  }
}

TEST(Support, EdgesAndErrors) {
  const auto z = noise(2, 30, 1), y = noise(2, 30, 2);
  EXPECT_NE(message_of([&] { evaluate(top_k_tail<forward_kl>{.k = 0}, sums, z, y); }).find("'k' is 0"), std::string::npos);
  EXPECT_NE(message_of([&] { evaluate(renormalised<forward_kl>{.k = -1}, sums, z, y); }).find("'k' is -1"), std::string::npos);
  logits<float> alone(1, 4), elsewhere(1, 4);
  alone.data = {0, 0, -INFINITY, -INFINITY}, elsewhere.data = {-INFINITY, -INFINITY, 0, 0};
  EXPECT_EQ(evaluate(renormalised<reverse_kl>{.k = 2, .from = support::student, .divergence = reverse_kl{}}, sums, alone, elsewhere).result.row_status[0], heddle::status::empty_support);
  alone.data = {50, -50, -50, -50}, elsewhere.data = {50, -50, -50, -50};   // a tail that rounds to nothing
  const auto sharp = evaluate(top_k_tail<reverse_kl>{.k = 1}, sums, alone, elsewhere);
  EXPECT_NEAR(sharp.result.value, 0, 1e-12);
  for (const float g : sharp.gradient.data) EXPECT_TRUE(std::isfinite(g));

  std::vector<std::int32_t> ids{3, 1, 3, 2};
  std::vector<float> log_probs{-1, -2, -1, -2};
  const given_top_k twice{tensor_view<const std::int32_t, 2>{ids.data(), extents{2, 2}}, tensor_view<const float, 2>{log_probs.data(), extents{2, 2}}, reverse_kl{}};
  EXPECT_EQ(evaluate(twice, sums, z).result.rows_kept, 2);
  ids = {3, 1, 2, 2};
  EXPECT_NE(message_of([&] { evaluate(twice, sums, z); }).find("row 1 has 2 twice"), std::string::npos);
  ids = {3, 1, 2, 30};
  EXPECT_NE(message_of([&] { evaluate(twice, sums, z); }).find("entry 1 of row 1 is 30"), std::string::npos);
  const std::vector<std::uint8_t> first_only{1, 0};
  EXPECT_NO_THROW(evaluate(twice, {.mask = first_only}, z));
}

// The truncated divergence without tail and renormalisation, and the clip of raw entries, do not exist.
template <class D>
concept offers_no_tail = requires(D d) { d.tail = false; } || requires(D d) { d.renormalise = false; } || requires(D d) { d.truncate = true; };
static_assert(!offers_no_tail<top_k_tail<reverse_kl>> && !offers_no_tail<renormalised<reverse_kl>> && !offers_no_tail<given_top_k<reverse_kl>>);
template <class D>
concept can_be_bucketed = detail::bucket_divergence<D>;
static_assert(can_be_bucketed<forward_kl> && can_be_bucketed<reverse_kl> && can_be_bucketed<generalized_jsd> && can_be_bucketed<total_variation>);
static_assert(!can_be_bucketed<top_k_tail<reverse_kl>> && !can_be_bucketed<power_target>);

}  // namespace
