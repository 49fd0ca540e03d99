// What happens to logits before the temperature, and how rows are read.
#include <heddle/sampling/row.hpp>

#include "support/reference/sampling.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;
constexpr float none = -std::numeric_limits<float>::infinity();

tensor_view<const float, 1> view(const std::vector<float>& z) { return {z.data(), extents{static_cast<std::int64_t>(z.size())}}; }

std::vector<float> edited(std::vector<float> z, const sampling::parameters& p, const ids& committed, const ids& path = {}) {
  ids counts(z.size());
  std::vector<std::int32_t> lengths(committed.size() + path.size());
  sampling::chain{p}.edit(z, {committed, path}, counts.data(), lengths.data());
  EXPECT_EQ(counts, ids(z.size()));  // clean for the next row
  return z;
}

TEST(Penalties, FollowTheirFormula) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> z(40);
    for (float& x : z) x = random() % 7 ? std::normal_distribution<float>(0.f, 3.f)(random) : none;
    ids committed(random() % 30), path(random() % 4);
    for (auto* list : {&committed, &path})
      for (auto& t : *list) t = static_cast<std::int32_t>(random() % 40);
    const sampling::parameters p{.repetition_penalty = trial % 3 ? 1.3f : 0.8f, .presence_penalty = trial % 2 ? 0.5f : -0.25f, .frequency_penalty = 0.1f, .penalty_window = trial % 4 ? 0 : 7};
    ids text = committed;
    text.insert(text.end(), path.begin(), path.end());
    if (p.penalty_window && text.size() > 7) text.erase(text.begin(), text.end() - 7);
    std::map<std::int32_t, int> seen;
    for (auto t : text) ++seen[t];
    const auto out = edited(z, p, committed, path);
    for (std::size_t v = 0; v < z.size(); ++v) {
      double expected = z[v];
      if (const int n = seen.count(static_cast<std::int32_t>(v)) ? seen.at(static_cast<std::int32_t>(v)) : 0; n > 0) {
        expected = expected > 0 ? expected / double{p.repetition_penalty} : expected * double{p.repetition_penalty};
        expected -= double{p.presence_penalty} + double{p.frequency_penalty} * n;
      }
      if (z[v] == none) EXPECT_EQ(out[v], none);
      else EXPECT_NEAR(out[v], expected, 1e-5);
    }
  }
}

TEST(Penalties, NeutralValuesChangeNoBit) {
  const std::vector<float> z = {1.5f, -0.f, none, 3e-39f};
  const auto out = edited(z, {.repetition_penalty = 1.f, .presence_penalty = 0.f, .frequency_penalty = 0.f}, {0, 1, 2, 3});
  EXPECT_EQ(std::memcmp(out.data(), z.data(), 4 * sizeof(float)), 0);
}

TEST(Dry, EqualsItsDefinition) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    ids text(random() % 25);
    for (auto& t : text) t = static_cast<std::int32_t>(random() % 4);
    const ids breakers = trial % 2 ? ids{3} : ids{};
    const sampling::parameters p{.dry_multiplier = 0.8f, .dry_base = 1.75f, .dry_allowed_length = 1 + trial % 3, .dry_breakers = breakers};
    const auto out = edited(std::vector<float>(5, 0.f), p, {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.size() / 2)}, {text.begin() + static_cast<std::ptrdiff_t>(text.size() / 2), text.end()});
    const auto n = static_cast<std::ptrdiff_t>(text.size());
    for (std::int32_t v = 0; v < 5; ++v) {
      std::ptrdiff_t longest = 0;
      for (std::ptrdiff_t at = 0; at < n; ++at) {
        if (text[static_cast<std::size_t>(at)] != v) continue;
        std::ptrdiff_t length = 0;
        while (length < at && text[static_cast<std::size_t>(at - 1 - length)] == text[static_cast<std::size_t>(n - 1 - length)] && !std::count(breakers.begin(), breakers.end(), text[static_cast<std::size_t>(n - 1 - length)])) ++length;
        longest = std::max(longest, length);
      }
      const double expected = longest >= p.dry_allowed_length ? -0.8f * std::pow(1.75, static_cast<double>(longest - p.dry_allowed_length)) : 0;
      ASSERT_NEAR(out[static_cast<std::size_t>(v)], expected, 1e-5 * std::abs(expected) + 1e-7) << "trial " << trial << " token " << v;
    }
  }
  const auto huge = edited({0.f, 0.f}, {.dry_multiplier = 1.f, .dry_base = 10.f}, ids(500, 1));
  EXPECT_TRUE(std::isfinite(huge[1]) && huge[1] < -1e29f);
}

TEST(Constraint, NarrowMasksAreErrorsAndForbiddenTokensStayForbidden) {  // known fault 44
  std::vector<float> z(70, 1.f);
  z[69] = 5.f;
  sampling::row_workspace memory(70);
  const auto with_words = [&](std::vector<std::uint32_t> words) {
    return sampling::sample_row(view(z), sampling::chain{sampling::constraint([&](const sampling::history&) { return std::span<const std::uint32_t>(words); }), sampling::temperature(0.f)}, {}, {}, memory);
  };
  EXPECT_THROW(with_words({0, 0}), error);
  EXPECT_THROW(with_words({0, 0, 0, 0}), error);
  EXPECT_EQ(with_words({0, 0, 0}).status, status::empty_support);
  EXPECT_EQ(with_words({0, 2, 0}).token, 33);
  EXPECT_EQ(with_words({0, 0, 0xffffffff}).token, 69);   // bits beyond the vocabulary mean nothing
  EXPECT_EQ(with_words({0, 0, 0xffffffc0}).status, status::empty_support);
}

