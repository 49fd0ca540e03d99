// What storing costs: cache/append/<codec>/h<kv heads>d<head_dim>/rows<n>/t<threads>
//
// One pass reserves n tokens, writes them in all 32 layers from float rows, and commits. roof_fraction: time of copying as many bytes as
// are read and written, at the copy rate (memcpy of large buffers by the same threads) of the same iteration, over the time of the pass.
// vs_memcpy: time of the pass over that of memcpy from the same rows to a buffer, without any encoding. cache/compact/...: eight reserved
// rows of which four are kept; roof_fraction as above for the codes that move.
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>
#include <heddle/core/thread_team.hpp>

#include "support/roof.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace {

using namespace heddle;
using heddle_bench::median;
using heddle_bench::now;

constexpr int layers = 32, kv_heads = 8, head_dim = 128, page_size = 64;

struct inputs {
  std::int64_t rows;
  aligned_vector<float> k, v;  // [layers][rows][kv_heads][head_dim]
  explicit inputs(std::int64_t n) : rows(n), k(static_cast<std::size_t>(layers * n * kv_heads * head_dim)), v(k.size()) {
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i * 2654435761u % 1000u) / 500.f - 1.f, v[i] = -k[i];
  }
  tensor_view<const float, 3> layer(const aligned_vector<float>& x, int l) const {
    return {x.data() + static_cast<std::ptrdiff_t>(l * rows * kv_heads * head_dim), extents{rows, kv_heads, head_dim}};
  }
  std::size_t bytes() const { return 2 * k.size() * sizeof(float); }
};

// Bytes read and written per second by memcpy between large buffers.
class copy_roof {
 public:
  explicit copy_roof(thread_team& team) : team_(team), from_(size, std::byte{1}), to_(size) {}
  double bytes_per_second() {
    const std::size_t threads = team_.concurrency(), share = size / threads;
    const double begin = now();
    team_.bulk(threads, [&](std::size_t i) { std::memcpy(to_.data() + i * share, from_.data() + i * share, share); });
    return 2. * static_cast<double>(share * threads) / (now() - begin);
  }

 private:
  static constexpr std::size_t size = std::size_t{48} << 20;
  thread_team& team_;
  aligned_vector<std::byte> from_, to_;
};

template <class Codec>
std::size_t row_bytes() {
  return layers * kv_heads * (Codec::key_row_bytes(head_dim) + Codec::value_row_bytes(head_dim));
}

void report(benchmark::State& state, std::vector<double> fraction, std::vector<double> roof) {
  state.counters["roof_fraction"] = median(std::move(fraction));
  state.counters["roof_GB_per_s"] = median(std::move(roof)) * 1e-9;
}

template <class Codec>
void append(benchmark::State& state, std::int64_t rows, std::size_t threads) {
  thread_team team(threads);
  copy_roof roof(team);
  const inputs in(rows);
  const std::int64_t passes = std::max<std::int64_t>(1, 256 / rows), tokens = 4096;
  page_pool<Codec> pool(
      {.num_layers = layers, .num_pages = tokens / page_size, .page_size = page_size, .num_kv_heads = kv_heads, .head_dim = head_dim});
  const sequence_id s = pool.new_sequence();
  const auto pass = [&] {
    if (pool.length(s) + rows > tokens) pool.truncate(s, 0);
    pool.reserve(s, rows);
    for (int l = 0; l < layers; ++l) pool.write(s, l, in.layer(in.k, l), in.layer(in.v, l), {.executor = team});
    pool.commit(s);
  };
  aligned_vector<float> target(in.k.size() * 2);
  const auto copies = [&] {
    team.bulk(team.concurrency(), [&](std::size_t i) {
      const std::size_t share = in.k.size() / team.concurrency();
      std::memcpy(target.data() + 2 * i * share, in.k.data() + i * share, share * sizeof(float));
      std::memcpy(target.data() + (2 * i + 1) * share, in.v.data() + i * share, share * sizeof(float));
    });
    benchmark::ClobberMemory();
  };
  const double bytes = static_cast<double>(passes) * static_cast<double>(in.bytes() + static_cast<std::size_t>(rows) * row_bytes<Codec>());
  for (int i = 0; i < tokens / rows; ++i) pass();  // every page touched once
  copies();
  std::vector<double> fraction, rates, ratio;
  for (auto _ : state) {
    const double rate = roof.bytes_per_second(), begin = now();
    for (std::int64_t i = 0; i < passes; ++i) pass();
    const double middle = now();
    for (std::int64_t i = 0; i < passes; ++i) copies();
    const double end = now();
    state.SetIterationTime(middle - begin);
    fraction.push_back(bytes / rate / (middle - begin)), rates.push_back(rate), ratio.push_back((middle - begin) / (end - middle));
  }
  report(state, fraction, rates);
  state.counters["vs_memcpy"] = median(ratio);
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes * static_cast<double>(state.iterations())));
}

template <class Codec>
void compact(benchmark::State& state) {
  thread_team team(1);
  copy_roof roof(team);
  const inputs in(8);
  const std::int64_t tokens = 4096;
  page_pool<Codec> pool(
      {.num_layers = layers, .num_pages = tokens / page_size, .page_size = page_size, .num_kv_heads = kv_heads, .head_dim = head_dim});
  const sequence_id s = pool.new_sequence();
  const std::int32_t path[] = {0, 2, 5, 7};  // three of four move
  constexpr int steps = 64;
  const double bytes = 2. * 3 * steps * static_cast<double>(row_bytes<Codec>());
  std::vector<double> fraction, rates;
  for (auto _ : state) {
    const double rate = roof.bytes_per_second();
    double seconds = 0;
    for (int i = 0; i < steps; ++i) {
      if (pool.length(s) + 8 > tokens) pool.truncate(s, 0);
      pool.reserve(s, 8);
      for (int l = 0; l < layers; ++l) pool.write(s, l, in.layer(in.k, l), in.layer(in.v, l));
      const double begin = now();
      pool.compact(s, path);
      seconds += now() - begin;
    }
    state.SetIterationTime(seconds);
    fraction.push_back(bytes / rate / seconds), rates.push_back(rate);
  }
  report(state, fraction, rates);
}

template <class Codec>
void add() {
  const std::string name = Codec::name;
  for (const std::int64_t rows : {1, 8, 512})
    for (const std::size_t threads : {1u, 2u})
      if (rows > 8 || threads == 1)
        benchmark::RegisterBenchmark(
            ("cache/append/" + name + "/h8d128/rows" + std::to_string(rows) + "/t" + std::to_string(threads)).c_str(),
            [=](benchmark::State& s) { append<Codec>(s, rows, threads); })
            ;
  benchmark::RegisterBenchmark(("cache/compact/" + name + "/h8d128/rows4of8/t1").c_str(), compact<Codec>);
}

[[maybe_unused]] const bool registered =
    (add<codec::f32>(), add<codec::f16>(), add<codec::bf16>(), add<codec::fp8_e4m3>(), add<codec::int8<>>(), true);

}  // namespace
