// Estimators from one token, enumerated over all tokens; clips.
#include "distillation/fixture.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/clip.hpp>
#include <heddle/distillation/sampled_token.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;

const loss_options sums{.temperature = 1.3, .reduction = reduction::sum};

/// Every token of one row as a row of its own.
struct enumeration {
  std::int64_t columns;
  logits<double> z, y;
  std::vector<std::int32_t> tokens;
  reference::row s, t;

  explicit enumeration(std::int64_t v) : columns(v), z(v, v), y(v, v), tokens(static_cast<std::size_t>(v)) {
    const auto a = noise(1, v, 11), b = noise(1, v, 12);
    for (std::int64_t r = 0; r < v; ++r) {
      tokens[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(r);
      for (std::int64_t c = 0; c < v; ++c) z(r, c) = static_cast<double>(a(0, c)), y(r, c) = static_cast<double>(b(0, c));
    }
    s = reference::softmax(z.row(0), 1.3), t = reference::softmax(y.row(0), 1.3);
  }
  /// Expectation of value and gradient over x ~ s.
  reference::row_loss expectation(const auto& functional) const {
    const auto out = evaluate(functional, sums, z, y);
    reference::row_loss mean{0, reference::row(s.size())};
    for (std::size_t x = 0; x < s.size(); ++x) {
      mean.value += s[x] * out.result.row_values[x];
      for (std::size_t v = 0; v < s.size(); ++v) mean.gradient[v] += s[x] * out.gradient(static_cast<std::int64_t>(x), static_cast<std::int64_t>(v));
    }
    return mean;
  }
};
void expect_equal(const reference::row& a, const reference::row& b) {
  for (std::size_t v = 0; v < a.size(); ++v) EXPECT_NEAR(a[v], b[v], 1e-13);
}

TEST(SampledToken, ExpectationsAreWhatTheyEstimate) {
  const enumeration all(23);
  const auto reverse = reference::reverse_kl(all.s, all.t, 1.3), forward = reference::forward_kl(all.s, all.t, 1.3);
  const auto k1 = all.expectation(sampled_kl{.tokens = all.tokens, .estimator = estimator::k1}), k2 = all.expectation(sampled_kl{.tokens = all.tokens, .estimator = estimator::k2}),
             k3 = all.expectation(sampled_kl{.tokens = all.tokens, .estimator = estimator::k3}), policy = all.expectation(policy_gradient_kl{.tokens = all.tokens});
  EXPECT_NEAR(k1.value, reverse.value, 1e-13);
  EXPECT_NEAR(k3.value, reverse.value, 1e-13);
  expect_equal(policy.gradient, reverse.gradient);
  expect_equal(k2.gradient, reverse.gradient);
  expect_equal(k3.gradient, forward.gradient);
  expect_equal(k1.gradient, reference::row(all.s.size()));
}

TEST(SampledToken, BackPropagationIsTheDerivative) {
  const auto z = noise(3, 17, 1).as<double>(), y = noise(3, 17, 2).as<double>();
  const std::vector<std::int32_t> tokens{0, 16, 5};
  for (const estimator e : {estimator::k1, estimator::k2, estimator::k3}) EXPECT_LT(difference_to_finite_differences(sampled_kl{.tokens = tokens, .estimator = e}, sums, z, y), 1e-8);
  EXPECT_LT(difference_to_finite_differences(nll{tokens}, sums, z), 1e-8);
  const std::vector<double> advantages{-2, 0, 0.5};
  EXPECT_LT(difference_to_finite_differences(policy_gradient{tokens, advantages}, sums, z), 1e-8);
}

TEST(SampledToken, ReuseIsAConstantFactorUpToACap) {
  const auto z = noise(3, 17, 1).as<double>(), y = noise(3, 17, 2).as<double>();
  const std::vector<std::int32_t> tokens{0, 16, 5};
  std::vector<double> old(3);
  const std::vector<double> factor{0.5, 1.2, 3};
  for (std::size_t r = 0; r < 3; ++r) old[r] = std::log(reference::softmax(z.row(static_cast<std::int64_t>(r)), 1.3)[static_cast<std::size_t>(tokens[r])] / factor[r]);
  const auto fresh = evaluate(policy_gradient_kl{.tokens = tokens}, sums, z, y), reused = evaluate(policy_gradient_kl{.tokens = tokens, .reuse = {.old_log_probs = old, .cap = 2}}, sums, z, y);
  for (std::int64_t r = 0; r < 3; ++r)
    for (std::int64_t v = 0; v < 17; ++v) EXPECT_NEAR(reused.gradient(r, v), std::min(factor[static_cast<std::size_t>(r)], 2.) * fresh.gradient(r, v), 1e-13);
}

TEST(SampledToken, EdgesAndErrors) {
  auto z = noise(2, 6, 1), y = noise(2, 6, 2);
  std::vector<std::int32_t> tokens{1, 6};
  EXPECT_NE(message_of([&] { evaluate(nll{tokens}, sums, z); }).find("'tokens': entry 1 is 6"), std::string::npos);
  const std::vector<std::uint8_t> first{1, 0};
  EXPECT_EQ(evaluate(nll{tokens}, {.mask = first}, z).result.rows_kept, 1);
  tokens = {1, 5};
  y(0, 1) = -INFINITY, z(1, 5) = -INFINITY;
  const auto out = evaluate(sampled_kl{.tokens = tokens, .estimator = estimator::k1}, sums, z, y);
  EXPECT_EQ(out.result.row_status[0], heddle::status::infinite_divergence);
  EXPECT_EQ(out.result.row_status[1], heddle::status::infinite_divergence);
  for (const float g : out.gradient.data) EXPECT_EQ(g, 0);
  logits<double> far(1, 2), near(1, 2);
  far.data = {-30, 0}, near.data = {0, 0};   // r = 29.3: capped at 20 in all three terms
  const std::vector<std::int32_t> token{0};
  const auto capped = evaluate(sampled_kl{.tokens = token, .estimator = estimator::k3}, {}, far, near);
  EXPECT_NEAR(capped.result.value, std::exp(20.) - 1 - 20, 1e-3);
  EXPECT_EQ(capped.gradient.data[0], 0);
}

TEST(Clip, OfARowStopsItsGradient) {
  const auto z = noise(6, 40, 1).as<double>(), y = noise(6, 40, 2).as<double>();
  const auto plain = evaluate(reverse_kl{}, sums, z, y);
  auto sorted = plain.result.row_values;
  std::sort(sorted.begin(), sorted.end());
  const double limit = (sorted[2] + sorted[3]) / 2;
  const auto out = evaluate(token_clip{reverse_kl{}, limit}, sums, z, y);
  for (std::int64_t r = 0; r < 6; ++r) {
    const double value = plain.result.row_values[static_cast<std::size_t>(r)];
    EXPECT_EQ(out.result.row_values[static_cast<std::size_t>(r)], std::min(value, limit));
    for (std::int64_t v = 0; v < 40; ++v) EXPECT_EQ(out.gradient(r, v), value < limit ? plain.gradient(r, v) : 0);
  }
  logits<float> here(1, 2), there(1, 2);
  here.data = {0, 0}, there.data = {0, -INFINITY};
  const auto infinite = evaluate(token_clip{reverse_kl{}, 3.}, sums, here, there);
  EXPECT_EQ(infinite.result.value, 3);
  EXPECT_EQ(infinite.gradient.data[0], 0);
}

TEST(Clip, OfEntriesKeepsTheLossNonNegative) {
  const auto z = noise(4, 40, 1).as<double>(), y = noise(4, 40, 2).as<double>();
  EXPECT_NEAR(evaluate(entry_clip{1e6}, sums, z, y).result.value, evaluate(forward_kl{}, sums, z, y).result.value, 1e-12);
  for (const double limit : {1e-4, 1e-2, 0.3}) {
    const auto out = evaluate(entry_clip{limit}, sums, z, y);
    for (std::int64_t r = 0; r < 4; ++r) {
      const auto s = reference::softmax(z.row(r), 1.3), t = reference::softmax(y.row(r), 1.3);
      double expected = 0;
      for (std::size_t v = 0; v < s.size(); ++v) expected += std::min(t[v] * std::log(t[v] / s[v]) - t[v] + s[v], limit);
      EXPECT_NEAR(out.result.row_values[static_cast<std::size_t>(r)], expected, 1e-13);
      EXPECT_GE(expected, 0);
    }
    EXPECT_LT(difference_to_finite_differences(entry_clip{limit}, sums, z, y), 1e-8);
  }
  EXPECT_THROW(evaluate(entry_clip{0}, sums, z, y), heddle::error);
  EXPECT_THROW(evaluate(token_clip{reverse_kl{}, NAN}, sums, z, y), heddle::error);
}

// Entries are clipped in the non-negative form of forward KL only.
template <class D>
concept clips_entries = requires { entry_clip{D{}, 1.}; };
static_assert(!clips_entries<reverse_kl> && !clips_entries<forward_kl>);

TEST(SampledToken, NoLossWithoutMassOnEitherSide) {
  logits<float> z(3, 2), y(3, 2);   // the student, the teacher, both have none on token 1
  z.data = {0, -INFINITY, 0, 0, 0, -INFINITY}, y.data = {0, 0, 0, -INFINITY, 0, -INFINITY};
  const std::vector<std::int32_t> tokens{1, 1, 1};
  const auto expect_infinite = [&](const auto& functional) {
    const auto out = evaluate(functional, {}, z, y);
    EXPECT_EQ(out.result.value, INFINITY);
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(out.result.row_status[r], heddle::status::infinite_divergence) << r;
      EXPECT_EQ(out.result.row_values[r], INFINITY) << r;
    }
    for (const float g : out.gradient.data) EXPECT_EQ(g, 0);
  };
  for (const estimator e : {estimator::k1, estimator::k2, estimator::k3}) expect_infinite(sampled_kl{.tokens = tokens, .estimator = e});
  expect_infinite(policy_gradient_kl{.tokens = tokens});
  const std::vector<double> old{-1, NAN, -1};
  logits<float> g(3, 2);
  EXPECT_NE(message_of([&] { loss(y.view(), z.view(), policy_gradient_kl{.tokens = tokens, .reuse = {old, 2.}}, g.view()); }).find("'old_log_probs': entry 1 is NaN"), std::string::npos);
}

}  // namespace
