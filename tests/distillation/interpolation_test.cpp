// The interpolated law against bisection on its definition, and the coupling against the law it promises.
#include "support/errors.hpp"

#include <heddle/core/random.hpp>
#include <heddle/distillation/interpolation.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using distillation::interpolated_law;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<double> softmax(const std::vector<double>& z, double temperature = 1) {
  double max = -infinity, sum = 0;
  for (double x : z) max = std::max(max, x);
  std::vector<double> p;
  for (double x : z) p.push_back(std::exp((x - max) / temperature)), sum += p.back();
  for (double& x : p) x /= sum;
  return p;
}
// s^(1-l) t^l, normalised, as written
std::vector<double> geometric(const std::vector<double>& s, const std::vector<double>& t, double l) {
  if (l == 0) return s;
  std::vector<double> q;
  double sum = 0;
  for (std::size_t v = 0; v < s.size(); ++v) q.push_back(s[v] > 0 && t[v] > 0 ? std::pow(s[v], 1 - l) * std::pow(t[v], l) : 0.), sum += q.back();
  for (double& x : q) x /= sum;
  return q;
}
double divergence(const std::vector<double>& q, const std::vector<double>& s) {
  double sum = 0;
  for (std::size_t v = 0; v < q.size(); ++v)
    if (q[v] > 0) sum += q[v] * std::log(q[v] / s[v]);
  return sum;
}
double total_variation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v) sum += std::abs(a[v] - b[v]) / 2;
  return sum;
}
double bisect(const std::vector<double>& s, const std::vector<double>& t, double epsilon) {
  if (divergence(geometric(s, t, 1), s) <= epsilon) return 1;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (divergence(geometric(s, t, middle), s) <= epsilon ? low : high) = middle;
  }
  return low;
}
template <class T>
tensor_view<const T, 1> row(const std::vector<T>& z) { return {z.data(), extents{static_cast<std::int64_t>(z.size())}}; }
std::vector<double> gaussian(std::size_t n, double deviation, std::mt19937& random) {
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> z(n);
  for (double& x : z) x = normal(random);
  return z;
}

template <class T>
class Interpolation : public testing::Test {};
using elements = testing::Types<float, double>;
TYPED_TEST_SUITE(Interpolation, elements);

TYPED_TEST(Interpolation, IsTheFurthestPointOfTheBall) {
  std::mt19937 random(1);
  for (const std::size_t n : {2u, 7u, 501u})
    for (const double spread : {0.3, 2., 6.})
      for (const double epsilon : {1e-6, 1e-3, 0.05, 0.7}) {
        std::vector<TypeParam> z, y;
        for (double x : gaussian(n, 2, random)) z.push_back(static_cast<TypeParam>(x + 300));
        for (double x : gaussian(n, spread, random)) y.push_back(static_cast<TypeParam>(x - 100));
        const auto s = softmax({z.begin(), z.end()}, 1.5), t = softmax({y.begin(), y.end()}, 0.7);
        const interpolated_law law{row(z), row(y), epsilon, {.temperature = 1.5, .teacher_temperature = 0.7}};
        ASSERT_EQ(law.status(), status::ok);
        const auto q = geometric(s, t, law.lambda());
        EXPECT_NEAR(law.lambda(), bisect(s, t, epsilon), 1e-7 + 1e-9 / std::sqrt(epsilon));
        if (law.lambda() < 1) {
          EXPECT_NEAR(divergence(q, s), epsilon, 1e-9);
          EXPECT_NEAR(law.divergence(), epsilon, 1e-9);
        } else {
          EXPECT_LE(divergence(t, s), epsilon + 1e-9);
        }
        double sum = 0;
        for (std::size_t v = 0; v < n; ++v) {
          EXPECT_NEAR(law.prob(static_cast<std::int64_t>(v)), q[v], 1e-9);
          sum += law.prob(static_cast<std::int64_t>(v));
        }
        EXPECT_NEAR(sum, 1, 1e-12);
        EXPECT_NEAR(law.total_variation(), total_variation(s, q), 1e-9);
        EXPECT_LE(law.total_variation(), std::sqrt(epsilon / 2) + 1e-9);
      }
}

TEST(Interpolation, CorrectionsBecomeRarerWithTheBall) {
  std::mt19937 random(2);
  const auto z = gaussian(300, 2, random), y = gaussian(300, 2, random);
  double before = 0;
  for (const double epsilon : {0., 1e-8, 1e-5, 1e-3, 0.01, 0.1, 0.5, 1., 3.}) {
    const double share = interpolated_law{row(z), row(y), epsilon}.total_variation();
    if (epsilon == 0) EXPECT_EQ(share, 0);
    else EXPECT_GT(share, before);
    before = share;
  }
}

