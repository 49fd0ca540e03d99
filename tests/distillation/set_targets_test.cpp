#include <heddle/distillation/set_targets.hpp>

#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/response_rows.hpp>
#include <heddle/distillation/sampled_token.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using ids = std::vector<std::int32_t>;
using mask = std::vector<std::uint8_t>;

struct sets {
  ids columns, indptr = {0};
  void add(const ids& set) { columns.insert(columns.end(), set.begin(), set.end()), indptr.push_back(static_cast<std::int32_t>(columns.size())); }
  concept_nll functional() const { return {columns, indptr}; }
};

sets three() {
  sets c;
  c.add({2, 5, 20}), c.add({0}), c.add({0, 1, 2, 3, 30});
  return c;
}

template <class T>
void equals_the_definition(double tolerance) {
  std::mt19937 random(1);
  auto z = test::gaussian<double>(3, 31, random);
  z(0, 5) = -INFINITY;  // one form of three has no mass
  z(1, 0) -= 60;        // so little mass that it rounds away beside the others
  auto [narrow, exact] = test::same_numbers<T>(z);
  const auto c = three();
  const double tau = 1.4;
  const auto rows = per_row(c.functional(), {.temperature = tau}, narrow.view());
  test::array<double> gradient(3, 31);
  rows.backward(std::vector<double>(3, 1.), gradient.view());
  for (std::int64_t r = 0; r < 3; ++r) {
    const auto s = test::softmax(exact, r, tau);
    double mass = 0;
    std::vector<double> inside(31);
    for (auto j = c.indptr[static_cast<std::size_t>(r)]; j < c.indptr[static_cast<std::size_t>(r + 1)]; ++j) {
      const auto v = static_cast<std::size_t>(c.columns[static_cast<std::size_t>(j)]);
      mass += s[v], inside[v] = 1;
    }
    EXPECT_NEAR(rows.values()[static_cast<std::size_t>(r)], -std::log(mass), tolerance * (1 - std::log(mass)));
    for (std::size_t v = 0; v < 31; ++v) EXPECT_NEAR(gradient(r, static_cast<std::int64_t>(v)), s[v] * (1 - inside[v] / mass) / tau, tolerance);
  }
}
TEST(SetTargets, EqualTheDefinitionInFloat) { equals_the_definition<float>(2e-6); }
TEST(SetTargets, EqualTheDefinitionInDouble) { equals_the_definition<double>(1e-13); }

TEST(SetTargets, GradientLaws) {
  std::mt19937 random(2);
  test::expect_gradient(three().functional(), {.temperature = 0.8}, test::gaussian<double>(3, 31, random));
}

TEST(SetTargets, OneTokenIsTheNllAndMoreAreNeverWorse) {
  std::mt19937 random(3);
  const auto z = test::gaussian<double>(200, 9, random);
  sets single, larger;
  ids tokens;
  for (int r = 0; r < 200; ++r) {
    tokens.push_back(static_cast<std::int32_t>(random() % 9));
    single.add({tokens.back()});
    ids set;
    for (std::int32_t v = 0; v < 9; ++v)
      if (v == tokens.back() || random() % 3 == 0) set.push_back(v);
    larger.add(set);
  }
  auto copy = z;
  const auto a = test::values_of(single.functional(), {}, copy.view()), b = test::values_of(nll{tokens}, {}, copy.view()), c = test::values_of(larger.functional(), {}, copy.view());
  const auto da = test::gradient_of(single.functional(), {}, copy), db = test::gradient_of(nll{tokens}, {}, copy);
  for (std::size_t r = 0; r < 200; ++r) {
    EXPECT_NEAR(a[r], b[r], 1e-14);
    EXPECT_LE(c[r], b[r] + 1e-14);
    EXPECT_GE(c[r], -1e-14);
  }
  for (std::size_t i = 0; i < da.values.size(); ++i) EXPECT_NEAR(da.values[i], db.values[i], 1e-15);
}

