// The fit against the laws that determine it, on matrices formed row by row as the definitions read; the random control and captured shares.
#include "distillation/arrays.hpp"
#include "support/errors.hpp"

#include <heddle/distillation/residual_subspace.hpp>
#include <heddle/distillation/residual_subspace_fit.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace heddle;
using namespace heddle::distillation;
using matrix_d = Eigen::MatrixXd;
using test::array;
using test::gaussian;

array<double> probabilities(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  array<double> p = gaussian<double>(rows, columns, random);
  for (double& x : p.values) x = std::exp(2 * x);
  for (std::int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (std::int64_t v = 0; v < columns; ++v) sum += p(i, v);
    for (std::int64_t v = 0; v < columns; ++v) p(i, v) /= sum;
  }
  return p;
}
matrix_d eigen(const array<double>& a) {
  matrix_d m(a.rows, a.columns);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t c = 0; c < a.columns; ++c) m(i, c) = a(i, c);
  return m;
}
std::vector<double> squared_singular_values(const matrix_d& b) {
  const matrix_d square = b * b.transpose();
  const Eigen::SelfAdjointEigenSolver<matrix_d> solver(square);
  return {solver.eigenvalues().begin(), solver.eigenvalues().end()};
}

TEST(ResidualSubspaceFit, IdentitiesGiveTheMeanSquare) {
  const std::int64_t d = 6;
  const matrix_d factor = distillation::detail::conditioned_factor(matrix_d::Identity(d, d), matrix_d::Identity(d, d), d);
  std::mt19937 random(3);
  auto h = gaussian<double>(4, d, random), target = gaussian<double>(4, d, random);
  double squares = 0;
  for (std::size_t k = 0; k < h.values.size(); ++k) squares += (h.values[k] - target.values[k]) * (h.values[k] - target.values[k]);
  EXPECT_NEAR(residual_subspace_loss(residual_subspace{factor}.view(), h.view(), target.view()).value, squares / 4 / (2. * d), 1e-12);
}

// C and F formed row by row. B C B^T = diag(lambda), lambda the largest eigenvalues of F^1/2 C F^1/2, and B F^-1 B^T = I determine B
// up to signs; a factor without the head's information, or without the covariance's, breaks them.
TEST(ResidualSubspaceFit, FitDiagonalisesTheConditionedCovariance) {
  std::mt19937 random(4);
  const std::int64_t n = 40, d = 12, vocabulary = 1100, rank = 5;
  auto residuals = gaussian<double>(n, d, random), head = gaussian<double>(vocabulary, d, random);
  auto p = probabilities(n, vocabulary, random);
  for (const std::int64_t top_k : {std::int64_t{0}, std::int64_t{7}})
    for (const bool centre : {false, true}) {
      const double shrinkage = 0.01;
      matrix_d c = matrix_d::Zero(d, d), f = matrix_d::Zero(d, d);
      const matrix_d r = eigen(residuals), w = eigen(head);
      const Eigen::RowVectorXd mean = centre ? Eigen::RowVectorXd(r.colwise().mean()) : Eigen::RowVectorXd::Zero(d);
      for (std::int64_t i = 0; i < n; ++i) {
        c += (r.row(i) - mean).transpose() * (r.row(i) - mean) / static_cast<double>(n);
        Eigen::VectorXd law = eigen(p).row(i).transpose();
        if (top_k) {
          std::vector<double> sorted(law.begin(), law.end());
          std::sort(sorted.rbegin(), sorted.rend());
          law = (law.array() >= sorted[static_cast<std::size_t>(top_k - 1)]).select(law, 0.);
          law /= law.sum();
        }
        const Eigen::VectorXd average = w.transpose() * law;
        f += (w.transpose() * law.asDiagonal() * w - average * average.transpose()) / static_cast<double>(n);
      }
      c.diagonal().array() += shrinkage * c.trace() / static_cast<double>(d);
      f.diagonal().array() += shrinkage * f.trace() / static_cast<double>(d);
      const auto fit = fit_residual_subspace(residuals.view(), head.view(), p.view(), {.rank = rank, .shrinkage = shrinkage, .centre = centre, .top_k = top_k});
      EXPECT_FALSE(fit.few_residuals);
      const matrix_d b = fit.transposed.transpose();
      ASSERT_EQ(b.rows(), rank);
      const Eigen::SelfAdjointEigenSolver<matrix_d> metric(f);
      const matrix_d q = metric.eigenvectors(), half = q * metric.eigenvalues().cwiseSqrt().asDiagonal(), square = half.transpose() * c, conditioned = square * half;
      const matrix_d scaled = q * metric.eigenvalues().cwiseInverse().asDiagonal(), inverse = scaled * q.transpose();
      const Eigen::SelfAdjointEigenSolver<matrix_d> spectrum(conditioned);   // D^1/2 Q^T C Q D^1/2: similar to F^1/2 C F^1/2
      const matrix_d left = b * c, diagonal = left * b.transpose(), other = b * inverse, identity = other * b.transpose();
      for (std::int64_t i = 0; i < rank; ++i)
        for (std::int64_t j = 0; j < rank; ++j) {
          EXPECT_NEAR(diagonal(i, j), i == j ? spectrum.eigenvalues()(d - 1 - i) : 0, 1e-9 * spectrum.eigenvalues()(d - 1));
          EXPECT_NEAR(identity(i, j), i == j, 1e-9);
        }
    }
}

