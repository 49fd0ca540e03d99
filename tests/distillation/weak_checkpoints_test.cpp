#include <heddle/distillation/weak_checkpoints.hpp>

#include <heddle/distillation/sampled_token.hpp>

#include "distillation/gradient_laws.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using numbers = std::vector<double>;
using ids = std::vector<std::int32_t>;

numbers sampling_of(const numbers& weak, const numbers& strong, const checkpoint_sampling_options& options = {}) {
  numbers p(weak.size(), 9.);
  checkpoint_sampling(weak, strong, p, options);
  return p;
}

TEST(WeakCheckpoints, SamplingEqualsItsFormula) {
  std::mt19937 random(1);
  for (const checkpoint_sampling_options& o : {checkpoint_sampling_options{}, {.alpha = 0.2, .beta = 3, .gamma = 0.5}, {.alpha = 0}, {.beta = 0, .gamma = 0}}) {
    numbers weak(9), strong(9);
    for (double& h : weak) h = std::exponential_distribution<double>(1)(random);
    for (double& h : strong) h = std::exponential_distribution<double>(2)(random);
    double sum_weak = 0, surer = 0, less_sure = 0, total = 0;
    for (std::size_t i = 0; i < 9; ++i) sum_weak += weak[i], surer += std::max(0., weak[i] - strong[i]), less_sure += std::max(0., strong[i] - weak[i]);
    numbers expected(9);
    for (std::size_t i = 0; i < 9; ++i) total += expected[i] = o.alpha * weak[i] / sum_weak + o.beta * std::max(0., weak[i] - strong[i]) / surer + o.gamma * std::max(0., strong[i] - weak[i]) / less_sure;
    const auto p = sampling_of(weak, strong, o);
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_NEAR(p[i], expected[i] / total, 1e-14);
      EXPECT_GE(p[i], 0);
    }
    EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.), 1, 1e-14);
  }
}

TEST(WeakCheckpoints, EmptySumsCountAsZero) {
  EXPECT_EQ(sampling_of({0, 0, 0, 0}, {0, 0, 0, 0}), numbers(4, 0.25));
  EXPECT_EQ(sampling_of({1, 3}, {1, 3}), (numbers{0.25, 0.75}));                     // nothing changed: the weak entropies alone
  EXPECT_EQ(sampling_of({0, 0}, {0, 2}), (numbers{0, 1}));                           // only what became less sure
  EXPECT_EQ(sampling_of({1, 1}, {0, 1}, {.alpha = 0}), (numbers{1, 0}));
  EXPECT_EQ(sampling_of({1, 2}, {0, 1}, {.alpha = 0, .beta = 0, .gamma = 0}), numbers(2, 0.5));
  EXPECT_EQ(sampling_of({}, {}), numbers{});
  const auto tiny = sampling_of({1e-300, 3e-300}, {1e-300, 3e-300});
  EXPECT_NEAR(tiny[1], 0.75, 1e-14);
}

template <class T>
void mixture_equals_the_definition(double tolerance) {
  std::mt19937 random(2);
  auto z = test::gaussian<double>(4, 33, random), w = test::gaussian<double>(4, 33, random);
  w(1, 4) = z(2, 5) = -INFINITY;
  const ids tokens = {3, 0, 32, 7};
  auto [strong, exact] = test::same_numbers<T>(z);
  auto [weak, exact_weak] = test::same_numbers<T>(w);
  for (const double lambda : {0., 0.3, 0.7, 1.})
    for (const double tau : {1., 1.7}) {
      const auto rows = per_row(mixed_logits{tokens, lambda}, {.temperature = tau}, strong.view(), weak.view());
      test::array<double> to_strong(4, 33), to_weak(4, 33);
      rows.backward(numbers(4, 1.), to_strong.view(), to_weak.view());
      for (std::int64_t r = 0; r < 4; ++r) {
        test::array<double> mixed(1, 33);
        for (std::int64_t v = 0; v < 33; ++v) mixed(0, v) = lambda == 0 ? exact_weak(r, v) : lambda == 1 ? exact(r, v) : lambda * exact(r, v) + (1 - lambda) * exact_weak(r, v);
        const auto p = test::softmax(mixed, 0, tau);
        const auto y = tokens[static_cast<std::size_t>(r)];
        EXPECT_NEAR(rows.values()[static_cast<std::size_t>(r)], -std::log(p[static_cast<std::size_t>(y)]), tolerance);
        for (std::int64_t v = 0; v < 33; ++v) {
          const double g = (p[static_cast<std::size_t>(v)] - (v == y)) / tau;
          EXPECT_NEAR(to_strong(r, v), lambda * g, tolerance) << lambda;
          EXPECT_NEAR(to_weak(r, v), (1 - lambda) * g, tolerance);
        }
      }
    }
}
TEST(WeakCheckpoints, MixtureOfFloats) { mixture_equals_the_definition<float>(2e-6); }
TEST(WeakCheckpoints, MixtureOfDoubles) { mixture_equals_the_definition<double>(1e-13); }

