// What truncations must obey whatever the row: order of ids, growing parameters, repetition.
#include <heddle/sampling/row.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
using ids = std::vector<std::int32_t>;

ids kept(const std::vector<float>& z, const sampling::parameters& p) {
  sampling::row_workspace memory(static_cast<std::int64_t>(z.size()));
  const auto law = sampling::law_of(tensor_view<const float, 1>{z.data(), extents{static_cast<std::int64_t>(z.size())}}, sampling::chain{p}, {}, {}, memory);
  return {law.tokens.begin(), law.tokens.end()};
}

struct rows {
  std::mt19937 random{8};
  /// Few different logits, so that there are ties.
  std::vector<float> operator()(std::size_t n, bool ties) {
    std::vector<float> z(n);
    for (float& x : z) x = ties ? static_cast<float>(random() % 7) : std::normal_distribution<float>(0.f, 2.f)(random);
    return z;
  }
};

const sampling::parameters tie_inclusive[] = {{.top_p = .3f}, {.top_p = .95f}, {.min_p = .1f}, {.typical_p = .4f}, {.top_p = .8f, .min_p = .02f, .typical_p = .9f}, {.temperature = .3f, .top_p = .7f}};

TEST(Laws, PermutingTheVocabularyPermutesTheKeptSet) {
  rows row;
  for (const std::size_t n : {1u, 5u, 40u, 5000u})
    for (const bool ties : {false, true})
      for (const auto& p : tie_inclusive) {
        const auto z = row(n, ties);
        ids order(n);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), row.random);
        std::vector<float> permuted(n);
        for (std::size_t i = 0; i < n; ++i) permuted[i] = z[static_cast<std::size_t>(order[i])];
        ids back;
        for (const std::int32_t v : kept(permuted, p)) back.push_back(order[static_cast<std::size_t>(v)]);
        std::sort(back.begin(), back.end());
        ASSERT_EQ(back, kept(z, p)) << n << " top_p " << p.top_p << " min_p " << p.min_p << " typical " << p.typical_p;
      }
}

TEST(Laws, SupportsGrowWithTheirParameter) {
  rows row;
  for (const std::size_t n : {5u, 300u, 5000u})
    for (const bool ties : {false, true}) {
      const auto z = row(n, ties);
      const auto grows = [&](auto with, std::vector<float> values) {
        ids before;
        for (const float value : values) {
          const ids now = kept(z, with(value));
          ASSERT_FALSE(now.empty());
          ASSERT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end())) << value;
          before = now;
        }
      };
      grows([](float x) { return sampling::parameters{.top_k = static_cast<std::int32_t>(x)}; }, {1, 2, 4, 5, 50, 299, 300, 1e9f});
      grows([](float x) { return sampling::parameters{.top_p = x}; }, {0, 1e-20f, .1f, .5f, .9f, .99f, .99999f, .9999999f, 1});
      grows([](float x) { return sampling::parameters{.min_p = 1 - x}; }, {0, .1f, .5f, .9f, .999f, 1});
      grows([](float x) { return sampling::parameters{.typical_p = x}; }, {1e-6f, .1f, .5f, .9f, .999f, 1});
    }
}

TEST(Laws, TopKAndMinPAreIdempotent) {
  rows row;
  for (const std::size_t n : {5u, 300u, 5000u})
    for (const auto& p : {sampling::parameters{.top_k = 3}, sampling::parameters{.min_p = .2f}, sampling::parameters{.top_k = 40, .min_p = .01f}}) {
      auto z = row(n, true);
      const ids first = kept(z, p);
      for (std::int32_t v = 0; v < static_cast<std::int32_t>(n); ++v)
        if (!std::binary_search(first.begin(), first.end(), v)) z[static_cast<std::size_t>(v)] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(kept(z, p), first);
    }
}

// 1 / T leaves the range of float below 3e-39, not that of double: the law is that of the largest logits, which share it.
TEST(Laws, TheSmallestTemperaturesLeaveTheLargestLogits) {
  rows row;
  for (const float temperature : {1e-20f, 1e-29f, 1e-31f, 1e-38f, 1e-40f, std::numeric_limits<float>::denorm_min()})
    for (const float top : {7.f, 1e30f, 3e38f, -1e-9f})
      for (const auto& truncated : tie_inclusive) {
        sampling::parameters p = truncated;
        p.temperature = temperature, p.typical_p = 1.f;
        std::vector<float> z = row(700, true);
        for (float& x : z) x = top > 0.f ? x * (top / 8.f) : top * (1.f + x);
        z[300] = z[611] = top;
        const float largest = *std::max_element(z.begin(), z.end());
        ids expected;
        for (std::size_t v = 0; v < z.size(); ++v)
          if (z[v] == largest) expected.push_back(static_cast<std::int32_t>(v));
        const auto n = static_cast<std::int64_t>(z.size());
        sampling::row_workspace memory(n);
        const tensor_view<const float, 1> view{z.data(), extents{n}};
        const auto law = sampling::law_of(view, sampling::chain{p}, {}, {}, memory);
        ids found;
        for (std::size_t i = 0; i < law.tokens.size(); ++i)
          if (law.masses[i] > 0) found.push_back(law.tokens[i]);
        ASSERT_EQ(found, expected) << temperature << " " << top;
        for (const auto how : {sampling::draw::gumbel, sampling::draw::inverse_cdf}) ASSERT_EQ(z[static_cast<std::size_t>(sampling::sample_row(view, sampling::chain{p}, {}, {.seed = 3}, memory, how).token)], largest) << temperature << " " << top;
      }
}

}  // namespace
