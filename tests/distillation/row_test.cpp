// What formulas may ask of a row, and the general call: per_row, backward, measure, reduce, sums of outcomes.
#include "distillation/fixture.hpp"
#include "support/errors.hpp"

#include <heddle/core/thread_team.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;

TEST(Real, FunctionsAreAccurateAndTreatEdges) {
  const auto lanes = [](auto f, float x) {
    float out[16];
    heddle::simd::store(out, f(real<float>(heddle::simd::splat(x))).value);
    return static_cast<double>(out[7]);
  };
  const auto log_of = [](auto x) { return log(x); };
  const auto exp_of = [](auto x) { return exp(x); };
  const auto tanh_of = [](auto x) { return tanh(x); };
  for (double x = -87; x < 88; x += 0.0371) {
    const auto single = static_cast<float>(x);
    const double wide = static_cast<double>(single);
    ASSERT_NEAR(lanes(exp_of, single) / std::exp(wide), 1, 4e-7) << x;
    const auto positive = static_cast<float>(std::exp(x));
    ASSERT_NEAR(lanes(log_of, positive), std::log(static_cast<double>(positive)), 2e-7 * std::max(1e-2, std::abs(x))) << x;
    ASSERT_NEAR(lanes(tanh_of, 0.1f * single) / std::tanh(0.1 * wide + (wide == 0)), wide == 0 ? 0 : 1, 2e-6) << x;
    ASSERT_NEAR(static_cast<double>(tanh(real<double>(0.1 * x))), std::tanh(0.1 * x), 1e-14);
  }
  EXPECT_NEAR(lanes(log_of, 1e-42f), std::log(static_cast<double>(1e-42f)), 1e-4);
  EXPECT_EQ(lanes(log_of, 0), -INFINITY);
  EXPECT_TRUE(std::isnan(lanes(log_of, -1)));
  EXPECT_EQ(lanes(log_of, INFINITY), INFINITY);
  EXPECT_EQ(lanes(exp_of, -INFINITY), 0);
  EXPECT_EQ(lanes(exp_of, 100), INFINITY);
  EXPECT_TRUE(std::isnan(lanes(exp_of, NAN)) && std::isnan(lanes(log_of, NAN)));
  const auto pieces = [](auto x) { return select((x > 1) & !(x >= 3), 10, select((x < -1) | (x == 0), decltype(x)(20), clamp(x, -0.5, 0.25))) + sign(x); };
  for (const float x : {-2.f, -1.f, 0.f, 0.5f, 2.f, 3.f}) EXPECT_EQ(lanes(pieces, x), static_cast<double>(pieces(real<double>(static_cast<double>(x))))) << x;
}

