// The k largest of a stream of numbers: larger value first, then lower index.
#pragma once
#include <heddle/core/isa.hpp>

#include <cstdint>

namespace heddle::distillation::detail::inline HEDDLE_ISA {

/// A heap of (value, index) whose root is the worst that is kept. Indices are offered in ascending order.
template <class T>
class best_k {
 public:
  best_k(T* values, std::int32_t* indices, std::int64_t k) : values_(values), indices_(indices), k_(k) {}
  bool full() const { return count_ == k_; }
  T worst() const { return values_[0]; }
  std::int64_t count() const { return count_; }

  void offer(T value, std::int32_t index) {
    if (!full()) {
      values_[count_] = value, indices_[count_] = index;
      for (std::int64_t i = count_++; i > 0 && worse(i, (i - 1) / 2); i = (i - 1) / 2) swap(i, (i - 1) / 2);
    } else if (value > values_[0]) {
      values_[0] = value, indices_[0] = index;
      sift(count_, [this](std::int64_t a, std::int64_t b) { return worse(a, b); });
    }
  }
  /// Ends the selection: ascending indices.
  void sort_by_index() {
    const auto larger = [this](std::int64_t a, std::int64_t b) { return indices_[a] > indices_[b]; };
    for (std::int64_t i = 1; i < count_; ++i)
      for (std::int64_t j = i; j > 0 && larger(j, (j - 1) / 2); j = (j - 1) / 2) swap(j, (j - 1) / 2);
    for (std::int64_t n = count_; n > 1; --n) swap(0, n - 1), sift(n - 1, larger);
  }

 private:
  bool worse(std::int64_t a, std::int64_t b) const { return values_[a] < values_[b] || (values_[a] == values_[b] && indices_[a] > indices_[b]); }
  void swap(std::int64_t a, std::int64_t b) {
    const T value = values_[a];
    const std::int32_t index = indices_[a];
    values_[a] = values_[b], indices_[a] = indices_[b];
    values_[b] = value, indices_[b] = index;
  }
  template <class Above>
  void sift(std::int64_t n, Above above) {
    for (std::int64_t i = 0;;) {
      std::int64_t top = i;
      for (std::int64_t child = 2 * i + 1; child < n && child <= 2 * i + 2; ++child)
        if (above(child, top)) top = child;
      if (top == i) return;
      swap(i, top), i = top;
    }
  }

  T* values_;
  std::int32_t* indices_;
  std::int64_t k_, count_ = 0;
};

}  // namespace heddle::distillation::detail::inline HEDDLE_ISA
