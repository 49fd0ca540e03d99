// What a call promises whatever the functional: reductions, masks, statuses, errors, invariance, element types, places of the gradient.
#include "distillation/fixture.hpp"
#include "support/allocations.hpp"
#include "support/errors.hpp"

#include <heddle/core/thread_team.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;
using heddle::status;

TEST(Loss, ReducesRowsByMaskWeightsAndCount) {
  const auto z = noise(4, 40, 1), y = noise(4, 40, 2);
  const std::vector<double> weights{2, 0.5, 7, 0};
  const std::vector<std::uint8_t> mask{1, 1, 0, 1};
  const auto rows = evaluate(reverse_kl{}, {.reduction = reduction::sum}, z, y).result.row_values;
  const double weighted = 2 * rows[0] + 0.5 * rows[1];
  const auto value = [&](reduction how, double count = 0) {
    const auto out = evaluate(reverse_kl{}, {.mask = mask, .weights = weights, .reduction = how, .count = count}, z, y);
    EXPECT_EQ(out.result.rows_kept, 3);
    EXPECT_EQ(out.result.row_values[2], 0);
    return out.result.value;
  };
  EXPECT_DOUBLE_EQ(value(reduction::sum), weighted);
  EXPECT_DOUBLE_EQ(value(reduction::mean), weighted / 3);
  EXPECT_DOUBLE_EQ(value(reduction::weighted_mean), weighted / 2.5);
  EXPECT_DOUBLE_EQ(value(reduction::count, 10), weighted / 10);
  EXPECT_EQ(value(reduction::count, 0), 0);
  EXPECT_DOUBLE_EQ(evaluate(reverse_kl{}, {}, z, y).result.value, (rows[0] + rows[1] + rows[2] + rows[3]) / 4);

  // the gradient is that of the reduced value, factor of the temperature and all
  const loss_options options{.temperature = 1.3, .teacher_temperature = 0.8, .temperature_squared = true, .mask = mask, .weights = weights, .reduction = reduction::weighted_mean};
  EXPECT_LT(difference_to_finite_differences(reverse_kl{}, options, z.as<double>(), y.as<double>()), 1e-8);
  const auto plain = evaluate(forward_kl{}, {.temperature = 3}, z, y), squared = evaluate(forward_kl{}, {.temperature = 3, .temperature_squared = true}, z, y);
  EXPECT_DOUBLE_EQ(squared.result.value, 9 * plain.result.value);
}

TEST(Loss, WithoutSupervisedRowsIsZero) {
  auto z = noise(2, 8, 1);
  const std::vector<std::uint8_t> none{0, 0};
  const std::vector<double> nothing{0, 0};
  for (const loss_options& options : {loss_options{.mask = none}, loss_options{.weights = nothing, .reduction = reduction::weighted_mean}}) {
    logits<float> g(2, 8);
    g.data.assign(16, NAN);
    EXPECT_EQ(loss(z.view(), z.view(), forward_kl{}, g.view(), options).value, 0);
    for (const float x : g.data) EXPECT_EQ(x, 0);
  }
  const logits<float> empty(0, 8);
  EXPECT_EQ(loss(empty.view(), empty.view(), forward_kl{}, no_gradient).value, 0);
}

TEST(Loss, NeverReadsMaskedRows) {
  auto z = noise(3, 70, 1), y = noise(3, 70, 2);
  const auto clean = evaluate(reverse_kl{}, {.mask = std::vector<std::uint8_t>{1, 0, 1}}, z, y);
  for (std::int64_t v = 0; v < 70; ++v) z(1, v) = v % 2 ? NAN : INFINITY, y(1, v) = -INFINITY;
  const std::vector<std::uint8_t> mask{1, 0, 1};
  const std::vector<double> weights{1, NAN, 1};
  const auto out = evaluate(reverse_kl{}, {.mask = mask, .weights = weights, .on_bad_row = heddle::on_bad_row::throw_error}, z, y);
  EXPECT_EQ(out.result.value, clean.result.value);
  EXPECT_EQ(out.gradient.data, clean.gradient.data);
  EXPECT_EQ(out.result.row_status[1], status::ok);
}

