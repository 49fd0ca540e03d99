// The k largest of a stream of numbers: larger value first, then lower index.
#pragma once
#include <heddle/core/isa.hpp>

#include <cstdint>

namespace heddle::distillation::detail::inline HEDDLE_ISA {

/// 4 k columns, also for a k that stands for all of them.
inline std::int64_t four_times(std::int64_t k) {
  constexpr std::int64_t most = 0x7fffffff;
  return 4 * (k < most ? k : most);
}

template <class Above, class Swap>
void sift_down(std::int64_t n, Above above, Swap swap) {
  for (std::int64_t i = 0;;) {
    std::int64_t top = i;
    for (std::int64_t child = 2 * i + 1; child < n && child <= 2 * i + 2; ++child)
      if (above(child, top)) top = child;
    if (top == i) return;
    swap(i, top), i = top;
  }
}
template <class Above, class Swap>
void sift_up(std::int64_t i, Above above, Swap swap) {
  for (; i > 0 && above(i, (i - 1) / 2); i = (i - 1) / 2) swap(i, (i - 1) / 2);
}

/// Sorts indices ascending and carries values along. In place, O(n log n).
template <class T>
void sort_by_index(std::int32_t* indices, T* values, std::int64_t n) {
  const auto larger = [=](std::int64_t a, std::int64_t b) { return indices[a] > indices[b]; };
  const auto swap = [=](std::int64_t a, std::int64_t b) {
    const T value = values[a];
    const std::int32_t index = indices[a];
    values[a] = values[b], indices[a] = indices[b];
    values[b] = value, indices[b] = index;
  };
  for (std::int64_t i = 1; i < n; ++i) sift_up(i, larger, swap);
  for (std::int64_t rest = n - 1; rest > 0; --rest) swap(0, rest), sift_down(rest, larger, swap);
}

/// A heap of (value, index) whose root is the worst that is kept. Indices are offered in ascending order.
template <class T>
class best_k {
 public:
  best_k(T* values, std::int32_t* indices, std::int64_t k) : values_(values), indices_(indices), k_(k) {}
  bool full() const { return count_ == k_; }
  T worst() const { return values_[0]; }

  void offer(T value, std::int32_t index) {
    const auto worse = [this](std::int64_t a, std::int64_t b) { return values_[a] < values_[b] || (values_[a] == values_[b] && indices_[a] > indices_[b]); };
    const auto swap = [this](std::int64_t a, std::int64_t b) {
      const T v = values_[a];
      const std::int32_t i = indices_[a];
      values_[a] = values_[b], indices_[a] = indices_[b];
      values_[b] = v, indices_[b] = i;
    };
    if (!full()) {
      values_[count_] = value, indices_[count_] = index;
      sift_up(count_++, worse, swap);
    } else if (value > values_[0]) {
      values_[0] = value, indices_[0] = index;
      sift_down(count_, worse, swap);
    }
  }

 private:
  T* values_;
  std::int32_t* indices_;
  std::int64_t k_, count_ = 0;
};

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA
