// Prefill products of dense weights against OpenBLAS sgemm with as many threads, both timed in turn within each iteration.
//     linear/<format>/f32/rows2048/t2           576 -> 1536 (a feed-forward matrix of SmolLM2-135M)     vs_sgemm, ceiling_fraction
//     linear/<format>/f32/rows2048/4096/t2      4096 -> 4096
// Preparation of the rows is included. OpenBLAS chooses its kernel by the processor unless OPENBLAS_CORETYPE forces one: leave it unset.
#include "support/roof.hpp"

#include <heddle/linear/multiply.hpp>

#include <cblas.h>

#include <string>
#include <thread>

namespace {

using namespace heddle;
using namespace heddle_bench;

void run(benchmark::State& state, linear::format kind, std::int64_t inputs, std::int64_t outputs, std::size_t threads) {
  const std::int64_t rows = 2048;
  thread_team team{threads};
  machine ceilings{team};
  aligned_vector<float> x(static_cast<std::size_t>(rows * inputs)), weights(static_cast<std::size_t>(outputs * inputs)), y(static_cast<std::size_t>(rows * outputs));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 1000) / 500.f - 1.f;
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i * 2246822519u % 1000) / 500.f - 1.f;
  const linear::packed_matrix w = linear::pack(tensor_view{weights.data(), extents{outputs, inputs}}, kind);
  linear::activations prepared{linear::precision::f32, rows, inputs};
  const linear::multiply_options plain{.executor = team};
  aligned_vector<std::byte> workspace(linear::multiply_workspace_size(linear::precision::f32, rows, plain));

  openblas_set_num_threads(static_cast<int>(threads));
  std::vector<double> ratios;
  const auto sgemm = [&] {
    const int m = static_cast<int>(rows), n = static_cast<int>(outputs), k = static_cast<int>(inputs);
    const double begin = now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.f, x.data(), k, weights.data(), k, 0.f, y.data(), n);
    return now() - begin;
  };
  const auto ours = [&] {
    prepared.prepare(tensor_view{x.data(), extents{rows, inputs}}, {.executor = team});
    linear::multiply(w, prepared, tensor_view{y.data(), extents{rows, outputs}}, {.executor = team, .workspace = workspace});
  };
  sgemm();
  const cost work{.flops = 2. * static_cast<double>(rows * inputs * outputs)};
  measure(state, ceilings, work, [&] {
    ours();
  });
  for (int i = 0; i < 7; ++i) {   // idle threads of OpenBLAS spin for a while: let them sleep before the other runs
    const double theirs = sgemm();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    ours();
    const double begin = now();
    ours();
    ratios.push_back(theirs / (now() - begin));
    sgemm();
  }
  state.counters["vs_sgemm"] = median(ratios);
  state.SetLabel(std::string("OpenBLAS ") + openblas_get_corename());
}

const bool registered = [] {
  for (const linear::format kind : {linear::format::f32, linear::format::bf16})
    for (const bool large : {false, true}) {
      const std::string name = std::string("linear/") + name_of(kind) + "/f32/rows2048" + (large ? "/4096" : "") + "/t2";
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { large ? run(state, kind, 4096, 4096, 2) : run(state, kind, 576, 1536, 2); })->Unit(benchmark::kMillisecond);
    }
  return true;
}();

}  // namespace
