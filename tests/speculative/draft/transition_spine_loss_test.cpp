#include <heddle/speculative/draft/transition_spine_loss.hpp>

#include "distillation/arrays.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using tokens = std::vector<std::int32_t>;
using row = std::vector<double>;

TEST(TransitionSpineLoss, GradientsByFiniteDifferences) {
  constexpr std::int64_t n = 4, V = 5, r = 3;
  std::mt19937 random(6);
  auto q = test::gaussian<double>(n, V, random), z = test::gaussian<double>(V, r, random), first = test::gaussian<double>(n, r, random), second = test::gaussian<double>(n, r, random);
  test::array<double> dq(n, V), d_first(n, r), d_second(n, r);
  const tokens labels = {4, 0, -1, 2};
  const std::vector<double> v = {1, .6, .4, .2}, lambdas = {.5, .25};
  const std::vector<std::uint8_t> mask = {1, 1, 0, 1};
  const distillation::loss_options options{.mask = mask, .weights = v, .reduction = distillation::reduction::weighted_mean};
  const tensor_view<double, 2> states[] = {first.view(), second.view()}, gradients[] = {d_first.view(), d_second.view()};
  using views = std::span<const tensor_view<double, 2>>;
  const auto value = [&] { return losses::spine_loss(q.view(), views(states), z.view(), labels, lambdas, distillation::no_gradient, views(), options).value; };
  const auto result = losses::spine_loss(q.view(), views(states), z.view(), labels, lambdas, dq.view(), views(gradients), options);

  double expected = 0;
  const auto cross_entropy = [](const row& x, std::int32_t y) {
    double sum = 0;
    for (const double t : x) sum += std::exp(t);
    return std::log(sum) - x[static_cast<std::size_t>(y)];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    if (!mask[static_cast<std::size_t>(i)]) continue;
    double of_slot = cross_entropy(row(q.values.begin() + i * V, q.values.begin() + (i + 1) * V), labels[static_cast<std::size_t>(i)]);
    for (std::size_t l = 0; l < 2; ++l) {
      row x(V);
      for (std::int64_t t = 0; t < V; ++t)
        for (std::int64_t k = 0; k < r; ++k) x[static_cast<std::size_t>(t)] += z(t, k) * states[l](i, k);
      of_slot += lambdas[l] * cross_entropy(x, labels[static_cast<std::size_t>(i)]);
    }
    expected += v[static_cast<std::size_t>(i)] / 1.8 * of_slot;
  }
  EXPECT_NEAR(result.value, expected, 1e-13);
  EXPECT_NEAR(result.head.value + result.layers[0] + result.layers[1], result.value, 1e-15);
  for (auto [x, g] : {std::pair{&q, &dq}, {&first, &d_first}, {&second, &d_second}})
    for (std::size_t i = 0; i < x->values.size(); ++i) EXPECT_NEAR(g->values[i], test::central_difference(x->values[i], 1e-5, value), 1e-9);
  EXPECT_THROW(losses::spine_loss(q.view(), views(states), z.view(), labels, row{.5}, dq.view(), views(gradients), options), error);
  EXPECT_THROW(losses::spine_loss(q.view(), views(states), z.view(), labels, row{.5, -1}, dq.view(), views(gradients), options), error);
  EXPECT_THROW(losses::spine_loss(q.view(), views(states), z.view(), labels, lambdas, dq.view(), views(gradients).first(1), options), error);
}

}  // namespace
