// Merging the states of a long prompt: two reads and a write of every channel.
#include <heddle/attention/merge.hpp>
#include "support/roof.hpp"

using namespace heddle;

namespace {

template <class T>
void merge_states(benchmark::State& state) {
  constexpr std::int64_t rows = 4096, heads = 32, dim = 128;
  thread_team team{2};
  heddle_bench::machine ceilings{team};
  aligned_vector<T> a(rows * heads * dim, T(0.5)), b(a.size(), T(0.25)), out(a.size()), a_lse(rows * heads, T(1)), b_lse(a_lse.size(), T(2)), lse(a_lse.size());
  const extents states{rows, heads, dim};
  const extents rows_and_heads{rows, heads};
  heddle_bench::measure(state, ceilings, {.bytes = 3. * static_cast<double>((a.size() + a_lse.size()) * sizeof(T))}, [&] {
    merge(tensor_view{a.data(), states}, tensor_view{a_lse.data(), rows_and_heads}, tensor_view{b.data(), states}, tensor_view{b_lse.data(), rows_and_heads},
          tensor_view{out.data(), states}, tensor_view{lse.data(), rows_and_heads}, {.executor = team});
  });
}

BENCHMARK(merge_states<float>)->Name("merge/f32/h32d128/rows4096/t2");

}  // namespace

BENCHMARK_MAIN();
