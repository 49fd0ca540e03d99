// Divergences against their definitions, their laws and known faults of other libraries.
#include "distillation/fixture.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;
using reference::infinite;

constexpr double temperature = 1.5;
const loss_options sums{.temperature = temperature, .reduction = reduction::sum};

template <class F, class Reference>
void expect_as_defined(const F& functional, Reference of_row, std::int64_t rows, std::int64_t columns) {
  const auto z = noise(rows, columns, 1), y = noise(rows, columns, 2);
  const auto single = evaluate(functional, sums, z, y);
  const auto exact = evaluate(functional, sums, z.as<double>(), y.as<double>());
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const reference::row_loss expected = of_row(reference::softmax(z.row(r), temperature), reference::softmax(y.row(r), temperature));
    EXPECT_NEAR(exact.result.row_values[i], expected.value, 1e-12) << columns;
    EXPECT_NEAR(single.result.row_values[i], expected.value, 2e-6 * (1 + expected.value)) << columns;
    for (std::int64_t v = 0; v < columns; ++v) {
      const double g = expected.gradient[static_cast<std::size_t>(v)];
      ASSERT_NEAR(exact.gradient(r, v), g, 1e-12) << r << ' ' << v;
      ASSERT_NEAR(static_cast<double>(single.gradient(r, v)), g, 1e-6) << r << ' ' << v;
    }
    EXPECT_NEAR(row_sum(exact.gradient, r), 0, 1e-13);
    EXPECT_NEAR(row_sum(single.gradient, r), 0, 1e-6);
  }
  if (columns < 100) {
    EXPECT_LT(difference_to_finite_differences(functional, sums, z.as<double>(), y.as<double>()), 1e-8);
  }
}

TEST(Divergence, IsWhatItsDefinitionSays) {
  for (const std::int64_t columns : {1, 2, 15, 16, 17, 64, 1000, 1024, 1039, 2500}) {
    const std::int64_t rows = columns < 100 ? 3 : 2;
    expect_as_defined(forward_kl{}, [](const auto& s, const auto& t) { return reference::forward_kl(s, t, temperature); }, rows, columns);
    expect_as_defined(reverse_kl{}, [](const auto& s, const auto& t) { return reference::reverse_kl(s, t, temperature); }, rows, columns);
    expect_as_defined(total_variation{}, [](const auto& s, const auto& t) { return reference::total_variation(s, t, temperature); }, rows, columns);
    for (const double beta : {0., 0.1, 0.5, 1.}) expect_as_defined(generalized_jsd{.beta = beta}, [=](const auto& s, const auto& t) { return reference::generalized_jsd(s, t, beta, temperature); }, rows, columns);
  }
}

TEST(Divergence, FloorOfTheTeacherMixesInTheUniformLaw) {
  const double floor = 0.05;
  const auto mixed = [=](const auto& s, auto t) {
    for (double& x : t) x = (x + floor / static_cast<double>(t.size())) / (1 + floor);
    return reference::reverse_kl(s, t, temperature);
  };
  for (const std::int64_t columns : {1, 40, 1030}) expect_as_defined(reverse_kl{.teacher_floor = floor}, mixed, 2, columns);
  auto y = noise(1, 20, 2);
  y(0, 3) = -INFINITY;
  EXPECT_EQ(evaluate(reverse_kl{}, sums, noise(1, 20, 1), y).result.row_status[0], heddle::status::infinite_divergence);
  EXPECT_EQ(evaluate(reverse_kl{.teacher_floor = floor}, sums, noise(1, 20, 1), y).result.row_status[0], heddle::status::ok);
}

double value_of(const auto& functional, const reference::row& s, const reference::row& t) {
  logits<double> z(1, static_cast<std::int64_t>(s.size())), y = z;
  for (std::size_t v = 0; v < s.size(); ++v) z.data[v] = std::log(s[v]), y.data[v] = std::log(t[v]);
  return loss(z.view(), y.view(), functional, no_gradient).value;
}