TEST(SetTargets, TheWholeVocabularyIsAlwaysRight) {
  std::mt19937 random(4);
  auto z = test::gaussian<double>(1, 6, random);
  sets all;
  all.add({0, 1, 2, 3, 4, 5});
  EXPECT_NEAR(test::values_of(all.functional(), {}, z.view())[0], 0, 1e-15);
  const auto gradient = test::gradient_of(all.functional(), {}, z);
  for (const double g : gradient.values) EXPECT_NEAR(g, 0, 1e-15);
}

// Only how much mass the set holds counts, not how it is split.
TEST(SetTargets, TheSplitInsideTheSetChangesNothing) {
  test::array<double> z(2, 5);
  const double p[2][5] = {{0.1, 0.3, 0.2, 0.15, 0.25}, {0.35, 0.05, 0.2, 0.15, 0.25}};
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t v = 0; v < 5; ++v) z(r, v) = std::log(p[r][v]);
  sets c;
  c.add({0, 1}), c.add({0, 1});
  const auto value = test::values_of(c.functional(), {}, z.view());
  EXPECT_NEAR(value[0], -std::log(0.4), 1e-14);
  EXPECT_NEAR(value[0], value[1], 1e-14);
}

TEST(SetTargets, BadInput) {
  std::mt19937 random(5);
  auto z = test::gaussian<double>(2, 6, random);
  for (const ids& bad : {ids{}, ids{3, 1}, ids{1, 1}, ids{6}, ids{-1, 2}}) {
    sets c;
    c.add({1, 2}), c.add(bad);
    EXPECT_NE(message_of([&] { per_row(c.functional(), z.view()); }).find("row 1"), std::string::npos);
    EXPECT_NO_THROW(per_row(c.functional(), {.mask = mask{1, 0}}, z.view()));
  }
  sets one;
  one.add({1});
  EXPECT_THROW(per_row(one.functional(), z.view()), error);
  EXPECT_THROW(per_row(concept_nll{ids{1, 2}, ids{0, 1, 3}}, z.view()), error);
  sets c;
  c.add({1, 2}), c.add({1, 2});
  z(1, 1) = z(1, 2) = -INFINITY;
  test::array<double> gradient(2, 6);
  const auto result = loss(z.view(), c.functional(), gradient.view());
  EXPECT_EQ(result.row_status[1], status::infinite_divergence);
  for (std::int64_t v = 0; v < 6; ++v) EXPECT_EQ(gradient(1, v), 0);
}

// Context in front of a prompt: its own tokens are no targets, whatever they are, and its rows have gradient 0.
TEST(SetTargets, ContextTokensAreNoTargets) {
  std::mt19937 random(6);
  const ids prompt = {3, 1}, response = {4, 0, 2};
  double first = 0;
  std::vector<double> gradient;
  for (const ids& context : {ids{5, 5, 5, 5}, ids{0, 1, 2, 3}}) {
    const auto rows = anchor_response(prompt, response, context);
    std::mt19937 same(7);
    auto z = test::gaussian<double>(static_cast<std::int64_t>(rows.targets.size()), 6, same);  // as if the model read both contexts alike
    test::array<double> d(z.rows, 6);
    const auto result = loss(z.view(), nll{rows.targets}, d.view(), {.mask = rows.mask});
    EXPECT_EQ(result.rows_kept, 3);
    for (std::int64_t r = 0; r < rows.first_row; ++r)
      for (std::int64_t v = 0; v < 6; ++v) EXPECT_EQ(d(r, v), 0);
    if (gradient.empty()) first = result.value, gradient = d.values;
    EXPECT_EQ(result.value, first);
    EXPECT_EQ(d.values, gradient);
    double expected = 0;
    for (std::size_t k = 0; k < 3; ++k) expected -= std::log(test::softmax(z, rows.first_row + static_cast<std::int64_t>(k))[static_cast<std::size_t>(response[k])]) / 3;
    EXPECT_NEAR(result.value, expected, 1e-14);
  }
}

}  // namespace
