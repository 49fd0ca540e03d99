// The subspace of hidden-state residuals that matters to the language-model head, and its matched random control.
//
//   C = mean_i r_i r_i^T            residuals r_i = h_teacher,i - h_student,i (centred if asked)
//   F = mean_i W^T (diag p_i - p_i p_i^T) W         the head's Fisher information, W [V, d], p_i the next-token law of row i
//   both + shrinkage tr / d I;      F^1/2 C F^1/2 = U diag(lambda) U^T;      B = U_r^T F^1/2      (r largest lambda)
//
// B [r, d] is the factor of residual_subspace.hpp: B C B^T = diag(lambda). Directions with lambda = 0 (to rounding) are zero rows. Rows are signed so
// that their entry of largest magnitude is positive.
// random_control(B): the same singular values and left singular vectors, row space Haar distributed: B^T = Q R, control = R^T Q'^T with
// Q' from the QR decomposition of a Gaussian matrix with R's diagonal positive. Keyed by seed.
// captured_share: sum ||Q^T r||^2 / sum ||r||^2, Q an orthonormal basis of the row space. Its expectation for a random subspace is r / d.
// cross_fitted_capture: K folds (row i in fold i mod K), each held out once while both factors are fitted on the others.
//
// residuals [n, d], head [V, d], probabilities [n, V] (rows are normalised; top_k > 0: on their k largest entries only), elements f32, f16, bf16 or
// double. Errors: r = 0, r > d, shapes, no residual, fewer than two folds or more than residuals, entries that are negative, NaN or infinite.
// n < r: few_residuals is set. All in double; deterministic for given flags. Cost: fit O(V d^2 + n V d + n d^2 + d^3) on one thread.
//
// This header needs Eigen: eigendecompositions and QR decompositions, done once before training and no business of a decoding library, which
// a well-tested library does better than we would. Nothing else of heddle includes it. Eigen's code is not kept apart by instruction set: units that
// include this header share one set of -m flags.
// Source: SCOPE-OPSD.
//
//     const auto structured = fit_residual_subspace(residuals, head, probabilities, {.rank = 64});
//     const auto control = random_control(structured, 7);
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/core/tensor.hpp>

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::distillation {

struct residual_subspace_fit_options {
  std::int64_t rank = 64;
  double shrinkage = 1e-3;
  bool centre = false;
  std::int64_t top_k = 0;   ///< 0: the whole vocabulary
};

struct capture_shares {
  double structured = 0, random = 0;
  [[gnu::always_inline]] inline double ratio() const { return structured / random; }
};

inline namespace HEDDLE_ISA {

struct residual_subspace {
  Eigen::MatrixXd transposed;   ///< B^T, [d, r]
  bool few_residuals = false;   ///< fewer residuals than rows: at most as many directions are meaningful
  /// B, [r, d], rows contiguous.
  tensor_view<const double, 2> view() const { return {transposed.data(), extents{static_cast<std::int64_t>(transposed.cols()), static_cast<std::int64_t>(transposed.rows())}}; }
};

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// Rows `chosen` of a tensor in double, as columns; throws where an entry is not finite.
template <matrix T>
Eigen::MatrixXd finite_columns(const char* argument, const T& tensor, const std::vector<std::int64_t>& chosen) {
  const auto view = view_of(tensor);
  Eigen::MatrixXd out(view.extent(1), static_cast<Eigen::Index>(chosen.size()));
  for (std::size_t i = 0; i < chosen.size(); ++i)
    for (std::int64_t c = 0; c < view.extent(1); ++c) {
      const auto x = static_cast<double>(view(chosen[i], c));
      require(x - x == 0, "residual_subspace: argument '", argument, "': entry (", chosen[i], ", ", c, ") is ", x, "; expected a finite number");
      out(c, static_cast<Eigen::Index>(i)) = x;
    }
  return out;
}

/// mean_i r_i r_i^T of the columns.
inline Eigen::MatrixXd covariance_of(Eigen::MatrixXd columns, bool centre) {
  if (centre) {
    const Eigen::VectorXd mean = columns.rowwise().mean();
    columns.colwise() -= mean;
  }
  return columns * columns.transpose() / static_cast<double>(columns.cols());
}

/// One row of probabilities, walked once with ascending columns: normalised, and zero outside its k largest entries (lower columns first among equals).
template <class View>
class truncated_row {
 public:
  truncated_row(const View& row, std::int64_t index, std::int64_t top_k) : row_(row) {
    std::vector<double> values;
    for (std::int64_t v = 0; v < row.extent(0); ++v) {
      const auto p = static_cast<double>(row(v));
      require(p >= 0 && p < math::infinity, "residual_subspace: argument 'probabilities': entry (", index, ", ", v, ") is ", p, "; expected a finite number, 0 or more");
      values.push_back(p);
    }
    if (top_k > 0 && top_k < row.extent(0)) {
      std::nth_element(values.begin(), values.begin() + (top_k - 1), values.end(), [](double a, double b) { return a > b; });
      smallest_ = values[static_cast<std::size_t>(top_k - 1)], ties_ = top_k;
      values.resize(static_cast<std::size_t>(top_k));
      for (const double p : values) ties_ -= p > smallest_;
    }
    for (const double p : values) sum_ += p;
    require(sum_ > 0, "residual_subspace: argument 'probabilities': row ", index, " is all zero");
  }
  double next(std::int64_t v) {
    const auto p = static_cast<double>(row_(v));
    return p > smallest_ || (p == smallest_ && ties_-- > 0) ? p / sum_ : 0;
  }

 private:
  View row_;
  double smallest_ = -1, sum_ = 0;
  std::int64_t ties_ = 0;
};

/// mean_i W^T (diag p_i - p_i p_i^T) W = W^T diag(mean p) W - mean_i (W^T p_i)(W^T p_i)^T, added up over blocks of W's rows.
class fisher_sum {
 public:
  fisher_sum(Eigen::Index width, Eigen::Index laws) : second_(Eigen::MatrixXd::Zero(width, width)), means_(Eigen::MatrixXd::Zero(width, laws)) {}
  void add(const Eigen::MatrixXd& head /*[width, block]*/, const Eigen::MatrixXd& laws /*[block, laws]*/) {
    const Eigen::MatrixXd weighted = head * laws.rowwise().mean().asDiagonal();
    second_.noalias() += weighted * head.transpose();
    means_.noalias() += head * laws;
  }
  Eigen::MatrixXd value() const { return second_ - means_ * means_.transpose() / static_cast<double>(means_.cols()); }

 private:
  Eigen::MatrixXd second_, means_;
};

template <matrix Head, matrix Probabilities>
Eigen::MatrixXd head_fisher(const Head& head, const Probabilities& probabilities, const std::vector<std::int64_t>& chosen, std::int64_t top_k) {
  const auto w = view_of(head);
  const auto p = view_of(probabilities);
  std::vector<truncated_row<decltype(p[0])>> rows;
  for (const std::int64_t i : chosen) rows.emplace_back(p[i], i, top_k);
  const auto n = static_cast<Eigen::Index>(chosen.size());
  fisher_sum sum(w.extent(1), n);
  constexpr std::int64_t block = 512;
  for (std::int64_t first = 0; first < w.extent(0); first += block) {
    std::vector<std::int64_t> tokens;
    for (std::int64_t v = first; v < w.extent(0) && v < first + block; ++v) tokens.push_back(v);
    Eigen::MatrixXd laws(static_cast<Eigen::Index>(tokens.size()), n);
    for (Eigen::Index i = 0; i < n; ++i)
      for (Eigen::Index v = 0; v < laws.rows(); ++v) laws(v, i) = rows[static_cast<std::size_t>(i)].next(first + v);
    sum.add(finite_columns("head", head, tokens), laws);
  }
  return sum.value();
}

inline void shrink(Eigen::MatrixXd& m, double shrinkage) { m.diagonal().array() += shrinkage * m.trace() / static_cast<double>(m.rows()); }

/// F^1/2 U_r for the covariance and Fisher information as they are.
inline Eigen::MatrixXd conditioned_factor(const Eigen::MatrixXd& covariance, const Eigen::MatrixXd& fisher, std::int64_t rank) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> metric(fisher);
  const Eigen::MatrixXd scaled = metric.eigenvectors() * metric.eigenvalues().cwiseMax(0.).cwiseSqrt().asDiagonal(), root = scaled * metric.eigenvectors().transpose();
  const Eigen::MatrixXd half = root * covariance, conditioned = half * root;
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(conditioned);
  const Eigen::Index width = covariance.rows();
  const double negligible = static_cast<double>(width) * 0x1p-52 * std::max(0., solver.eigenvalues()(width - 1));
  Eigen::MatrixXd factor = root * solver.eigenvectors().rightCols(rank).rowwise().reverse();
  for (Eigen::Index j = 0; j < rank; ++j) {
    double largest = 0;
    for (Eigen::Index c = 0; c < width; ++c)
      if (std::abs(factor(c, j)) > std::abs(largest)) largest = factor(c, j);
    factor.col(j) *= solver.eigenvalues()(width - 1 - j) > negligible ? (largest < 0 ? -1 : 1) : 0;
  }
  return factor;
}

/// Orthonormal columns that span those of a matrix whose columns are independent.
inline Eigen::MatrixXd orthonormal(const Eigen::HouseholderQR<Eigen::MatrixXd>& qr) {
  Eigen::MatrixXd q = Eigen::MatrixXd::Identity(qr.rows(), qr.cols());
  q.applyOnTheLeft(qr.householderQ());
  return q;
}

template <matrix Residuals, matrix Head, matrix Probabilities>
residual_subspace fit_rows(const Residuals& residuals, const Head& head, const Probabilities& probabilities, const std::vector<std::int64_t>& chosen, const residual_subspace_fit_options& options) {
  Eigen::MatrixXd covariance = covariance_of(finite_columns("residuals", residuals, chosen), options.centre);
  Eigen::MatrixXd fisher = head_fisher(head, probabilities, chosen, options.top_k);
  shrink(covariance, options.shrinkage), shrink(fisher, options.shrinkage);
  return {conditioned_factor(covariance, fisher, options.rank), static_cast<std::int64_t>(chosen.size()) < options.rank};
}

template <matrix Residuals, matrix Head, matrix Probabilities>
void check_fit(const char* function, const Residuals& residuals, const Head& head, const Probabilities& probabilities, const residual_subspace_fit_options& options) {
  const auto r = view_of(residuals);
  const auto w = view_of(head);
  require(r.extent(0) > 0, function, ": argument 'residuals' has no rows");
  require_shape(function, "head", w, extents{std::int64_t{-1}, r.extent(1)});
  require_shape(function, "probabilities", view_of(probabilities), extents{r.extent(0), w.extent(0)});
  require(options.rank > 0 && options.rank <= r.extent(1), function, ": option 'rank' is ", options.rank, "; expected 1 to the width, ", r.extent(1));
  require(options.shrinkage >= 0 && options.shrinkage < math::infinity, function, ": option 'shrinkage' is ", options.shrinkage, "; expected a finite number, 0 or more");
  require(options.top_k >= 0, function, ": option 'top_k' is ", options.top_k, "; expected 0 (off) or more");
}

inline std::vector<std::int64_t> all_rows(std::int64_t n) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) rows[static_cast<std::size_t>(i)] = i;
  return rows;
}

