// Strict loss and span term against their formulas, over two vocabularies that share some tokens.
#include "distillation/random_vocabulary.hpp"
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/sampled_token.hpp>
#include <heddle/distillation/strict_alignment.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::infinity;
using test::log_probs;

// two vocabularies of 40 and 33 tokens with 21 tokens in common, in different orders
struct two_vocabularies {
  test::vocabulary student, teacher;
  std::vector<token_pair> pairs;
};
two_vocabularies vocabularies() {
  std::vector<std::string> a, b;
  for (int i = 0; i < 40; ++i) a.push_back((i % 2 ? "s" : "w") + std::to_string(i < 21 ? i : 100 + i));
  for (int i = 32; i >= 0; --i) b.push_back((i % 2 ? "s" : "w") + std::to_string(i < 21 ? i : 200 + i));
  std::vector<token_pair> pairs;
  for (std::int32_t i = 0; i < 21; ++i) pairs.push_back({i, 32 - i});
  return {test::vocabulary(a), test::vocabulary(b), pairs};
}
// the k most probable shared tokens, equal ones by id
std::vector<token_pair> chosen(const log_probs& s, std::vector<token_pair> pairs, std::size_t k) {
  std::stable_sort(pairs.begin(), pairs.end(), [&](const token_pair& x, const token_pair& y) { return s[static_cast<std::size_t>(x.student)] > s[static_cast<std::size_t>(y.student)]; });
  pairs.resize(std::min(k, pairs.size()));
  return pairs;
}
double renormalised_reverse_kl(const log_probs& s, const log_probs& t, const std::vector<token_pair>& on) {
  double s_mass = 0, t_mass = 0, sum = 0;
  for (const auto& p : on) s_mass += std::exp(s[static_cast<std::size_t>(p.student)]), t_mass += std::exp(t[static_cast<std::size_t>(p.teacher)]);
  for (const auto& p : on) {
    const double x = s[static_cast<std::size_t>(p.student)] - std::log(s_mass), y = t[static_cast<std::size_t>(p.teacher)] - std::log(t_mass);
    sum += test::weighed(x, x, y);
  }
  return sum;
}
test::named_rows<2> random_rows(std::int64_t n, std::mt19937& random) {
  test::named_rows<2> rows{test::gaussian<double>(n, 40, random), test::gaussian<double>(n, 33, random)};
  for (auto& z : rows)
    for (double& x : z.values) x = 2 * static_cast<double>(static_cast<float>(x));
  return rows;
}

TEST(StrictAlignment, LossAndGradient) {
  std::mt19937 random(1);
  const auto words = vocabularies();
  const shared_vocabulary shared(byte_order(words.student.view()), byte_order(words.teacher.view()));
  ASSERT_EQ(shared.size(), 21);
  auto rows = random_rows(6, random);
  rows[0](1, 3) = rows[0](1, 8) = rows[0](1, 12) = 5;      // ties
  rows[0](2, 4) = -infinity, rows[1](2, 32 - 4) = -infinity;   // impossible on both sides
  for (const std::int64_t k : {1, 2, 16, 21, 1000}) {
    const shared_selection selection(shared, rows[0].view(), k);
    EXPECT_EQ(selection.k(), std::min<std::int64_t>(k, 21));
    test::check_laws<strict_alignment, 2>({selection}, rows, [&](std::int64_t, const auto& base, const auto& at) { return renormalised_reverse_kl(at, base[1], chosen(base[0], words.pairs, static_cast<std::size_t>(k))); }, {.temperature = 1.3});
    const auto out = test::evaluate<float>(strict_alignment{selection}, rows, {});
    for (std::int64_t i = 0; i < 6; ++i) {   // K as stated, and exact zeros elsewhere
      const auto s = test::log_softmax(rows[0], i, 1);
      std::vector<std::int32_t> expected;
      for (const auto& p : chosen(s, words.pairs, static_cast<std::size_t>(k))) expected.push_back(p.student);
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(std::vector<std::int32_t>(selection.columns(i).begin(), selection.columns(i).end()), expected);
      for (std::int32_t v = 0; v < 40; ++v)
        if (!std::binary_search(expected.begin(), expected.end(), v)) {
          EXPECT_EQ(out.gradient(i, v), 0);
        }
    }
  }
}

