// Products with the matrices of SmolLM2-135M (hidden 576, 9 query and 3 key heads of 64, feed-forward 1536, 30 layers, vocabulary 49152),
// all in one format, on huge pages, streamed from memory as a decode step does: preparation of the rows included, every product its own
// parallel call.
//     linear/<format>/<precision>/rows<n>/t2     roof_fraction, ceiling_fraction; vs_rows1: time as a multiple of one row's
// Ceilings of the integer products: four-bit codes as nibble products, bytes as byte products or as 16-bit products, whichever is faster.
#include "support/roof.hpp"

#include <heddle/linear/multiply.hpp>

#include <string>

namespace {

using namespace heddle;
using namespace heddle_bench;

struct shape {
  std::int64_t outputs, inputs;
};

std::vector<shape> shapes_of_model() {
  std::vector<shape> shapes;
  for (int layer = 0; layer < 30; ++layer) shapes.insert(shapes.end(), {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}});   // q|k|v, o, gate|up, down
  shapes.push_back({49152, 576});                                                                                            // the unembedding
  return shapes;
}

std::size_t bytes_of(linear::format kind, const std::vector<shape>& shapes) {
  std::size_t bytes = 0;
  for (const shape& s : shapes) bytes += linear::packed_bytes(kind, s.outputs, s.inputs);   // multiples of 64
  return bytes;
}

struct model {
  std::vector<linear::packed_view> matrices;
  double weights = 0;
  huge_memory memory;

  model(linear::format kind, const std::vector<shape>& shapes) : memory(bytes_of(kind, shapes)) {
    std::uint64_t state = 1;
    for (std::byte& b : memory.bytes()) state = state * 6364136223846793005u + 1442695040888963407u, b = static_cast<std::byte>(state >> 58);   // f16 scales below 2
    const std::byte* data = memory.bytes().data();
    for (const shape& s : shapes) {
      data += matrices.emplace_back(kind, s.outputs, s.inputs, data).bytes();
      weights += static_cast<double>(s.outputs * s.inputs);
    }
  }
};

void run(benchmark::State& state, linear::format kind, linear::precision precision, std::int64_t rows, std::size_t threads) {
  thread_team team{threads};
  machine ceilings{team, pages::huge};
  model m{kind, shapes_of_model()};
  aligned_vector<float> x(static_cast<std::size_t>(rows * 1536)), y(static_cast<std::size_t>(rows * 49152));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 1000) / 500.f - 1.f;
  linear::activations prepared{precision, rows, 1536};

  cost work{.bytes = static_cast<double>(m.memory.bytes().size())};
  const double products = m.weights * static_cast<double>(rows);
  const int digits = precision == linear::precision::int8 ? 1 : precision == linear::precision::int16 ? 2 : 3;
  if (precision == linear::precision::f32) work.flops = 2 * products;
  else if (kind != linear::format::q8_0) work.nibble_products = digits * products;
  else work.byte_products = digits * products, work.word_products = (digits == 3 ? 2 : 1) * products;

  const auto pass = [&](std::int64_t n) {
    for (const linear::packed_view& w : m.matrices) {
      prepared.prepare(tensor_view{x.data(), extents{n, w.inputs}, extents{std::int64_t{1536}, std::int64_t{1}}}, {.executor = team});
      linear::multiply(w, prepared, tensor_view{y.data(), extents{n, w.outputs}}, {.executor = team});
    }
  };
  measure(state, ceilings, work, [&] { pass(rows); });
  if (rows > 1) state.counters["vs_rows1"] = paired_ratio([&] { pass(rows); }, [&] { pass(1); });
}

const bool registered = [] {
  using linear::format, linear::precision;
  for (const format kind : {format::q4_1, format::q8_0})
    for (const precision p : {precision::int8, precision::int16, precision::int24, precision::f32})
      for (const std::int64_t rows : {1, 2, 4, 8, 16, 32}) {
        const std::string name = std::string("linear/") + name_of(kind) + "/" + name_of(p) + "/rows" + std::to_string(rows) + "/t2";
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run(state, kind, p, rows, 2); })->Unit(benchmark::kMillisecond);
      }
  return true;
}();

}  // namespace
