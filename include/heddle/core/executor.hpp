// Who runs the pieces of a call.
//
// executor        concept: e.bulk(n, f) runs f(0) .. f(n - 1), each exactly once, on any threads, and returns when all are done;
//                 e.concurrency() says how many can run at the same time. Results of heddle never depend on either.
// serial_executor runs everything on the calling thread.
// executor_ref    non-owning, type-erased reference to an executor; default: serial. The executor must outlive the call.
// thread_team (thread_team.hpp) and openmp_executor (openmp_executor.hpp) are executors; so is any thread pool with the two members above.
//
//     heddle::executor_ref run;                         // serial
//     run.bulk(10, [&](std::size_t i) { work(i); });
#pragma once
#include <heddle/core/isa.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace heddle {

/// A call to f(i) for i in [0, n), behind two pointers.
struct bulk_function {
  void* context;
  void (*call)(void* context, std::size_t index);
  [[gnu::always_inline]] inline void operator()(std::size_t index) const { call(context, index); }
};

template <class E>
concept executor = requires(E& e, std::size_t n, bulk_function f) {
  e.bulk(n, f);
  { e.concurrency() } -> std::convertible_to<std::size_t>;
};

struct serial_executor {
  template <class F>
  [[gnu::always_inline]] inline void bulk(std::size_t n, F&& f) const {
    for (std::size_t i = 0; i < n; ++i) f(i);
  }
  [[gnu::always_inline]] constexpr std::size_t concurrency() const { return 1; }
};

class executor_ref {
 public:
  constexpr executor_ref() = default;
  template <executor E>
    requires(!std::same_as<std::remove_cv_t<E>, executor_ref>)
  [[gnu::always_inline]] inline executor_ref(E& e)
      : object_(const_cast<void*>(static_cast<const void*>(__builtin_addressof(e)))),
        bulk_([](void* object, std::size_t n, bulk_function f) { static_cast<E*>(object)->bulk(n, f); }),
        concurrency_([](void* object) { return static_cast<std::size_t>(static_cast<E*>(object)->concurrency()); }) {}

  template <class F>
  [[gnu::always_inline]] inline void bulk(std::size_t n, F&& f) const {
    if (!object_ || n <= 1) {
      for (std::size_t i = 0; i < n; ++i) f(i);
      return;
    }
    using function = std::remove_reference_t<F>;
    bulk_(object_, n, {const_cast<void*>(static_cast<const void*>(__builtin_addressof(f))), [](void* context, std::size_t i) { (*static_cast<function*>(context))(i); }});
  }
  [[gnu::always_inline]] inline std::size_t concurrency() const { return object_ ? concurrency_(object_) : 1; }

 private:
  void* object_ = nullptr;
  void (*bulk_)(void*, std::size_t, bulk_function) = nullptr;
  std::size_t (*concurrency_)(void*) = nullptr;
};

}  // namespace heddle