// Rows as peaked as those of a language model: sixteen tokens chosen by the student say what the whole shared vocabulary says, two do not.
TEST(StrictAlignment, SixteenTokensAreNearlyTheWholeSharedVocabulary) {
  std::mt19937 random(6);
  std::vector<std::string> words;
  for (int i = 0; i < 600; ++i) words.push_back("t" + std::to_string(i));
  const test::vocabulary vocabulary(words);
  const byte_order order(vocabulary.view());
  const shared_vocabulary shared(order, order);
  const std::int64_t n = 40;
  test::named_rows<2> rows{array<double>(n, 600), array<double>(n, 600)};
  std::normal_distribution<double> noise;
  std::vector<std::size_t> place(600);
  std::iota(place.begin(), place.end(), std::size_t{0});
  for (std::int64_t i = 0; i < n; ++i) {
    std::shuffle(place.begin(), place.end(), random);
    for (std::size_t rank = 0; rank < 600; ++rank) {
      const auto v = static_cast<std::int64_t>(place[rank]);
      rows[0](i, v) = -2.5 * std::log(static_cast<double>(rank + 1)) + 0.3 * noise(random), rows[1](i, v) = rows[0](i, v) + 0.4 * noise(random);
    }
  }
  const auto at = [&](std::int64_t k) {
    const shared_selection selection(shared, rows[0].view(), k);
    return test::evaluate<float>(strict_alignment{selection}, rows, {});
  };
  auto whole = at(600), sixteen = at(16), two = at(2);
  const double close = gradient_agreement(whole.gradient.view(), sixteen.gradient.view()).cosine, far = gradient_agreement(whole.gradient.view(), two.gradient.view()).cosine;
  RecordProperty("cosine", std::to_string(close) + " of sixteen, " + std::to_string(far) + " of two");
  EXPECT_GT(close, 0.97);
  EXPECT_LT(far, close);
  double values = 0, all = 0;
  for (std::size_t i = 0; i < whole.values.size(); ++i) values += sixteen.values[i], all += whole.values[i];
  EXPECT_NEAR(values / all, 1, 0.1);
}

// A text cut by both tokenizers: strict rows through the maps, mismatch groups through the span term.
TEST(StrictAlignment, OverAnAlignedText) {
  std::mt19937 random(2);
  const auto words = vocabularies();
  const shared_vocabulary shared(byte_order(words.student.view()), byte_order(words.teacher.view()));
  const std::vector<std::int64_t> student_ends{2, 5, 8, 9, 12}, teacher_ends{2, 8, 9, 11, 12};   // groups: 1:1, 2:1, 1:1, 1:2
  const auto groups = align(student_ends, teacher_ends);
  const auto partners = strict_rows(groups, student_ends.size());
  auto rows = random_rows(5, random);
  for (std::int64_t v = 0; v < 33; ++v) rows[1](4, v) = NAN;   // a row that no strict group uses
  const shared_selection selection(shared, rows[0].view(), 16, partners.mask);
  array<double> strict(5, 40), span(5, 40);
  const auto result = loss(rows[0].view(), select_rows(rows[1].view(), partners.teacher_row), strict_alignment{selection}, strict.view(), {.mask = partners.mask});
  const auto s = [&](std::int64_t i) { return test::log_softmax(rows[0], i, 1); };
  const auto t = [&](std::int64_t i) { return test::log_softmax(rows[1], i, 1); };
  EXPECT_EQ(result.rows_kept, 2);
  EXPECT_NEAR(result.value, (renormalised_reverse_kl(s(0), t(0), chosen(s(0), words.pairs, 16)) + renormalised_reverse_kl(s(3), t(2), chosen(s(3), words.pairs, 16))) / 2, 1e-12);

  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5};
  std::vector<double> teacher_log_probs{-1, -2, -3, -1.5, -0.5}, upstream(5, 9);
  const auto spans = [&](const array<double>& z) {
    const auto value = [&](std::size_t i) { return test::log_softmax(z, static_cast<std::int64_t>(i), 1)[static_cast<std::size_t>(tokens[i])]; };
    const double first = value(1) + value(2) + 2, second = value(4) + 1.5 + 0.5;
    return (first * first + second * second) / 2;
  };
  const auto likelihoods = per_row(nll{tokens}, rows[0].view());
  const auto term = span_loss(groups, likelihoods.values(), teacher_log_probs, upstream);
  EXPECT_EQ(term.groups, 2);
  EXPECT_NEAR(term.value, spans(rows[0]), 1e-12);
  likelihoods.backward(upstream, span.view());
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t v = 0; v < 40; ++v) {
      array<double> up = rows[0], down = rows[0];
      up(i, v) += 1e-5, down(i, v) -= 1e-5;
      EXPECT_NEAR(span(i, v), (spans(up) - spans(down)) / 2e-5, 1e-8);
      if (i == 0 || i == 3) {
        EXPECT_EQ(span(i, v), 0);
      }
    }
  const auto together = gradient_agreement(strict.view(), span.view());
  EXPECT_EQ(together.cosine, 0);   // different rows
  EXPECT_GT(together.norm_ratio, 0);

  teacher_log_probs[1] = -infinity;
  const auto infinite = span_loss(groups, likelihoods.values(), teacher_log_probs, upstream);
  EXPECT_EQ(infinite.infinite_groups, 1);
  EXPECT_EQ(upstream[1], 0);
  EXPECT_NE(upstream[4], 0);
  EXPECT_TRUE(std::isfinite(infinite.value));
}

