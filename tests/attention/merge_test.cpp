// merge() of ready states, on the host and (emulated) on a device: the laws of the monoid, and its gradient.
#define HEDDLE_SIMT
#include "../support/simt/simt.hpp"

#include <heddle/attention/merge.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace heddle;
constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

template <class Real, class Space>
struct state {
  std::int64_t rows, heads, dim;
  std::vector<Real> out, lse;
  state(std::int64_t r, std::int64_t h, std::int64_t d, unsigned seed, Real spread = 3) : rows(r), heads(h), dim(d), out(static_cast<std::size_t>(r * h * d)), lse(static_cast<std::size_t>(r * h)) {
    std::mt19937 random(seed);
    std::normal_distribution<Real> normal;
    for (Real& x : out) x = normal(random);
    for (Real& x : lse) x = spread * normal(random);
  }
  tensor_view<Real, 3, Space> o() { return {out.data(), extents<3>{rows, heads, dim}}; }
  tensor_view<Real, 2, Space> l() { return {lse.data(), extents<2>{rows, heads}}; }
};
template <class Real>
bool same(const std::vector<Real>& a, const std::vector<Real>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Real)) == 0;
}

template <class Space>
struct Merge : testing::Test {};
using spaces = testing::Types<host, device>;
TYPED_TEST_SUITE(Merge, spaces);

TYPED_TEST(Merge, EqualsTheFormulaInFloat64) {
  for (const std::int64_t dim : {1, 7, 64, 80, 129}) {
    state<float, TypeParam> a(3, 5, dim, 1, 80), b(3, 5, dim, 2, 80), out(3, 5, dim, 3);
    merge(a.o(), a.l(), b.o(), b.l(), out.o(), out.l());
    for (std::size_t i = 0; i < a.lse.size(); ++i) {
      const double top = std::max(a.lse[i], b.lse[i]), wa = std::exp(a.lse[i] - top), wb = std::exp(b.lse[i] - top);
      EXPECT_NEAR(out.lse[i], top + std::log(wa + wb), 1e-5);
      for (std::size_t c = 0; c < static_cast<std::size_t>(dim); ++c) {
        const std::size_t at = i * static_cast<std::size_t>(dim) + c;
        EXPECT_NEAR(out.out[at], (wa * a.out[at] + wb * b.out[at]) / (wa + wb), 1e-6);
      }
    }
  }
}

TYPED_TEST(Merge, EmptyStatesAreTheIdentityAndAreNeverRead) {
  state<float, TypeParam> a(2, 3, 64, 4), none(2, 3, 64, 5), out(2, 3, 64, 6);
  std::fill(none.out.begin(), none.out.end(), nan);
  std::fill(none.lse.begin(), none.lse.end(), -infinity);
  merge(a.o(), a.l(), none.o(), none.l(), out.o(), out.l());
  EXPECT_TRUE(same(out.out, a.out) && same(out.lse, a.lse));
  merge(none.o(), none.l(), a.o(), a.l(), out.o(), out.l());
  EXPECT_TRUE(same(out.out, a.out) && same(out.lse, a.lse));
  merge(none.o(), none.l(), none.o(), none.l(), out.o(), out.l());
  EXPECT_EQ(out.out, std::vector<float>(out.out.size(), 0.f));
  EXPECT_EQ(out.lse, std::vector<float>(out.lse.size(), -infinity));
}

TYPED_TEST(Merge, CommutesAndMayWriteOverItsInput) {
  state<float, TypeParam> a(4, 2, 48, 7), b(4, 2, 48, 8), one(4, 2, 48, 9), other(4, 2, 48, 10);
  merge(a.o(), a.l(), b.o(), b.l(), one.o(), one.l());
  merge(b.o(), b.l(), a.o(), a.l(), other.o(), other.l());
  EXPECT_EQ(one.lse, other.lse);
  for (std::size_t i = 0; i < one.out.size(); ++i) EXPECT_NEAR(one.out[i], other.out[i], 1e-6);
  merge(a.o(), a.l(), b.o(), b.l(), a.o(), a.l());
  EXPECT_TRUE(same(a.out, one.out) && same(a.lse, one.lse));
}