/// One number of everything a row offers.
struct everything {
  static constexpr moments pair_moments = moments::both;
  std::int64_t selected_columns() const { return 12; }
  template <class Row, class S, class T, class U>
  auto operator()(Row& row, S s, T t, U u) const {
    const auto q = row.normalise([=](auto v) { return 0.5 * s(v).log + 0.5 * u(v).log; });
    const auto [mass, second] = row.sum([=](auto v) { return terms(q(v).p, u.logit(v) * u.logit(v)); });
    double united = 0;
    for (const std::int32_t c : row.unite(row.top_k(s, 3), row.top_k(u, 3))) united += static_cast<double>(c);
    return terms(row.kl(s, t), row.kl(t, s), row.kl(s, u), row.entropy(t), row.tv(s, u), mass, second, static_cast<double>(row.argmax(u)), united, row.log_sum_exp([=](auto v) { return 2 * t.logit(v); }),
                 row.maximum([=](auto v) { return t.logit(v); }), row.minimum([=](auto v) { return t.logit(v); }), s.log_prob(4), static_cast<double>(t(row.at(4)).log), u.lse());
  }
};
template <class T>
void check_everything(double tolerance) {
  for (const std::int64_t columns : {6, 40, 1033}) {
    const auto z = noise(2, columns, 1), y = noise(2, columns, 2), x = noise(2, columns, 3);
    const std::vector<std::int32_t> map{1, 0};
    logits<double> out(2, 15);
    measure(everything{}, {.temperature = 1.25}, out.view(), z.as<T>().view(), y.view(), with_temperature(select_rows(x.view(), map), 2));
    for (std::int64_t r = 0; r < 2; ++r) {
      const auto s = reference::softmax(z.row(r), 1.25), t = reference::softmax(y.row(r), 1.25), u = reference::softmax(x.row(1 - r), 2);
      double entropy = 0, squares = 0, doubled = 0, lse = 0;
      for (std::size_t v = 0; v < t.size(); ++v) entropy -= t[v] * std::log(t[v]), squares += x.row(1 - r)[v] * x.row(1 - r)[v], doubled += std::exp(2 * y.row(r)[v]), lse += std::exp(x.row(1 - r)[v] / 2);
      std::vector<std::size_t> both = reference::top_k(z.row(r), 3);
      for (const std::size_t c : reference::top_k(x.row(1 - r), 3)) both.push_back(c);
      std::sort(both.begin(), both.end()), both.erase(std::unique(both.begin(), both.end()), both.end());
      const double united = static_cast<double>(std::accumulate(both.begin(), both.end(), std::size_t{0}));
      const auto teacher = y.row(r);
      const double expected[] = {reference::reverse_kl(s, t, 1).value, reference::forward_kl(s, t, 1).value, reference::reverse_kl(s, u, 1).value, entropy, reference::total_variation(s, u, 1).value, 1, squares,
                                 static_cast<double>(reference::top_k(x.row(1 - r), 1)[0]), united, std::log(doubled), *std::max_element(teacher.begin(), teacher.end()), *std::min_element(teacher.begin(), teacher.end()),
                                 std::log(s[4]), std::log(t[4]), std::log(lse)};
      for (std::int64_t i = 0; i < 15; ++i) EXPECT_NEAR(out(r, i), expected[i], tolerance * (1 + std::abs(expected[i]))) << columns << ' ' << i;
    }
  }
}
TEST(Row, OffersSumsNormalisersAndColumns) {
  check_everything<float>(2e-6);
  check_everything<double>(1e-12);
}

/// A functional with two gradients: cross-entropy of mixed logits.
struct mixed_logits {
  double lambda;
  template <class Row, class S, class W>
  auto operator()(Row& row, S s, W w) const {
    const auto mixture = row.normalise([=, l = lambda](auto v) { return l * s.logit(v) + (1 - l) * w.logit(v); });
    const double log_prob = static_cast<double>(mixture(row.at(3)).log);
    const double l = lambda;
    return outcome{-log_prob, gradient{[=](auto v) { return l * mixture(v).p; }, at(3, -l)}, gradient{[=](auto v) { return (1 - l) * mixture(v).p; }, at(3, l - 1)}};
  }
};
TEST(PerRow, BackwardReachesEveryNamedRowEvenInPlace) {
  auto z = noise(3, 70, 1).as<double>(), w = noise(3, 70, 2).as<double>();
  const std::vector<double> upstream{1, 0, -2};
  logits<double> dz(3, 70), dw(3, 70);
  per_row(mixed_logits{0.3}, z.view(), w.view()).backward(upstream, dz.view(), dw.view());
  const auto total = [&] {
    const auto rows = per_row(mixed_logits{0.3}, z.view(), w.view());
    return rows.values()[0] - 2 * rows.values()[2];
  };
  for (const auto& [logit, slope] : {std::pair{&z, &dz}, std::pair{&w, &dw}})
    for (std::size_t i = 0; i < z.data.size(); ++i) {
      const double at = logit->data[i];
      logit->data[i] = at + 1e-5;
      const double above = total();
      logit->data[i] = at - 1e-5;
      EXPECT_NEAR((above - total()) / 2e-5, slope->data[i], 1e-8);
      logit->data[i] = at;
    }
  const auto rows = per_row(mixed_logits{0.3}, z.view(), w.view());
  rows.backward(upstream, z.view(), w.view());
  EXPECT_EQ(z.data, dz.data);
  EXPECT_EQ(w.data, dw.data);
}

