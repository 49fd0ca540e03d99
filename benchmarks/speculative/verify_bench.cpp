// verify/<rule>/v128256/k8/t1: the verification of a chain of eight drafts over rows of 128,256 float logits. Target: temperature 0.8, top-k 50, top-p 0.9;
// with /top_p_only no top-k; greedy: temperature 0. Draft law: 50 tokens per row, the target's best ones with noise.
//
// vs_one_pass is the time per call over the time of one vectorised max-pass over as many rows as the rule read, measured alternately in the same run. Two
// drafts take turns (9 MiB), so both read from the last-level cache. Rows look like a language model's: sorted, the probabilities fall as rank^-1.2 with
// noise, and in every other row the best few tokens stand out; their places are random. Accepted drafts per call: `accepted`.
//
// lookup/n<context>: prompt lookup over a context, in tokens per second.
#include <heddle/speculative/draft/prompt_lookup.hpp>
#include <heddle/speculative/verify/block.hpp>
#include <heddle/speculative/verify/match.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

namespace {

using namespace heddle;
constexpr std::int64_t vocabulary = 128256, drafts = 8, listed = 50;

// A chain of eight drafts, drawn anew for every call from fixed laws.
struct drafted {
  std::vector<float> logits, probabilities;
  std::vector<std::int32_t> tokens{0}, parents{-1}, rows{0}, in_law;
  std::vector<std::int64_t> indptr{0};

  explicit drafted(unsigned seed) : logits(static_cast<std::size_t>((drafts + 1) * vocabulary)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> noise(0.f, 0.7f);
    std::vector<std::size_t> place(vocabulary);
    std::iota(place.begin(), place.end(), std::size_t{0});
    for (std::int32_t u = 0; u <= drafts; ++u) {
      float* const row = &logits[static_cast<std::size_t>(u * vocabulary)];
      std::shuffle(place.begin(), place.end(), random);
      for (std::size_t rank = 0; rank < place.size(); ++rank) row[place[rank]] = 18.f - 1.2f * std::log(static_cast<float>(rank + 1)) + noise(random) + (rank < 3 && u % 2 ? 2.f : 0.f);
      std::partial_sort(place.begin(), place.begin() + listed, place.end(), [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
      for (std::size_t rank = 0; rank < listed; ++rank) {
        in_law.push_back(static_cast<std::int32_t>(place[rank]));
        probabilities.push_back(std::exp((row[place[rank]] - 20.f) / 0.6f + 0.3f * noise(random)));
      }
      indptr.push_back(static_cast<std::int64_t>(in_law.size()));
      if (u > 0) tokens.push_back(0), parents.push_back(u - 1), rows.push_back(u);
    }
  }
  tensor_view<const float, 2> view() const { return {logits.data(), extents{drafts + 1, vocabulary}}; }
  void draw(std::uint32_t round) {
    for (std::uint32_t u = 0; u < drafts; ++u) {
      const float* const q = &probabilities[static_cast<std::size_t>(u * listed)];
      double at = uniform({.seed = 5, .request = round, .position = u, .purpose = purpose::draft}) * std::accumulate(q, q + listed, 0.);
      std::size_t i = 0;
      while (i + 1 < listed && (at -= static_cast<double>(q[i])) > 0) ++i;
      tokens[u + 1] = in_law[static_cast<std::size_t>(u * listed) + i];
    }
  }
  draft_tree<draft_law::independent> tree() const { return {tokens, parents, {.row_of = rows, .indptr = indptr, .tokens = in_law, .probabilities = probabilities}}; }
};

float one_pass(const float* row, std::int64_t n) {
  simd::f32x16 a = simd::splat(-simd::infinity), b = a, c = a, d = a;
  for (std::int64_t i = 0; i < n; i += 64) {
    a = simd::max(simd::load(row + i), a), b = simd::max(simd::load(row + i + 16), b);
    c = simd::max(simd::load(row + i + 32), c), d = simd::max(simd::load(row + i + 48), d);
  }
  return simd::reduce_max(simd::max(simd::max(a, b), simd::max(c, d)));
}

// Block verification reads on after a rejection, until the target excludes a draft.
template <class Chain>
std::int64_t rows_until_impossible(const drafted& d, const Chain& policy, sampling::row_workspace& memory) {
  for (std::int64_t u = 0; u < drafts; ++u) {
    const auto law = sampling::law_of(d.view()[u], policy, {}, {}, memory);
    if (!std::binary_search(law.tokens.begin(), law.tokens.end(), d.tokens[static_cast<std::size_t>(u) + 1])) return u + 1;
  }
  return drafts;
}

template <class Rule>
void verify_chain(benchmark::State& state, Rule rule, const sampling::parameters& p) {
  static drafted both[] = {drafted(1), drafted(2)};
  verify_workspace memory(vocabulary);
  const sampling::chain policy{p};
  using clock = std::chrono::steady_clock;
  double verify_time = 0, pass_time = 0, accepted = 0;
  std::uint32_t round = 0;
  for (auto _ : state) {
    drafted &d = both[round % 2], &other = both[1 - round % 2];
    d.draw(round++);
    if constexpr (requires { rule.seed; }) rule.seed = round;
    else
      for (std::int64_t u = 0; u < drafts; ++u) d.tokens[static_cast<std::size_t>(u) + 1] = d.in_law[static_cast<std::size_t>(u * listed)];   // all accepted
    std::int64_t rows_read = 0;
    if constexpr (std::is_same_v<Rule, verify::block>) rows_read = rows_until_impossible(d, policy, memory.row());
    float before = one_pass(d.logits.data(), (drafts + 1) * vocabulary);   // the rows as the target model left them: in the last-level cache
    benchmark::DoNotOptimize(before);
    const auto start = clock::now();
    const auto v = rule(d.tree(), d.view(), policy, std::span<const std::int32_t>{}, memory, 100);
    const double seconds = std::chrono::duration<double>(clock::now() - start).count();
    accepted += v.accepted;
    rows_read = std::max<std::int64_t>(rows_read, v.accepted + 1);
    before = one_pass(other.logits.data(), (drafts + 1) * vocabulary);
    benchmark::DoNotOptimize(before);
    const auto middle = clock::now();
    float max = one_pass(other.logits.data(), rows_read * vocabulary);
    benchmark::DoNotOptimize(max);
    pass_time += std::chrono::duration<double>(clock::now() - middle).count();
    verify_time += seconds;
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
  const sampling::parameters usual{.temperature = 0.8f, .top_k = 50, .top_p = 0.9f}, top_p_only{.temperature = 0.8f, .top_p = 0.9f};
  add("verify/greedy/v128256/k8/t1", verify::greedy{}, {.temperature = 0.f});
  add("verify/token/v128256/k8/t1", verify::token{}, usual);
  add("verify/block/v128256/k8/t1", verify::block{}, usual);
  add("verify/match/v128256/k8/t1", verify::match{}, usual);
  add("verify/token/v128256/k8/t1/top_p_only", verify::token{}, top_p_only);
  add("verify/block/v128256/k8/t1/top_p_only", verify::block{}, top_p_only);
  add("verify/match/v128256/k8/t1/top_p_only", verify::match{}, top_p_only);
  benchmark::RegisterBenchmark("lookup/n1000", lookup)->Arg(1000);
  benchmark::RegisterBenchmark("lookup/n32000", lookup)->Arg(32000);
  return 0;
}();

}  // namespace
