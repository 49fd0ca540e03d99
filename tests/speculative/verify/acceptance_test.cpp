#include <heddle/speculative/verify/acceptance.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using law = std::vector<double>;

const law p = {.6, .3, .1}, q = {.2, .3, .5};

law random_law(std::mt19937& random, std::size_t n) {
  law x(n);
  double sum = 0;
  for (double& v : x) sum += v = random() % 4 ? std::uniform_real_distribution<double>(0, 1)(random) : 0;
  x[0] += sum <= 0, sum += sum <= 0;
  for (double& v : x) v /= sum;
  return x;
}

TEST(Acceptance, OfOneSlot) {
  EXPECT_NEAR(verify::match_acceptance(p, q), .26, 1e-15);
  EXPECT_NEAR(verify::gumbel_acceptance(p, q), .514286, 5e-7);
  EXPECT_NEAR(verify::maximal_acceptance(p, q), .6, 1e-15);
  EXPECT_EQ(verify::accept_probability(0, .5), 0);
  EXPECT_EQ(verify::accept_probability(.5, 0), 0);
  EXPECT_EQ(verify::accept_probability(.5, .5), 1);
  EXPECT_EQ(verify::accept_probability(.3, .6), .5);
  law rest = p;
  EXPECT_NEAR(verify::subtract_proposal(rest, q), .4, 1e-15);
  EXPECT_NEAR(rest[0], 1, 1e-15);
  law equal = p;
  EXPECT_EQ(verify::subtract_proposal(equal, p), 0);
  EXPECT_EQ(equal, p) << "nothing is left: p stays";
  EXPECT_THROW(verify::maximal_acceptance(p, law{1.}), error);
}

// match <= Gumbel <= maximal, Gumbel >= (1 - TV) / (1 + TV), and the double sum of its definition.
TEST(Acceptance, CouplingsAreOrdered) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t n = 1 + random() % 9;
    const law a = random_law(random, n), b = random() % 5 ? random_law(random, n) : a;
    const double match = verify::match_acceptance(a, b), gumbel = verify::gumbel_acceptance(a, b), maximal = verify::maximal_acceptance(a, b);
    double definition = 0;
    for (std::size_t v = 0; v < n; ++v) {
      if (a[v] <= 0 || b[v] <= 0) continue;
      double sum = 0;
      for (std::size_t u = 0; u < n; ++u) sum += std::max(a[u] / a[v], b[u] / b[v]);
      definition += 1 / sum;
    }
    ASSERT_NEAR(gumbel, definition, 1e-12);
    ASSERT_LE(match, gumbel + 1e-12);
    ASSERT_LE(gumbel, maximal + 1e-12);
    ASSERT_GE(gumbel, maximal / (2 - maximal) - 1e-12);
  }
}

TEST(Acceptance, OfSiblingsAndChains) {
  law rest(3);
  EXPECT_NEAR(verify::recursive_acceptance(p, q, 1, rest), .6, 1e-15);
  EXPECT_NEAR(verify::recursive_acceptance(p, q, 2, rest), 17. / 25, 1e-15);
  EXPECT_NEAR(verify::recursive_acceptance(p, q, 3, rest), 93. / 125, 1e-15);
  EXPECT_EQ(verify::recursive_acceptance(p, p, 2, rest), 1);
  EXPECT_EQ(verify::recursive_acceptance(p, q, 0, rest), 0);
  EXPECT_NEAR(verify::mean_accepted_tokens(.7, 4), 2.7731, 5e-5);
  EXPECT_NEAR(verify::mean_accepted_tokens(.7, 4), (1 - std::pow(.7, 5)) / .3, 1e-12);
  EXPECT_EQ(verify::mean_accepted_tokens(1, 4), 5);
  EXPECT_EQ(verify::mean_accepted_tokens(.7, 0), 1);
}

}  // namespace