TEST(Divergence, KeepsItsBounds) {
  std::mt19937 random(5);
  std::gamma_distribution<double> peaked(0.3);
  const auto law = [&] {
    reference::row p(12);
    double sum = 0;
    for (double& x : p) sum += x = peaked(random) + 1e-12;
    for (double& x : p) x /= sum;
    return p;
  };
  for (int trial = 0; trial < 300; ++trial) {
    const auto s = law(), t = law();
    const double forward = value_of(forward_kl{}, s, t), reverse = value_of(reverse_kl{}, s, t), tv = value_of(total_variation{}, s, t);
    EXPECT_GT(forward, 0);
    EXPECT_NEAR(forward, value_of(reverse_kl{}, t, s), 1e-12);
    EXPECT_LE(tv * tv, std::min(forward, reverse) / 2 + 1e-15);
    EXPECT_LE(tv, 1);
    EXPECT_NEAR(value_of(generalized_jsd{}, s, t), value_of(generalized_jsd{}, t, s), 1e-14);
    for (const double b : {0.01, 0.5, 0.9}) EXPECT_LE(value_of(generalized_jsd{.beta = b}, s, t), -b * std::log(b) - (1 - b) * std::log(1 - b));
    // the ends of beta are KL by convention; the formula tends to their slopes
    auto wide_s = s, wide_t = t;   // with mass everywhere, or beta is not small beside s / t
    for (std::size_t v = 0; v < s.size(); ++v) wide_s[v] = 0.9 * s[v] + 0.1 / 12, wide_t[v] = 0.9 * t[v] + 0.1 / 12;
    EXPECT_NEAR(value_of(generalized_jsd{.beta = 1e-7}, wide_s, wide_t) / 1e-7, value_of(forward_kl{}, wide_s, wide_t), 1e-5);
    EXPECT_NEAR(value_of(generalized_jsd{.beta = 1 - 1e-7}, wide_s, wide_t) / 1e-7, value_of(reverse_kl{}, wide_s, wide_t), 1e-5);
    EXPECT_NEAR(value_of(generalized_jsd{.beta = 0}, s, t), forward, 1e-12);
    EXPECT_NEAR(value_of(generalized_jsd{.beta = 1}, s, t), reverse, 1e-12);
  }
  EXPECT_EQ(value_of(total_variation{}, {0.5, 0.5, 0, 0}, {0, 0, 0.25, 0.75}), 1);
}

TEST(Divergence, OfEqualRowsIsExactlyZero) {
  const auto z = noise(2, 1030, 3);
  const auto check = [&](const auto& functional) {
    const auto out = evaluate(functional, sums, z, z);
    EXPECT_EQ(out.result.value, 0);
    for (const float g : out.gradient.data) ASSERT_EQ(g, 0);
  };
  check(forward_kl{}), check(reverse_kl{}), check(total_variation{});
  const auto jsd = evaluate(generalized_jsd{.beta = 0.25}, sums, z, z);
  EXPECT_NEAR(jsd.result.value, 0, 1e-6);
}

TEST(Divergence, ZeroMassContributesNothing) {
  const float none = -INFINITY;
  const auto rows = [](std::vector<float> values) {
    logits<float> out(1, static_cast<std::int64_t>(values.size()));
    out.data = values;
    return out;
  };
  const auto both = rows({0, none, 1, none}), other = rows({1, none, 0, none});
  const auto check = [&](const auto& functional, const logits<float>& z, const logits<float>& y, bool infinite_value) {
    for (const bool wide : {false, true}) {
      const auto single = evaluate(functional, sums, z, y);
      const auto exact = evaluate(functional, sums, z.as<double>(), y.as<double>());
      const auto& result = wide ? exact.result : single.result;
      EXPECT_EQ(result.row_status[0], infinite_value ? heddle::status::infinite_divergence : heddle::status::ok);
      EXPECT_EQ(result.row_values[0] == infinite, infinite_value);
      EXPECT_EQ(result.rows_kept, infinite_value ? 0 : 1);
      for (std::size_t v = 0; v < z.data.size(); ++v) {
        const double g = wide ? exact.gradient.data[v] : static_cast<double>(single.gradient.data[v]);
        EXPECT_TRUE(std::isfinite(g));
        EXPECT_TRUE(g == 0 || !(infinite_value || z.data[v] == none));
      }
    }
  };
  check(forward_kl{}, both, other, false), check(reverse_kl{}, both, other, false), check(total_variation{}, both, other, false), check(generalized_jsd{.beta = 0.3}, both, other, false);
  const auto narrow = rows({0, none, 1, none}), wide = rows({0, 0, 1, none});
  check(forward_kl{}, narrow, wide, true), check(forward_kl{}, wide, narrow, false);
  check(reverse_kl{}, wide, narrow, true), check(reverse_kl{}, narrow, wide, false);
  check(generalized_jsd{.beta = 0.3}, narrow, wide, false), check(generalized_jsd{.beta = 0.3}, wide, narrow, false), check(total_variation{}, narrow, wide, false);
  check(forward_kl{}, rows({0, none}), rows({0, -200}), true);   // mass that a float rounds to 0 is mass
  check(reverse_kl{}, rows({0, -200}), rows({0, none}), true);
}

