// Columns masked by the most negative finite number, as attention masks and vocabulary masks do: no mass, no gradient, and no nonsense from a rounded
// mass times an enormous logarithm.
#include <heddle/distillation/loss.hpp>
#include <heddle/distillation/support.hpp>

#include "distillation/arrays.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace heddle;
using namespace heddle::distillation;

struct entropy_of_student {
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    return outcome{row.entropy(s)};
  }
};

// Two live columns of 64 on both sides; the others hold `masked`.
template <class T>
void fill(test::array<T>& z, float masked, float a, float b) {
  for (T& x : z.values) x = static_cast<T>(masked);
  z(0, 3) = static_cast<T>(a), z(0, 40) = static_cast<T>(b);
}

template <class Divergence>
void expect_finite_arithmetic(const Divergence& divergence) {
  for (const float masked : {-std::numeric_limits<float>::max(), -1e30f, -1e19f, -1e4f})
    for (const double teacher_temperature : {1., 2.}) {
      test::array<float> z(1, 64), y(1, 64), gradient(1, 64);
      test::array<double> zd(1, 64), yd(1, 64);
      fill(z, masked, .5f, -.25f), fill(y, masked, -.5f, 1.f), fill(zd, masked, .5f, -.25f), fill(yd, masked, -.5f, 1.f);
      const loss_options options{.temperature = 1, .teacher_temperature = teacher_temperature};
      const auto narrow = loss(z.view(), y.view(), divergence, gradient.view(), options);
      const auto wide = loss(zd.view(), yd.view(), divergence, no_gradient, options);
      EXPECT_EQ(narrow.row_status[0], status::ok);
      EXPECT_NEAR(narrow.value, wide.value, 1e-5) << masked << " " << teacher_temperature;
      EXPECT_GT(narrow.value, 1e-3);
      EXPECT_LT(narrow.value, 2);
      for (std::int64_t c = 0; c < 64; ++c)
        if (c != 3 && c != 40) { EXPECT_NEAR(gradient(0, c), 0, 1e-12) << c; }
    }
}

TEST(MaskedColumns, ForwardKl) { expect_finite_arithmetic(forward_kl{}); }
TEST(MaskedColumns, ReverseKl) { expect_finite_arithmetic(reverse_kl{}); }
TEST(MaskedColumns, Jsd) { expect_finite_arithmetic(generalized_jsd{.beta = 0.3}); }
TEST(MaskedColumns, TotalVariation) { expect_finite_arithmetic(total_variation{}); }

TEST(MaskedColumns, Entropy) {
  for (const float masked : {-std::numeric_limits<float>::max(), -1e30f, -1e4f}) {
    test::array<float> z(1, 64);
    fill(z, masked, 0.f, 0.f);
    EXPECT_NEAR(per_row(entropy_of_student{}, z.view()).values()[0], std::log(2.), 1e-6);
  }
}

TEST(MaskedColumns, BucketsWhoseMassesUnderflow) {
  test::array<double> z(1, 3), gradient(1, 3);
  z(0, 1) = -800, z(0, 2) = -INFINITY;
  const auto same = loss(z.view(), z.view(), top_k_tail<generalized_jsd>{.k = 3}, gradient.view());
  EXPECT_EQ(same.row_status[0], status::ok);
  EXPECT_EQ(same.value, 0);
  for (const double g : gradient.values) EXPECT_EQ(g, 0);
  EXPECT_EQ(loss(z.view(), z.view(), top_k_tail<reverse_kl>{.k = std::numeric_limits<std::int64_t>::max()}, gradient.view()).value, 0);   // k > V is V
}

}  // namespace
