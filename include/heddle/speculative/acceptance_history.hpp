// How often drafts were accepted, and what that says of the next ones. Estimates only: they steer how much is drafted, never what is emitted.
//
// match_acceptance   drafts that continue a repeated text. The evidence e of a draft is the number of tokens that agreed before it: the matched ones and the
//                    drafts in between. P(accept | e) is counted per class of e (1, 2, 3, then two classes per octave)
// rank_acceptance    drafts of any drafter by their rank, the node's place in the tree: P(node i of a tree of at least i nodes is accepted)
//
// Counts fade with a half-life of about 45 events, so that they follow the text. Little evidence is filled up: for e by Laplace's rule of succession,
// (e + 1) / (e + 2); for ranks by going on at the mean rate of decay so far, S_i = S_{i-1}^{i / (i-1)}.
//
//     heddle::match_acceptance seen;
//     seen.observe(3, true);
//     seen.probability(3);                      // 0.867: 4/5 with the weight of two events, and one acceptance
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/isa.hpp>
#include <heddle/core/math.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline HEDDLE_ISA {

/// A share of events, recent ones first, that starts as if two events had confirmed a prior.
class faded_share {
 public:
  double with_prior(double prior) const { return (hits_ + 2 * prior) / (events_ + 2); }
  void observe(bool hit) {
    constexpr double keep = 1. - 1. / 64;
    hits_ = hits_ * keep + hit, events_ = events_ * keep + 1;
  }

 private:
  double hits_ = 0, events_ = 0;
};

class match_acceptance {
 public:
  double probability(std::int64_t evidence) const { return shares_[index(evidence)].with_prior(static_cast<double>(evidence + 1) / static_cast<double>(evidence + 2)); }
  void observe(std::int64_t evidence, bool accepted) { shares_[index(evidence)].observe(accepted); }

 private:
  static std::size_t index(std::int64_t evidence) {
    const auto e = static_cast<std::uint64_t>(evidence > 0 ? evidence : 0);
    if (e < 4) return static_cast<std::size_t>(e);
    const auto width = static_cast<unsigned>(std::bit_width(e));
    const std::size_t i = 2 * width - 2 + (e >> (width - 2) & 1);
    return i < classes ? i : classes - 1;
  }
  static constexpr std::size_t classes = 24;
  faded_share shares_[classes];
};

class rank_acceptance {
 public:
  /// The probabilities of nodes 1 .. nodes, valid until the next call.
  std::span<const double> outlook(std::int32_t nodes) {
    outlook_.resize(static_cast<std::size_t>(nodes > 0 ? nodes : 0));
    double prior = 0.7;
    for (std::size_t i = 0; i < outlook_.size(); ++i) {
      outlook_[i] = i < shares_.size() ? shares_[i].with_prior(prior) : prior;
      const auto rank = static_cast<double>(i + 1);
      prior = outlook_[i] > 0 ? math::exp(math::log(outlook_[i]) * (rank + 1) / rank) : 0;
    }
    return outlook_;
  }
  /// A tree of `nodes` drafts of which those in `accepted` (node numbers from 1 on) were.
  void observe(std::int32_t nodes, std::span<const std::int32_t> accepted) {
    const auto size = static_cast<std::size_t>(nodes > 0 ? nodes : 0);
    if (shares_.size() < size) shares_.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      bool hit = false;
      for (const std::int32_t node : accepted) hit |= static_cast<std::size_t>(node) == i + 1;
      shares_[i].observe(hit);
    }
  }

 private:
  aligned_vector<faded_share> shares_;
  aligned_vector<double> outlook_;
};

}  // namespace heddle::inline HEDDLE_ISA