// A student whose shared output serves strict and mismatch rows alike. Its tokenizer needs two tokens where the teacher needs one, and its second token is
// certain: matching the teacher's span lowers what the first one should be at strict positions. The two gradients then disagree.
TEST(StrictAlignment, SpanSupervisionCanPullTheOtherWay) {
  const auto words = vocabularies();
  const shared_vocabulary shared(byte_order(words.student.view()), byte_order(words.teacher.view()));
  std::mt19937 random(3);
  int opposed = 0;
  const int trials = 60;
  for (int trial = 0; trial < trials; ++trial) {
    auto rows = random_rows(1, random);
    const shared_selection selection(shared, rows[0].view(), 16);
    array<double> strict(1, 40), span(1, 40);
    loss(rows[0].view(), rows[1].view(), strict_alignment{selection}, strict.view());
    // the token that the teacher wants most here, and a span in which the student is more certain than the teacher is of the whole span
    const auto& most = *std::max_element(words.pairs.begin(), words.pairs.end(), [&](const token_pair& a, const token_pair& b) { return rows[1](0, a.teacher) < rows[1](0, b.teacher); });
    const std::vector<std::int32_t> tokens{most.student};
    const auto likelihood = per_row(nll{tokens}, rows[0].view());
    std::vector<double> upstream(1);
    const std::vector<alignment_group> groups{{0, 1, 0, 2, 0, 4}};
    const std::vector<double> teacher_log_probs{-likelihood.values()[0] - 1, -1};
    span_loss(groups, likelihood.values(), teacher_log_probs, upstream);
    likelihood.backward(upstream, span.view());
    opposed += gradient_agreement(strict.view(), span.view()).cosine <= 0;
  }
  RecordProperty("opposed", std::to_string(opposed) + " of " + std::to_string(trials));
  EXPECT_GT(opposed, trials / 2);
}

TEST(StrictAlignment, EdgesAndErrors) {
  std::mt19937 random(4);
  const auto words = vocabularies();
  const shared_vocabulary shared(byte_order(words.student.view()), byte_order(words.teacher.view()));
  auto rows = random_rows(2, random);
  rows[0](0, 5) = 30, rows[1](0, 32 - 5) = -infinity;   // chosen, and impossible for the teacher
  const shared_selection selection(shared, rows[0].view(), 4);
  const auto out = test::evaluate<double>(strict_alignment{selection}, rows, {});
  EXPECT_EQ(out.status[0], status::infinite_divergence);
  EXPECT_EQ(out.gradient(0, 5), 0);
  EXPECT_EQ(out.status[1], status::ok);
  EXPECT_NE(message_of([&] { shared_selection(shared, rows[0].view(), 0); }).find("'k' is 0"), std::string::npos);
  EXPECT_NE(message_of([&] { shared_selection(shared, rows[1].view(), 1); }).find("extent 1 is 33"), std::string::npos);
  EXPECT_NE(message_of([&] { test::evaluate<double>(strict_alignment{selection}, test::named_rows<2>{rows[0], array<double>(2, 32)}, {}); }).find("teacher vocabulary of 33 tokens; expected 32"), std::string::npos);
  EXPECT_NE(message_of([&] { test::evaluate<double>(strict_alignment{selection}, test::named_rows<2>{array<double>(3, 40), array<double>(3, 33)}, {}); }).find("has 2 rows"), std::string::npos);
  EXPECT_NE(message_of([&] { test::evaluate<double>(strict_alignment{selection}, test::named_rows<2>{rows[1], rows[1]}, {}); }).find("student vocabulary of 40"), std::string::npos);
  std::vector<double> one(1), two(2);
  EXPECT_NE(message_of([&] { span_loss(std::vector<alignment_group>{{0, 2, 0, 1, 0, 1}}, one, one, one); }).find("'student_nll' has 1"), std::string::npos);
  EXPECT_NE(message_of([&] { span_loss({}, one, one, two); }).find("'upstream' has 2"), std::string::npos);
  array<double> a(1, 2), b(1, 2), zero(1, 2);
  a(0, 0) = 1, b(0, 0) = -2;
  EXPECT_EQ(gradient_agreement(a.view(), b.view()).cosine, -1);
  EXPECT_EQ(gradient_agreement(a.view(), b.view()).norm_ratio, 2);
  EXPECT_EQ(gradient_agreement(a.view(), zero.view()).cosine, 0);
}

}  // namespace
