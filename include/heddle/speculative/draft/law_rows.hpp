// The rows of proposal laws that a sampling drafter hands to the verifier: sparse, in the order of drawing, exactly as they were drawn from.
//
// keyed_draws   picks the index at which the cumulative weight first exceeds u * sum, u of the key with purpose::draft. Position: that of the round's first
//               draft; index: which of the round's draws it is. Drafts behind the accepted ones may have had a say in what was accepted (block
//               verification), so a later round must not draw by their numbers again, as it would by the drawn token's own position
//
//     heddle::law_rows rows;
//     rows.start();
//     const std::int32_t row = rows.add(tokens, weights);       // weights need not sum to 1
//     rows.give(0, row);                                        // the children of the root come from that row
//     nodes.add(0, tokens[draws(position, 0, weights)]);
//     const heddle::draft_tree<heddle::draft_law::independent> tree{nodes.tokens(), nodes.parents(), rows.laws(nodes.size())};
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/random.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline HEDDLE_ISA {

class law_rows {
 public:
  void start() { indptr_.assign(1, 0), tokens_.clear(), probabilities_.clear(), row_of_.clear(); }
  std::int32_t add(std::span<const std::int32_t> tokens, std::span<const double> weights) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (const auto q = static_cast<float>(weights[i]); q > 0.f) tokens_.push_back(tokens[i]), probabilities_.push_back(q);
    indptr_.push_back(static_cast<std::int64_t>(tokens_.size()));
    return static_cast<std::int32_t>(indptr_.size()) - 2;
  }
  void give(std::int32_t node, std::int32_t row) {
    if (row_of_.size() <= static_cast<std::size_t>(node)) row_of_.resize(static_cast<std::size_t>(node) + 1, -1);
    row_of_[static_cast<std::size_t>(node)] = row;
  }
  std::span<const std::int32_t> tokens(std::int32_t row) const { return std::span<const std::int32_t>(tokens_).subspan(first(row), size(row)); }
  std::span<const float> probabilities(std::int32_t row) const { return std::span<const float>(probabilities_).subspan(first(row), size(row)); }
  /// `nodes`: of the whole tree.
  proposal_laws laws(std::int32_t nodes) {
    row_of_.resize(static_cast<std::size_t>(nodes), -1);
    return {.row_of = row_of_, .indptr = indptr_, .tokens = tokens_, .probabilities = probabilities_};
  }

 private:
  std::size_t first(std::int32_t row) const { return static_cast<std::size_t>(indptr_[static_cast<std::size_t>(row)]); }
  std::size_t size(std::int32_t row) const { return static_cast<std::size_t>(indptr_[static_cast<std::size_t>(row) + 1]) - first(row); }
  aligned_vector<std::int64_t> indptr_;
  aligned_vector<std::int32_t> tokens_, row_of_;
  aligned_vector<float> probabilities_;
};

/// A drafter's chances, by keyed uniform numbers. (A test may take other ones and enumerate with them.)
struct keyed_draws {
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  /// Sums in double: of blocks of 256 weights, then of the blocks.
  template <class Weight>
  std::size_t operator()(std::int64_t position, std::uint32_t index, std::span<const Weight> weights) const {
    constexpr std::size_t block = 256;
    const auto sum_from = [&](std::size_t first) {
      double sum = 0;
      for (std::size_t i = first; i < weights.size() && i < first + block; ++i) sum += static_cast<double>(weights[i]);
      return sum;
    };
    double sum = 0, cumulative = 0;
    for (std::size_t i = 0; i < weights.size(); i += block) sum += sum_from(i);
    const double target = uniform({.seed = seed, .request = request, .position = static_cast<std::uint32_t>(position), .purpose = purpose::draft, .index = index}) * sum;
    std::size_t last = 0;
    for (std::size_t first = 0; first < weights.size(); first += block) {
      const double whole = sum_from(first);
      if (cumulative + whole > target || first + block >= weights.size()) {
        double within = cumulative;
        for (std::size_t i = first; i < weights.size() && i < first + block; ++i) {
          if (weights[i] > 0) last = i;
          if ((within += static_cast<double>(weights[i])) > target) return i;
        }
      } else if (whole > 0.) {
        for (std::size_t i = first; i < first + block; ++i) last = weights[i] > 0 ? i : last;
      }
      cumulative += whole;
    }
    return last;
  }
};

}  // namespace heddle::inline HEDDLE_ISA
