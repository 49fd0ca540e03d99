#include <heddle/speculative/draft/transition_cache_fit.hpp>
#include <heddle/speculative/draft/transition_spine.hpp>

#include "distillation/arrays.hpp"
#include "support/errors.hpp"

#include <gtest/gtest.h>

namespace {

using namespace heddle;

struct fixture {
  std::int64_t vocabulary = 300, d = 12;   // more rows than one block
  test::array<float> e;
  fixture() : e(vocabulary, d) {
    std::mt19937 random(3);
    const auto left = test::gaussian<double>(vocabulary, d, random), right = test::gaussian<double>(d, d, random);
    for (std::int64_t v = 0; v < vocabulary; ++v)
      for (std::int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (std::int64_t k = 0; k < d; ++k) sum += left(v, k) * right(k, c) / static_cast<double>(1 + k * k);
        e(v, c) = static_cast<float>(sum);
      }
  }
  /// || E - Z basis ||^2 with Z = E basis^T.
  double lost(const weight_matrix& basis) {
    test::array<float> z(vocabulary, basis.extent(0));
    transition_cache(e.view(), basis, z.view());
    double sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v)
      for (std::int64_t c = 0; c < d; ++c) {
        double x = static_cast<double>(e(v, c));
        for (std::int64_t k = 0; k < basis.extent(0); ++k) x -= static_cast<double>(z(v, k)) * static_cast<double>(basis(k, c));
        sum += x * x;
      }
    return sum;
  }
};

TEST(TransitionCacheFit, RowsAreOrthonormalAndSigned) {
  fixture f;
  const auto basis = fit_transition_basis(f.e.view(), 5);
  for (std::int64_t i = 0; i < 5; ++i) {
    float largest = 0;
    for (std::int64_t c = 0; c < f.d; ++c) largest = std::abs(basis.view()(i, c)) > std::abs(largest) ? basis.view()(i, c) : largest;
    EXPECT_GT(largest, 0.f);
    for (std::int64_t j = 0; j < 5; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < f.d; ++c) sum += static_cast<double>(basis.view()(i, c)) * static_cast<double>(basis.view()(j, c));
      EXPECT_NEAR(sum, i == j, 1e-6);
    }
    EXPECT_TRUE(i == 0 || basis.singular_values[static_cast<std::size_t>(i)] <= basis.singular_values[static_cast<std::size_t>(i) - 1]);
  }
}

TEST(TransitionCacheFit, NoOtherNumbersPerTokenKeepMore) {   // Eckart and Young
  fixture f;
  const auto all = fit_transition_basis(f.e.view(), f.d);
  double total = 0;
  for (const float x : f.e.values) total += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_NEAR(all.captured_share, 1, 1e-12);
  for (const std::int64_t rank : {1, 4, 12}) {
    const auto basis = fit_transition_basis(f.e.view(), rank);
    double tail = 0;
    for (std::size_t k = static_cast<std::size_t>(rank); k < all.singular_values.size(); ++k) tail += all.singular_values[k] * all.singular_values[k];
    EXPECT_NEAR(f.lost(basis.view()), tail, 1e-5 * total);
    EXPECT_NEAR(basis.captured_share, 1 - tail / total, 1e-6);
    if (rank == 12) continue;
    for (std::int64_t other = rank; other < f.d; ++other) {   // with its last direction turned it is worse
      auto turned = basis;
      for (std::int64_t c = 0; c < f.d; ++c) {
        float& x = turned.rows[static_cast<std::size_t>((rank - 1) * f.d + c)];
        x = std::cos(.4f) * x + std::sin(.4f) * all.view()(other, c);
      }
      EXPECT_GT(f.lost(turned.view()), f.lost(basis.view()) * 1.0001);
    }
  }
}

TEST(TransitionCacheFit, BadInput) {
  fixture f;
  EXPECT_THROW(fit_transition_basis(f.e.view(), 0), error);
  EXPECT_THROW(fit_transition_basis(f.e.view(), 13), error);
  f.e(7, 2) = NAN;
  EXPECT_NE(message_of([&] { fit_transition_basis(f.e.view(), 3); }).find("entry (7, 2)"), std::string::npos);
}

}  // namespace
