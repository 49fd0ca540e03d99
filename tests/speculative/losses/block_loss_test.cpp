#include <heddle/speculative/losses/block_loss.hpp>

#include "speculative/losses/block_rows.hpp"
#include "support/errors.hpp"

#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using distillation::no_gradient;
using losses::block_options;
using losses::weighting;
using numbers = std::vector<double>;
using test::array;

constexpr std::int64_t block = 4, rows = 8, vocabulary = 6;
const std::vector<std::uint8_t> some = {1, 1, 0, 1, 1, 1, 1, 0};

double total_variation(const numbers& p, const numbers& q) {
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) sum += std::abs(p[v] - q[v]) / 2;
  return sum;
}

// I = 1 and W = v: the loss of DFlash, as it is written.
TEST(BlockLoss, IsThatOfDFlash) {
  const double gamma = 3;
  array<double> z = test::random_logits(rows, vocabulary, 1), gradient(rows, vocabulary);
  const auto y = test::random_labels(rows, vocabulary, 2);
  double sum = 0, weight = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double v = std::exp(-static_cast<double>(r % block) / gamma);
    sum -= v * std::log(test::softmax(z, r)[static_cast<std::size_t>(y[static_cast<std::size_t>(r)])]), weight += v;
  }
  EXPECT_NEAR(losses::block_loss(z.view(), distillation::nll{y}, gradient.view(), {.block = block, .weights = {.gamma = gamma}}).value, sum / weight, 1e-14);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < vocabulary; ++c)
      EXPECT_NEAR(gradient(r, c), std::exp(-static_cast<double>(r % block) / gamma) / weight * (test::softmax(z, r)[static_cast<std::size_t>(c)] - (c == y[static_cast<std::size_t>(r)])), 1e-14);
}

// Every prediction with every weighting: value as it is written, gradient by finite differences with the weights held.
template <class Prediction, class Reference, class... Targets>
void expect_loss(const Prediction& prediction, const Reference& reference, numbers given, array<double>& z, Targets&&... targets) {
  for (const weighting kind : {weighting::decay, weighting::survival, weighting::acceptance, weighting::d_pace}) {
    block_options options{.block = block, .included = some, .weights = {kind, 2, .2}, .acceptances = given, .temperature = 1.25};
    array<double> gradient(rows, vocabulary);
    gradient.values.assign(gradient.values.size(), 7);
    const auto result = losses::block_loss_over(prediction, gradient.view(), options, z.view(), targets...);
    numbers expected(rows);
    double sum = 0, weight = 0;
    for (std::int64_t first = 0; first < rows; first += block) {
      const auto at = static_cast<std::size_t>(first);
      numbers a;
      for (std::int64_t r = first; r < first + block; ++r) a.push_back(given.empty() ? reference(r).second : given[static_cast<std::size_t>(r)]);
      losses::slot_weights(options.weights, a, std::span(some).subspan(at, block), std::span(expected).subspan(at, block));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const double w = expected[static_cast<std::size_t>(r)];
      EXPECT_NEAR(result.weights[static_cast<std::size_t>(r)], w, 1e-13);
      if (w > 0) sum += w * reference(r).first, weight += w;
    }
    EXPECT_NEAR(result.value, sum / weight, 1e-13);
    const distillation::loss_options held{.temperature = 1.25, .mask = some, .weights = expected, .reduction = distillation::reduction::weighted_mean};
    test::expect_slopes(gradient, z, [&](array<double>& x) { return distillation::loss_over(prediction, no_gradient, held, x.view(), targets...).value; });
  }
}

TEST(BlockLoss, PredictionsAndWeightings) {
  array<double> z = test::random_logits(rows, vocabulary, 1), t = test::random_logits(rows, vocabulary, 3);
  const auto y = test::random_labels(rows, vocabulary, 2);
  const auto p = [&](std::int64_t r) { return test::softmax(t, r, 1.25); };
  const auto q = [&](std::int64_t r) { return test::softmax(z, r, 1.25); };
  const auto label = [&](std::int64_t r) { return q(r)[static_cast<std::size_t>(y[static_cast<std::size_t>(r)])]; };
  const auto overlap = [&](std::int64_t r) { return 1 - total_variation(p(r), q(r)); };
  using pair = std::pair<double, double>;
  expect_loss(distillation::nll{y}, [&](std::int64_t r) { return pair{-std::log(label(r)), label(r)}; }, {}, z);
  const auto a = losses::acceptances(distillation::total_variation{}, {.temperature = 1.25}, z.view(), t.view());
  for (std::int64_t r = 0; r < rows; ++r) EXPECT_NEAR(a[static_cast<std::size_t>(r)], overlap(r), 1e-14);
  const numbers given(a.begin(), a.end());
  expect_loss(distillation::total_variation{}, [&](std::int64_t r) { return pair{1 - overlap(r), overlap(r)}; }, {}, z, t.view());
  expect_loss(distillation::forward_kl{}, [&](std::int64_t r) { return pair{test::kl(p(r), q(r)), 0}; }, given, z, t.view());
  expect_loss(losses::label_and_distance{y}, [&](std::int64_t r) { return pair{-.1 * std::log(label(r)) + .9 * 2 * (1 - overlap(r)), 0}; }, given, z, t.view());
}

