// Weights, the weighted loss against its definition, and a student that learns from teachers some of whom are wrong.
#include <heddle/distillation/correctness_weights.hpp>

#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/sampled_token.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using numbers = std::vector<double>;
constexpr correctness_gate gates[] = {correctness_gate::unfiltered, correctness_gate::hard, correctness_gate::soft};

numbers weights_of(const numbers& c, std::int64_t teachers, correctness_gate gate, double floor = 0.1, std::int64_t skipped = 0) {
  numbers w(c.size(), 9.);
  EXPECT_EQ(correctness_weights(c, teachers, w, gate, floor), skipped);
  return w;
}

TEST(CorrectnessWeights, Gates) {
  EXPECT_EQ(weights_of({1, 0, 1, 1}, 4, correctness_gate::unfiltered), numbers(4, 0.25));
  EXPECT_EQ(weights_of({1, 0, 1, 0}, 4, correctness_gate::hard), (numbers{0.5, 0, 0.5, 0}));
  EXPECT_EQ(weights_of({1, 0}, 2, correctness_gate::soft, 0.25), (numbers{0.8, 0.2}));
  EXPECT_EQ(weights_of({1, 0.5}, 2, correctness_gate::soft, 0), (numbers{1 / 1.5, 0.5 / 1.5}));
  // Nobody right.
  EXPECT_EQ(weights_of({0, 0, 0, 1}, 2, correctness_gate::hard, 0.1, 1), (numbers{0, 0, 0, 1}));
  for (const double floor : {0., 0.3}) EXPECT_EQ(weights_of({0, 0}, 2, correctness_gate::soft, floor), numbers(2, 0.5));
  EXPECT_EQ(weights_of({}, 3, correctness_gate::hard), numbers{});
}

TEST(CorrectnessWeights, SumToOneAndFollowPermutations) {
  std::mt19937 random(1);
  for (const auto gate : gates)
    for (int trial = 0; trial < 100; ++trial) {
      numbers c(5);
      for (double& x : c) x = static_cast<double>(random() % 2);
      c[random() % 5] = 1;
      const auto w = weights_of(c, 5, gate);
      EXPECT_NEAR(std::accumulate(w.begin(), w.end(), 0.), 1, 1e-15);
      std::vector<std::size_t> order = {3, 0, 4, 1, 2};
      numbers permuted(5);
      for (std::size_t k = 0; k < 5; ++k) permuted[k] = c[order[k]];
      const auto v = weights_of(permuted, 5, gate);
      for (std::size_t k = 0; k < 5; ++k) EXPECT_DOUBLE_EQ(v[k], w[order[k]]);
    }
}

struct batch {
  test::array<double> z, a, b, c;
  explicit batch(std::mt19937& random) : z(test::gaussian<double>(3, 7, random)), a(test::gaussian<double>(3, 7, random)), b(test::gaussian<double>(3, 7, random)), c(test::gaussian<double>(3, 7, random)) {}
};

TEST(CorrectnessWeights, WeightedTeachersEqualTheDefinition) {
  std::mt19937 random(2);
  batch rows(random);
  rows.a(0, 3) = -INFINITY;
  const auto w = weights_of({1, 0, 1, 0, 0, 1, 0, 0, 0}, 3, correctness_gate::hard, 0.1, 1);
  const weighted_teachers functional{w};
  const double tau = 2;
  const auto value = test::values_of(functional, {.temperature = tau}, rows.z.view(), rows.a.view(), rows.b.view(), rows.c.view());
  const auto gradient = test::gradient_of(functional, {.temperature = tau}, rows.z, rows.a.view(), rows.b.view(), rows.c.view());
  for (std::int64_t r = 0; r < 3; ++r) {
    const auto s = test::softmax(rows.z, r, tau);
    const numbers t[] = {test::softmax(rows.a, r, tau), test::softmax(rows.b, r, tau), test::softmax(rows.c, r, tau)};
    double expected = 0, sum = 0;
    for (std::size_t k = 0; k < 3; ++k) expected += w[static_cast<std::size_t>(3 * r) + k] * test::kl(t[k], s), sum += w[static_cast<std::size_t>(3 * r) + k];
    EXPECT_NEAR(value[static_cast<std::size_t>(r)], expected, 1e-12);
    for (std::size_t v = 0; v < 7; ++v) {
      double mixture = 0;
      for (std::size_t k = 0; k < 3; ++k) mixture += w[static_cast<std::size_t>(3 * r) + k] * t[k][v];
      EXPECT_NEAR(gradient(r, static_cast<std::int64_t>(v)), (sum * s[v] - mixture) / tau, 1e-13);
    }
  }
  EXPECT_EQ(value[2], 0);  // skipped: nothing at all
  for (std::int64_t v = 0; v < 7; ++v) EXPECT_EQ(gradient(2, v), 0);
  test::expect_gradient(functional, {.temperature = tau}, rows.z, rows.a.view(), rows.b.view(), rows.c.view());
}