TEST(Divergence, KnownFaults) {
  const auto value = [](const auto& functional, std::vector<float> s, std::vector<float> t, double temperature_of_both = 1, bool squared = false) {
    logits<float> z(1, 2), y(1, 2);
    z.data = s, y.data = t;
    return loss(z.view(), y.view(), functional, no_gradient, {.temperature = temperature_of_both, .temperature_squared = squared}).value;
  };
  const float none = -INFINITY;
  EXPECT_EQ(value(generalized_jsd{}, {0, -200}, {0, -200}), 0);
  EXPECT_EQ(value(generalized_jsd{}, {0, none}, {0, none}), 0);
  const std::vector<float> student{std::log(0.25f), std::log(0.75f)}, teacher{std::log(0.5f), std::log(0.5f)};
  EXPECT_NEAR(value(generalized_jsd{.beta = 0.5}, student, teacher), 0.033822, 1e-6);
  EXPECT_NEAR(value(generalized_jsd{.beta = 0.25}, student, teacher), 0.026048, 1e-6);
  EXPECT_NEAR(value(generalized_jsd{.beta = 0}, student, teacher), 0.143841, 1e-6);
  EXPECT_NEAR(value(generalized_jsd{.beta = 1}, student, teacher), 0.130812, 1e-6);
  EXPECT_NEAR(value(generalized_jsd{.beta = 0.25}, teacher, teacher), 0, 1e-7);
  EXPECT_NEAR(value(forward_kl{}, {0, 0}, {2, 0}, 2), 0.110944, 1e-6);
  EXPECT_NEAR(value(forward_kl{}, {0, 0}, {2, 0}, 2, true), 0.443776, 1e-6);
}

TEST(Divergence, IsBlindToConstantsAndCommonScales) {
  const auto z = noise(2, 1100, 6), y = noise(2, 1100, 7);
  const auto shifted = [](logits<float> m, float by) {
    for (float& x : m.data) x += by;
    return m;
  };
  const auto coarse = [](logits<float> m) {   // so that adding 1024 is exact
    for (float& x : m.data) x = std::round(x * 64) / 64;
    return m;
  };
  const auto a = coarse(z), b = coarse(y);
  const auto check = [&](const auto& functional) {
    const loss_options options{.temperature = 1.7};
    const auto plain = evaluate(functional, options, a, b);
    for (const float by : {1024.f, -1024.f}) {
      const auto moved = evaluate(functional, options, shifted(a, by), shifted(b, -by));
      EXPECT_EQ(moved.result.value, plain.result.value);
      EXPECT_EQ(moved.gradient.data, plain.gradient.data);
    }
    auto twice_a = a, twice_b = b;
    for (float& x : twice_a.data) x *= 2;
    for (float& x : twice_b.data) x *= 2;
    EXPECT_NEAR(evaluate(functional, {.temperature = 2}, twice_a, twice_b).result.value, evaluate(functional, {}, a, b).result.value, 1e-7);
  };
  check(forward_kl{}), check(reverse_kl{}), check(generalized_jsd{.beta = 0.3}), check(total_variation{});
}

TEST(Divergence, RefusesParametersOutOfRange) {
  const auto z = noise(1, 4, 1);
  EXPECT_THROW(evaluate(generalized_jsd{.beta = 1.1}, {}, z, z), heddle::error);
  EXPECT_THROW(evaluate(generalized_jsd{.beta = NAN}, {}, z, z), heddle::error);
  EXPECT_THROW(evaluate(reverse_kl{.teacher_floor = -1}, {}, z, z), heddle::error);
}