TEST(PerRow, EqualsTheFusedCall) {
  auto z = noise(5, 1100, 1), y = noise(5, 1100, 2);
  z(0, 1099) = 40, y(1, 1050) = 60, z(2, 7) = -INFINITY, z(4, 3) = y(4, 3) = -INFINITY, z(4, 1080) = 150;   // maxima that rise late
  const std::vector<double> weights{1, 2, 0, 0.5, 1};
  const std::vector<std::uint8_t> mask{1, 1, 1, 0, 1};
  const auto check = [&](const auto& functional) {
    const auto fused = evaluate(functional, {.temperature = 1.5, .mask = mask, .weights = weights}, z, y);
    const auto rows = per_row(functional, {.temperature = 1.5, .mask = mask}, z.view(), y.view());
    logits<float> g(5, 1100);
    const auto later = reduce(rows, {.weights = weights}, g.view());
    EXPECT_EQ(later.value, fused.result.value);
    EXPECT_EQ(later.rows_kept, fused.result.rows_kept);
    EXPECT_EQ(g.data, fused.gradient.data);
  };
  check(reverse_kl{}), check(generalized_jsd{.beta = 0.2}), check(total_variation{});
  check(targeted{forward_kl{}, power_target{.lambda = 0.4}});
}

struct weighted_pair {
  double a, b;
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    return a * forward_kl{}(row, s, t) - b * (total_variation{}(row, s, t) + outcome{0., gradient{zero{}, at(2, 1.)}});
  }
};
TEST(Outcome, SumsAndMultiplesAreThoseOfValuesAndGradients) {
  const auto z = noise(2, 50, 1).as<double>(), y = noise(2, 50, 2).as<double>();
  const loss_options options{.reduction = reduction::sum};
  const auto sum = evaluate(weighted_pair{2, 0.5}, options, z, y), kl = evaluate(forward_kl{}, options, z, y), tv = evaluate(total_variation{}, options, z, y);
  EXPECT_NEAR(sum.result.value, 2 * kl.result.value - 0.5 * tv.result.value, 1e-13);
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t v = 0; v < 50; ++v) EXPECT_NEAR(sum.gradient(r, v), 2 * kl.gradient(r, v) - 0.5 * (tv.gradient(r, v) + (v == 2)), 1e-14);
}

TEST(PerRow, PowerTargetLiesBetweenStudentAndTeacher) {
  const auto z = noise(2, 50, 1).as<double>(), y = noise(2, 50, 2).as<double>();
  const auto value = [&](double lambda) { return loss(z.view(), y.view(), forward_kl{}, power_target{.lambda = lambda}, no_gradient).value; };
  EXPECT_NEAR(value(0), 0, 1e-14);
  EXPECT_NEAR(value(1), loss(z.view(), y.view(), forward_kl{}, no_gradient).value, 1e-12);
  for (double lambda = 0.1; lambda < 1; lambda += 0.1) EXPECT_GT(value(lambda), value(lambda - 0.1));
  EXPECT_THROW(value(1.5), heddle::error);
}

TEST(PerRow, ErrorsNameTheArgument) {
  const auto z = noise(3, 8, 1);
  const std::vector<std::int32_t> outside{0, 3, 1};
  EXPECT_NE(message_of([&] { per_row(forward_kl{}, z.view(), select_rows(z.view(), outside)); }).find("'map': entry 1 is 3"), std::string::npos);
  EXPECT_NE(message_of([&] { per_row(forward_kl{}, z.view(), with_temperature(z.view(), 0)); }).find("'temperature' is 0"), std::string::npos);
  const auto rows = per_row(forward_kl{}, z.view(), z.view());
  logits<float> g(3, 8);
  const std::vector<double> few(2);
  EXPECT_NE(message_of([&] { rows.backward(few, g.view()); }).find("'upstream' has 2 entries"), std::string::npos);
  logits<double> narrow(3, 2);
  EXPECT_NE(message_of([&] { measure(everything{}, {}, narrow.view(), z.view(), z.view(), z.view()); }).find("'out': extent 1 is 2; expected 15"), std::string::npos);
}

