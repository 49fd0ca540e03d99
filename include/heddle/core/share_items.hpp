// Sharing the items of a call among the workers of its executor.
//
// shared_index      a number that the workers of one call move on together, without order among other memory.
// share_items       f(worker, item) for each item of [0, items), once; a worker that is free takes the next one. Which worker gets which item
//                   depends on the moment: results must not depend on it.
//
// The index stands on the compiler's own atomic operations: <atomic> would add a third to what including a header of heddle costs.
//
//     float doubled[10];
//     heddle::share_items(heddle::executor_ref{}, 4, 10, [&](std::size_t /*worker*/, std::int64_t item) { doubled[item] = 2 * float(item); });
#pragma once
#include <heddle/core/executor.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::inline HEDDLE_ISA {

class shared_index {
 public:
  explicit shared_index(std::int64_t first) : value_(first) {}
  std::int64_t load() const { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
  /// Moves on by `step` and returns where it stood.
  std::int64_t advance(std::int64_t step = 1) { return __atomic_fetch_add(&value_, step, __ATOMIC_RELAXED); }
  /// Moves from `expected` to `next`; where it stood elsewhere (or now and then without a reason), says so and puts that into `expected`.
  bool move(std::int64_t& expected, std::int64_t next) {
    return __atomic_compare_exchange_n(&value_, &expected, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  /// Moves back to `item` where that is less.
  void lower(std::int64_t item) {
    for (std::int64_t known = load(); item < known && !move(known, item);) {}
  }

 private:
  std::int64_t value_;
};

template <class F>
void share_items(const executor_ref& executor, std::size_t workers, std::int64_t items, F f) {
  shared_index next(0);
  executor.bulk(workers, [&](std::size_t worker) {
    for (std::int64_t item; (item = next.advance()) < items;) f(worker, item);
  });
}

}  // namespace heddle::inline HEDDLE_ISA
