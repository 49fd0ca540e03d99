// The contrasted target against its formula, its bounds and its ends; what it does on states whose wrong continuation ignores the condition.
#include "distillation/system_laws.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/condition_contrast.hpp>
#include <heddle/distillation/loss.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using test::array;
using test::infinity;
using test::log_probs;

double contrast(double with, double without, double bound, contrast_bound kind) {
  const double d = with == without ? 0 : with - without;
  return kind == contrast_bound::tanh ? bound * std::tanh(d / bound) : std::clamp(d, -bound, bound);
}
log_probs target(const log_probs& with, const log_probs& without, const condition_contrast_target& options) {
  log_probs q;
  double sum = 0;
  for (std::size_t v = 0; v < with.size(); ++v) {
    q.push_back(with[v] + options.gamma * contrast(with[v], without[v], options.bound, options.kind));
    sum += std::exp(q.back());
  }
  for (double& x : q) x -= std::log(sum);
  return q;
}
test::named_rows<3> random_rows(std::int64_t n, std::int64_t width, std::mt19937& random) {
  test::named_rows<3> rows{test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random), test::gaussian<double>(n, width, random)};
  for (auto& z : rows)
    for (double& x : z.values) x *= 2;
  return rows;
}
/// ln q as the engine computes it: the gradient of forward KL is (s - q) / temperature, with a student that is flat.
log_probs computed_target(const condition_contrast_target& options, test::named_rows<3> rows) {
  for (double& x : rows[0].values) x = 0;
  const auto out = test::evaluate<double>(targeted{forward_kl{}, options}, rows, {});
  log_probs q;
  for (std::int64_t v = 0; v < out.gradient.columns; ++v) q.push_back(std::log(1. / static_cast<double>(out.gradient.columns) - out.gradient(0, v)));
  return q;
}

TEST(ConditionContrast, LossAndGradient) {
  std::mt19937 random(1);
  auto rows = random_rows(4, 23, random);
  for (const double never : {2., 9.}) rows[2](1, static_cast<std::int64_t>(never)) = -infinity;   // t_without = 0 < t_with: c = bound
  for (const auto kind : {contrast_bound::clip, contrast_bound::tanh}) {
    const condition_contrast<> forward{.target = {.gamma = 0.8, .bound = 1.5, .kind = kind}, .weight = 0.6};
    test::check_laws<condition_contrast<>, 3>(forward, rows, [&](std::int64_t, const auto& base, const auto& at) { return test::kl(at, base[1]) + 0.6 * test::kl(target(base[1], base[2], forward.target), at); }, {.temperature = 1.4});
    const condition_contrast<forward_kl, reverse_kl> reverse{.target = forward.target, .weight = 0.6};
    test::check_laws<condition_contrast<forward_kl, reverse_kl>, 3>(reverse, rows, [&](std::int64_t, const auto& base, const auto& at) { return test::kl(base[1], at) + 0.6 * test::kl(at, target(base[1], base[2], forward.target)); });
  }
}

TEST(ConditionContrast, TargetStaysWithinItsBounds) {
  std::mt19937 random(2);
  for (const auto kind : {contrast_bound::clip, contrast_bound::tanh})
    for (int trial = 0; trial < 50; ++trial) {
      auto rows = random_rows(1, 17, random);
      for (std::int64_t v = 0; v < 8; ++v) rows[1](0, 2 * v) = rows[1](0, 2 * v + 1);   // pairs with equal t_with
      const condition_contrast_target options{.gamma = 0.7, .bound = 1.1, .kind = kind};
      const auto with = test::log_softmax(rows[1], 0, 1), without = test::log_softmax(rows[2], 0, 1);
      const auto q = computed_target(options, rows), expected = target(with, without, options);
      for (std::size_t v = 0; v < q.size(); ++v) {
        EXPECT_NEAR(q[v], expected[v], 1e-9);
        EXPECT_LE(std::abs(q[v] - with[v]), 2 * options.gamma * options.bound + 1e-12);
      }
      for (std::size_t v = 0; v < 16; v += 2) {   // their order is that of the contrast
        const double a = contrast(with[v], without[v], options.bound, kind), b = contrast(with[v + 1], without[v + 1], options.bound, kind);
        if (a != b) {
          EXPECT_EQ(q[v] < q[v + 1], a < b);
        }
      }
    }
}