TEST(Loss, GivesBadRowsAStatusAndFinishesTheOthers) {
  auto z = noise(6, 1100, 1), y = noise(6, 1100, 2);
  const auto clean = evaluate(reverse_kl{}, {}, z, y);
  z(1, 1050) = NAN, y(2, 3) = INFINITY, y(4, 7) = -INFINITY;
  for (std::int64_t v = 0; v < 1100; ++v) z(3, v) = -INFINITY;
  z(5, 40) = std::bit_cast<float>(0x7f800001u);   // a signalling NaN
  const auto out = evaluate(reverse_kl{}, {}, z, y);
  const std::vector<status> expected{status::ok, status::nan_logit, status::inf_logit, status::empty_support, status::infinite_divergence, status::nan_logit};
  for (std::size_t r = 0; r < 6; ++r) {
    EXPECT_EQ(out.result.row_status[r], expected[r]);
    EXPECT_EQ(out.result.row_values[r], r == 0 ? clean.result.row_values[0] : r == 4 ? INFINITY : 0);
    for (std::int64_t v = 0; v < 1100; ++v) ASSERT_EQ(out.gradient(static_cast<std::int64_t>(r), v), r == 0 ? clean.gradient(0, v) : 0);
  }
  EXPECT_EQ(out.result.rows_kept, 1);
  EXPECT_EQ(out.result.value, INFINITY);
  y(4, 7) = 0;
  EXPECT_TRUE(std::isfinite(evaluate(reverse_kl{}, {}, z, y).result.value));

  const auto told = [&](const logits<float>& a, const logits<float>& b) {
    logits<float> g(6, 1100);
    const std::string text = message_of([&] { loss(a.view(), b.view(), reverse_kl{}, g.view(), {.on_bad_row = heddle::on_bad_row::throw_error}); });
    EXPECT_EQ(g(0, 5), clean.gradient(0, 5));   // the others are complete
    return text;
  };
  EXPECT_EQ(told(z, y), "loss: argument 'student': row 1, column 1050 is NaN; expected a number or -infinity");
  EXPECT_EQ(told(noise(6, 1100, 1), y), "loss: argument 'teacher': row 2, column 3 is +infinity; expected a number or -infinity");
}

TEST(Loss, ErrorsNameTheArgumentAndWriteNothing) {
  const auto z = noise(3, 8, 1), wide = noise(3, 9, 1), longer = noise(4, 8, 1);
  logits<float> g(3, 8);
  g.data.assign(24, 5);
  const auto text = [&](const logits<float>& teacher, const loss_options& options) { return message_of([&] { loss(z.view(), teacher.view(), forward_kl{}, g.view(), options); }); };
  EXPECT_NE(text(wide, {}).find("'teacher': extent 1 is 9; expected 8"), std::string::npos);
  EXPECT_NE(text(longer, {}).find("'teacher': extent 0 is 4; expected 3"), std::string::npos);
  EXPECT_NE(text(z, {.temperature = 0}).find("'temperature' is 0"), std::string::npos);
  EXPECT_NE(text(z, {.temperature = NAN}).find("'temperature' is NaN"), std::string::npos);
  EXPECT_NE(text(z, {.temperature = INFINITY}).find("'temperature' is infinity"), std::string::npos);
  EXPECT_NE(text(z, {.teacher_temperature = -1}).find("'teacher_temperature' is -1"), std::string::npos);
  const std::vector<double> negative{1, -1, 1}, few{1};
  const std::vector<std::uint8_t> short_mask{1};
  EXPECT_NE(text(z, {.weights = negative}).find("'weights': entry 1 is -1"), std::string::npos);
  EXPECT_NE(text(z, {.weights = few}).find("'weights' has 1 entries"), std::string::npos);
  EXPECT_NE(text(z, {.mask = short_mask}).find("'mask' has 1 entries"), std::string::npos);
  EXPECT_NE(text(z, {.reduction = reduction::count, .count = -1}).find("'count' is -1"), std::string::npos);
  EXPECT_NE(message_of([&] { loss(z.view(), z.view(), forward_kl{}, logits<float>(3, 7).view()); }).find("'gradient': extent 1 is 7"), std::string::npos);
  auto own = z;
  const tensor_view<float, 2> crooked{own.data.data(), extents{3, 8}, extents{1, 3}};
  EXPECT_NE(message_of([&] { loss(own.view(), z.view(), forward_kl{}, crooked); }).find("'gradient' begins where logits do"), std::string::npos);
  for (const float x : g.data) EXPECT_EQ(x, 5);
}

