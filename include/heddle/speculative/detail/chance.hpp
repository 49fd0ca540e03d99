// The verifier's chances, by keyed uniform numbers. Rules are templates over where their chances come from, so that a test can take every one of
// them in turn (exact enumeration) instead of drawing.
//
//   accept  u q < p, purpose::accept with the draft's number at its node as index
//   first   the first i with u < w_0 + .. + w_i, or their number: one coin (purpose::accept, index 0) for candidates with those probabilities
//   pick    an index by weight, purpose::residual (or as said)
//   plain   the plain sampler's token
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/sampling/detail/pick.hpp>
#include <heddle/sampling/row.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify::detail::inline HEDDLE_ISA {

struct keyed_chance {
  random_key key{};

  bool accept(std::int64_t position, std::uint32_t index, double p, double q) const { return number(position, purpose::accept, index) * q < p; }
  std::size_t first(std::int64_t position, std::span<const double> probabilities) const {
    const double u = number(position, purpose::accept, 0);
    double cumulative = 0;
    for (std::size_t i = 0; i < probabilities.size(); ++i)
      if (u < (cumulative += probabilities[i])) return i;
    return probabilities.size();
  }
  std::size_t pick(std::int64_t position, std::span<const double> weights, heddle::purpose purpose = purpose::residual) const {
    return sampling::detail::pick(number(position, purpose, 0), weights);
  }
  template <class Row, class Chain>
  sampling::drawn plain(std::int64_t position, const Row& row, const Chain& policy, const sampling::history& before, sampling::row_workspace& memory, sampling::draw how = sampling::draw::gumbel) const {
    return sampling::sample_row(row, policy, before, at(position, purpose::sample, 0), memory, how);
  }
  random_key at(std::int64_t position, heddle::purpose purpose, std::uint32_t index) const {
    random_key k = key;
    k.position = static_cast<std::uint32_t>(position), k.purpose = purpose, k.index = index;
    return k;
  }

 private:
  double number(std::int64_t position, heddle::purpose purpose, std::uint32_t index) const { return uniform(at(position, purpose, index)); }
};

}  // namespace heddle::verify::detail::inline HEDDLE_ISA
