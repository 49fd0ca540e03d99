// attend() over a page pool: decoding, verification and prefill.
//
//   decode/<codec>/h<query heads>x<kv heads>d<head_dim>/kv<tokens>/rows<n>/t<threads>
//     one call of n rows (vs_rows1: its time as a multiple of one row's); keys and values come from memory (copies of the cache take turns). ceiling_fraction: against the larger of
//     bytes / read roof and useful flops / multiply-add rate of the same run.
//   prefill/<codec>/.../len<n>: causal, useful flops only. vs_sgemm: their rate as a multiple of OpenBLAS's in a float product of 1024^3.
#include "attention/decode.hpp"
#include "support/roof.hpp"

#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/page_pool.hpp>

#include <cblas.h>

#include <memory>
#include <random>
#include <string>

extern "C" void openblas_set_num_threads(int);

namespace {

using namespace heddle;
using heddle_bench::caches;
using heddle_bench::heads;
using heddle_bench::rows_of_queries;

thread_team& team_of(std::size_t threads) {
  static thread_team one{1}, two{2};
  return threads == 1 ? one : two;
}

template <class Codec>
void decode(benchmark::State& state, heads h, int length, int rows, std::size_t threads) {
  thread_team& team = team_of(threads);
  heddle_bench::machine machine{team};
  caches<Codec> cache(h, length, std::size_t{256} << 20);
  rows_of_queries x(rows, h);
  std::vector<std::byte> workspace;
  const double elements = 2. * length * h.kv * h.dim;
  const heddle_bench::cost work{.bytes = elements / 2 * static_cast<double>(Codec::key_row_bytes(h.dim) + Codec::value_row_bytes(h.dim)) / h.dim, .flops = 2. * elements * (h.query / h.kv) * rows};
  heddle_bench::measure(state, machine, work, [&] { x.attend(cache.next(), team, workspace); });
  if (rows == 1) return;
  rows_of_queries one(1, h);
  std::vector<std::byte> one_workspace;
  state.counters["vs_rows1"] = heddle_bench::paired_ratio([&] { x.attend(cache.next(), team, workspace); }, [&] { one.attend(cache.next(), team, one_workspace); });
}

/// flops of a float matrix product
double sgemm_rate(int n, std::size_t threads) {
  static std::vector<float> a(static_cast<std::size_t>(n * n), 0.5f), b(a), c(a);
  openblas_set_num_threads(static_cast<int>(threads));
  const double begin = heddle_bench::now();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.f, a.data(), n, b.data(), n, 0.f, c.data(), n);
  return 2. * n * n * n / (heddle_bench::now() - begin);
}

template <class Codec>
void prefill(benchmark::State& state, heads h, int length, std::size_t threads) {
  thread_team& team = team_of(threads);
  caches<Codec> cache(h, length, 1);
  rows_of_queries x(length, h);
  std::vector<std::byte> workspace;
  const double flops = 4. * h.query * h.dim * length * (length + 1) / 2;
  std::vector<double> ratio;
  x.attend(cache.next(), team, workspace);
  sgemm_rate(1024, threads);
  for (auto _ : state) {
    const double before = sgemm_rate(1024, threads), begin = heddle_bench::now();
    x.attend(cache.next(), team, workspace);
    const double seconds = heddle_bench::now() - begin, after = sgemm_rate(1024, threads);
    state.SetIterationTime(seconds);
    ratio.push_back(flops / seconds / ((before + after) / 2));
  }
  state.counters["vs_sgemm"] = heddle_bench::median(ratio);
}

template <class Codec>
void register_decode(heads h, int length, std::initializer_list<int> rows, std::initializer_list<std::size_t> threads) {
  for (const std::size_t t : threads)
    for (const int n : rows) {
      const std::string name = heddle_bench::decode_name(Codec::name, h, length, n, t);
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { decode<Codec>(state, h, length, n, t); })->Unit(benchmark::kMillisecond);
    }
}
template <class Codec>
void register_prefill(heads h, int length) {
  const std::string name = std::string("prefill/") + Codec::name + "/h" + std::to_string(h.query) + "x" + std::to_string(h.kv) + "d" + std::to_string(h.dim) + "/len" + std::to_string(length) + "/t2";
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { prefill<Codec>(state, h, length, 2); })->Unit(benchmark::kMillisecond);
}

[[maybe_unused]] const bool registered = [] {
  constexpr heads grouped{32, 8, 128};
  register_decode<codec::f32>(grouped, 16384, {1, 8}, {2});
  register_decode<codec::f16>(grouped, 16384, {1, 2, 4, 8, 16}, {2});
  register_decode<codec::f16>(grouped, 16384, {1}, {1});
  register_decode<codec::bf16>(grouped, 16384, {1, 8}, {2});
  register_decode<codec::fp8_e4m3>(grouped, 16384, {1, 8}, {2});
  register_decode<codec::f16>({8, 8, 128}, 16384, {1}, {2});
  register_decode<codec::f16>({32, 32, 128}, 16384, {1}, {2});
  register_decode<codec::f16>({9, 3, 64}, 4096, {1}, {2});
  register_prefill<codec::f32>(grouped, 2048);
  register_prefill<codec::bf16>(grouped, 2048);
  return true;
}();

}  // namespace