TEST(Interpolation, Ends) {
  const std::vector<double> z{1, 2, -infinity, 0.5}, y{2, -1, 3, 0}, far{-infinity, -infinity, 3, -infinity}, part{0, -infinity, 1, 0.3};
  const interpolated_law nothing{row(z), row(y), 0.};   // epsilon = 0: the student
  EXPECT_EQ(nothing.lambda(), 0);
  EXPECT_EQ(nothing.total_variation(), 0);
  EXPECT_FALSE(nothing.couple(1, 0.999999, 0.5).corrected);
  const interpolated_law same{row(z), row(z), 0.1};
  EXPECT_EQ(same.lambda(), 1);
  EXPECT_EQ(same.total_variation(), 0);
  for (const double u : {1e-12, 0.5, 1 - 1e-12}) EXPECT_FALSE(same.couple(0, u, 0.5).corrected);
  const interpolated_law disjoint{row(z), row(far), 100.};
  EXPECT_EQ(disjoint.lambda(), 0);
  EXPECT_EQ(disjoint.prob(1), disjoint.student_prob(1));
  // the common support is {0, 3}: the limit lambda -> 0 costs -ln s({0, 3}) and is taken or not as the ball allows
  const auto s = softmax(z);
  const double limit = -std::log(s[0] + s[3]);
  EXPECT_EQ((interpolated_law{row(z), row(part), limit - 1e-6}.lambda()), 0);
  const interpolated_law jumped{row(z), row(part), limit + 1e-4};
  EXPECT_GT(jumped.lambda(), 0);
  EXPECT_LT(jumped.lambda(), 1);
  EXPECT_NEAR(jumped.divergence(), limit + 1e-4, 1e-9);
  EXPECT_EQ(jumped.prob(1), 0);
  EXPECT_EQ(jumped.prob(2), 0);
  const interpolated_law whole{row(z), row(y), 50.};   // the teacher on the student's support
  EXPECT_EQ(whole.lambda(), 1);
  EXPECT_NEAR(whole.prob(0), std::exp(2.) / (std::exp(2.) + std::exp(-1.) + 1), 1e-12);
}

// Logits in thousands: the law survives although every weight s^(1-l) t^l underflows.
TEST(Interpolation, NearlyDisjointRows) {
  const std::vector<double> z{0, -3000, -1500}, y{-3000, 0, -1500};
  const interpolated_law law{row(z), row(y), 1000.};
  EXPECT_GT(law.lambda(), 0);
  EXPECT_LT(law.lambda(), 1);
  EXPECT_NEAR(law.divergence(), 1000, 1e-6);
  EXPECT_NEAR(law.prob(0) + law.prob(1) + law.prob(2), 1, 1e-9);
}

TEST(Interpolation, ValuesAndErrors) {
  const std::vector<float> z{1, 2, 3};
  std::vector<float> bad = z;
  bad[1] = std::numeric_limits<float>::quiet_NaN();
  const interpolated_law nan{row(z), row(bad), 0.1};
  EXPECT_EQ(nan.status(), status::nan_logit);
  EXPECT_EQ(nan.lambda(), 0);
  EXPECT_EQ(nan.couple(0, 0.5, 0.5).token, -1);
  bad[1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ((interpolated_law{row(bad), row(z), 0.1}.status()), status::inf_logit);
  EXPECT_EQ((interpolated_law{row(std::vector<float>(3, -std::numeric_limits<float>::infinity())), row(z), 0.1}.status()), status::empty_support);
  EXPECT_NE(message_of([&] { interpolated_law{row(z), row(z), -1.}; }).find("'epsilon' is -1"), std::string::npos);
  EXPECT_NE(message_of([&] { interpolated_law{row(z), row(z), std::nan("")}; }).find("'epsilon' is NaN"), std::string::npos);
  EXPECT_NE(message_of([&] { interpolated_law{row(z), row(z), 1., {.temperature = 0}}; }).find("'temperature' is 0"), std::string::npos);
  EXPECT_NE(message_of([&] { interpolated_law{row(z), row(std::vector<float>(2)), 1.}; }).find("'teacher'"), std::string::npos);
  const interpolated_law law{row(z), row(z), 1.};
  EXPECT_NE(message_of([&] { law.couple(3, 0.5, 0.5); }).find("'proposed' is 3"), std::string::npos);
}

// Proposals from the student, coupled: chi-squared test of the output, and the share of corrections.
TEST(Interpolation, CoupledTokensHaveTheLaw) {
  std::mt19937 random(3);
  const std::size_t n = 12;
  auto z = gaussian(n, 1.5, random), y = gaussian(n, 1.5, random);
  z[4] = -infinity, y[7] = -infinity;
  const auto s = softmax(z);
  const interpolated_law law{row(z), row(y), 0.25};
  ASSERT_GT(law.lambda(), 0);
  ASSERT_LT(law.lambda(), 1);
  constexpr int draws = 400000;
  std::vector<int> counts(n);
  int corrections = 0;
  for (std::uint32_t i = 0; i < draws; ++i) {
    std::int32_t proposed = 0;
    for (double u = uniform({.seed = 5, .position = i}); (u -= s[static_cast<std::size_t>(proposed)]) > 0;) ++proposed;
    const auto next = law.couple(proposed, uniform({.seed = 5, .position = i, .purpose = purpose::accept}), uniform({.seed = 5, .position = i, .purpose = purpose::residual}));
    EXPECT_EQ(next.corrected, next.token != proposed);   // the residual gives the proposal no mass when it was refused
    ++counts[static_cast<std::size_t>(next.token)], corrections += next.corrected;
  }
  double chi_squared = 0;
  for (std::size_t v = 0; v < n; ++v) {
    const double expected = draws * law.prob(static_cast<std::int64_t>(v));
    if (expected == 0) EXPECT_EQ(counts[v], 0);
    else chi_squared += (counts[v] - expected) * (counts[v] - expected) / expected;
  }
  EXPECT_LT(chi_squared, 29.6);   // 9 degrees of freedom, one in 2,000
  const double tv = law.total_variation();
  EXPECT_NEAR(corrections / double{draws}, tv, 4 * std::sqrt(tv * (1 - tv) / draws));
  EXPECT_LE(tv, std::sqrt(0.125));
}

}  // namespace
