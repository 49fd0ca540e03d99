// The ceilings of this machine, measured in the same run and paired pass by pass with what is measured against them: machines that share
// memory and cores with others move by 1.5x within a minute, so an absolute time, or a roof measured a minute ago, means nothing.
//
// rates      per second, all threads of a team together
//   read_bytes        plain reads of a buffer four times the size of the last-level cache, on the pages that the operands lie on: huge ones
//                     read about 13% faster
//   flops             fused multiply-adds of floats, counted as two
//   byte_products     exact products of bytes summed to 32 bits (VNNI: vpdpbusd; AVX2: vpmaddubsw, vpmaddwd, vpaddd)
//   nibble_products   the same with one factor of four bits, whose sums fit 16 bits for 32 inputs (AVX2: one vpmaddwd per eight vpmaddubsw)
//   word_products     exact products of 16 bits summed to 32 (VNNI: vpdpwssd; AVX2: vpmaddwd, vpaddd)
// cost       what one pass must do; its ceiling is the time of the slowest of bytes, flops and integer products at the measured rates
// measure    times a pass per iteration, a set of rates before it, and reports as counters the medians over the iterations
//   roof_fraction     (bytes / read_bytes) / time
//   ceiling_fraction  max(bytes / read_bytes, flops / rate, ...) / time
//   roof_GB_per_s     the read roof itself, to see which state the machine was in
//
//     heddle::thread_team team{2};
//     heddle_bench::machine ceilings{team};
//     heddle_bench::measure(state, ceilings, {.bytes = 1e8}, [&] { ...one pass... });
#pragma once
#include "support/huge_memory.hpp"

#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/core/thread_team.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace heddle_bench {

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct rates {
  double read_bytes = 0, flops = 0, byte_products = 0, nibble_products = 0, word_products = 0;
};

struct cost {
  double bytes = 0, flops = 0, byte_products = 0, nibble_products = 0, word_products = 0;
};

/// Seconds that the cost takes at the rates when everything overlaps. Integer products given in several ways (as bytes, as words) are
/// alternatives: the fastest counts.
inline double ceiling_seconds(const cost& c, const rates& r) {
  const auto time = [](double amount, double rate) { return amount > 0 ? amount / rate : 0.; };
  double integers = 0;
  for (const double seconds : {time(c.byte_products, r.byte_products), time(c.nibble_products, r.nibble_products), time(c.word_products, r.word_products)})
    if (seconds > 0 && (integers == 0 || seconds < integers)) integers = seconds;
  return std::max({time(c.bytes, r.read_bytes), time(c.flops, r.flops), integers});
}

/// Keeps a value alive in a register.
template <class V>
[[gnu::always_inline]] inline void keep(V& v) {
#if defined(__AVX512F__)
  __asm__ volatile("" : "+v"(v));
#elif defined(__SSE2__)
  __asm__ volatile("" : "+x"(v));
#else
  __asm__ volatile("" : "+m"(v));
#endif
}

