// sample/<policy>/v128256/t1: one token from one row of 128,256 float logits.
//
// vs_one_pass is the time per token over the time of one vectorised max-pass over the same rows, measured alternately in the same run. Four rows
// take turns (2 MiB), so both read from the last-level cache. Rows look like a language model's: sorted, the probabilities fall as rank^-1.2
// with noise, and the best few tokens stand out; their places are random.
#include <heddle/sampling/row.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace heddle;
constexpr std::int64_t vocabulary = 128256;
constexpr std::size_t num_rows = 4;

std::vector<std::vector<float>> make_rows() {
  std::mt19937 random(1);
  std::vector<std::vector<float>> rows(num_rows, std::vector<float>(vocabulary));
  std::vector<std::size_t> place(vocabulary);
  std::iota(place.begin(), place.end(), std::size_t{0});
  std::normal_distribution<float> noise(0.f, 0.7f);
  for (auto& row : rows) {
    std::shuffle(place.begin(), place.end(), random);
    for (std::size_t rank = 0; rank < row.size(); ++rank) row[place[rank]] = 18.f - 1.2f * std::log(static_cast<float>(rank + 1)) + noise(random) + (rank < 3 ? 2.f : 0.f);
  }
  return rows;
}

float one_pass(const std::vector<float>& row) {
  simd::f32x16 a = simd::splat(-simd::infinity), b = a, c = a, d = a;
  for (std::size_t i = 0; i < row.size(); i += 64) {
    a = simd::max(simd::load(&row[i]), a), b = simd::max(simd::load(&row[i + 16]), b);
    c = simd::max(simd::load(&row[i + 32]), c), d = simd::max(simd::load(&row[i + 48]), d);
  }
  return simd::reduce_max(simd::max(simd::max(a, b), simd::max(c, d)));
}

void sample(benchmark::State& state, const sampling::parameters& p) {
  static const auto rows = make_rows();
  sampling::row_workspace memory(vocabulary);
  const sampling::chain policy{p};
  using clock = std::chrono::steady_clock;
  double sampling_time = 0, pass_time = 0;
  std::uint32_t position = 0;
  for (auto _ : state) {
    const auto& row = rows[position % num_rows];
    const auto start = clock::now();
    auto next = sampling::sample_row(tensor_view<const float, 1>{row.data(), extents{vocabulary}}, policy, {}, {.seed = 7, .position = position++}, memory);
    benchmark::DoNotOptimize(next);
    const auto middle = clock::now();
    float max = one_pass(rows[(position + num_rows / 2) % num_rows]);
    benchmark::DoNotOptimize(max);
    const auto end = clock::now();
    const double seconds = std::chrono::duration<double>(middle - start).count();
    sampling_time += seconds, pass_time += std::chrono::duration<double>(end - middle).count();
    state.SetIterationTime(seconds);
  }
  state.counters["vs_one_pass"] = sampling_time / pass_time;
  state.counters["one_pass_us"] = pass_time / static_cast<double>(state.iterations()) * 1e6;
  state.SetBytesProcessed(state.iterations() * vocabulary * static_cast<std::int64_t>(sizeof(float)));
}

const struct {
  const char* name;
  sampling::parameters parameters;
} cases[] = {
    {"sample/greedy/v128256/t1", {.temperature = 0.f}},
    {"sample/top_k50_top_p/v128256/t1", {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f}},
    {"sample/min_p/v128256/t1", {.temperature = 0.8f, .min_p = 0.05f}},
    {"sample/top_p/v128256/t1", {.temperature = 0.8f, .top_p = 0.9f}},
    {"sample/temperature/v128256/t1", {.temperature = 0.8f}},
};
const int registered = [] {
  for (const auto& c : cases) benchmark::RegisterBenchmark(c.name, [&c](benchmark::State& state) { sample(state, c.parameters); })->Unit(benchmark::kMicrosecond);
  return 0;
}();

}  // namespace
