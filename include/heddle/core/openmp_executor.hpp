// An executor on OpenMP threads. A region costs about a microsecond with OMP_WAIT_POLICY=active and tens of microseconds without: prefer
// thread_team for decoding. Exceptions must not leave a piece (OpenMP ends the program then).
//
//     heddle::openmp_executor run{.threads = 4};
//     run.bulk(10, [&](std::size_t i) { work(i); });
#pragma once
#include <heddle/core/executor.hpp>

#include <cstdint>
#include <omp.h>

namespace heddle::inline HEDDLE_ISA {

struct openmp_executor {
  int threads = omp_get_max_threads();
  std::size_t concurrency() const { return static_cast<std::size_t>(threads); }
  template <class F>
  void bulk(std::size_t n, F&& f) const {
    const auto count = static_cast<std::int64_t>(n);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (std::int64_t i = 0; i < count; ++i) f(static_cast<std::size_t>(i));
  }
};

}  // namespace heddle::inline HEDDLE_ISA
