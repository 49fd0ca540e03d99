// What is const may be used from many threads at once: built with -fsanitize=thread this finds anything that is shared and should not be.
#include "attention/filled_pool.hpp"

#include <heddle/linear/multiply.hpp>
#include <heddle/position/rope.hpp>
#include <heddle/sampling/row.hpp>

#include <thread>

using namespace attention_test;

namespace {

TEST(Threads, ConstObjectsServeSeveralThreads) {
  const filled_pool<codec::f16, lane_layout> filled(32, 5);
  const rope<half_split> turn{{.head_dim = dim}};
  const std::vector<std::int32_t> positions{7, 9};
  const rope_table table{turn, positions};
  const sampling::chain policy{sampling::temperature(.8f), sampling::top_p(.9f)};
  const std::vector<float> stored(48 * dim, .1f), row(3000, 0.f);
  const auto weights = linear::pack(tensor_view{stored.data(), extents{48, dim}}, linear::format::q8_0);
  linear::activations x{linear::precision::int8, 2, dim};
  const values<float> hidden_rows(2, 1, dim, 6);
  x.prepare(tensor_view{hidden_rows.data.data(), extents{2, dim}});
  thread_team team{2};

  const auto work = [&](int rounds, std::vector<float>& report) {
    sampling::row_workspace memory(static_cast<std::int64_t>(row.size()));
    for (int i = 0; i < rounds; ++i) {
      report.clear();
      values<float> mine = q.rows(0, 2);
      turn.rotate(mine.view(), positions), table.rotate(mine.view());
      const attend_options<host> options{.executor = i % 2 ? executor_ref(team) : executor_ref()};
      const result r = run(mine, filled.keys() | causal() | window(900), dim_v, options);
      report.insert(report.end(), r.out.data.begin(), r.out.data.end());
      std::vector<float> y(2 * 48);
      linear::multiply(weights.view(), x, tensor_view{y.data(), extents{2, 48}}, {.executor = options.executor});
      report.insert(report.end(), y.begin(), y.end());
      report.push_back(static_cast<float>(sampling::sample_row(tensor_view{row.data(), extents{static_cast<std::int64_t>(row.size())}}, policy, {}, {.seed = 3}, memory).token));
    }
  };
  std::vector<float> expected, reports[4];
  work(1, expected);
  {
    std::vector<std::jthread> threads;
    for (auto& report : reports) threads.emplace_back([&] { work(6, report); });
  }
  for (const auto& report : reports) EXPECT_TRUE(same_bits(report, expected));
}

}  // namespace
