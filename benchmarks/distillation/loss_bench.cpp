// Value and gradient of losses over rows of a vocabulary.
//
// loss/<divergence>/<element>/n512/v<V>/t2
//     roof_fraction   time to read student and teacher once and write the gradient once, at the read roof, over the time taken; whatever is read again does not count
//     vs_naive        time of the textbook way over ours, in turn: log-softmax of both written out, then the value, then the gradient, each a pass over matrices; same
//                     threads, vectorised by the same exp. Only for reverse_kl
// loss/fused_linear/reverse_kl/n1024/d576/v49152/t2
//     vs_product      rate of the 6 N V d flops over that of linear::multiply in f32 on the same shapes, in turn
//     extra_bytes     most memory held by the call beyond its arguments and results, by counted allocations
#include "support/allocations.hpp"
#include "support/roof.hpp"

#include <heddle/distillation/fused_linear.hpp>
#include <heddle/distillation/support.hpp>
#include <heddle/linear/multiply.hpp>

#include <string>

namespace {

using namespace heddle;
using namespace heddle_bench;
namespace loss_room = heddle::distillation;

template <class E>
struct matrix_of {
  std::int64_t rows, columns;
  aligned_vector<E> data;
  matrix_of(std::int64_t n, std::int64_t v, std::uint32_t seed = 0) : rows(n), columns(v), data(static_cast<std::size_t>(n * v)) {
    if (seed)
      for (E& x : data) seed = seed * 1664525u + 1013904223u, x = E(static_cast<float>(seed >> 8) * 0x1p-24f * 8.f - 4.f);
  }
  tensor_view<E, 2> view() { return {data.data(), extents{rows, columns}}; }
};

/// Reverse KL the textbook way: four matrices of floats, every step a pass.
template <class E>
class naive_reverse_kl {
 public:
  naive_reverse_kl(std::int64_t n, std::int64_t v) : log_s_(n, v), log_t_(n, v) {}
  void operator()(matrix_of<E>& z, matrix_of<E>& y, matrix_of<E>& gradient, thread_team& team) {
    each_row(team, z.rows, [&](std::int64_t r) { log_softmax(z.view().at(r), log_s_.view().at(r), z.columns); });
    each_row(team, z.rows, [&](std::int64_t r) { log_softmax(y.view().at(r), log_t_.view().at(r), z.columns); });
    values_.resize(static_cast<std::size_t>(z.rows));
    each_row(team, z.rows, [&](std::int64_t r) {
      const float *s = log_s_.view().at(r), *t = log_t_.view().at(r);
      simd::f32x16 sum = simd::splat(0.f);
      for (std::int64_t v = 0; v < z.columns; v += 16) sum = simd::fma(simd::exp(simd::load(s + v)), simd::load(s + v) - simd::load(t + v), sum);
      values_[static_cast<std::size_t>(r)] = simd::reduce_add(sum);
    });
    each_row(team, z.rows, [&](std::int64_t r) {
      const float *s = log_s_.view().at(r), *t = log_t_.view().at(r);
      E* const g = gradient.view().at(r);
      const simd::f32x16 value = simd::splat(values_[static_cast<std::size_t>(r)]), scale = simd::splat(1.f / static_cast<float>(z.rows));
      for (std::int64_t v = 0; v < z.columns; v += 16) simd::store(g + v, simd::exp(simd::load(s + v)) * (simd::load(s + v) - simd::load(t + v) - value) * scale);
    });
  }