// One probe: `chains` independent accumulators, each advanced once per step.
namespace probe {

inline constexpr int steps = 40000;

#if defined(__AVX512BW__)
using word_register = __m512i;
using float_register = __m512;
inline constexpr int chains = 12;
inline word_register fill(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
inline float_register fill(float x) { return _mm512_set1_ps(x); }
inline float_register fma(float_register a, float_register b, float_register c) { return _mm512_fmadd_ps(a, b, c); }
inline word_register add32(word_register a, word_register b) { return _mm512_add_epi32(a, b); }
inline word_register add16(word_register a, word_register b) { return _mm512_add_epi16(a, b); }
inline word_register pairs16(word_register a, word_register b) { return _mm512_madd_epi16(a, b); }
inline word_register pairs8(word_register a, word_register b) { return _mm512_maddubs_epi16(a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
using word_register = __m256i;
using float_register = __m256;
inline constexpr int chains = 10;
inline word_register fill(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
inline float_register fill(float x) { return _mm256_set1_ps(x); }
inline float_register fma(float_register a, float_register b, float_register c) { return _mm256_fmadd_ps(a, b, c); }
inline word_register add32(word_register a, word_register b) { return _mm256_add_epi32(a, b); }
inline word_register add16(word_register a, word_register b) { return _mm256_add_epi16(a, b); }
inline word_register pairs16(word_register a, word_register b) { return _mm256_madd_epi16(a, b); }
inline word_register pairs8(word_register a, word_register b) { return _mm256_maddubs_epi16(a, b); }
#else
using word_register = std::int32_t __attribute__((vector_size(16)));
using float_register = float __attribute__((vector_size(16)));
inline constexpr int chains = 8;
inline word_register fill(int byte) { return word_register{} + byte * 0x01010101; }
inline float_register fill(float x) { return float_register{} + x; }
inline float_register fma(float_register a, float_register b, float_register c) { return a * b + c; }
inline word_register add32(word_register a, word_register b) { return a + b; }
#endif

/// Steps of all chains per second, one thread.
template <class Register, class Step, std::size_t... chain>
[[gnu::always_inline]] inline double run(Register start, Step step, std::index_sequence<chain...>) {
  Register sums[] = {((void)chain, start)...};
  const double begin = now();
  for (int i = 0; i < steps; ++i) ((step(sums[chain]), keep(sums[chain])), ...);
  const double seconds = now() - begin;
  return steps * static_cast<double>(sizeof...(chain)) / seconds;
}
template <class Register, class Step>
[[gnu::always_inline]] inline double run(Register start, Step step) {
  return run(start, step, std::make_index_sequence<chains>{});
}

inline double flops() {
  auto x = fill(0.5f);
  keep(x);
  return run(x, [&](auto& c) __attribute__((always_inline)) { c = fma(c, x, x); }) * 2. * sizeof(float_register) / sizeof(float);
}

#if defined(__AVX2__)
inline double byte_products() {
  auto weights = fill(17), activation = fill(-3), ones = fill(1);
  keep(weights), keep(activation), keep(ones);
  const auto step = [&](auto& c) __attribute__((always_inline)) {
#if defined(__AVX512VNNI__)
    c = _mm512_dpbusd_epi32(c, weights, activation);
#else
    keep(weights);
    c = add32(c, pairs16(pairs8(weights, activation), ones));
#endif
  };
  return run(fill(0), step) * sizeof(word_register);
}

inline double nibble_products() {
#if defined(__AVX512VNNI__)
  return byte_products();
#else
  auto weights = fill(5), activation = fill(-3), ones = fill(1);
  keep(weights), keep(activation), keep(ones);
  const auto step = [&](auto& c) __attribute__((always_inline)) {
    auto sum = pairs8(weights, activation);
#pragma GCC unroll 8
    for (int i = 1; i < 8; ++i) {
      keep(weights);
      sum = add16(sum, pairs8(weights, activation));
    }
    c = add32(c, pairs16(sum, ones));
  };
  return run(fill(0), step) * 8 * sizeof(word_register);
#endif
}

inline double word_products() {
  auto weights = fill(17), activation = fill(-3);
  keep(weights), keep(activation);
  const auto step = [&](auto& c) __attribute__((always_inline)) {
#if defined(__AVX512VNNI__)
    c = _mm512_dpwssd_epi32(c, weights, activation);
#else
    keep(weights);
    c = add32(c, pairs16(weights, activation));
#endif
  };
  return run(fill(0), step) * sizeof(word_register) / 2;
}
#else
// Plain multiplies of 32-bit lanes stand for all integer products.
inline double word_products() {
  auto weights = fill(17);
  keep(weights);
  return run(fill(1), [&](auto& c) { c = add32(c * weights, weights); }) * sizeof(word_register) / 4;
}
inline double byte_products() { return word_products(); }
inline double nibble_products() { return word_products(); }
#endif

/// Sums a share of a buffer, two streams with the hardware's own prefetch.
inline void read(const std::byte* data, std::size_t bytes) {
  using lanes = std::int64_t __attribute__((vector_size(32)));
  const std::size_t half = bytes / 2 / 256 * 256;
  lanes sum[8] = {};
  for (std::size_t i = 0; i < half; i += 128)
    for (std::size_t stream = 0; stream < 2; ++stream)
      for (std::size_t k = 0; k < 4; ++k) sum[4 * stream + k] ^= *reinterpret_cast<const lanes*>(data + stream * half + i + 32 * k);
  for (int i = 1; i < 8; ++i) sum[0] ^= sum[i];
  benchmark::DoNotOptimize(sum[0]);
}

}  // namespace probe

enum class pages { small, huge };

class machine {
 public:
  explicit machine(heddle::thread_team& team, pages kind = pages::small) : team_(team) {
    if (kind == pages::huge) buffer_ = huge_.emplace(buffer_bytes).bytes();
    else small_.resize(buffer_bytes), buffer_ = small_;
    std::fill(buffer_.begin(), buffer_.end(), std::byte{1});
  }

  double read_bytes() {
    const std::size_t threads = team_.concurrency(), share = buffer_bytes / threads / 64 * 64;
    const double begin = now();
    team_.bulk(threads, [&](std::size_t i) { probe::read(buffer_.data() + i * share, share); });
    return static_cast<double>(share * threads) / (now() - begin);
  }
  /// The arithmetic rates of all threads at the same time; only those the cost asks for.
  rates measure(const cost& asked) {
    rates sum;
    if (asked.bytes > 0) sum.read_bytes = read_bytes();
    std::vector<rates> each(team_.concurrency());
    team_.bulk(each.size(), [&](std::size_t i) {
      if (asked.flops > 0) each[i].flops = probe::flops();
      if (asked.byte_products > 0) each[i].byte_products = probe::byte_products();
      if (asked.nibble_products > 0) each[i].nibble_products = probe::nibble_products();
      if (asked.word_products > 0) each[i].word_products = probe::word_products();
    });
    for (const rates& r : each) {
      sum.flops += r.flops, sum.byte_products += r.byte_products, sum.nibble_products += r.nibble_products, sum.word_products += r.word_products;
    }
    return sum;
  }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{128} << 20;
  heddle::thread_team& team_;
  heddle::aligned_vector<std::byte> small_;
  std::optional<huge_memory> huge_;
  std::span<std::byte> buffer_;
};

/// Iterations of (rates, pass, rates); only the pass counts as time. Register the benchmark plainly: UseManualTime and the like change its
/// name. `pass` runs on the same team.
template <class Pass>
void measure(benchmark::State& state, machine& ceilings, const cost& work, Pass pass) {
  std::vector<double> roof_fraction, ceiling_fraction, roof;
  pass();
  for (auto _ : state) {
    state.PauseTiming();
    const rates before = ceilings.measure(work);
    state.ResumeTiming();
    const double begin = now();
    pass();
    const double seconds = now() - begin;
    state.PauseTiming();
    const rates after = ceilings.measure(work);
    const auto mean = [](double a, double b) { return (a + b) / 2; };
    const rates around{mean(before.read_bytes, after.read_bytes), mean(before.flops, after.flops), mean(before.byte_products, after.byte_products),
                       mean(before.nibble_products, after.nibble_products), mean(before.word_products, after.word_products)};
    ceiling_fraction.push_back(ceiling_seconds(work, around) / seconds);
    if (work.bytes > 0) roof_fraction.push_back(work.bytes / around.read_bytes / seconds), roof.push_back(around.read_bytes);
    state.SetIterationTime(seconds);
    state.ResumeTiming();
  }
  state.counters["ceiling_fraction"] = median(ceiling_fraction);
  if (work.bytes > 0) state.counters["roof_fraction"] = median(roof_fraction), state.counters["roof_GB_per_s"] = median(roof) * 1e-9;
}

/// Median of (time of pass) / (time of base) over pairs, one right after the other.
template <class Pass, class Base>
double paired_ratio(Pass pass, Base base, int pairs = 9) {
  std::vector<double> ratio;
  pass(), base();
  for (int i = 0; i < pairs; ++i) {
    const double begin = now();
    pass();
    const double middle = now();
    base();
    ratio.push_back((middle - begin) / (now() - middle));
  }
  return median(ratio);
}

}  // namespace heddle_bench
