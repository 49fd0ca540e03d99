// What a program allocates. It replaces operator new and delete: one file of a program includes it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <malloc.h>
#include <new>

struct allocation_counters {
  std::atomic<std::int64_t> count{0};     ///< allocations so far
  std::atomic<std::int64_t> bytes{0};     ///< asked for by them
  std::atomic<std::int64_t> held{0};      ///< bytes of those not freed
  std::atomic<std::int64_t> most_held{0};
  std::atomic<std::int64_t> allowed{-1};  ///< allocations until one fails; negative: none fails

  void* take(std::size_t size, std::size_t alignment) {
    if (allowed == 0) throw std::bad_alloc();
    if (allowed > 0) --allowed;
    void* const p = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (!p) throw std::bad_alloc();
    ++count, bytes += static_cast<std::int64_t>(size);
    const std::int64_t now = held += static_cast<std::int64_t>(malloc_usable_size(p));
    for (std::int64_t most = most_held; now > most && !most_held.compare_exchange_weak(most, now);) {}
    return p;
  }
  void give_back(void* p) noexcept {
    if (p) held -= static_cast<std::int64_t>(malloc_usable_size(p));
    std::free(p);
  }
};
inline allocation_counters allocations;

/// How many allocations f() makes.
template <class F>
std::int64_t allocations_of(const F& f) {
  const std::int64_t before = allocations.count;
  f();
  return allocations.count - before;
}
/// The most bytes held at a time within f(), beyond those held before.
template <class F>
std::int64_t most_bytes_of(const F& f) {
  const std::int64_t before = allocations.held;
  allocations.most_held = before;
  f();
  return allocations.most_held - before;
}

[[gnu::noinline]] void* operator new(std::size_t size) { return allocations.take(size ? size : 1, alignof(std::max_align_t)); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) { return allocations.take(size ? size : 1, static_cast<std::size_t>(alignment)); }
[[gnu::noinline]] void operator delete(void* p) noexcept { allocations.give_back(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { allocations.give_back(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { allocations.give_back(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { allocations.give_back(p); }