TEST(CorrectnessWeights, EqualTeachersAreOneTeacher) {
  std::mt19937 random(3);
  batch rows(random);
  const auto w = weights_of({1, 0.2, 0.7, 0, 0, 1, 0.5, 0.5, 0.1}, 3, correctness_gate::soft);
  const auto value = test::values_of(weighted_teachers{w}, {}, rows.z.view(), rows.a.view(), rows.a.view(), rows.a.view());
  const auto single = test::values_of(forward_kl{}, {}, rows.z.view(), rows.a.view());
  for (std::size_t r = 0; r < 3; ++r) EXPECT_NEAR(value[r], single[r], 1e-12);
}

TEST(CorrectnessWeights, FloatsAgreeWithDoubles) {
  std::mt19937 random(4);
  batch rows(random);
  const auto w = weights_of({1, 0, 1, 0, 0, 1}, 2, correctness_gate::soft);
  auto [z, exact] = test::same_numbers<float>(rows.z);
  auto [a, exact_a] = test::same_numbers<float>(rows.a);
  auto [b, exact_b] = test::same_numbers<float>(rows.b);
  const auto narrow = test::values_of(weighted_teachers{w}, {}, z.view(), a.view(), b.view()), wide = test::values_of(weighted_teachers{w}, {}, exact.view(), exact_a.view(), exact_b.view());
  for (std::size_t r = 0; r < 3; ++r) EXPECT_NEAR(narrow[r], wide[r], 1e-5 * wide[r]);
}

// Responses with prefixes of their own: rows of all responses in one batch.
TEST(CorrectnessWeights, SpreadWeightsGiveTheWeightedNll) {
  std::mt19937 random(5);
  const std::vector<std::int32_t> indptr = {0, 4, 5, 5, 9};
  auto z = test::gaussian<double>(9, 6, random);
  std::vector<std::int32_t> tokens(9);
  for (auto& t : tokens) t = static_cast<std::int32_t>(random() % 6);
  const auto w = weights_of({1, 0, 0, 1}, 4, correctness_gate::soft);
  numbers rows(9);
  spread_weights(w, indptr, rows);
  const auto result = loss(z.view(), nll{tokens}, no_gradient, {.weights = rows, .reduction = reduction::sum});
  double expected = 0;
  for (std::size_t k = 0; k < 4; ++k)
    for (auto i = indptr[k]; i < indptr[k + 1]; ++i) expected -= w[k] * std::log(test::softmax(z, i)[static_cast<std::size_t>(tokens[static_cast<std::size_t>(i)])]);
  EXPECT_NEAR(result.value, expected, 1e-12);
}

