#include <heddle/core/random.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

using namespace heddle;

namespace {

constexpr bool equal(const random_words& a, const random_words& b) { return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3]; }

// Known answers of the Random123 distribution, file kat_vectors, lines "philox4x32 10".
static_assert(equal(philox4x32({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
static_assert(equal(philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
static_assert(equal(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0), {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));

// The key: which field goes where is part of the contract.
static_assert(equal(random_block({.seed = 0x299f31d0a4093822, .request = 0x13198a2e, .position = 0x85a308d3, .purpose = static_cast<purpose>(0x03707344)}, 0x243f6a88),
                    {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
static_assert(random_bits({.seed = 9, .position = 5, .index = 7}) == random_block({.seed = 9, .position = 5}, 1)[3]);

// Open at both ends, exactly.
static_assert(to_uniform(0) == 0x1p-33 && to_uniform(0xffffffff) == 1 - 0x1p-33 && to_uniform(0xffffffff) < 1);

}  // namespace

TEST(random, every_field_of_the_key_matters) {
  std::set<std::uint32_t> seen;
  for (const random_key& key : {random_key{}, random_key{.seed = 1}, random_key{.seed = 1ull << 32}, random_key{.request = 1}, random_key{.position = 1},
                                random_key{.purpose = purpose::accept}, random_key{.index = 1}, random_key{.index = 4}})
    seen.insert(random_bits(key));
  EXPECT_EQ(seen.size(), 8u);
}

TEST(random, uniform_numbers_fill_the_interval_evenly) {
  constexpr int cells = 64, draws = 1 << 18;
  int count[cells] = {};
  double sum = 0, products = 0, before = 0;
  for (std::uint32_t i = 0; i < draws; ++i) {
    const double u = uniform({.seed = 3, .position = i / 8, .index = i % 8});
    ++count[static_cast<int>(u * cells)];
    sum += u, products += (u - 0.5) * (before - 0.5), before = u;
  }
  double chi_square = 0;
  for (const int c : count) chi_square += (c - draws / cells) * (c - draws / cells) / static_cast<double>(draws / cells);
  EXPECT_LT(chi_square, 120);   // 63 degrees of freedom: exceeded once in 20,000 times
  EXPECT_NEAR(sum / draws, 0.5, 4 * std::sqrt(1. / 12 / draws));
  EXPECT_NEAR(products / draws, 0, 4 / 12. / std::sqrt(static_cast<double>(draws)));
}

TEST(random, gumbel_noise_is_finite_and_follows_its_law) {
  EXPECT_NEAR(gumbel(0), -std::log(33 * std::log(2.)), 1e-15);
  EXPECT_NEAR(gumbel(0xffffffffu), 33 * std::log(2.), 1e-8);
  constexpr int draws = 1 << 17;
  std::vector<double> x;
  for (std::uint32_t i = 0; i < draws; ++i) x.push_back(gumbel({.seed = 4, .index = i}));
  std::sort(x.begin(), x.end());
  double distance = 0;   // Kolmogorov-Smirnov against exp(-exp(-x))
  for (int i = 0; i < draws; ++i) distance = std::max(distance, std::fabs(std::exp(-std::exp(-x[static_cast<std::size_t>(i)])) - (i + 0.5) / draws));
  EXPECT_LT(distance * std::sqrt(static_cast<double>(draws)), 2.1);   // exceeded once in 3,000 times
}

TEST(random, the_argmax_of_noisy_logits_is_a_draw_from_their_softmax) {
  const double p[] = {0.5, 0.25, 0.15, 0.1};
  constexpr int draws = 40000;
  int count[4] = {};
  for (std::uint32_t position = 0; position < draws; ++position) {
    int best = 0;
    double top = -1e300;
    for (std::uint32_t token = 0; token < 4; ++token)
      if (const double score = std::log(p[token]) + gumbel({.seed = 5, .position = position, .index = token}); score > top) top = score, best = static_cast<int>(token);
    ++count[best];
  }
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(count[i] / static_cast<double>(draws), p[i], 4 * std::sqrt(p[i] * (1 - p[i]) / draws));
}
