#include <heddle/core/share_items.hpp>
#include <heddle/core/thread_team.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

using namespace heddle;

namespace {

TEST(ShareItems, EachItemOnceWhateverTheWorkers) {
  for (const std::int64_t items : {0, 1, 7, 10000})
    for (const std::size_t workers : {std::size_t{1}, std::size_t{3}, std::size_t{16}}) {
      thread_team team(4);
      std::vector<int> times(static_cast<std::size_t>(items)), worker_of(static_cast<std::size_t>(items), -1);
      share_items(team, workers, items, [&](std::size_t worker, std::int64_t item) {
        ++times[static_cast<std::size_t>(item)];
        worker_of[static_cast<std::size_t>(item)] = static_cast<int>(worker);
      });
      EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; }));
      EXPECT_TRUE(std::ranges::all_of(worker_of, [&](int w) { return 0 <= w && w < static_cast<int>(workers); }));
    }
}

TEST(ShareItems, AThrowingItemReachesTheCaller) {
  thread_team team(2);
  EXPECT_THROW(share_items(team, 2, 100, [](std::size_t, std::int64_t item) { if (item == 50) throw 50; }), int);
}

TEST(SharedIndex, LowersToTheFirstOfAllThatAreMet) {
  thread_team team(4);
  for (int round = 0; round < 200; ++round) {
    shared_index first(1000);
    share_items(team, 4, 1000, [&](std::size_t, std::int64_t item) { if (item % 7 == 3) first.lower(item); });
    ASSERT_EQ(first.load(), 3);
  }
}

TEST(SharedIndex, GuidedRangesCoverWithoutGapOrOverlap) {
  thread_team team(4);
  std::vector<int> times(5000);
  shared_index next(0);
  team.bulk(4, [&](std::size_t) {
    for (;;) {
      std::int64_t first = next.load(), count;
      do {
        count = (5000 - first + 7) / 8;
        if (count <= 0) return;
      } while (!next.move(first, first + count));
      for (std::int64_t i = first; i < first + count; ++i) ++times[static_cast<std::size_t>(i)];
    }
  });
  EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; }));
}

}  // namespace