TEST(Loss, ChunksAndThreadsDoNotMatter) {
  constexpr std::int64_t columns = 1300;
  const auto z = noise(7, columns, 1), y = noise(7, columns, 2);
  const auto whole = evaluate(reverse_kl{}, {}, z, y), jsd = evaluate(generalized_jsd{.beta = 0.4}, {}, z, y);
  for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{20}, std::int64_t{64}, columns, columns + 5}) {
    const auto close = [&](const auto& a, const auto& b) {
      EXPECT_NEAR(a.result.value, b.result.value, 1e-6 * b.result.value) << chunk;
      for (std::size_t i = 0; i < a.gradient.data.size(); ++i) ASSERT_NEAR(a.gradient.data[i], b.gradient.data[i], 1e-6 * std::abs(b.gradient.data[i]) + 1e-9) << chunk;
    };
    close(evaluate(reverse_kl{}, {.chunk = chunk}, z, y), whole);
    close(evaluate(generalized_jsd{.beta = 0.4}, {.chunk = chunk}, z, y), jsd);
  }
  for (const std::size_t threads : {2u, 3u, 5u}) {
    heddle::thread_team team(threads);
    const auto shared = evaluate(reverse_kl{}, {.executor = team}, z, y);
    EXPECT_EQ(shared.result.value, whole.result.value);
    EXPECT_EQ(shared.gradient.data, whole.gradient.data);
  }
  // a row alone is the row in company
  logits<float> last(1, columns), last_teacher(1, columns);
  for (std::int64_t v = 0; v < columns; ++v) last(0, v) = z(6, v), last_teacher(0, v) = y(6, v);
  EXPECT_EQ(evaluate(reverse_kl{}, {}, last, last_teacher).result.value, whole.result.row_values[6]);
}

TEST(Loss, TheGradientMayReplaceTheLogits) {
  const auto check = [](auto element) {
    using E = decltype(element);
    const auto z = noise(3, 1043, 1).template as<E>(), y = noise(3, 1043, 2).template as<E>();
    const std::vector<std::uint8_t> mask{1, 0, 1};
    const auto apart = evaluate(generalized_jsd{.beta = 0.3}, {.mask = mask}, z, y);
    auto in_place = z;
    EXPECT_EQ(loss(in_place.view(), y.view(), generalized_jsd{.beta = 0.3}, in_place.view(), {.mask = mask}).value, apart.result.value);
    for (std::size_t i = 0; i < z.data.size(); ++i) ASSERT_EQ(static_cast<double>(in_place.data[i]), static_cast<double>(apart.gradient.data[i]));
  };
  check(float{}), check(double{}), check(heddle::bfloat16{}), check(heddle::float16{});
}