TEST(Chain, TransformComesBeforeTheConstraintAndSeesTheHistory) {
  const std::vector<float> z = {0.f, 1.f, 2.f};
  const ids committed = {2}, path = {1, 1};
  const std::uint32_t allowed[] = {0b011};
  const sampling::chain policy{sampling::transform([&](std::span<float> logits, const sampling::history& before) {
                                 EXPECT_EQ(before.size(), 3);
                                 EXPECT_EQ(before[0], 2);
                                 EXPECT_EQ(before[2], 1);
                                 logits[2] += 10.f;
                                 logits[0] += 5.f;
                               }),
                               sampling::constraint([&](const sampling::history&) { return std::span<const std::uint32_t>(allowed); }), sampling::temperature(0.f)};
  sampling::row_workspace memory(3);
  EXPECT_EQ(sampling::sample_row(view(z), policy, {committed, path}, {}, memory).token, 0);
  EXPECT_EQ(z[0], 0.f);  // the caller's row is not written
}

using sampling::detail::in_order;
static_assert(in_order<>() && in_order<sampling::temperature, sampling::top_p>() && in_order<sampling::top_p, sampling::top_k>());
static_assert(in_order<sampling::parameters, sampling::repetition_penalty, sampling::temperature>());
static_assert(!in_order<sampling::top_p, sampling::temperature>() && !in_order<sampling::temperature, sampling::presence_penalty>() && !in_order<sampling::temperature, sampling::parameters>());

TEST(Chain, ParametersOutOfRangeAreErrors) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = -none;
  for (const sampling::parameters& p : std::initializer_list<sampling::parameters>{
           {.temperature = -1.f}, {.temperature = nan}, {.temperature = infinite}, {.top_k = -1}, {.top_p = nan}, {.min_p = -.1f}, {.min_p = 1.1f}, {.min_p = nan}, {.typical_p = 0.f}, {.typical_p = 1.5f}, {.typical_p = nan},
           {.repetition_penalty = 0.f}, {.repetition_penalty = infinite}, {.presence_penalty = nan}, {.frequency_penalty = infinite}, {.penalty_window = -1}, {.dry_multiplier = -1.f}, {.dry_base = .5f}, {.dry_allowed_length = 0}, {.xtc_probability = nan}, {.xtc_threshold = -1.f}})
    EXPECT_THROW(sampling::chain{p}, error);
  const std::vector<float> z = {0.f, 1.f};
  sampling::row_workspace memory(2);
  for (const ids& outside : {ids{2}, ids{-1}}) {
    EXPECT_THROW(sampling::sample_row(view(z), sampling::chain{sampling::presence_penalty(1.f)}, {outside, {}}, {}, memory), error);
    EXPECT_THROW(sampling::sample_row(view(z), sampling::chain{sampling::parameters{.dry_multiplier = 1.f}}, {outside, {}}, {}, memory), error);
  }
  sampling::row_workspace wider(3);
  EXPECT_THROW(sampling::sample_row(view(z), sampling::chain{}, {}, {}, wider), error);
  EXPECT_THROW(sampling::row_workspace(0), error);
}

template <class Element>
class Rows : public testing::Test {};
using elements = testing::Types<float, double, float16, bfloat16>;
TYPED_TEST_SUITE(Rows, elements);

TYPED_TEST(Rows, AnyElementAndStrideGiveTheTokensOfTheSameFloats) {
  constexpr std::int64_t n = 1000, stride = 3;
  std::mt19937 random(2);
  std::vector<TypeParam> wide(n * stride), dense(n);
  std::vector<float> floats(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<TypeParam>(std::normal_distribution<float>(0.f, 3.f)(random));
    wide[static_cast<std::size_t>(i * stride)] = dense[static_cast<std::size_t>(i)] = x;
    floats[static_cast<std::size_t>(i)] = static_cast<float>(x);
  }
  sampling::row_workspace memory(n);
  const sampling::chain policy{sampling::temperature(0.9f), sampling::top_p(0.9f)};
  for (std::uint32_t position = 0; position < 50; ++position) {
    const random_key key{.seed = 4, .position = position};
    const auto expected = sampling::sample_row(view(floats), policy, {}, key, memory).token;
    ASSERT_EQ(sampling::sample_row(tensor_view<const TypeParam, 1>{dense.data(), extents{n}}, policy, {}, key, memory).token, expected);
    ASSERT_EQ(sampling::sample_row(tensor_view<const TypeParam, 1>{wide.data(), extents{n}, extents{stride}}, policy, {}, key, memory).token, expected);
    ASSERT_EQ(sampling::sample_row(tensor_view<const TypeParam, 1>{wide.data() + (n - 1) * stride, extents{n}, extents{-stride}}, sampling::chain{sampling::temperature(0.f)}, {}, key, memory).token,
              static_cast<std::int32_t>(floats.rend() - 1 - std::max_element(floats.rbegin(), floats.rend()) == 0 ? n - 1 : std::max_element(floats.rbegin(), floats.rend()) - floats.rbegin()));
  }
}

}  // namespace
