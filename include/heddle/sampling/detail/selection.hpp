// Weighted selection without sorting.
//
//   threshold = the smallest key that is kept by   keep i iff sum_{key_j > key_i} w_j < limit        (equal keys stay together)
//
// The keys between the bounds fall into 256 buckets of equal width; the bucket in which the sum reaches the limit is looked at again with the
// largest and smallest key in it as bounds, until those are equal. Sums are of integers, so the order of the items does not matter.
// limit > 0; keys finite. Cost: three passes over the n items unless their keys are spread over many orders of magnitude.
#pragma once
#include <heddle/core/isa.hpp>

#include <cstdint>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

/// Every item weighs one: selects the k largest, and those equal to the k-th.
struct unit_weights {
  std::uint64_t operator[](std::int64_t) const { return 1; }
};

/// `above`: the sum of the weights of all keys that are larger than those given.
template <class Key, class Weights>
Key weighted_threshold(const Key* keys, const Weights& weights, std::int64_t n, double limit, std::uint64_t above = 0) {
  constexpr int buckets = 256;
  constexpr std::int64_t few = 256;
  Key high = keys[0], low = keys[0];
  for (std::int64_t i = 1; i < n; ++i) {
    if (keys[i] > high) high = keys[i];
    if (keys[i] < low) low = keys[i];
  }
  while (low < high) {
    const double top = static_cast<double>(high), per_key = (buckets - 1) / (top - static_cast<double>(low));
    const auto bucket_of = [&](Key key) {
      const double b = (top - static_cast<double>(key)) * per_key;
      return b < buckets - 1 ? static_cast<int>(b) : buckets - 1;
    };
    std::uint64_t sums[buckets] = {};
    for (std::int64_t i = 0; i < n; ++i)
      if (keys[i] <= high && keys[i] >= low) sums[bucket_of(keys[i])] += weights[i];
    const int lowest = bucket_of(low);
    int last = 0;  // the last bucket whose items have a chance to be kept
    while (last < lowest && static_cast<double>(above + sums[last]) < limit) above += sums[last++];

    Key inner_high = low, inner_low = high, some_keys[few];
    std::uint64_t some_weights[few];
    std::int64_t inside = 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (keys[i] <= high && keys[i] >= low && bucket_of(keys[i]) == last) {
        if (keys[i] > inner_high) inner_high = keys[i];
        if (keys[i] < inner_low) inner_low = keys[i];
        if (inside < few) some_keys[inside] = keys[i], some_weights[inside] = weights[i];
        ++inside;
      }
    if (inside <= few && inside < n) {
      const std::uint64_t* const of_these = some_weights;
      return weighted_threshold(some_keys, of_these, inside, limit, above);
    }
    high = inner_high, low = inner_low;
  }
  return low;
}

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
