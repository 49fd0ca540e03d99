#include <heddle/core/executor.hpp>

#include <gtest/gtest.h>

#include <vector>

#if defined(_OPENMP)
#include <heddle/core/openmp_executor.hpp>

using namespace heddle;

static_assert(executor<openmp_executor> && executor<const openmp_executor>);

TEST(openmp_executor, runs_each_index_once) {
  for (const int threads : {1, 2, 5}) {
    const openmp_executor run{threads};
    EXPECT_EQ(run.concurrency(), static_cast<std::size_t>(threads));
    for (const std::size_t n : {0u, 1u, 2u, 1000u}) {
      std::vector<int> count(n);
      executor_ref{run}.bulk(n, [&](std::size_t i) { ++count[i]; });
      EXPECT_EQ(count, std::vector<int>(n, 1));
    }
  }
  EXPECT_GE(openmp_executor{}.concurrency(), 1u);
}

TEST(openmp_executor, uses_several_threads) {
  const openmp_executor run{2};
  int meeting = 0;
  run.bulk(2, [&](std::size_t) {   // ends only when both pieces run at the same time
#pragma omp atomic
    ++meeting;
    for (int seen = 0; seen < 2;) {
#pragma omp atomic read
      seen = meeting;
    }
  });
  EXPECT_EQ(meeting, 2);
}
#else
TEST(openmp_executor, needs_openmp) { GTEST_SKIP() << "compiled without OpenMP"; }
#endif
