#include <heddle/core/softmax_state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using namespace heddle;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

template <class Real>
struct state {
  std::vector<Real> out;
  Real lse;
};
template <class Real>
state<Real> merged(const state<Real>& a, const state<Real>& b) {
  state<Real> r{std::vector<Real>(a.out.size()), 0};
  r.lse = merge_state(a.out.data(), a.lse, b.out.data(), b.lse, r.out.data(), static_cast<std::int64_t>(r.out.size()));
  return r;
}
template <class Real>
bool same_bits(const state<Real>& a, const state<Real>& b) {
  return std::memcmp(&a.lse, &b.lse, sizeof(Real)) == 0 && std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(Real)) == 0;
}
template <class Real>
state<Real> random_state(std::mt19937& engine, double range, std::size_t dim = 5) {
  std::uniform_real_distribution<double> value(-1, 1);
  state<Real> s{std::vector<Real>(dim), static_cast<Real>(range * value(engine))};
  for (Real& x : s.out) x = static_cast<Real>(value(engine));
  return s;
}

template <class Real>
class softmax_state : public testing::Test {};
using reals = testing::Types<float, double>;
TYPED_TEST_SUITE(softmax_state, reals);

}  // namespace

TYPED_TEST(softmax_state, two_empty_states_are_empty) {
  using Real = TypeParam;
  const Real nan = std::numeric_limits<Real>::quiet_NaN(), empty = static_cast<Real>(-inf);
  for (const Real garbage : {Real(0), nan, Real(inf)}) {   // the values of an empty state are never read
    const auto r = merged<Real>({{garbage}, empty}, {{garbage}, empty});
    EXPECT_EQ(r.out[0], 0);
    EXPECT_EQ(r.lse, empty);
    EXPECT_TRUE((same_bits(merged<Real>({{garbage}, empty}, {{3}, 2}), {{3}, 2})));
    EXPECT_TRUE((same_bits(merged<Real>({{3}, 2}, {{garbage}, empty}), {{3}, 2})));
  }
  const auto w = merge_weights(empty, empty);
  EXPECT_TRUE(w.first == 0 && w.second == 0);
}

TYPED_TEST(softmax_state, the_empty_state_is_an_identity_bit_for_bit) {
  std::mt19937 engine(1);
  const state<TypeParam> empty{std::vector<TypeParam>(5), static_cast<TypeParam>(-inf)};
  for (int i = 0; i < 200; ++i) {
    auto s = random_state<TypeParam>(engine, 1e4);
    if (i == 0) s.out[0] = TypeParam(-0.);
    EXPECT_TRUE(same_bits(merged(s, empty), s));
    EXPECT_TRUE(same_bits(merged(empty, s), s));
  }
}

TYPED_TEST(softmax_state, merge_equals_the_definition) {
  std::mt19937 engine(2);
  const double tolerance = sizeof(TypeParam) == 4 ? 1e-6 : 1e-14;
  for (int i = 0; i < 2000; ++i) {
    const auto a = random_state<TypeParam>(engine, 80), b = random_state<TypeParam>(engine, 80), r = merged(a, b);
    const long double ea = std::exp(static_cast<long double>(a.lse)), eb = std::exp(static_cast<long double>(b.lse)), sum = ea + eb;
    EXPECT_NEAR(r.lse, static_cast<double>(std::log(sum)), tolerance * (1 + std::fabs(r.lse)));
    for (std::size_t k = 0; k < r.out.size(); ++k) EXPECT_NEAR(r.out[k], static_cast<double>((ea * a.out[k] + eb * b.out[k]) / sum), tolerance);
  }
}

TYPED_TEST(softmax_state, merge_is_commutative_and_associative) {
  std::mt19937 engine(3);
  for (int i = 0; i < 2000; ++i) {
    const auto a = random_state<TypeParam>(engine, 80), b = random_state<TypeParam>(engine, 80), c = random_state<TypeParam>(engine, 80);
    const auto ab = merged(a, b), ba = merged(b, a), left = merged(ab, c), right = merged(a, merged(b, c));
    EXPECT_EQ(ab.lse, ba.lse);
    EXPECT_NEAR(left.lse, right.lse, 1e-6 * (1 + std::fabs(left.lse)));
    for (std::size_t k = 0; k < a.out.size(); ++k) {
      EXPECT_NEAR(ab.out[k], ba.out[k], 1e-6);
      EXPECT_NEAR(left.out[k], right.out[k], 1e-6);
    }
  }
}