TEST(Loss, TakesAnyElementAndStride) {
  constexpr std::int64_t n = 3, columns = 1037;
  const auto z = noise(n, columns, 1), y = noise(n, columns, 2);
  const auto expected = evaluate(reverse_kl{}, {}, z, y);
  const auto check = [&](auto student, auto teacher) {   // the logits are bfloat16 numbers: all types hold the same
    using S = decltype(student);
    const auto out = evaluate(reverse_kl{}, {}, z.as<S>(), y.as<decltype(teacher)>());
    EXPECT_EQ(out.result.value, expected.result.value);
    const auto rounded = expected.gradient.template as<S>();
    for (std::size_t i = 0; i < rounded.data.size(); ++i) ASSERT_EQ(static_cast<float>(out.gradient.data[i]), static_cast<float>(rounded.data[i]));
  };
  check(heddle::bfloat16{}, heddle::bfloat16{}), check(heddle::float16{}, heddle::bfloat16{}), check(float{}, heddle::float16{});

  std::vector<float> transposed(z.data.size()), backwards(z.data.size()), spread(3 * z.data.size(), 9);
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t v = 0; v < columns; ++v) transposed[static_cast<std::size_t>(v * n + r)] = z(r, v), backwards[static_cast<std::size_t>((n - 1 - r) * columns + (columns - 1 - v))] = y(r, v);
  const tensor_view<float, 2> student{transposed.data(), extents{n, columns}, extents{1, n}}, teacher{backwards.data() + backwards.size() - 1, extents{n, columns}, extents{-columns, -1}},
      gradient{spread.data() + 1, extents{n, columns}, extents{3 * columns, 3}};
  EXPECT_EQ(loss(student, teacher, reverse_kl{}, gradient).value, expected.result.value);
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t v = 0; v < columns; ++v) {
      ASSERT_EQ(gradient(r, v), expected.gradient(r, v));
      ASSERT_EQ(gradient.at(r, v)[1], 9);
    }
  const tensor_view<const float, 2> one_teacher{y.data.data(), extents{n, columns}, extents{0, 1}};   // one row for all
  EXPECT_EQ(loss(z.view(), one_teacher, reverse_kl{}, no_gradient).row_values[0], expected.result.row_values[0]);
}

struct constant {
  std::span<const double> values;
  template <class Row, class S>
  auto operator()(Row& row, S) const {
    return outcome{values[static_cast<std::size_t>(row.index())], gradient{zero{}}};
  }
};
TEST(Loss, AddsManySmallRowValuesInDouble) {
  // 1024 rows whose loss is 2^-9 each, and one of 1: a running sum in bfloat16 would stay at 1
  std::vector<double> values(1025, 0x1p-9);
  values[0] = 1;
  logits<heddle::bfloat16> z(1025, 2);
  const std::vector<double> weights(1025, 1);
  EXPECT_EQ(loss(z.view(), constant{values}, no_gradient, {.reduction = reduction::sum}).value, 3.);
}

TEST(Loss, MemoryIsAFewRowsPerWorker) {
  constexpr std::int64_t columns = 5000;
  const auto z = noise(64, columns, 1), y = noise(64, columns, 2);
  logits<float> g(64, columns);
  const auto bytes = [&](std::int64_t rows, heddle::executor_ref executor) {
    const std::int64_t before = allocations.bytes;
    loss(z.view().slice(0, rows), y.view().slice(0, rows), reverse_kl{}, g.view().slice(0, rows), {.executor = executor});
    return static_cast<std::size_t>(allocations.bytes - before);
  };
  const std::size_t one = bytes(8, {});
  EXPECT_LT(one, 3 * columns * sizeof(float) + (std::size_t{64} << 10));
  EXPECT_LT(bytes(64, {}), one + 64 * 16 + 256);
  heddle::thread_team team(2);
  EXPECT_LT(bytes(8, team), 2 * one + 1024);
}

// What would let a loss be gamed or misread does not exist.
template <class... Arguments>
concept callable = requires(Arguments... a) { loss(a...); };
using view = tensor_view<const float, 2>;
using target = tensor_view<float, 2>;
static_assert(callable<view, view, reverse_kl, target>);
static_assert(callable<view, view, reverse_kl, power_target, no_gradient_type>);
static_assert(!callable<view, view, reverse_kl, int>);
static_assert(!callable<view, view, reverse_kl, tensor_view<float, 3>>);
static_assert(!callable<tensor_view<const float, 2, heddle::device>, view, reverse_kl, tensor_view<float, 2, heddle::device>>);

}  // namespace
