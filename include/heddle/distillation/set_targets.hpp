// Targets that are a set of tokens: any surface form of the same concept counts as right.
//
//   concept_nll   L = -ln S,  S = sum of s_v over v in C          gradient s_v (1 - 1[v in C] / S), times 1 / temperature
//
// C of row i are columns[indptr[i]] .. columns[indptr[i + 1] - 1], ascending, without repetition. C = {y} is the NLL; a larger set never has a larger loss.
// How the mass is split inside C changes nothing. S = 0: status infinite_divergence.
// Errors: an empty, unsorted or foreign set in a supervised row, sizes. Cost: one scan, O(|C|), and one pass for the gradient.
// A context in front of the targets is masked by its rows: response_rows.hpp. Source: concept prediction, after its abstract; ESCD uses sets of bytes.
//
//     loss(student, concept_nll{.columns = forms, .indptr = begins}, grad);
#pragma once
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/per_row.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation::inline HEDDLE_ISA {

struct concept_nll {
  std::span<const std::int32_t> columns;
  std::span<const std::int32_t> indptr;   ///< [N + 1]

  void check(const call_shape& shape) const {
    require(static_cast<std::int64_t>(indptr.size()) == shape.rows + 1, "concept_nll: argument 'indptr' has ", indptr.size(), " entries; expected one more than rows, ", shape.rows + 1);
    detail::check_indptr("concept_nll", indptr, static_cast<std::int64_t>(columns.size()));
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      if (shape.masked(r)) continue;
      const auto own = set_of(r);
      require(!own.empty(), "concept_nll: argument 'columns' has no token for row ", r, "; expected at least one");
      for (std::size_t j = 0; j < own.size(); ++j) {
        require(own[j] >= 0 && own[j] < shape.vocabulary, "concept_nll: argument 'columns' holds ", own[j], " for row ", r, "; expected 0 to ", shape.vocabulary - 1);
        require(j == 0 || own[j] > own[j - 1], "concept_nll: argument 'columns': row ", r, " holds ", own[j], " after ", own[j > 0 ? j - 1 : 0], "; expected ascending tokens without repetition");
      }
    }
  }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    const auto own = set_of(row.index());
    double most = -math::infinity, sum = 0;
    for (const std::int64_t v : own) most = s.log_prob(v) > most ? s.log_prob(v) : most;
    if (most > -math::infinity)
      for (const std::int64_t v : own) sum += math::exp(s.log_prob(v) - most);
    const double log_mass = most + math::log(sum);
    return outcome{-log_mass, gradient{[=](auto v) { return s(v).p; }, at(own, [=](auto v, std::int64_t) { return -math::exp(static_cast<double>(s(v).log) - log_mass); })}};
  }

 private:
  std::span<const std::int32_t> set_of(std::int64_t row) const { return columns.subspan(detail::index(indptr[detail::index(row)]), detail::index(indptr[detail::index(row + 1)] - indptr[detail::index(row)])); }
};

}  // namespace heddle::distillation::inline HEDDLE_ISA
