#include <heddle/position/rope.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/reference/rope.hpp"

using namespace heddle;

namespace {

void expect_frequencies(const rope<half_split>& r, const std::vector<double>& expected) {
  ASSERT_EQ(r.frequencies().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(r.frequencies()[i] / expected[i], 1, 1e-14) << "pair " << i;
}

std::string refusal(const rope_options& options) {
  try {
    const rope<half_split> r{options};
  } catch (const error& e) {
    return e.what();
  }
  return "accepted";
}
#define EXPECT_REFUSED(text, ...) EXPECT_NE(refusal(__VA_ARGS__).find(text), std::string::npos) << refusal(__VA_ARGS__)

struct doubled {
  double by;
};
void scale(const doubled& s, rope_frequencies& f) {
  for (double& theta : f.values) theta *= s.by;
  f.magnitude = 3;
}
struct not_a_scaling {};
struct too_large {
  char bytes[rope_scaling::capacity + 1];
};
[[maybe_unused]] void scale(const too_large&, rope_frequencies&) {}

static_assert(frequency_scaling<no_scaling> && frequency_scaling<linear_scaling> && frequency_scaling<ntk_scaling> && frequency_scaling<dynamic_ntk_scaling>);
static_assert(frequency_scaling<yarn_scaling> && frequency_scaling<llama3_scaling> && frequency_scaling<longrope_scaling> && frequency_scaling<doubled>);
static_assert(!frequency_scaling<not_a_scaling> && !frequency_scaling<double> && !std::is_constructible_v<rope_scaling, too_large>);

}  // namespace

TEST(scaling, none_and_linear) {
  for (const double base : {1e4, 5e5, 1e6}) {
    auto theta = reference::rope_frequencies(80, base);
    expect_frequencies(rope<half_split>{{.head_dim = 96, .rotary_dim = 80, .base = base}}, theta);
    for (double& t : theta) t /= 8;
    expect_frequencies(rope<half_split>{{.head_dim = 96, .rotary_dim = 80, .base = base, .scaling = linear_scaling{8}}}, theta);
  }
}

TEST(scaling, ntk_slows_the_slowest_pair_by_the_factor_and_keeps_the_fastest) {
  const rope<half_split> plain{{.head_dim = 64}}, ntk{{.head_dim = 64, .scaling = ntk_scaling{4}}};
  expect_frequencies(ntk, reference::rope_frequencies(64, 1e4 * std::pow(4., 64. / 62.)));
  EXPECT_EQ(ntk.frequencies().front(), 1);
  EXPECT_NEAR(ntk.frequencies().back() * 4 / plain.frequencies().back(), 1, 1e-13);
}

TEST(scaling, dynamic_ntk_depends_on_the_sequence_length) {
  const auto at = [](std::int64_t length) { return rope<half_split>{{.head_dim = 64, .scaling = dynamic_ntk_scaling{2, 2048}, .sequence_length = length}}; };
  expect_frequencies(at(0), reference::rope_frequencies(64, 1e4));
  expect_frequencies(at(2048), reference::rope_frequencies(64, 1e4));
  expect_frequencies(at(5000), reference::rope_frequencies(64, 1e4 * std::pow(2. * 5000 / 2048 - 1, 64. / 62.)));
}

TEST(scaling, yarn) {
  for (const bool truncate : {true, false})
    for (const double base : {1e4, 1.5e5}) {
      const yarn_scaling s{.factor = 32, .original_length = 4096, .truncate = truncate};
      const rope<half_split> r{{.head_dim = 64, .base = base, .scaling = s}};
      expect_frequencies(r, reference::yarn_frequencies(64, base, 32, 4096, 32, 1, truncate));
      EXPECT_EQ(r.frequencies().front(), 1);                                                              // fast pairs extrapolate
      EXPECT_NEAR(r.frequencies().back() * 32 / reference::rope_frequencies(64, base).back(), 1, 1e-13);  // slow pairs interpolate
    }
}

TEST(scaling, yarn_magnitude) {
  const auto magnitude = [](const yarn_scaling& s) { return rope<half_split>{{.head_dim = 64, .scaling = s}}.magnitude(); };
  EXPECT_NEAR(magnitude({.factor = 16, .original_length = 4096}), 1.277259, 1e-6);
  EXPECT_EQ(magnitude({.factor = 16, .original_length = 4096, .mscale = 1, .mscale_all_dim = 1}), 1);
  EXPECT_NEAR(magnitude({.factor = 64, .original_length = 4096}), 1.415888, 1e-6);
  EXPECT_EQ(magnitude({.factor = 64, .original_length = 4096, .attention_factor = 1}), 1);
  EXPECT_EQ(magnitude({.factor = 64, .original_length = 4096, .mscale = 2, .mscale_all_dim = 1, .attention_factor = 1.5}), 1.5);
  EXPECT_NEAR(magnitude({.factor = 40, .original_length = 4096, .mscale = 0.707, .mscale_all_dim = 1}), (0.0707 * std::log(40.) + 1) / (0.1 * std::log(40.) + 1), 1e-15);
  EXPECT_NEAR(magnitude({.factor = 40, .original_length = 4096, .mscale_all_dim = 1}), 0.1 * std::log(40.) + 1, 1e-15);
  EXPECT_EQ(magnitude({.factor = 0.5, .original_length = 4096}), 1);
}

TEST(scaling, llama3) {
  for (const double factor : {8., 32.})
    expect_frequencies(rope<half_split>{{.head_dim = 128, .base = 5e5, .scaling = llama3_scaling{.factor = factor}}}, reference::llama3_frequencies(128, 5e5, factor, 1, 4, 8192));
  const rope<half_split> r{{.head_dim = 128, .base = 5e5, .scaling = llama3_scaling{}}}, plain{{.head_dim = 128, .base = 5e5}};
  EXPECT_EQ(r.frequencies().front(), 1);
  EXPECT_EQ(r.frequencies().back(), plain.frequencies().back() / 8);
  EXPECT_EQ(r.magnitude(), 1);
}

TEST(scaling, longrope_takes_the_list_of_its_length) {
  std::vector<double> near(16), far(16);
  for (std::size_t i = 0; i < 16; ++i) near[i] = 1 + 0.01 * static_cast<double>(i), far[i] = 1 + 3 * static_cast<double>(i);
  const auto at = [&](std::int64_t length, double attention_factor) {
    return rope<half_split>{{.head_dim = 32, .scaling = longrope_scaling{near, far, 4096, 32, attention_factor}, .sequence_length = length}};
  };
  auto theta = reference::rope_frequencies(32, 1e4), short_theta = theta;
  for (std::size_t i = 0; i < 16; ++i) short_theta[i] /= near[i], theta[i] /= far[i];
  expect_frequencies(at(4096, 0), short_theta);
  expect_frequencies(at(4097, 0), theta);
  EXPECT_NEAR(at(0, 0).magnitude(), std::sqrt(1 + std::log(32.) / std::log(4096.)), 1e-15);
  EXPECT_EQ(at(0, 1).magnitude(), 1);
  near.pop_back();
  EXPECT_REFUSED("'short_factors' has 15 entries; expected 16", {.head_dim = 32, .scaling = longrope_scaling{near, far, 4096, 32}});
}

TEST(scaling, of_the_callers_own) {
  const rope<half_split> r{{.head_dim = 4, .scaling = doubled{2}}};
  EXPECT_EQ(r.frequencies().front(), 2);
  EXPECT_EQ(r.magnitude(), 3);
}

TEST(scaling, refuses_bad_parameters) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double factor : {0., -1., nan, inf}) {
    EXPECT_REFUSED("'factor' is", {.head_dim = 64, .scaling = linear_scaling{factor}});
    EXPECT_REFUSED("'factor' is", {.head_dim = 64, .scaling = ntk_scaling{factor}});
    EXPECT_REFUSED("'factor' is", {.head_dim = 64, .scaling = dynamic_ntk_scaling{factor, 4096}});
    EXPECT_REFUSED("'factor' is", {.head_dim = 64, .scaling = yarn_scaling{factor, 4096}});
    EXPECT_REFUSED("'factor' is", {.head_dim = 64, .scaling = llama3_scaling{factor}});
    EXPECT_REFUSED("'factor' is", {.head_dim = 64, .scaling = longrope_scaling{{}, {}, 4096, factor}});
  }
  EXPECT_REFUSED("'original_length' is 0", {.head_dim = 64, .scaling = dynamic_ntk_scaling{2, 0}});
  EXPECT_REFUSED("'original_length' is -1", {.head_dim = 64, .scaling = yarn_scaling{2, -1}});
  EXPECT_REFUSED("'original_length' is 0", {.head_dim = 64, .scaling = llama3_scaling{.original_length = 0}});
  EXPECT_REFUSED("'original_length' is 1", {.head_dim = 64, .scaling = longrope_scaling{{}, {}, 1, 2}});
  EXPECT_REFUSED("'beta_fast' is 1, less than 'beta_slow' (2)", {.head_dim = 64, .scaling = yarn_scaling{.factor = 2, .original_length = 4096, .beta_fast = 1, .beta_slow = 2}});
  EXPECT_REFUSED("'attention_factor' is -1", {.head_dim = 64, .scaling = yarn_scaling{.factor = 2, .original_length = 4096, .attention_factor = -1}});
  EXPECT_REFUSED("'high_frequency_factor' is 1", {.head_dim = 64, .scaling = llama3_scaling{.high_frequency_factor = 1}});
  EXPECT_REFUSED("rotary width of 4", {.head_dim = 2, .scaling = ntk_scaling{2}});
  EXPECT_REFUSED("base' is 1; YaRN", {.head_dim = 64, .base = 1, .scaling = yarn_scaling{2, 4096}});
}
