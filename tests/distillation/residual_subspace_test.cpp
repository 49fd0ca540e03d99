// The loss against its formula and finite differences, and the weight that calibrates it.
#include "distillation/arrays.hpp"
#include "support/errors.hpp"

#include <heddle/core/thread_team.hpp>
#include <heddle/distillation/residual_subspace.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::gaussian;

template <class T>
class ResidualSubspace : public testing::Test {};
using elements = testing::Types<float, double>;
TYPED_TEST_SUITE(ResidualSubspace, elements);

TYPED_TEST(ResidualSubspace, LossAndGradientFollowTheFormula) {
  using T = TypeParam;
  std::mt19937 random(1);
  const std::int64_t n = 9, d = 21, r = 5;
  auto b = gaussian<double>(r, d, random);
  auto h = gaussian<T>(n, d, random), target = gaussian<T>(n, d, random);
  std::vector<std::uint8_t> mask(n, 1);
  mask[3] = 0;
  for (std::int64_t c = 0; c < d; ++c) h(3, c) = std::numeric_limits<T>::quiet_NaN();   // never read
  std::vector<double> weights(n, 1);
  weights[1] = 2.5, weights[6] = 0;
  const auto value = [&](const array<T>& at) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < r && i != 3; ++j) {
        double x = 0;
        for (std::int64_t c = 0; c < d; ++c) x += b(j, c) * (double{at(i, c)} - double{target(i, c)});
        sum += weights[static_cast<std::size_t>(i)] * x * x / (2. * r);
      }
    return sum / (n - 1);
  };
  array<T> gradient(n, d);
  for (T& x : gradient.values) x = 77;
  const auto result = residual_subspace_loss(b.view(), h.view(), target.view(), gradient.view(), {.mask = mask, .weights = weights});
  EXPECT_NEAR(result.value, value(h), 1e-12 * value(h));
  EXPECT_EQ(result.rows_kept, n - 1);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 0; c < d; ++c) {
      if (i == 3) {
        EXPECT_EQ(gradient(i, c), 0);
        continue;
      }
      double expected = 0;   // B^T B e w / (r D)
      for (std::int64_t j = 0; j < r; ++j) {
        double x = 0;
        for (std::int64_t k = 0; k < d; ++k) x += b(j, k) * (double{h(i, k)} - double{target(i, k)});
        expected += b(j, c) * x * weights[static_cast<std::size_t>(i)] / static_cast<double>(r * (n - 1));
      }
      EXPECT_NEAR(static_cast<double>(gradient(i, c)), expected, (sizeof(T) == 4 ? 1e-6 : 1e-13) * (1 + std::abs(expected)));
      if constexpr (std::is_same_v<T, double>) {
        array<T> up = h, down = h;
        up(i, c) += 1e-5, down(i, c) -= 1e-5;
        EXPECT_NEAR(gradient(i, c), (value(up) - value(down)) / 2e-5, 1e-8);
      }
    }
  // the same bits with two workers, and in place
  thread_team team{2};
  array<T> again = h;
  const auto parallel = residual_subspace_loss(b.view(), again.view(), target.view(), again.view(), {.mask = mask, .weights = weights, .executor = team});
  EXPECT_EQ(parallel.value, result.value);
  EXPECT_EQ(again.values, gradient.values);
}

TEST(ResidualSubspace, ZeroExactlyOnItsComplement) {
  std::mt19937 random(2);
  auto b = gaussian<double>(3, 8, random), h = gaussian<double>(1, 8, random), target = h;
  for (std::int64_t c = 0; c < 8; ++c) b(0, c) = c == 1, b(1, c) = c == 1 || c == 4, b(2, c) = c == 7;
  for (std::int64_t c = 0; c < 8; ++c) target(0, c) += c == 2 ? 3 : c == 5 ? -1 : 0;   // orthogonal to B's rows
  EXPECT_EQ(residual_subspace_loss(b.view(), h.view(), target.view()).value, 0);
  target(0, 4) += 1e-3;
  EXPECT_GT(residual_subspace_loss(b.view(), h.view(), target.view()).value, 1e-9);
}

TEST(ResidualSubspace, CalibratedArmsPushEquallyHard) {
  std::mt19937 random(7);
  const std::int64_t n = 20, d = 16;
  auto h = gaussian<double>(n, d, random), target = gaussian<double>(n, d, random), structured = gaussian<double>(4, d, random), control = gaussian<double>(4, d, random);
  for (double& x : control.values) x *= 100;
  auto main_gradient = gaussian<float>(n, d, random);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(n), 1);
  mask[5] = 0;
  const auto rms = [&](const auto& g) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < d && i != 5; ++c) sum += double{g(i, c)} * double{g(i, c)};
    return std::sqrt(sum / static_cast<double>((n - 1) * d));
  };
  for (auto* arm : {&structured, &control}) {
    array<double> gradient(n, d);
    residual_subspace_loss(arm->view(), h.view(), target.view(), gradient.view(), {.mask = mask});
    const double c = calibrated_weight(0.1, main_gradient.view(), gradient.view(), mask);
    EXPECT_NEAR(c * rms(gradient), 0.1 * rms(main_gradient), 1e-6 * 0.1 * rms(main_gradient));
  }
  array<double> zeros(n, d);
  EXPECT_NE(message_of([&] { calibrated_weight(0.1, main_gradient.view(), zeros.view()); }).find("'auxiliary' has the root mean square 0"), std::string::npos);
}

TEST(ResidualSubspace, Errors) {
  std::mt19937 random(9);
  auto b = gaussian<double>(2, 4, random), h = gaussian<double>(3, 4, random), narrow = gaussian<double>(3, 3, random);
  EXPECT_NE(message_of([&] { residual_subspace_loss(b.view(), h.view(), narrow.view()); }).find("'teacher'"), std::string::npos);
  EXPECT_NE(message_of([&] { residual_subspace_loss(b.view(), narrow.view(), narrow.view()); }).find("'factor'"), std::string::npos);
  EXPECT_NE(message_of([&] { residual_subspace_loss(b.view(), h.view(), h.view(), no_hidden_gradient{}, {.weights = std::vector<double>{1, -1, 1}}); }).find("entry 1 is -1"), std::string::npos);
  auto broken = b;
  broken(1, 2) = std::nan("");
  EXPECT_NE(message_of([&] { residual_subspace_loss(broken.view(), h.view(), h.view()); }).find("'factor': entry (1, 2) is NaN"), std::string::npos);
  // a bad row says so and leaves the others
  auto target = gaussian<double>(3, 4, random);
  const double good = residual_subspace_loss(b.view(), h.view(), target.view()).row_values[2];
  h(0, 1) = std::nan(""), h(1, 1) = INFINITY;
  array<double> gradient(3, 4);
  const auto result = residual_subspace_loss(b.view(), h.view(), target.view(), gradient.view());
  EXPECT_EQ(result.row_status[0], status::nan_logit);
  EXPECT_EQ(result.row_status[1], status::inf_logit);
  EXPECT_EQ(result.rows_kept, 1);
  EXPECT_EQ(result.value, good / 3);
  EXPECT_EQ(gradient(0, 0), 0);
  EXPECT_NE(gradient(2, 0), 0);
  // no row at all: 0
  EXPECT_EQ(residual_subspace_loss(b.view(), h.view(), target.view(), gradient.view(), {.mask = std::vector<std::uint8_t>(3, 0)}).value, 0);
}

}  // namespace