 private:
  template <class F>
  static void each_row(thread_team& team, std::int64_t rows, F f) {
    const auto workers = static_cast<std::int64_t>(team.concurrency());
    team.bulk(team.concurrency(), [&](std::size_t w) {
      for (std::int64_t r = static_cast<std::int64_t>(w); r < rows; r += workers) f(r);
    });
  }
  static void log_softmax(const E* z, float* out, std::int64_t n) {
    simd::f32x16 max = simd::splat(-simd::infinity), sum = simd::splat(0.f);
    for (std::int64_t v = 0; v < n; v += 16) max = simd::max(simd::load(z + v), max);
    const float m = simd::reduce_max(max);
    for (std::int64_t v = 0; v < n; v += 16) sum = sum + simd::exp(simd::load(z + v) - simd::splat(m));
    const simd::f32x16 lse = simd::splat(m + static_cast<float>(math::log(static_cast<double>(simd::reduce_add(sum)))));
    for (std::int64_t v = 0; v < n; v += 16) simd::store(out + v, simd::load(z + v) - lse);
  }
  matrix_of<float> log_s_, log_t_;
  aligned_vector<float> values_;
};

template <class E, class Divergence>
void dense(benchmark::State& state, const Divergence& divergence, std::int64_t vocabulary, bool compared) {
  constexpr std::int64_t rows = 512;
  thread_team team{2};
  machine ceilings{team};
  matrix_of<E> z(rows, vocabulary, 1), y(rows, vocabulary, 2), gradient(rows, vocabulary);
  const auto ours = [&] { benchmark::DoNotOptimize(loss_room::loss(z.view(), y.view(), divergence, gradient.view(), {.executor = team}).value); };
  measure(state, ceilings, {.bytes = 3. * sizeof(E) * static_cast<double>(rows * vocabulary)}, ours);
  if (!compared) return;
  naive_reverse_kl<E> naive(rows, vocabulary);
  state.counters["vs_naive"] = paired_ratio([&] { naive(z, y, gradient, team); }, ours, 5);
}

void fused(benchmark::State& state) {
  constexpr std::int64_t n = 1024, d = 576, vocabulary = 49152;
  thread_team team{2};
  matrix_of<float> hidden(n, d, 3), unembedding(vocabulary, d, 4), d_hidden(n, d), d_unembedding(vocabulary, d);
  for (float& x : unembedding.data) x *= 0.05f;
  matrix_of<bfloat16> teacher(n, vocabulary, 5);
  const auto ours = [&] { benchmark::DoNotOptimize(loss_room::fused_linear_loss(hidden.view(), unembedding.view(), teacher.view(), loss_room::reverse_kl{}, d_hidden.view(), d_unembedding.view(), {.executor = team}).value); };
  state.counters["extra_bytes"] = static_cast<double>(most_bytes_of(ours));

  constexpr std::int64_t product_rows = 256;
  const linear::packed_matrix packed = linear::pack(unembedding.view(), linear::format::f32);
  linear::activations x{linear::precision::f32, product_rows, d};
  x.prepare(hidden.view().slice(0, product_rows));
  matrix_of<float> out(product_rows, vocabulary);
  const auto product = [&] { linear::multiply(packed, x, out.view(), {.executor = team}); };
  product();
  std::vector<double> ratio;
  for (auto _ : state) {
    const double start = now();
    ours();
    const double seconds = now() - start;
    state.PauseTiming();
    const double begin = now();
    for (int i = 0; i < 3; ++i) product();
    const double per_flop = (now() - begin) / (3 * 2. * product_rows * d * vocabulary);
    ratio.push_back(6. * n * d * vocabulary * per_flop / seconds);
    state.ResumeTiming();
  }
  state.counters["vs_product"] = median(ratio);
}

const bool registered = [] {
  const auto add = [](std::string name, auto run) { benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMillisecond); };
  for (const std::int64_t v : {49152, 128256}) {
    const std::string shape = "/n512/v" + std::to_string(v) + "/t2";
    add("loss/reverse_kl/f32" + shape, [=](benchmark::State& s) { dense<float>(s, loss_room::reverse_kl{}, v, true); });
    add("loss/reverse_kl/bf16" + shape, [=](benchmark::State& s) { dense<bfloat16>(s, loss_room::reverse_kl{}, v, true); });
  }
  add("loss/forward_kl/f32/n512/v49152/t2", [](benchmark::State& s) { dense<float>(s, loss_room::forward_kl{}, 49152, false); });
  add("loss/jsd/f32/n512/v49152/t2", [](benchmark::State& s) { dense<float>(s, loss_room::generalized_jsd{.beta = 0.5}, 49152, false); });
  add("loss/tv/f32/n512/v49152/t2", [](benchmark::State& s) { dense<float>(s, loss_room::total_variation{}, 49152, false); });
  add("loss/topk_tail/f32/n512/v49152/t2", [](benchmark::State& s) { dense<float>(s, loss_room::top_k_tail<loss_room::reverse_kl>{.k = 64, .from = loss_room::support::teacher, .divergence = loss_room::reverse_kl{}}, 49152, false); });
  add("loss/fused_linear/reverse_kl/n1024/d576/v49152/t2", fused);
  return true;
}();

}  // namespace
