// tree/<drafter>/nodes64/v128256/t1: a tree of 64 drafts from 16 rows of logits that the drafter reads, against one vectorised max-pass over the same 16
// rows in the same run (vs_one_pass). The rows lie in memory: a drafter that has just computed them finds part of them in the cache.
// tree/ddtree/nodes1024/t1: DDTree alone, given the best 64 tokens of 16 slots.
#include <heddle/speculative/draft/ddtree.hpp>
#include <heddle/speculative/draft/eagle_tree.hpp>
#include <heddle/speculative/draft/taps.hpp>
#include <heddle/speculative/draft/tsubame.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using namespace heddle;
constexpr std::int64_t vocabulary = 128256;
constexpr std::int32_t slots = 16, nodes = 64;

// Logits as a language model's: mostly noise, some tens of candidates above it, fewer where the slot is near.
const std::vector<float>& rows() {
  static const std::vector<float> logits = [] {
    std::vector<float> z(static_cast<std::size_t>(slots * vocabulary));
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.f, 2.f);
    for (float& x : z) x = normal(random);
    for (std::int32_t slot = 0; slot < slots; ++slot)
      for (int i = 0; i < 40; ++i) z[static_cast<std::size_t>(slot * vocabulary) + random() % static_cast<std::size_t>(vocabulary)] = 18.f - static_cast<float>(i) * (1.5f - 0.08f * static_cast<float>(slot));
    return z;
  }();
  return logits;
}
tensor_view<const float, 2> all_rows() { return {rows().data(), extents{slots, vocabulary}}; }

float one_pass(const std::vector<float>& row) {
  simd::f32x16 a = simd::splat(-simd::infinity), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 64 <= row.size(); i += 64) {
    a = simd::max(simd::load(&row[i]), a), b = simd::max(simd::load(&row[i + 16]), b);
    c = simd::max(simd::load(&row[i + 32]), c), d = simd::max(simd::load(&row[i + 48]), d);
  }
  return simd::reduce_max(simd::max(simd::max(a, b), simd::max(c, d)));
}

template <class Propose>
void against_one_pass(benchmark::State& state, const Propose& propose) {
  using clock = std::chrono::steady_clock;
  double tree_time = 0, pass_time = 0, drafts = 0;
  for (auto _ : state) {
    const auto start = clock::now();
    drafts += static_cast<double>(propose().tokens.size()) - 1.;
    const auto middle = clock::now();
    state.PauseTiming();
    const auto before_pass = clock::now();
    float max = one_pass(rows());
    benchmark::DoNotOptimize(max);
    tree_time += std::chrono::duration<double>(middle - start).count(), pass_time += std::chrono::duration<double>(clock::now() - before_pass).count();
    state.ResumeTiming();
  }
  state.counters["vs_one_pass"] = tree_time / pass_time;
  state.counters["nodes"] = drafts / static_cast<double>(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(rows().size() * sizeof(float)));
}

struct recorded_block {
  block_prediction predict(std::span<const std::int32_t>, std::int32_t) const { return {all_rows(), {}}; }
};
struct recorded_head {   // 1 + 3 * 5 rows
  std::int64_t next = 0;
  tensor_view<const float, 2> expand(const token_tree&, std::span<const std::int32_t> frontier) {
    const auto count = static_cast<std::int64_t>(frontier.size());
    next = frontier[0] == 0 ? 0 : next;
    const auto block = all_rows().slice(next, count);
    next += count;
    return block;
  }
};

const std::vector<std::int32_t> context = {1, 2, 3};

void eagle(benchmark::State& state) {
  recorded_head head;
  eagle_drafter drafter{head, {.width = 5, .depth = 4}};
  against_one_pass(state, [&] { return drafter.propose(context, nodes); });
}
void ddtree_of_rows(benchmark::State& state) {
  recorded_block block;
  ddtree_drafter drafter{block, {.num_slots = slots, .width = 64, .max_drafts = nodes}};
  against_one_pass(state, [&] { return drafter.propose(context, nodes); });
}

void taps(benchmark::State& state) {
  recorded_block block;
  std::vector<double> theta;
  for (int i = 0; i < slots; ++i) theta.insert(theta.end(), {1., 1., -0.01, -0.05, 0.1, -2., 0.});
  const acceptance_weights weights(slots, theta);
  taps_drafter drafter{block, weights, {.num_slots = slots, .pool = 32, .max_drafts = nodes}};
  against_one_pass(state, [&] { return drafter.propose(context, nodes); });
}
void tsubame(benchmark::State& state) {
  recorded_block block;
  tsubame_block<draft_law::without_replacement, recorded_block> drafter{block, {.num_slots = slots, .width = 64, .max_drafts = nodes}};
  against_one_pass(state, [&] { return drafter.propose(context, nodes); });
}

void ddtree_of_ranking(benchmark::State& state) {
  slot_ranker ranker;
  const slot_ranking best = ranker.rank(all_rows(), 64);
  ddtree tree;
  for (auto _ : state) benchmark::DoNotOptimize(tree.build(1, best, 1024).tokens.size());
  state.counters["nodes_per_second"] = benchmark::Counter(1024. * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

BENCHMARK(eagle)->Name("tree/eagle/nodes64/v128256/t1")->Unit(benchmark::kMicrosecond);
BENCHMARK(ddtree_of_rows)->Name("tree/ddtree/nodes64/v128256/t1")->Unit(benchmark::kMicrosecond);
BENCHMARK(taps)->Name("tree/taps/nodes64/v128256/t1")->Unit(benchmark::kMicrosecond);
BENCHMARK(tsubame)->Name("tree/tsubame/nodes64/v128256/t1")->Unit(benchmark::kMicrosecond);
BENCHMARK(ddtree_of_ranking)->Name("tree/ddtree/nodes1024/t1")->Unit(benchmark::kMicrosecond);

}  // namespace