TEST(ResidualSubspaceFit, DirectionsWithoutVarianceAreZeroRows) {
  std::mt19937 random(5);
  const std::int64_t n = 30, d = 10;
  auto residuals = gaussian<float>(n, d, random);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t c = 3; c < d; ++c) residuals(i, c) = 0;   // rank 3
  auto head = gaussian<float>(50, d, random);
  auto p = probabilities(n, 50, random);
  const auto fit = fit_residual_subspace(residuals.view(), head.view(), p.view(), {.rank = 6, .shrinkage = 0});
  for (Eigen::Index j = 0; j < 6; ++j) {
    EXPECT_TRUE(fit.transposed.col(j).allFinite());
    EXPECT_EQ(fit.transposed.col(j).squaredNorm() == 0, j >= 3);
  }
  EXPECT_GT(captured_share(fit, residuals.view()), 0.1);
  EXPECT_TRUE(random_control(fit, 1).transposed.allFinite());
}

TEST(ResidualSubspaceFit, RandomControlKeepsTheSpectrum) {
  std::mt19937 random(6);
  auto residuals = gaussian<double>(60, 24, random), head = gaussian<double>(200, 24, random);
  auto p = probabilities(60, 200, random);
  const auto structured = fit_residual_subspace(residuals.view(), head.view(), p.view(), {.rank = 8});
  const auto expected = squared_singular_values(structured.transposed.transpose());
  double overlap = 0;
  const int trials = 200;
  for (int seed = 0; seed < trials; ++seed) {
    const auto control = random_control(structured, static_cast<std::uint64_t>(seed));
    const auto found = squared_singular_values(control.transposed.transpose());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(std::sqrt(found[i]), std::sqrt(expected[i]), 1e-6 * std::sqrt(expected[i]));
    // P is kept as well: B B^T is the same matrix
    const matrix_d gram = control.transposed.transpose() * control.transposed, wanted = structured.transposed.transpose() * structured.transposed;
    EXPECT_LT((gram - wanted).norm(), 1e-9 * expected.back());
    overlap += captured_share(control, residuals.view());
  }
  EXPECT_NEAR(overlap / trials, 8. / 24., 0.01);   // Haar: r / d on average
  EXPECT_EQ(random_control(structured, 3).transposed, random_control(structured, 3).transposed);
  EXPECT_NE(random_control(structured, 3).transposed, random_control(structured, 4).transposed);
}

// Residuals with a power-law spectrum, as the privileged gap of a real model has: the fitted factor captures more than twice what a random one does, on rows it
// has not seen.
TEST(ResidualSubspaceFit, HeldOutCapture) {
  std::mt19937 random(8);
  const std::int64_t n = 320, d = 256, vocabulary = 512, rank = 16;
  const matrix_d rotation = distillation::detail::orthonormal(Eigen::HouseholderQR<matrix_d>(eigen(gaussian<double>(d, d, random))));
  matrix_d scaled = eigen(gaussian<double>(n, d, random));
  for (std::int64_t c = 0; c < d; ++c) scaled.col(c) *= 1 / std::sqrt(1. + static_cast<double>(c));   // variances 1, 1/2, 1/3, ...
  const matrix_d residuals = rotation * scaled.transpose();   // a column each
  auto head = gaussian<float>(vocabulary, d, random);
  auto p = probabilities(n, vocabulary, random);
  const tensor_view<const double, 2> view{residuals.data(), extents{n, d}};
  const auto shares = cross_fitted_capture(view, head.view(), p.view(), 2, 11, {.rank = rank, .top_k = 64});
  RecordProperty("structured", std::to_string(shares.structured));
  RecordProperty("random", std::to_string(shares.random));
  EXPECT_GT(shares.ratio(), 2);
  EXPECT_LT(shares.structured, 1);
  EXPECT_NEAR(shares.random, double{rank} / d, 0.03);
}

TEST(ResidualSubspaceFit, Errors) {
  std::mt19937 random(9);
  auto residuals = gaussian<double>(3, 4, random), head = gaussian<double>(6, 4, random);
  auto p = probabilities(3, 6, random);
  const auto fit = [&](const residual_subspace_fit_options& options) { return message_of([&] { fit_residual_subspace(residuals.view(), head.view(), p.view(), options); }); };
  EXPECT_NE(fit({.rank = 0}).find("'rank' is 0; expected 1 to the width, 4"), std::string::npos);
  EXPECT_NE(fit({.rank = 5}).find("'rank' is 5"), std::string::npos);
  EXPECT_NE(fit({.rank = 2, .shrinkage = -1}).find("'shrinkage' is -1"), std::string::npos);
  EXPECT_NE(fit({.rank = 2, .top_k = -1}).find("'top_k' is -1"), std::string::npos);
  EXPECT_TRUE(fit_residual_subspace(residuals.view(), head.view(), p.view(), {.rank = 4}).few_residuals);
  EXPECT_NE(message_of([&] { cross_fitted_capture(residuals.view(), head.view(), p.view(), 4, 0, {.rank = 2}); }).find("'folds' is 4"), std::string::npos);
  p(1, 2) = -0.1;
  EXPECT_NE(fit({.rank = 2}).find("'probabilities': entry (1, 2) is -0.1"), std::string::npos);
  head(5, 1) = std::nan(""), p(1, 2) = 0.1;
  EXPECT_NE(fit({.rank = 2}).find("'head': entry (5, 1) is NaN"), std::string::npos);
}

}  // namespace