TYPED_TEST(softmax_state, far_apart_states) {
  const auto r = merged<TypeParam>({{1}, TypeParam(1e30)}, {{2}, TypeParam(-1e30)});
  EXPECT_EQ(r.out[0], 1);
  EXPECT_EQ(r.lse, TypeParam(1e30));
}

TYPED_TEST(softmax_state, nan_and_infinity_are_not_hidden) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN(), infinite = static_cast<TypeParam>(inf);
  EXPECT_TRUE(std::isnan(merged<TypeParam>({{1}, nan}, {{2}, 0}).lse));
  EXPECT_TRUE(std::isnan(merged<TypeParam>({{1}, 0}, {{2}, nan}).out[0]));
  EXPECT_TRUE(std::isnan(merged<TypeParam>({{1}, nan}, {{2}, static_cast<TypeParam>(-inf)}).lse));
  EXPECT_TRUE(std::isnan(merged<TypeParam>({{1}, infinite}, {{2}, 0}).lse));
  EXPECT_TRUE(std::isnan(merged<TypeParam>({{1}, infinite}, {{2}, infinite}).out[0]));
}

TYPED_TEST(softmax_state, may_write_over_either_argument) {
  std::mt19937 engine(4);
  const auto a = random_state<TypeParam>(engine, 3), b = random_state<TypeParam>(engine, 3), expected = merged(a, b);
  auto over_a = a, over_b = b;
  over_a.lse = merge_state(over_a.out.data(), a.lse, b.out.data(), b.lse, over_a.out.data(), 5);
  over_b.lse = merge_state(a.out.data(), a.lse, over_b.out.data(), b.lse, over_b.out.data(), 5);
  EXPECT_TRUE(same_bits(over_a, expected));
  EXPECT_TRUE(same_bits(over_b, expected));
}

TEST(softmax_state_backward, equals_finite_differences) {
  std::mt19937 engine(5);
  for (int round = 0; round < 100; ++round) {
    const auto a = random_state<double>(engine, 3), b = random_state<double>(engine, 3), weights = random_state<double>(engine, 2);
    const auto loss = [&](const state<double>& x, const state<double>& y) {
      const auto r = merged(x, y);
      double sum = weights.lse * r.lse;
      for (std::size_t k = 0; k < r.out.size(); ++k) sum += weights.out[k] * r.out[k];
      return sum;
    };
    const auto r = merged(a, b);
    state<double> da = a, db = b;
    merge_state_backward(a.out.data(), a.lse, b.out.data(), b.lse, r.out.data(), r.lse, weights.out.data(), weights.lse, da.out.data(), &da.lse, db.out.data(), &db.lse, 5);
    const auto difference = [&](auto&& nudge) {
      constexpr double h = 1e-5;
      auto ap = a, am = a, bp = b, bm = b;
      nudge(ap, bp) += h, nudge(am, bm) -= h;
      return (loss(ap, bp) - loss(am, bm)) / (2 * h);
    };
    for (std::size_t k = 0; k < 5; ++k) {
      EXPECT_NEAR(da.out[k], difference([&](auto& x, auto&) -> double& { return x.out[k]; }), 1e-9);
      EXPECT_NEAR(db.out[k], difference([&](auto&, auto& y) -> double& { return y.out[k]; }), 1e-9);
    }
    EXPECT_NEAR(da.lse, difference([](auto& x, auto&) -> double& { return x.lse; }), 1e-9);
    EXPECT_NEAR(db.lse, difference([](auto&, auto& y) -> double& { return y.lse; }), 1e-9);
  }
}

TEST(softmax_state_backward, empty_states_get_zeros_and_the_other_everything) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), empty = static_cast<float>(-inf);
  const float garbage[] = {nan, nan}, b[] = {1, 2}, d_out[] = {3, 4};
  float d_a[] = {nan, nan}, d_b[] = {nan, nan}, d_a_lse = nan, d_b_lse = nan;
  merge_state_backward(garbage, empty, b, 0.5f, b, 0.5f, d_out, 7.f, d_a, &d_a_lse, d_b, &d_b_lse, 2);
  EXPECT_TRUE(d_a[0] == 0 && d_a[1] == 0 && d_a_lse == 0);
  EXPECT_TRUE(d_b[0] == 3 && d_b[1] == 4 && d_b_lse == 7);
  merge_state_backward(garbage, empty, garbage, empty, garbage, empty, d_out, 7.f, d_a, &d_a_lse, d_b, &d_b_lse, 2);
  EXPECT_TRUE(d_a[0] == 0 && d_b[1] == 0 && d_a_lse == 0 && d_b_lse == 0);
}
