// Decoding and verification over codec::int8, paired pass by pass with codec::f16 of the same lengths.
//
//   ceiling_fraction  the ceiling is bytes / read roof, or products / word_products: two digits of a query and a code of one byte are one product of
//                     16 bits (AVX2: one vpmaddwd lane pair; VNNI: two products of bytes, which is the same rate). Every use of an element by a
//                     query counts once; rescaling, the softmax and unpacking count nothing.
//   vs_f16            time of codec::f16 / time of codec::int8
#include "attention/decode.hpp"
#include "support/roof.hpp"

#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int4.hpp>
#include <heddle/cache/codec/int8.hpp>

namespace {

using namespace heddle_bench;

template <class Codec>
double bytes_of(heads h, int length) { return static_cast<double>(length) * h.kv * static_cast<double>(Codec::key_row_bytes(h.dim) + Codec::value_row_bytes(h.dim)); }

template <class Codec>
void decode(benchmark::State& state, heads h, int length, int rows, std::size_t threads) {
  thread_team team{threads};
  machine ceilings{team};
  constexpr std::size_t cold = std::size_t{128} << 20;
  caches<Codec> cache(h, length, cold);
  caches<codec::f16> other(h, length, cold);
  rows_of_queries x(rows, h);
  std::vector<std::byte> workspace, other_workspace;
  const cost work{.bytes = bytes_of<Codec>(h, length), .word_products = 2. * length * h.query * h.dim * rows};
  std::vector<double> roof_fraction, ceiling_fraction, roof, vs_f16;
  const auto seconds_of = [](auto pass) {
    const double begin = now();
    pass();
    return now() - begin;
  };
  const auto pass = [&] { x.attend(cache.next(), team, workspace); };
  const auto f16_pass = [&] { x.attend(other.next(), team, other_workspace); };
  pass(), f16_pass();
  for (auto _ : state) {
    state.PauseTiming();
    const double f16_before = seconds_of(f16_pass);
    const rates before = ceilings.measure(work);
    state.ResumeTiming();
    const double seconds = seconds_of(pass);
    state.PauseTiming();
    const rates after = ceilings.measure(work);
    const double f16_after = seconds_of(f16_pass);
    const rates around{.read_bytes = (before.read_bytes + after.read_bytes) / 2, .word_products = (before.word_products + after.word_products) / 2};
    ceiling_fraction.push_back(ceiling_seconds(work, around) / seconds);
    roof_fraction.push_back(work.bytes / around.read_bytes / seconds);
    roof.push_back(around.read_bytes);
    vs_f16.push_back((f16_before + f16_after) / 2 / seconds);
    state.SetIterationTime(seconds);
    state.ResumeTiming();
  }
  state.counters["ceiling_fraction"] = median(ceiling_fraction);
  state.counters["roof_fraction"] = median(roof_fraction);
  state.counters["roof_GB_per_s"] = median(roof) * 1e-9;
  state.counters["vs_f16"] = median(vs_f16);
  if (rows == 1) return;
  rows_of_queries one(1, h);
  std::vector<std::byte> one_workspace;
  state.counters["vs_rows1"] = heddle_bench::paired_ratio(pass, [&] { one.attend(cache.next(), team, one_workspace); });
}

template <class Codec>
void register_decode(heads h, int length, std::initializer_list<int> rows, std::size_t threads) {
  for (const int n : rows)
    benchmark::RegisterBenchmark(decode_name(Codec::name, h, length, n, threads).c_str(), [=](benchmark::State& state) { decode<Codec>(state, h, length, n, threads); })->Unit(benchmark::kMillisecond);
}

[[maybe_unused]] const bool registered = [] {
  register_decode<codec::int8<>>({32, 8, 128}, 16384, {1, 2, 4, 8, 16}, 2);
  register_decode<codec::int8<>>({32, 32, 128}, 16384, {1}, 2);
  register_decode<codec::int8_fast>({32, 8, 128}, 16384, {1, 8}, 2);
  register_decode<codec::int4<>>({32, 8, 128}, 16384, {1, 8}, 2);
  return true;
}();

}  // namespace
