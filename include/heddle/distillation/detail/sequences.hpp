// Masks and ragged batches of the functions that look at whole sequences.
//
// mask    [N] bytes, 0: the row does not take part; empty: all do
// indptr  [sequences + 1]: sequence s holds rows indptr[s] .. indptr[s + 1] - 1; empty: one sequence of N rows
#pragma once
#include <heddle/core/error.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::distillation::detail::inline HEDDLE_ISA {

[[gnu::always_inline]] inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

inline bool kept(std::span<const std::uint8_t> mask, std::int64_t row) { return mask.empty() || mask[index(row)] != 0; }

inline void check_mask(const char* function, std::span<const std::uint8_t> mask, std::int64_t rows) {
  const auto size = static_cast<std::int64_t>(mask.size());
  require(mask.empty() || size == rows, function, ": option 'mask' has ", size, " rows; expected ", rows, " or none");
}

inline void check_indptr(const char* function, std::span<const std::int32_t> indptr, std::int64_t rows) {
  if (indptr.empty()) return;
  require(indptr.front() == 0 && indptr.back() == rows, function, ": 'indptr' runs from ", indptr.front(), " to ", indptr.back(), "; expected 0 to ", rows);
  for (std::size_t s = 1; s < indptr.size(); ++s)
    require(indptr[s] >= indptr[s - 1], function, ": 'indptr' falls from ", indptr[s - 1], " to ", indptr[s], " at sequence ", s - 1);
}

inline std::int64_t num_sequences(std::span<const std::int32_t> indptr) { return indptr.empty() ? 1 : static_cast<std::int64_t>(indptr.size()) - 1; }

/// f(first row, row behind the last) for every sequence, in order.
template <class F>
void for_each_sequence(std::span<const std::int32_t> indptr, std::int64_t rows, F f) {
  if (indptr.empty()) return f(std::int64_t{0}, rows);
  for (std::size_t s = 0; s + 1 < indptr.size(); ++s) f(std::int64_t{indptr[s]}, std::int64_t{indptr[s + 1]});
}

inline void check_unit_interval(const char* function, const char* option, double value) {
  require(value >= 0. && value <= 1., function, ": option '", option, "' is ", value, "; expected 0 to 1");
}

/// ceil(share * count) as meant: 0.07 of 100 is 7, although the product in double is more.
inline std::int64_t share_of(double share, std::int64_t count) { return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(count) * (1. - 0x1p-50))); }

inline bool finite(double x) { return x - x == 0.; }

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA
