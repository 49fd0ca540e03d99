// Threads that stay. The fast executor of a decode step, which makes about 150 short bulk calls.
//
// A call costs a few hundred nanoseconds while the threads spin; a thread that finds no work spins a little, then yields its core, and
// sleeps when nothing comes for some tens of microseconds. Indices are handed out one by one, so unequal pieces balance.
// An exception thrown by a piece is rethrown by bulk when all running pieces have ended; pieces not yet begun are dropped, and so are further
// exceptions. Any thread may call bulk at any time: from inside a piece, or while another thread's call runs, it does the work alone.
// Construction that runs out of threads joins those it started and throws std::system_error. Destroying the team joins its threads; no bulk
// may be running then.
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
    started guard{this};
    for (; guard.threads + 1 < threads; ++guard.threads) workers_[guard.threads] = std::thread([this] { work(); });
    guard.team = nullptr;
  }
  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;
  ~thread_team() { stop(size_ - 1); }

  std::size_t concurrency() const { return size_; }

  template <class F>
  void bulk(std::size_t n, F&& f) {
    if (size_ == 1 || n <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
      for (std::size_t i = 0; i < n; ++i) f(i);
      return;
    }
    using function = std::remove_reference_t<F>;
    run(n, {const_cast<void*>(static_cast<const void*>(std::addressof(f))), [](void* context, std::size_t i) { (*static_cast<function*>(context))(i); }});
  }

 private:
  static constexpr int spins_before_yield = 1000, yields_before_sleep = 2000;

  struct started {   // joins the threads of a constructor that does not finish
    thread_team* team;
    std::size_t threads = 0;
    ~started() {
      if (team) team->stop(threads);
    }
  };

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }

  void run(std::size_t n, bulk_function f) {
    function_ = f, count_ = n;
    next_.store(0, std::memory_order_relaxed);
    running_.store(size_ - 1, std::memory_order_relaxed);
    start();
    drain();
    for (int spins = 0; running_.load(std::memory_order_acquire) != 0;) {
      if (spins < spins_before_yield) pause(), ++spins;
      else std::this_thread::yield();
    }
    std::exception_ptr failure;
    if (failed_.exchange(false, std::memory_order_relaxed)) failure = std::exchange(failure_, nullptr);
    busy_.store(false, std::memory_order_release);
#if defined(__cpp_exceptions)
    if (failure) std::rethrow_exception(failure);
#endif
  }
  void start() {
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }
  void stop(std::size_t threads) {
    stop_.store(true, std::memory_order_relaxed);
    start();
    for (std::size_t i = 0; i < threads; ++i) workers_[i].join();
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
  std::atomic<bool> busy_{false}, failed_{false}, stop_{false};
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  alignas(64) std::atomic<std::size_t> next_{0};
  alignas(64) std::atomic<std::size_t> running_{0};
  std::unique_ptr<std::thread[]> workers_;
};

}  // namespace heddle::inline HEDDLE_ISA