TYPED_TEST(Merge, NaNStaysInItsRow) {
  state<float, TypeParam> a(3, 1, 16, 11), b(3, 1, 16, 12), out(3, 1, 16, 13);
  a.lse[1] = nan, b.lse[2] = infinity;
  merge(a.o(), a.l(), b.o(), b.l(), out.o(), out.l());
  for (std::size_t i = 0; i < out.out.size(); ++i) EXPECT_EQ(std::isnan(out.out[i]), i >= 16) << i;
}

TEST(MergeSpaces, HostAndDeviceAgreeInEveryBit) {
  state<float, host> a(5, 3, 80, 14, 20), b(5, 3, 80, 15, 20), out(5, 3, 80, 16);
  state<float, device> da(5, 3, 80, 14, 20), db(5, 3, 80, 15, 20), dout(5, 3, 80, 16);
  merge(a.o(), a.l(), b.o(), b.l(), out.o(), out.l());
  merge(da.o(), da.l(), db.o(), db.l(), dout.o(), dout.l());
  EXPECT_TRUE(same(out.out, dout.out) && same(out.lse, dout.lse));
}

template <class A, class B>
concept merges = requires(A a, B b, state<float, host> s) { merge(a.o(), a.l(), b.o(), b.l(), a.o(), a.l()); };
static_assert(merges<state<float, host>, state<float, host>> && merges<state<float, device>, state<float, device>>);
static_assert(!merges<state<float, host>, state<float, device>>, "memory spaces do not mix");
static_assert(!merges<state<float, host>, state<double, host>> && !merges<state<double, device>, state<double, device>>);

TEST(MergeErrors, NameTheArgumentAndWriteNothing) {
  state<float, host> a(2, 3, 16, 1), b(2, 4, 16, 2), out(2, 3, 16, 3);
  const auto before = out.out;
  try {
    merge(a.o(), a.l(), b.o(), b.l(), out.o(), out.l());
    FAIL();
  } catch (const error& e) {
    EXPECT_STREQ(e.what(), "merge: argument 'b': extent 1 is 4; expected 3");
  }
  EXPECT_TRUE(same(before, out.out));
}

TEST(MergeBackward, EqualsFiniteDifferences) {
  using s = state<double, host>;
  s a(2, 2, 5, 21), b(2, 2, 5, 22), out(2, 2, 5, 23), d(2, 2, 5, 24), da(2, 2, 5, 25), db(2, 2, 5, 26);
  b.lse[3] = -std::numeric_limits<double>::infinity();
  const auto loss = [&] {
    merge(a.o(), a.l(), b.o(), b.l(), out.o(), out.l());
    double sum = 0;
    for (std::size_t i = 0; i < out.out.size(); ++i) sum += out.out[i] * d.out[i];
    for (std::size_t i = 0; i < out.lse.size(); ++i) sum += out.lse[i] * d.lse[i];
    return sum;
  };
  loss();
  merge_backward(a.o(), a.l(), b.o(), b.l(), out.o(), out.l(), d.o(), d.l(), da.o(), da.l(), db.o(), db.l());
  const auto check = [&](std::vector<double>& value, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (std::isinf(value[i])) {
        EXPECT_EQ(gradient[i], 0.);
        continue;
      }
      const double keep = value[i], step = 1e-6;
      value[i] = keep + step;
      const double up = loss();
      value[i] = keep - step;
      const double down = loss();
      value[i] = keep;
      EXPECT_NEAR(gradient[i], (up - down) / (2 * step), 1e-8);
    }
  };
  check(a.out, da.out), check(a.lse, da.lse), check(b.out, db.out), check(b.lse, db.lse);
}

}  // namespace
