// A std::vector whose memory starts on a cache line and whose code belongs to the instruction set of its unit (see isa.hpp): the library's
// own owning array. Elements of arithmetic type are value-initialised as in any vector.
//
//     heddle::aligned_vector<float> logits(49152);   // logits.data() is a multiple of 64
#pragma once
#include <heddle/core/isa.hpp>

#include <cstddef>
#include <new>
#include <vector>

namespace heddle::inline HEDDLE_ISA {

template <class T>
struct aligned_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{alignof(T) > 64 ? alignof(T) : 64};
  aligned_allocator() = default;
  template <class U>
  constexpr aligned_allocator(const aligned_allocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, alignment); }
  template <class U>
  friend constexpr bool operator==(const aligned_allocator&, const aligned_allocator<U>&) { return true; }
};

template <class T>
using aligned_vector = std::vector<T, aligned_allocator<T>>;

}  // namespace heddle::inline HEDDLE_ISA
