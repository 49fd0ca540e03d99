#include <heddle/speculative/losses/throughput_policy.hpp>

#include <heddle/core/random.hpp>

#include "support/errors.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

using namespace heddle;
using losses::round_profile;
using losses::throughput_policy;

tensor_view<const round_profile, 3> table(const std::vector<round_profile>& cells, std::int64_t configurations, std::int64_t workloads = 1, std::int64_t concurrencies = 1) {
  return {cells.data(), extents{configurations, workloads, concurrencies}};
}

TEST(ThroughputPolicy, MoreTokensMayLose) {
  const std::vector<round_profile> cells = {{5.0, 1, 2, 5, 1}, {5.2, 1, 3, 5, 1}};
  const std::vector<std::int32_t> blocks = {8, 8};
  const throughput_policy policy(blocks, table(cells, 2));
  EXPECT_EQ(policy.best(0, 0), 0);
  EXPECT_DOUBLE_EQ(policy.throughput(0, 0, 0), 5.0 / 9);
}

TEST(ThroughputPolicy, NeverBelowAFixedConfiguration) {
  std::vector<round_profile> cells;
  for (std::uint32_t i = 0; i < 6 * 4 * 3; ++i) {
    const auto u = [&](std::uint32_t j) { return uniform({.seed = 5, .position = i, .index = j}); };
    cells.push_back({1 + 7 * u(0), u(1), u(2), 3 * u(3), u(4)});
  }
  const std::vector<std::int32_t> blocks = {4, 4, 8, 8, 16, 16};
  throughput_policy policy(blocks, table(cells, 6, 4, 3));
  for (std::int64_t w = 0; w < 4; ++w)
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t c = 0; c < 6; ++c) {
        EXPECT_GE(policy.throughput(policy.best(w, b), w, b), policy.throughput(c, w, b));
        EXPECT_GE(policy.throughput(policy.choose(w, b), w, b), policy.throughput(c, w, b));
      }
}

TEST(ThroughputPolicy, TiesGoToTheShorterRoundThenTheSmallerBlock) {
  const std::vector<round_profile> cells = {{4, 0, 0, 8, 0}, {2, 0, 0, 4, 0}, {2, 1, 1, 1, 1}, {2, 0, 4, 0, 0}};
  const std::vector<std::int32_t> blocks = {1, 9, 3, 3};
  EXPECT_EQ(throughput_policy(blocks, table(cells, 4)).best(0, 0), 2);
}

TEST(ThroughputPolicy, SwitchesOnlyForAGain) {
  const std::vector<round_profile> cells = {{4, 0, 0, 4, 0}, {4, 0, 0, 5, 0}, {4, 0, 0, 4, 0},   // configuration 0 at three concurrencies
                                            {3, 0, 0, 4, 0}, {4.2, 0, 0, 5, 0}, {4.8, 0, 0, 4, 0}};
  const std::vector<std::int32_t> blocks = {4, 8};
  throughput_policy policy(blocks, table(cells, 2, 1, 3), .1);
  EXPECT_EQ(policy.choose(0, 0), 0);
  EXPECT_EQ(policy.best(0, 1), 1);
  EXPECT_EQ(policy.choose(0, 1), 0);   // 5 % is not enough
  EXPECT_EQ(policy.choose(0, 2), 1);
  EXPECT_EQ(policy.choose(0, 1), 1);
}

TEST(ThroughputPolicy, Errors) {
  const std::vector<std::int32_t> blocks = {4};
  const auto message = [&](round_profile cell) { return message_of([&] { throughput_policy(blocks, table({cell}, 1)); }); };
  EXPECT_EQ(message({3, 0, 0, 0, 0}), "losses::throughput_policy: argument 'table': configuration 0, workload 0, concurrency 0: a round takes 0; expected a positive time of parts that are 0 or more");
  EXPECT_EQ(message({0, 1, 1, 1, 1}), "losses::throughput_policy: argument 'table': configuration 0, workload 0, concurrency 0: tokens_per_round is 0; expected a measured positive number");
  const std::vector<round_profile> cells = {{3, 1, 1, 1, 1}};
  throughput_policy policy(blocks, table(cells, 1));
  EXPECT_EQ(message_of([&] { policy.choose(1, 0); }), "losses::throughput_policy: argument 'workload' is 1; expected 0 to 0");
  EXPECT_EQ(message_of([&] { throughput_policy(blocks, table({cells[0], cells[0]}, 2)); }), "losses::throughput_policy: argument 'table': extent 0 is 2; expected 1");
}

}  // namespace