TEST(Divergence, MassThatRoundsToZeroBesideImpossibleTokensIsNothing) {
  logits<float> z(1, 3);
  z.data = {0, -200, -INFINITY};
  logits<double> deep(1, 2);
  deep.data = {0, -800};
  for (const double beta : {0.1, 0.5, 0.9}) {
    const auto single = evaluate(generalized_jsd{.beta = beta}, {}, z, z);
    const auto exact = evaluate(generalized_jsd{.beta = beta}, {}, deep, deep);
    EXPECT_EQ(single.result.row_status[0], heddle::status::ok);
    EXPECT_EQ(exact.result.row_status[0], heddle::status::ok);
    EXPECT_NEAR(single.result.value, 0, 1e-7);
    EXPECT_NEAR(exact.result.value, 0, 1e-15);
    EXPECT_GE(single.result.value, 0);
    for (const float g : single.gradient.data) EXPECT_NEAR(g, 0, 1e-7);
    for (const double g : exact.gradient.data) EXPECT_NEAR(g, 0, 1e-15);
  }
}

TEST(Divergence, AMaximumThatRisesLateIsTheMaximum) {
  for (const bool masked : {false, true})
    for (const float rise : {5.f, 7.9f, 8.1f, 20.f, 90.f, 130.f, 200.f, 1e4f})
      for (const std::int64_t where : {std::int64_t{1024}, std::int64_t{1700}, std::int64_t{2502}}) {
        auto z = noise(2, 2503, 1), y = noise(2, 2503, 2);
        z(0, where) += rise, y(1, where) += rise, z(0, 2502) += 2 * rise, y(1, 1100) += rise / 2;
        if (masked)   // no mass where neither has any, in whole chunks too
          for (std::int64_t v = 3; v < 1090; ++v) z(0, v) = y(0, v) = z(1, v) = y(1, v) = -INFINITY;
        const auto expect = [&](const auto& functional, auto of_row) {
          const auto got = evaluate(functional, sums, z, y);
          for (std::int64_t r = 0; r < 2; ++r) {
            const reference::row_loss expected = of_row(reference::softmax(z.row(r), temperature), reference::softmax(y.row(r), temperature));
            const auto i = static_cast<std::size_t>(r);
            if (expected.value == infinite) {   // the reference's masses underflow where logarithms do not
              EXPECT_TRUE(got.result.row_status[i] == heddle::status::ok && got.result.row_values[i] > 300) << rise << ' ' << where;
              continue;
            }
            ASSERT_EQ(got.result.row_status[i], heddle::status::ok) << masked << ' ' << rise << ' ' << where;
            EXPECT_NEAR(got.result.row_values[i], expected.value, 2e-6 * (1 + expected.value)) << masked << ' ' << rise << ' ' << where;
            for (std::int64_t v = 0; v < 2503; ++v) ASSERT_NEAR(static_cast<double>(got.gradient(r, v)), expected.gradient[static_cast<std::size_t>(v)], 1e-6 * (1 + expected.value)) << masked << ' ' << rise << ' ' << where << ' ' << v;
          }
        };
        expect(forward_kl{}, [](const auto& s, const auto& t) { return reference::forward_kl(s, t, temperature); });
        expect(reverse_kl{}, [](const auto& s, const auto& t) { return reference::reverse_kl(s, t, temperature); });
        expect(generalized_jsd{}, [](const auto& s, const auto& t) { return reference::generalized_jsd(s, t, 0.5, temperature); });
      }
}

TEST(Divergence, LogitsAFloatsRangeApartLeaveNumbers) {
  logits<float> z(1, 1056), y(1, 1056);
  for (std::int64_t v = 0; v < 1056; ++v) z(0, v) = v < 1024 ? -3e38f : v < 1040 ? 0.f : 3e38f, y(0, v) = 0;
  const auto got = evaluate(reverse_kl{}, {.chunk = 16}, z, y);
  EXPECT_NEAR(got.result.value, std::log(1056. / 16), 1e-5);
  for (const float g : got.gradient.data) EXPECT_NEAR(g, 0, 1e-6);
}

// A functional that uses JSD without memory for its term computes the term again.
struct jsd_of_somebody {
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    return generalized_jsd{.beta = 0.3}(row, s, t);
  }
};

TEST(Divergence, ATermThatIsNotKeptIsComputedAgain) {
  const auto z = noise(4, 2500, 1), y = noise(4, 2500, 2);
  const auto kept = evaluate(generalized_jsd{.beta = 0.3}, {}, z, y), again = evaluate(jsd_of_somebody{}, {}, z, y);
  EXPECT_EQ(kept.result.row_values, again.result.row_values);
  for (std::size_t i = 0; i < kept.gradient.data.size(); ++i) ASSERT_NEAR(kept.gradient.data[i], again.gradient.data[i], 1e-8);
}

}  // namespace
