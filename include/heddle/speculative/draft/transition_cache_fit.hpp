// The transfer space of transition_spine.hpp: the r first right singular vectors of an output embedding.
//
//   E = U diag(s) V^T;   basis = V_r^T [r, d], s_1 >= .. >= s_r;   captured share = sum_{k <= r} s_k^2 / ||E||_F^2
//
// Z = E V_r keeps as much of E as any r numbers per token can (Eckart and Young). Vectors are signed so that their entry of largest magnitude is positive; equal
// singular values leave a choice of basis to the decomposition. From the eigenvectors of E^T E in double: s_k is exact to about 1e-8 s_1.
// embedding [V, d]: f32, f16, bf16 or double, any stride. Errors: r = 0 or above d, entries that are NaN or infinite. Deterministic for given flags, one thread.
// Cost: V d^2 multiply-adds + O(d^3), once per target model.
//
// This header needs Eigen: an eigendecomposition done once before training is no business of a decoding library, and a well-tested library does it better than we
// would. Nothing else of speculation includes it. Eigen's code is not kept apart by instruction set: units that include this header share one set of -m flags.
// Source: DSpine, after the abstract.
//
//     const auto basis = heddle::fit_transition_basis(embedding, 256);
//     heddle::transition_cache(embedding, basis.view(), cache);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/tensor.hpp>

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace heddle::inline HEDDLE_ISA {

struct transition_basis {
  aligned_vector<float> rows;                ///< [r, d]
  aligned_vector<double> singular_values;    ///< [r]
  double captured_share = 0;
  tensor_view<const float, 2> view() const {
    const auto r = static_cast<std::int64_t>(singular_values.size());
    return {rows.data(), extents{r, r ? static_cast<std::int64_t>(rows.size()) / r : 0}};
  }
};

template <tensor_of<2> Embedding>
  requires host_tensor<Embedding>
transition_basis fit_transition_basis(const Embedding& embedding, std::int64_t rank) {
  const auto e = view_of(embedding);
  const std::int64_t vocabulary = e.extent(0), d = e.extent(1);
  require(rank >= 1 && rank <= d, "fit_transition_basis: argument 'rank' is ", rank, "; expected 1 to the width of the embedding, ", d);
  Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(d, d);
  constexpr std::int64_t block = 256;
  for (std::int64_t first = 0; first < vocabulary; first += block) {
    const std::int64_t count = std::min(block, vocabulary - first);
    Eigen::MatrixXd rows(d, count);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t k = 0; k < d; ++k) {
        rows(k, i) = static_cast<double>(e(first + i, k));
        require(std::isfinite(rows(k, i)), "fit_transition_basis: argument 'embedding': entry (", first + i, ", ", k, ") is ", rows(k, i), "; expected a finite number");
      }
    gram.selfadjointView<Eigen::Lower>().rankUpdate(rows);
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(gram);
  require(solver.info() == Eigen::Success, "fit_transition_basis: the eigendecomposition did not converge");
  transition_basis basis;
  double captured = 0;
  for (std::int64_t k = 0; k < rank; ++k) {   // eigenvalues ascend
    const double value = std::max(0., solver.eigenvalues()[d - 1 - k]);
    basis.singular_values.push_back(std::sqrt(value)), captured += value;
    const auto vector = solver.eigenvectors().col(d - 1 - k);
    Eigen::Index largest = 0;
    vector.cwiseAbs().maxCoeff(&largest);
    for (std::int64_t c = 0; c < d; ++c) basis.rows.push_back(static_cast<float>(vector[largest] < 0 ? -vector[c] : vector[c]));
  }
  const double all = gram.trace();
  basis.captured_share = all > 0 ? captured / all : 1;
  return basis;
}

}  // namespace heddle::inline HEDDLE_ISA
