// A vector for millions of small records that are visited in no order: where the system has huge pages its memory asks for them, so that a visit costs
// one cache miss and not a walk through page tables as well.
#pragma once
#include <heddle/core/isa.hpp>

#include <cstddef>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heddle::detail::inline HEDDLE_ISA {

template <class T>
struct large_allocator {
  using value_type = T;
  static constexpr std::size_t huge_page = std::size_t{1} << 21;
  large_allocator() = default;
  template <class U>
  constexpr large_allocator(const large_allocator<U>&) {}

  T* allocate(std::size_t n) {
    const std::size_t bytes = n * sizeof(T);
    void* const p = ::operator new(bytes, alignment_of(bytes));
#if defined(MADV_HUGEPAGE)
    if (bytes >= huge_page) ::madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(p);
  }
  void deallocate(T* p, std::size_t n) { ::operator delete(p, alignment_of(n * sizeof(T))); }
  template <class U>
  friend constexpr bool operator==(const large_allocator&, const large_allocator<U>&) { return true; }

 private:
  static std::align_val_t alignment_of(std::size_t bytes) { return std::align_val_t{bytes >= huge_page ? huge_page : 64}; }
};

template <class T>
using large_vector = std::vector<T, large_allocator<T>>;

}  // namespace heddle::detail::inline HEDDLE_ISA
