// Fetching the next tile while this one computes.
//
// Lines are fetched in the order of their addresses, which the hardware's own prefetch follows, and evenly: more than one core can have under
// way at a time stall it. So blocks of queries that pass over the same tile take turns.
#pragma once
#include <heddle/core/isa.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace heddle::detail::inline HEDDLE_ISA {

/// Into the second level: a tile is as large as the first.
template <int bytes>
[[gnu::always_inline]] inline void fetch(const std::byte* p) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// Walks over the runs of a tile, `bytes` each.
class line_walk {
 public:
  line_walk(const std::byte* const* runs, int count, std::int64_t bytes) : run_(runs), last_(runs + count - 1), bytes_(bytes), at_(*runs), left_(bytes) {}
  /// Stays where it is.
  explicit line_walk(const std::byte* const* runs) : line_walk(runs, 1, 0) {}

  /// The next n bytes, of one run; at the end of the tile always the same.
  [[gnu::always_inline]] const std::byte* take(std::int64_t n) {
    if (left_ < n) {
      if (run_ == last_) return at_;
      at_ = *++run_, left_ = bytes_;
    }
    const std::byte* p = at_;
    at_ += n, left_ -= n;
    return p;
  }

 private:
  const std::byte *const *run_, *const *last_;
  std::int64_t bytes_;
  const std::byte* at_;
  std::int64_t left_;
};

/// Blocks of queries that pass over the same units (runs of keys, panels of values): the first 2^n of them fetch by turns.
struct fetch_turn {
  int block;
  unsigned mask;
  fetch_turn(int block_, int blocks) : block(block_), mask(std::bit_floor(static_cast<unsigned>(blocks)) - 1) {}
  [[gnu::always_inline]] bool operator()(std::int64_t unit) const { return (static_cast<unsigned>(unit) & mask) == static_cast<unsigned>(block); }
};

}  // namespace heddle::detail::inline HEDDLE_ISA