// Three teachers answer questions of three labels; each is right in 45 % of the cases, never in those of label 2, and wrong answers agree on a distractor. What a student
// learns from them: with the gate it answers better, and the mean hides the label that nobody ever gets right.
TEST(CorrectnessWeights, AGateLiftsTheMeanAndRecallShowsTheLostLabel) {
  std::mt19937 random(6);
  constexpr std::int64_t questions = 300, labels = 4;
  std::vector<std::int32_t> truth(questions);
  test::array<double> teachers[3] = {{questions, labels}, {questions, labels}, {questions, labels}};
  numbers c(3 * questions);
  for (std::int64_t q = 0; q < questions; ++q) {
    truth[static_cast<std::size_t>(q)] = static_cast<std::int32_t>(q % 3);
    for (std::int64_t k = 0; k < 3; ++k) {
      const bool right = q % 3 != 2 && random() % 100 < 45;
      c[static_cast<std::size_t>(3 * q + k)] = right;
      for (std::int64_t v = 0; v < labels; ++v) teachers[k](q, v) = v == (right ? q % 3 : 3) ? 2 : 0;
    }
  }
  const auto accuracy = [&](correctness_gate gate, std::vector<label_count>& counts) {
    numbers w(c.size());
    correctness_weights(c, 3, w, gate);
    test::array<double> z(questions, labels), gradient(questions, labels);
    for (int step = 0; step < 60; ++step) {
      loss_over(weighted_teachers{w}, gradient.view(), {.reduction = reduction::sum}, z.view(), teachers[0].view(), teachers[1].view(), teachers[2].view());
      for (std::size_t i = 0; i < z.values.size(); ++i) z.values[i] -= 2 * gradient.values[i];
    }
    std::vector<std::int32_t> predicted(questions);
    for (std::int64_t q = 0; q < questions; ++q)
      for (std::int32_t v = 1; v < labels; ++v)
        if (z(q, v) > z(q, predicted[static_cast<std::size_t>(q)])) predicted[static_cast<std::size_t>(q)] = v;
    counts.assign(labels, {});
    label_recall(predicted, truth, counts);
    return static_cast<double>(counts[0].hits + counts[1].hits + counts[2].hits) / questions;
  };
  std::vector<label_count> unfiltered, hard, soft;
  const double plain = accuracy(correctness_gate::unfiltered, unfiltered), gated = accuracy(correctness_gate::hard, hard), soft_gated = accuracy(correctness_gate::soft, soft);
  EXPECT_GT(gated, plain + 0.15);
  EXPECT_GT(soft_gated, plain + 0.15);
  EXPECT_GT(hard[1].recall(), 0.75);
  EXPECT_EQ(soft[2].recall(), 0);
  EXPECT_EQ(hard[2].items, questions / 3);
}

TEST(CorrectnessWeights, LabelRecall) {
  std::vector<label_count> counts(3);
  label_recall(std::vector<std::int32_t>{0, 0, -1, 7, 1}, std::vector<std::int32_t>{0, 1, 0, 1, 1}, counts);
  EXPECT_EQ(counts[0].recall(), 0.5);
  EXPECT_DOUBLE_EQ(counts[1].recall(), 1 / 3.);
  EXPECT_EQ(counts[2].items, 0);
  EXPECT_EQ(counts[2].recall(), 0);
  EXPECT_THROW(label_recall(std::vector<std::int32_t>{0}, std::vector<std::int32_t>{3}, counts), error);
  EXPECT_THROW(label_recall(std::vector<std::int32_t>{0}, std::vector<std::int32_t>{0, 1}, counts), error);
}

TEST(CorrectnessWeights, BadInput) {
  numbers w(3, 9.);
  for (const double bad : {-0.1, 1.1, std::nan("")})
    for (const auto gate : gates) EXPECT_THROW(correctness_weights(numbers{1, bad, 0}, 3, w, gate), error);
  EXPECT_NE(message_of([&] { correctness_weights(numbers{1, 0, 0.5}, 3, w, correctness_gate::hard); }).find("entry 2"), std::string::npos);
  EXPECT_THROW(correctness_weights(numbers(3), 2, w, correctness_gate::soft), error);
  EXPECT_THROW(correctness_weights(numbers(3), 0, w, correctness_gate::soft), error);
  EXPECT_THROW(correctness_weights(numbers(3), 3, w, correctness_gate::soft, 1.5), error);
  EXPECT_THROW(correctness_weights(numbers(6), 3, w, correctness_gate::soft), error);
  EXPECT_EQ(w, numbers(3, 9.));
  std::mt19937 random(7);
  batch rows(random);
  EXPECT_THROW(per_row(weighted_teachers{numbers(2)}, rows.z.view(), rows.a.view()), error);
  const numbers negative = {1, -1, 1};
  EXPECT_THROW(per_row(weighted_teachers{negative}, rows.z.view(), rows.a.view()), error);
  EXPECT_NO_THROW(per_row(weighted_teachers{negative}, {.mask = std::vector<std::uint8_t>{1, 0, 1}}, rows.z.view(), rows.a.view()));
  EXPECT_THROW(spread_weights(w, std::vector<std::int32_t>{0, 1}, w), error);
}

}  // namespace
