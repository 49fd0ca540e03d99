#include <heddle/core/thread_team.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <vector>

using namespace heddle;

namespace {

std::size_t sum_of(thread_team& team, std::size_t n) {
  std::vector<int> count(n);
  team.bulk(n, [&](std::size_t i) { ++count[i]; });
  std::size_t once = 0;
  for (const int c : count) once += c == 1;
  return once;
}

}  // namespace

TEST(thread_team, runs_each_index_once_with_any_number_of_threads) {
  for (const std::size_t threads : {1u, 2u, 3u, 7u, 17u}) {
    thread_team team{threads};
    EXPECT_EQ(team.concurrency(), threads);
    for (const std::size_t n : {0u, 1u, 2u, 3u, 16u, 1000u}) EXPECT_EQ(sum_of(team, n), n) << threads << " threads";
  }
}

TEST(thread_team, many_short_calls_in_a_row) {
  thread_team team{3};
  std::size_t total = 0;
  for (int call = 0; call < 3000; ++call) total += sum_of(team, 4);
  EXPECT_EQ(total, 12000u);
}

TEST(thread_team, writes_of_a_call_are_visible_to_the_next) {
  thread_team team{2};
  std::vector<int> a(64), b(64);
  for (int round = 1; round <= 200; ++round) {
    team.bulk(64, [&](std::size_t i) { a[i] += 1; });
    team.bulk(64, [&](std::size_t i) { b[i] = a[63 - i]; });
    ASSERT_EQ(b, std::vector<int>(64, round));
  }
}

TEST(thread_team, wakes_from_sleep) {
  thread_team team{2};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(sum_of(team, 100), 100u);
  }
}

TEST(thread_team, other_threads_take_part) {
  thread_team team{2};
  std::atomic<int> inside{0};
  team.bulk(2, [&](std::size_t) {   // ends only when both pieces run at the same time
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  EXPECT_EQ(inside, 2);
}

TEST(thread_team, rethrows_the_exception_of_a_piece_and_goes_on) {
  thread_team team{3};
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> begun{0};
    EXPECT_THROW(team.bulk(1000, [&](std::size_t i) {
      ++begun;
      if (i == 7) throw std::runtime_error("seven");
    }), std::runtime_error);
    EXPECT_GE(begun, 8);
    EXPECT_EQ(sum_of(team, 100), 100u);
  }
  EXPECT_THROW(team.bulk(100, [](std::size_t) { throw 1; }), int);   // all of them
  EXPECT_THROW(team.bulk(1, [](std::size_t) { throw 1; }), int);
  EXPECT_EQ(sum_of(team, 100), 100u);
}

TEST(thread_team, a_call_from_inside_a_piece_is_run_by_its_thread) {
  thread_team team{2};
  std::vector<std::atomic<int>> count(64);
  team.bulk(8, [&](std::size_t i) { team.bulk(8, [&](std::size_t j) { ++count[8 * i + j]; }); });
  for (const auto& c : count) EXPECT_EQ(c, 1);
}

TEST(thread_team, calls_from_several_threads) {
  thread_team team{2};
  std::vector<std::size_t> sums(3);
  {
    std::vector<std::jthread> callers;
    for (std::size_t& sum : sums)
      callers.emplace_back([&] {
        for (int round = 0; round < 300; ++round) sum += sum_of(team, 20);
      });
  }
  for (const std::size_t sum : sums) EXPECT_EQ(sum, 6000u);
}

TEST(thread_team, construction_and_destruction) {
  for (int i = 0; i < 200; ++i) {
    thread_team team{3};
    EXPECT_EQ(i % 2 ? sum_of(team, 5) : 5, 5u);
  }
  EXPECT_THROW(thread_team{0}, error);
}
