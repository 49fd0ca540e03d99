// Rotation of a long prompt's queries, in place: one read and one write of every channel. vs_naive is the time of the textbook loop (a sine
// and a cosine of the C library per row and pair, one thread share each) in the same run, over ours.
#include <heddle/position/rope.hpp>
#include "support/roof.hpp"

#include <cmath>
#include <string>

using namespace heddle;

namespace {

constexpr std::int64_t heads = 32, dim = 128;

template <class Pairing, class T>
void naive(T* x, std::int64_t begin, std::int64_t end, const double* theta) {
  for (std::int64_t row = begin; row < end; ++row)
    for (std::int64_t f = 0; f < dim / 2; ++f) {
      const float c = static_cast<float>(std::cos(static_cast<double>(row) * theta[f])), s = static_cast<float>(std::sin(static_cast<double>(row) * theta[f]));
      for (std::int64_t head = 0; head < heads; ++head) {
        T* const first = x + (row * heads + head) * dim + (std::is_same_v<Pairing, half_split> ? f : 2 * f);
        T* const second = first + (std::is_same_v<Pairing, half_split> ? dim / 2 : 1);
        const float a = *first, b = *second;
        *first = T(a * c - b * s), *second = T(b * c + a * s);
      }
    }
}

template <class Pairing, class T>
void rotate(benchmark::State& state, std::int64_t rows, std::size_t threads, bool by_table) {
  thread_team team{threads};
  heddle_bench::machine ceilings{team};
  aligned_vector<T> x(static_cast<std::size_t>(rows * heads * dim), T(0.5f));
  aligned_vector<std::int32_t> positions(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i);
  const rope<Pairing> r{{.head_dim = dim, .base = 5e5}};
  const rope_table table{r, positions};
  const tensor_view view{x.data(), extents{rows, heads, dim}};
  double naive_seconds = 0, seconds = 0;
  const heddle_bench::cost work{.bytes = 2. * static_cast<double>(x.size() * sizeof(T))};
  heddle_bench::measure(state, ceilings, work, [&] {
    const double begin = heddle_bench::now();
    by_table ? table.rotate(view, {.executor = team}) : r.rotate(view, positions, {.executor = team});
    seconds += heddle_bench::now() - begin;
  });
  for (int pass = 0; pass < 2; ++pass) {
    const double begin = heddle_bench::now();
    const auto share = static_cast<std::int64_t>(threads);
    team.bulk(threads, [&](std::size_t i) {
      const auto w = static_cast<std::int64_t>(i);
      naive<Pairing>(x.data(), rows * w / share, rows * (w + 1) / share, r.frequencies().data());
    });
    naive_seconds = heddle_bench::now() - begin;
  }
  state.counters["vs_naive"] = naive_seconds / (seconds / static_cast<double>(state.iterations() + 1));
}

template <class Pairing, class T>
void add(const std::string& name, std::int64_t rows, std::size_t threads, bool by_table) {
  const std::string full = "rope/" + name + "/h32d128/rows" + std::to_string(rows) + "/t" + std::to_string(threads);
  benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) { rotate<Pairing, T>(state, rows, threads, by_table); });
}

}  // namespace

int main(int argc, char** argv) {
  add<half_split, float>("f32/half_split", 4096, 2, false);
  add<half_split, float>("f32/half_split/table", 4096, 2, true);
  add<interleaved, float>("f32/interleaved", 4096, 2, false);
  add<half_split, float16>("f16/half_split", 4096, 2, false);
  add<interleaved, bfloat16>("bf16/interleaved", 4096, 2, false);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