TEST(ConditionContrast, EndsAndErrors) {
  std::mt19937 random(3);
  auto rows = random_rows(2, 9, random);
  rows[1](0, 4) = -infinity;
  const auto reference = test::evaluate<double>(forward_kl{}, test::named_rows<2>{rows[0], rows[1]}, {});
  const auto same_as_teacher = [&](const condition_contrast_target& options, const test::named_rows<3>& inputs) {
    const auto out = test::evaluate<double>(targeted{forward_kl{}, options}, inputs, {});
    for (std::size_t i = 0; i < out.values.size(); ++i) EXPECT_NEAR(out.values[i], reference.values[i], 1e-14);
    for (std::size_t i = 0; i < out.gradient.values.size(); ++i) EXPECT_NEAR(out.gradient.values[i], reference.gradient.values[i], 1e-15);
  };
  same_as_teacher({.gamma = 0}, rows);
  same_as_teacher({.gamma = 3}, {rows[0], rows[1], rows[1]});
  rows[2](0, 4) = 30;   // t_with = 0: q = 0
  EXPECT_LT(computed_target({}, rows)[4], std::log(1e-16));

  // weight 0: an infinite divergence that does not count
  const auto none = test::evaluate<double>(condition_contrast<forward_kl, reverse_kl>{.weight = 0}, rows, {});
  for (std::size_t i = 0; i < none.gradient.values.size(); ++i) EXPECT_EQ(none.gradient.values[i], reference.gradient.values[i]);
  EXPECT_EQ(test::evaluate<double>(condition_contrast<forward_kl, reverse_kl>{}, rows, {}).status[0], status::infinite_divergence);

  const auto fails = [&](const condition_contrast<>& f) { return message_of([&] { test::evaluate<double>(f, rows, {}); }); };
  EXPECT_NE(fails({.target = {.bound = 0}}).find("'bound' is 0"), std::string::npos);
  EXPECT_NE(fails({.target = {.gamma = -1}}).find("'gamma' is -1"), std::string::npos);
  EXPECT_NE(fails({.weight = -1}).find("'weight' is -1"), std::string::npos);
  EXPECT_NE(fails({.base = {.teacher_floor = -1}}).find("'teacher_floor'"), std::string::npos);
  EXPECT_NE(message_of([&] { test::evaluate<double>(condition_contrast<>{}, test::named_rows<3>{rows[0], rows[1], array<double>(2, 8)}, {}); }).find("third row"), std::string::npos);
}

// 200 states: the valid token owes its probability to the condition, the invalid one has it with and without. Where the teacher prefers the invalid token, the
// contrasted target does so less often.
TEST(ConditionContrast, InvalidContinuationsArePreferredLessOften) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  const std::int64_t states = 200, width = 50;
  test::named_rows<3> rows{array<double>(states, width), array<double>(states, width), array<double>(states, width)};
  for (std::int64_t i = 0; i < states; ++i) {
    for (std::int64_t v = 0; v < width; ++v) rows[1](i, v) = normal(random), rows[2](i, v) = rows[1](i, v) + 0.1 * normal(random);
    rows[1](i, 0) = 5 + normal(random), rows[2](i, 0) = 2 + normal(random);                                      // valid
    rows[1](i, 1) = 4.4 + normal(random), rows[2](i, 1) = rows[1](i, 1) + 0.1 * normal(random);                  // invalid
  }
  int before = 0, after = 0;
  const auto q = test::evaluate<double>(targeted{forward_kl{}, condition_contrast_target{.gamma = 0.5, .bound = 2}}, rows, {});   // gradient 1 / width - q
  for (std::int64_t i = 0; i < states; ++i) {
    before += rows[1](i, 1) > rows[1](i, 0);
    after += q.gradient(i, 1) < q.gradient(i, 0);
  }
  RecordProperty("invalid_preferred", std::to_string(before) + " -> " + std::to_string(after) + " of 200");
  EXPECT_GT(before, 20);
  EXPECT_LT(after, before);
}

}  // namespace
