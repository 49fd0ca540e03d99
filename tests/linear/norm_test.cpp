#include <heddle/core/thread_team.hpp>
#include <heddle/linear/elementwise.hpp>

#include "support/errors.hpp"
#include "support/reference/linear.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

namespace {

using namespace heddle;

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = 3.f * normal(generator);
  return values;
}

TEST(RmsNorm, AgreesWithFloat64AndWorksInPlace) {
  for (const std::int64_t width : {1, 15, 16, 100, 576, 4096}) {
    std::vector<float> x = normal_values(static_cast<std::size_t>(3 * width), 1), weight = normal_values(static_cast<std::size_t>(width), 2);
    std::vector<double> expected;
    for (std::int64_t r = 0; r < 3; ++r)
      for (const double v : heddle_reference::rms_norm({x.begin() + r * width, x.begin() + (r + 1) * width}, {weight.begin(), weight.end()}, 1e-5)) expected.push_back(v);
    const tensor_view rows{x.data(), extents{std::int64_t{3}, width}};
    linear::rms_norm(rows, tensor_view{weight.data(), extents{width}}, 1e-5f, rows);
    EXPECT_LT(heddle_reference::relative_error(x.data(), expected), 3e-7) << width;
  }
}

TEST(Rows, SameBitsInAnyBatchOnAnyThreads) {
  const std::int64_t rows = 200, width = 577;   // enough to be shared out
  const std::vector<float> x = normal_values(static_cast<std::size_t>(rows * width), 1), y = normal_values(static_cast<std::size_t>(rows * width), 3);
  const std::vector<float> weight = normal_values(static_cast<std::size_t>(width), 2);
  const tensor_view w{weight.data(), extents{width}};
  thread_team team{3};
  const auto all = [&](const std::vector<float>& v) { return tensor_view{v.data(), extents{rows, width}}; };
  const auto row = [&](const std::vector<float>& v, std::int64_t r) { return tensor_view{v.data() + r * width, extents{std::int64_t{1}, width}}; };
  std::vector<float> norms(x.size()), gated(x.size()), sums(x.size()), one(static_cast<std::size_t>(width));
  const auto out = [&](std::vector<float>& v) { return tensor_view{v.data(), extents{rows, width}}; };
  linear::rms_norm(all(x), w, 1e-5f, out(norms), {.executor = team});
  linear::silu_gate(all(x), all(y), out(gated), {.executor = team});
  linear::add(all(x), all(y), out(sums), {.executor = team});
  const tensor_view single{one.data(), extents{std::int64_t{1}, width}};
  for (std::int64_t r = 0; r < rows; r += 7) {
    const auto same = [&](const std::vector<float>& v) { return std::memcmp(one.data(), v.data() + r * width, one.size() * 4) == 0; };
    linear::rms_norm(row(x, r), w, 1e-5f, single);
    ASSERT_TRUE(same(norms)) << r;
    linear::silu_gate(row(x, r), row(y, r), single);
    ASSERT_TRUE(same(gated)) << r;
    linear::add(row(x, r), row(y, r), single);
    ASSERT_TRUE(same(sums)) << r;
  }
}

TEST(SiluGate, AgreesWithFloat64OverItsRange) {
  std::vector<float> gate, up;
  for (float g = -86.f; g < 100.f; g += 0.0917f) gate.push_back(g), up.push_back(1.5f);
  const auto n = static_cast<std::int64_t>(gate.size());
  std::vector<float> out(gate.size());
  linear::silu_gate(tensor_view{gate.data(), extents{std::int64_t{1}, n}}, tensor_view{up.data(), extents{std::int64_t{1}, n}}, tensor_view{out.data(), extents{std::int64_t{1}, n}});
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = heddle_reference::silu(gate[i]) * 1.5;
    ASSERT_NEAR(out[i], expected, std::fabs(expected) * 5e-7) << gate[i];
  }
}

TEST(SiluGate, TakesTheHalvesOfAFusedOutputAndNarrowElements) {
  const std::vector<float> fused = normal_values(2 * 60, 4);
  const tensor_view gate{fused.data(), extents{2, 30}, extents{60, 1}}, up{fused.data() + 30, extents{2, 30}, extents{60, 1}};
  float16 out[60];
  linear::silu_gate(gate, up, tensor_view{out, extents{2, 30}});
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t i = 0; i < 30; ++i) {
      const double expected = heddle_reference::silu(gate(r, i)) * up(r, i);
      EXPECT_NEAR(static_cast<float>(out[r * 30 + i]), expected, std::fabs(expected) * 6e-4 + 1e-7);
    }
}

TEST(Rows, NotANumberStaysInItsRow) {
  std::vector<float> x = normal_values(2 * 20, 5), weight(20, 1.f), out(40);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  const tensor_view rows{x.data(), extents{2, 20}}, result{out.data(), extents{2, 20}};
  linear::rms_norm(rows, tensor_view{weight.data(), extents{20}}, 1e-5f, result);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(out[i]), i < 20);
  linear::silu_gate(rows, rows, result);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(out[i]), i == 3);
  linear::add(rows, rows, result);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(out[i]), i == 3);
  x[3] = std::numeric_limits<float>::infinity();
  linear::rms_norm(rows, tensor_view{weight.data(), extents{20}}, 1e-5f, result);
  EXPECT_TRUE(std::isnan(out[3]));
}

TEST(Rows, ErrorsNameTheArgument) {
  std::vector<float> x(40), weight(20), out(40);
  const tensor_view rows{x.data(), extents{2, 20}}, result{out.data(), extents{2, 20}}, narrow{out.data(), extents{2, 19}};
  const auto expect = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  expect(message_of([&] { linear::rms_norm(rows, tensor_view{weight.data(), extents{19}}, 1e-5f, result); }), "rms_norm: argument 'weight'");
  expect(message_of([&] { linear::rms_norm(rows, tensor_view{weight.data(), extents{20}}, -1.f, result); }), "'epsilon' is -1");
  expect(message_of([&] { linear::rms_norm(rows, tensor_view{weight.data(), extents{20}}, 1e-5f, narrow); }), "'out'");
  expect(message_of([&] { linear::silu_gate(rows, narrow, result); }), "silu_gate: argument 'up': extent 1 is 19; expected 20");
  expect(message_of([&] { linear::add(tensor_view{x.data(), extents{2, 20}, extents{1, 2}}, rows, result); }), "add: argument 'a' has stride 2");
}

}  // namespace