// Rows that are not included are not read; a bad one adds nothing, and is no slot for weights that read acceptances.
TEST(BlockLoss, RowsThatAreNone) {
  array<double> z = test::random_logits(rows, vocabulary, 1), gradient(rows, vocabulary);
  auto y = test::random_labels(rows, vocabulary, 2);
  const auto value = [&](const std::vector<std::uint8_t>& included) { return losses::block_loss(z.view(), distillation::nll{y}, gradient.view(), {.block = block, .included = included, .weights = {weighting::d_pace}}).value; };
  std::vector<std::uint8_t> without = some;
  without[5] = 0;
  const double expected = value(without);
  z(2, 0) = NAN, y[7] = -1, z(5, 3) = NAN;
  EXPECT_EQ(value(some), expected);
  for (const std::int64_t r : {2, 5, 7})
    for (std::int64_t c = 0; c < vocabulary; ++c) EXPECT_EQ(gradient(r, c), 0);
  EXPECT_EQ(value(std::vector<std::uint8_t>(rows)), 0);
  for (const double g : gradient.values) EXPECT_EQ(g, 0);
}

TEST(BlockLoss, FloatsGiveWhatDoublesGive) {
  const auto [narrow, wide] = test::same_numbers<float>(test::random_logits(rows, 40, 5));
  auto z = narrow;
  auto exact = wide;
  const auto y = test::random_labels(rows, 40, 6);
  array<float> gradient(rows, 40);
  array<double> exact_gradient(rows, 40);
  const block_options options{.block = block, .weights = {weighting::d_pace}};
  EXPECT_NEAR(losses::block_loss(z.view(), distillation::nll{y}, gradient.view(), options).value, losses::block_loss(exact.view(), distillation::nll{y}, exact_gradient.view(), options).value, 1e-6);
  for (std::size_t i = 0; i < gradient.values.size(); ++i) EXPECT_NEAR(gradient.values[i], exact_gradient.values[i], 1e-6);
}

TEST(BlockLoss, Confidence) {
  const numbers a = {.2, 1, 0, .5}, w = {1, .5, 2, 0};
  const auto value = [&](const numbers& x) {
    double sum = 0;
    for (std::size_t r = 0; r < 3; ++r) {
      const double c = 1 / (1 + std::exp(-x[r]));
      sum -= w[r] * (a[r] * std::log(c) + (1 - a[r]) * std::log(1 - c));
    }
    return sum / 3.5;
  };
  const numbers x = {.3, -1.2, 2, 0};
  numbers gradient(4, 7);
  EXPECT_NEAR(losses::confidence_loss(x, a, w, gradient), value(x), 1e-14);
  for (std::size_t r = 0; r < 4; ++r) {
    numbers up = x, down = x;
    up[r] += 1e-6, down[r] -= 1e-6;
    EXPECT_NEAR(gradient[r], (value(up) - value(down)) / 2e-6, 1e-8);
  }
  EXPECT_EQ(losses::confidence_loss(x, a, numbers(4), gradient), 0);
  EXPECT_EQ(gradient, numbers(4));
  EXPECT_NEAR(losses::confidence_loss(numbers{800, -800}, numbers{0, 1}, numbers{1, 1}, {}), 800, 1e-9);
}

TEST(BlockLoss, Errors) {
  array<double> z = test::random_logits(rows, vocabulary, 1);
  const auto y = test::random_labels(rows, vocabulary, 2);
  const auto message = [&](const block_options& o) { return message_of([&] { losses::block_loss(z.view(), z.view(), distillation::forward_kl{}, no_gradient, o); }); };
  EXPECT_EQ(message({}), "losses::block_loss: option 'block' is 0; expected at least 1 slot");
  EXPECT_EQ(message({.block = 3}), "losses::block_loss: 8 rows are no whole number of blocks of 3 slots");
  EXPECT_EQ(message({.block = 4, .weights = {weighting::survival}}), "losses::block_loss: option 'acceptances' is empty; expected one per row, because this prediction has none");
  EXPECT_EQ(message({.block = 4, .weights = {.gamma = -1}}), "losses::block_loss: option 'gamma' is -1; expected a positive number, or infinity (no decay)");
  EXPECT_EQ(message({.block = 4, .acceptances = numbers(3)}), "losses::block_loss: option 'acceptances' has 3 entries; expected none or one per row, 8");
  EXPECT_EQ(message_of([&] { losses::block_loss(z.view(), distillation::nll{std::span(y).first(5)}, no_gradient, {.block = 4}); }), "nll: argument 'tokens' has 5 entries; expected one per row, 8");
}

}  // namespace
