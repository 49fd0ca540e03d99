// verify/<rule>/k8/v128256/t1: the verification of a chain of eight drafts that are all accepted, against one vectorised max-pass over the same nine
// rows in the same run (vs_one_pass). lookup/n<context>: prompt lookup over a context, in tokens per second.
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <random>
#include <vector>

namespace {

using namespace heddle;
constexpr std::int64_t vocabulary = 128256, drafts = 8;

struct drafted {
  std::vector<float> logits = std::vector<float>((drafts + 1) * vocabulary);
  std::vector<std::int32_t> tokens, parents;
  drafted() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.f, 2.f);
    for (float& x : logits) x = normal(random);
    for (std::int32_t u = 0; u <= drafts; ++u) {
      tokens.push_back(17 * u), parents.push_back(u - 1);
      if (u > 0) logits[static_cast<std::size_t>((u - 1) * vocabulary + 17 * u)] = 60.f;  // the target is sure of the draft
    }
  }
  tensor_view<const float, 2> view() const { return {logits.data(), extents{drafts + 1, vocabulary}}; }
};

float one_pass(const std::vector<float>& row) {
  simd::f32x16 a = simd::splat(-simd::infinity), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 64 <= row.size(); i += 64) {
    a = simd::max(simd::load(&row[i]), a), b = simd::max(simd::load(&row[i + 16]), b);
    c = simd::max(simd::load(&row[i + 32]), c), d = simd::max(simd::load(&row[i + 48]), d);
  }
  return simd::reduce_max(simd::max(simd::max(a, b), simd::max(c, d)));
}

template <class Rule>
void verify_chain(benchmark::State& state, const Rule& rule, const sampling::parameters& p) {
  static const drafted d;
  verify_workspace memory(vocabulary);
  const sampling::chain policy{p};
  using clock = std::chrono::steady_clock;
  double verify_time = 0, pass_time = 0, accepted = 0;
  for (auto _ : state) {
    const auto start = clock::now();
    const auto v = rule(draft_tree<draft_law::deterministic>{d.tokens, d.parents}, d.view(), policy, std::span<const std::int32_t>{}, memory, 100);
    accepted += v.accepted;
    const auto middle = clock::now();
    float max = one_pass(d.logits);
    benchmark::DoNotOptimize(max);
    const double seconds = std::chrono::duration<double>(middle - start).count();
    verify_time += seconds, pass_time += std::chrono::duration<double>(clock::now() - middle).count();
    state.SetIterationTime(seconds);
  }
  state.counters["vs_one_pass"] = verify_time / pass_time;
  state.counters["accepted"] = accepted / static_cast<double>(state.iterations());
}

void lookup(benchmark::State& state) {
  std::mt19937 random(2);
  std::vector<std::int32_t> context(static_cast<std::size_t>(state.range(0)));
  for (auto& t : context) t = static_cast<std::int32_t>(random() % 1000);
  prompt_lookup drafter;
  for (auto _ : state) benchmark::DoNotOptimize(drafter.propose(context, 8).tokens.size());
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

const int registered = [] {
  const auto add = [](const char* name, auto rule, sampling::parameters p) {
    benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { verify_chain(state, rule, p); })->Unit(benchmark::kMicrosecond);
  };
  add("verify/greedy/k8/v128256/t1", verify::greedy{}, {.temperature = 0.f});
  add("verify/match/k8/v128256/t1", verify::match{.seed = 7}, {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f});
  add("verify/token/k8/v128256/t1", verify::token{.seed = 7}, {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f});
  benchmark::RegisterBenchmark("lookup/n1000", lookup)->Arg(1000);
  benchmark::RegisterBenchmark("lookup/n32000", lookup)->Arg(32000);
  return 0;
}();

}  // namespace
