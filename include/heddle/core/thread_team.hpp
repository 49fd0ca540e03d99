// Threads that stay. The fast executor of a decode step, which makes about 150 short bulk calls.
//
// A call costs a few hundred nanoseconds while the threads spin; a thread that finds no work spins a little, then yields its core, and
// sleeps when nothing comes for some tens of microseconds. Indices are handed out one by one, so unequal pieces balance.
// An exception thrown by a piece is rethrown by bulk after all pieces have ended (the first one; others are dropped).
// bulk is called by one thread at a time and not from inside a piece. Destroying the team joins its threads.
//
//     heddle::thread_team team{2};                      // the calling thread and one more
//     team.bulk(8, [&](std::size_t i) { work(i); });
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/executor.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace heddle::inline HEDDLE_ISA {

class thread_team {
 public:
  explicit thread_team(std::size_t threads) : size_(threads) {
    require(threads > 0, "thread_team: argument 'threads' is 0; expected 1 or more");
    workers_ = std::make_unique<std::thread[]>(threads - 1);
    for (std::size_t i = 0; i + 1 < threads; ++i) workers_[i] = std::thread([this] { work(); });
  }
  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;
  ~thread_team() {
    stop_.store(true, std::memory_order_relaxed);
    start();
    for (std::size_t i = 0; i + 1 < size_; ++i) workers_[i].join();
  }

  std::size_t concurrency() const { return size_; }

  template <class F>
  void bulk(std::size_t n, F&& f) {
    if (size_ == 1 || n <= 1) {
      for (std::size_t i = 0; i < n; ++i) f(i);
      return;
    }
    using function = std::remove_reference_t<F>;
    run(n, {const_cast<void*>(static_cast<const void*>(std::addressof(f))), [](void* context, std::size_t i) { (*static_cast<function*>(context))(i); }});
  }

 private:
  static constexpr int spins_before_yield = 1000, yields_before_sleep = 2000;

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  void run(std::size_t n, bulk_function f) {
    function_ = f, count_ = n;
    next_.store(0, std::memory_order_relaxed);
    running_.store(size_ - 1, std::memory_order_relaxed);
    start();
    drain();
    for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) spins < spins_before_yield ? pause() : std::this_thread::yield();
#if defined(__cpp_exceptions)
    if (failed_.load(std::memory_order_relaxed)) {
      failed_.store(false, std::memory_order_relaxed);
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
#endif
  }
  void start() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  void drain() {
#if defined(__cpp_exceptions)
    try {
#endif
      for (std::size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) function_(i);
#if defined(__cpp_exceptions)
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
#endif
  }
  void work() {
    for (std::uint32_t seen = 0;; ++seen) {
      for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen; ++spins) {
        if (spins < spins_before_yield) pause();
        else if (spins < spins_before_yield + yields_before_sleep) std::this_thread::yield();
        else epoch_.wait(seen, std::memory_order_acquire);
      }
      if (stop_.load(std::memory_order_relaxed)) return;
      drain();
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::size_t size_;
  bulk_function function_{};
  std::size_t count_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false}, stop_{false};
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  alignas(64) std::atomic<std::size_t> next_{0};
  alignas(64) std::atomic<std::size_t> running_{0};
  std::unique_ptr<std::thread[]> workers_;
};

}  // namespace heddle::inline HEDDLE_ISA