TEST(PerRow, TemperaturesWithoutAnInverseAreErrors) {
  const auto z = noise(2, 20, 1);
  logits<float> g(2, 20);
  for (const double temperature : {1e-39, 1e-310}) {
    EXPECT_NE(message_of([&] { loss(z.view(), z.view(), forward_kl{}, g.view(), {.temperature = temperature}); }).find("temperature"), std::string::npos);
    EXPECT_NE(message_of([&] { per_row(forward_kl{}, z.view(), with_temperature(z.view(), temperature)); }).find("'teacher'"), std::string::npos);
  }
  EXPECT_EQ(loss(z.view(), z.view(), forward_kl{}, g.view(), {.temperature = 1e-30}).value, 0);
}

TEST(PerRow, AGradientOverPartOfTheLogitsIsAnError) {
  std::vector<float> memory(400, 0.5f);
  const auto view = [&](std::ptrdiff_t at, std::int64_t rows, std::int64_t stride) { return heddle::tensor_view<float, 2>{memory.data() + at, heddle::extents<2>{rows, 20}, heddle::extents<2>{stride, 1}}; };
  const auto y = noise(4, 20, 1), one = noise(1, 20, 2);
  const auto message = [&](auto z, const auto& teacher, auto g) { return message_of([&] { loss(z, teacher.view(), forward_kl{}, g); }); };
  const std::string expected = "'gradient' overlaps the logits of argument 'student'";
  for (const std::ptrdiff_t shift : {1, 19, 20, 60, 79}) EXPECT_NE(message(view(100, 4, 20), y, view(100 + shift, 4, 20)).find(expected), std::string::npos) << shift;
  EXPECT_NE(message(view(100, 4, 20), y, view(41, 4, 20)).find(expected), std::string::npos);
  EXPECT_NE(message(view(100, 1, 20), one, view(119, 1, 20)).find(expected), std::string::npos);
  EXPECT_NE(message(view(100, 4, 20), y, view(165, 4, 40)).find(expected), std::string::npos);   // rows at other distances
  EXPECT_NE(message(view(100, 4, 60), y, view(10, 4, 40)).find(expected), std::string::npos);
  EXPECT_EQ(message(view(100, 4, 60), y, view(20, 4, 60)), "no error");
  EXPECT_EQ(message(view(100, 4, 20), y, view(180, 4, 20)), "no error");
  EXPECT_EQ(message(view(100, 4, 20), y, view(20, 4, 20)), "no error");
  EXPECT_EQ(message(view(100, 4, 40), y, view(120, 4, 40)), "no error");   // side by side
  EXPECT_EQ(message(view(100, 4, 20), y, view(100, 4, 20)), "no error");
}

TEST(PerRow, TheTemperatureOfTheStudentIsTheOneThatIsSquared) {
  const auto z = noise(3, 20, 1), y = noise(3, 20, 2);
  const double expected = loss(z.view(), y.view(), forward_kl{}, no_gradient, {.temperature = 2, .temperature_squared = true}).value;
  EXPECT_EQ(loss(with_temperature(z.view(), 2), with_temperature(y.view(), 2), forward_kl{}, no_gradient, {.temperature_squared = true}).value, expected);
  const auto rows = per_row(forward_kl{}, with_temperature(z.view(), 2), with_temperature(y.view(), 2));
  EXPECT_EQ(reduce(rows, {.temperature_squared = true}).value, expected);
  logits<float> g(3, 20);
  const std::vector<double> upstream{1, NAN, 1};
  EXPECT_NE(message_of([&] { rows.backward(upstream, g.view()); }).find("'upstream': entry 1 is NaN"), std::string::npos);
}

}  // namespace