/// Columns of a Haar distributed orthogonal matrix, [d, r].
inline Eigen::MatrixXd haar_columns(Eigen::Index width, Eigen::Index count, std::uint64_t seed) {
  Eigen::MatrixXd gaussian(width, count);
  for (Eigen::Index c = 0; c < count; ++c)
    for (Eigen::Index k = 0; k < width; ++k) {
      const random_key key{.seed = seed, .position = static_cast<std::uint32_t>(c), .purpose = purpose::projection, .index = static_cast<std::uint32_t>(2 * k)};
      random_key other = key;
      ++other.index;
      gaussian(k, c) = __builtin_sqrt(-2 * math::log(uniform(key))) * math::sincos(6.283185307179586 * uniform(other)).cosine;
    }
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(gaussian);
  Eigen::MatrixXd q = orthonormal(qr);
  for (Eigen::Index c = 0; c < count; ++c)
    if (qr.matrixQR()(c, c) < 0) q.col(c) = -q.col(c);
  return q;
}

/// Share of the squared norm of columns that lies in the span of a factor's nonzero columns (which are independent).
inline double captured_share(const Eigen::MatrixXd& factor, const Eigen::MatrixXd& columns) {
  const double total = columns.squaredNorm();
  require(total > 0, "captured_share: argument 'residuals' is all zero");
  Eigen::MatrixXd independent(factor.rows(), factor.cols());
  Eigen::Index count = 0;
  for (Eigen::Index j = 0; j < factor.cols(); ++j)
    if (factor.col(j).squaredNorm() > 0) independent.col(count++) = factor.col(j);
  if (count == 0) return 0;
  independent.conservativeResize(Eigen::NoChange, count);
  const Eigen::MatrixXd projected = orthonormal(Eigen::HouseholderQR<Eigen::MatrixXd>(independent)).transpose() * columns;
  return projected.squaredNorm() / total;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <matrix Residuals, matrix Head, matrix Probabilities>
residual_subspace fit_residual_subspace(const Residuals& residuals, const Head& head, const Probabilities& probabilities, const residual_subspace_fit_options& options = {}) {
  detail::check_fit("fit_residual_subspace", residuals, head, probabilities, options);
  return detail::fit_rows(residuals, head, probabilities, detail::all_rows(view_of(residuals).extent(0)), options);
}

inline residual_subspace random_control(const residual_subspace& structured, std::uint64_t seed) {
  const Eigen::Index rank = structured.transposed.cols(), width = structured.transposed.rows();
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(structured.transposed);
  Eigen::MatrixXd r = Eigen::MatrixXd::Zero(rank, rank);
  for (Eigen::Index c = 0; c < rank; ++c)
    for (Eigen::Index k = 0; k <= c; ++k) r(k, c) = qr.matrixQR()(k, c);
  return {detail::haar_columns(width, rank, seed) * r, structured.few_residuals};
}

template <matrix Residuals>
double captured_share(const residual_subspace& subspace, const Residuals& residuals) {
  const auto view = view_of(residuals);
  require_shape("captured_share", "residuals", view, extents{std::int64_t{-1}, static_cast<std::int64_t>(subspace.transposed.rows())});
  return detail::captured_share(subspace.transposed, detail::finite_columns("residuals", residuals, detail::all_rows(view.extent(0))));
}

template <matrix Residuals, matrix Head, matrix Probabilities>
capture_shares cross_fitted_capture(const Residuals& residuals, const Head& head, const Probabilities& probabilities, std::int64_t folds, std::uint64_t seed, const residual_subspace_fit_options& options = {}) {
  detail::check_fit("cross_fitted_capture", residuals, head, probabilities, options);
  const std::int64_t n = view_of(residuals).extent(0);
  require(folds >= 2 && folds <= n, "cross_fitted_capture: argument 'folds' is ", folds, "; expected 2 to the number of residuals, ", n);
  double structured = 0, random = 0, total = 0;
  for (std::int64_t fold = 0; fold < folds; ++fold) {
    std::vector<std::int64_t> fitted, held_out;
    for (std::int64_t i = 0; i < n; ++i) (i % folds == fold ? held_out : fitted).push_back(i);
    const residual_subspace factor = detail::fit_rows(residuals, head, probabilities, fitted, options);
    const Eigen::MatrixXd columns = detail::finite_columns("residuals", residuals, held_out);
    const double energy = columns.squaredNorm();
    if (energy == 0) continue;
    structured += energy * detail::captured_share(factor.transposed, columns);
    random += energy * detail::captured_share(random_control(factor, seed + static_cast<std::uint64_t>(fold)).transposed, columns);
    total += energy;
  }
  require(total > 0, "cross_fitted_capture: argument 'residuals' is all zero");
  return {structured / total, random / total};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