TEST(WeakCheckpoints, LambdaOneIsThePlainNll) {
  std::mt19937 random(3);
  auto z = test::gaussian<double>(3, 11, random), w = test::gaussian<double>(3, 11, random);
  const ids tokens = {1, 5, 10};
  const auto mixed = test::gradient_of(mixed_logits{tokens, 1}, {}, z, w.view()), plain = test::gradient_of(nll{tokens}, {}, z);
  const auto value = test::values_of(mixed_logits{tokens, 1}, {}, z.view(), w.view()), expected = test::values_of(nll{tokens}, {}, z.view());
  for (std::size_t i = 0; i < plain.values.size(); ++i) EXPECT_NEAR(mixed.values[i], plain.values[i], 1e-15);
  for (std::size_t r = 0; r < 3; ++r) EXPECT_NEAR(value[r], expected[r], 1e-14);
  test::expect_gradient(mixed_logits{tokens, 0.6}, {.temperature = 1.3}, z, w.view());
}

// A strong checkpoint that is right with a large margin has next to no gradient left; the flat weak one brings it back.
TEST(WeakCheckpoints, SaturatedRowsGetTheirGradientBack) {
  constexpr std::int64_t margins = 12, vocabulary = 50;
  test::array<double> strong(margins, vocabulary), weak(margins, vocabulary);
  const ids tokens(margins, 4);
  for (std::int64_t r = 0; r < margins; ++r) strong(r, 4) = 3 + 2. * static_cast<double>(r);
  const double lambda = 0.6;
  const auto mixed = test::gradient_of(mixed_logits{tokens, lambda}, {}, strong, weak.view()), plain = test::gradient_of(nll{tokens}, {}, strong);
  double before = 0;
  for (std::int64_t r = 0; r < margins; ++r) {
    double a = 0, b = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) a += mixed(r, v) * mixed(r, v), b += plain(r, v) * plain(r, v);
    const double gain = std::sqrt(a) / (lambda * std::sqrt(b));
    EXPECT_GT(gain, std::max(1., before)) << r;  // and the more, the more saturated
    before = gain;
  }
  EXPECT_GT(before, 1000);
}

TEST(WeakCheckpoints, BadInput) {
  std::mt19937 random(4);
  auto z = test::gaussian<double>(2, 5, random), w = test::gaussian<double>(2, 5, random);
  const ids tokens = {0, 4};
  for (const double lambda : {-0.1, 1.1, std::nan("")}) EXPECT_THROW(per_row(mixed_logits{tokens, lambda}, z.view(), w.view()), error);
  EXPECT_THROW(per_row(mixed_logits{ids{0, 5}}, z.view(), w.view()), error);
  EXPECT_THROW(per_row(mixed_logits{ids{0}}, z.view(), w.view()), error);
  z(0, 0) = -INFINITY;                                                  // the target has no mass
  for (std::int64_t v = 0; v < 5; ++v) (v < 3 ? z : w)(1, v) = -INFINITY;  // no token has any
  const auto rows = per_row(mixed_logits{tokens, 0.5}, z.view(), w.view());
  EXPECT_EQ(rows.status()[0], status::infinite_divergence);
  EXPECT_EQ(rows.status()[1], status::empty_support);
  numbers p(2, 9.);
  for (const double bad : {-1., std::nan(""), static_cast<double>(INFINITY)}) {
    EXPECT_NE(message_of([&] { checkpoint_sampling(numbers{1, bad}, numbers{1, 1}, p); }).find("sample 1"), std::string::npos);
    EXPECT_THROW(checkpoint_sampling(numbers{1, 1}, numbers{1, bad}, p), error);
    EXPECT_THROW(checkpoint_sampling(numbers{1, 1}, numbers{1, 1}, p, {.beta = bad}), error);
  }
  EXPECT_THROW(checkpoint_sampling(numbers{1}, numbers{1, 1}, p), error);
  EXPECT_THROW(checkpoint_sampling(numbers{1}, numbers{1}, p), error);
  EXPECT_EQ(p, numbers(2, 9.));
}

}  // namespace
