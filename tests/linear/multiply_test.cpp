#include <heddle/core/thread_team.hpp>
#include <heddle/linear/multiply.hpp>

#include "support/allocations.hpp"
#include "support/errors.hpp"
#include "support/reference/linear.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

namespace {

using namespace heddle;
using linear::format, linear::precision;
using heddle_reference::relative_error;

constexpr std::array formats{format::f32, format::f16, format::bf16, format::q8_0, format::q4_0, format::q4_1};
constexpr std::array precisions{precision::f32, precision::int8, precision::int16, precision::int24};

bool allowed(format f, precision p) { return linear::is_quantised(f) || p == precision::f32; }
int bits_of(precision p) { return p == precision::int8 ? 8 : p == precision::int16 ? 16 : 24; }

struct problem {
  std::int64_t inputs, outputs;
  std::vector<float> weights, x;   // x: 33 rows
  problem(std::int64_t k, std::int64_t o) : inputs(k), outputs(o), weights(static_cast<std::size_t>(k * o)), x(static_cast<std::size_t>(33 * k)) {
    std::mt19937 generator(static_cast<unsigned>(k * 1000 + o));
    std::normal_distribution<float> normal;
    for (float& w : weights) w = normal(generator);
    for (float& v : x) v = normal(generator);
    for (std::size_t i = 0; i < x.size(); i += 37) x[i] *= 20.f;   // outliers, as in real activations
  }
  linear::packed_matrix packed(format f) const { return linear::pack(tensor_view{weights.data(), extents{outputs, inputs}}, f); }
  tensor_view<const float, 2> rows(std::int64_t first, std::int64_t count) const { return {x.data() + first * inputs, extents{count, inputs}}; }
};

tensor_view<float, 2> view(std::vector<float>& y, std::int64_t rows, std::int64_t outputs) { return {y.data(), extents{rows, outputs}}; }

std::vector<float> row_by_row(const problem& p, const linear::packed_view& w, precision kind) {
  std::vector<float> y(static_cast<std::size_t>(33 * p.outputs));
  linear::activations x;
  for (std::int64_t r = 0; r < 33; ++r) {
    x.prepare(p.rows(r, 1), kind);
    linear::multiply(w, x, tensor_view{y.data() + r * p.outputs, extents{std::int64_t{1}, p.outputs}});
  }
  return y;
}

const std::array<problem, 4>& problems() {
  static const std::array<problem, 4> all{problem{576, 80}, problem{100, 37}, problem{300, 16}, problem{1, 1}};
  return all;
}

TEST(Multiply, AgreesWithFloat64OfTheSameRoundedOperands) {
  for (const problem& p : problems())
    for (const format f : formats) {
      const linear::packed_matrix w = p.packed(f);
      std::vector<double> exact;
      std::vector<float> row(static_cast<std::size_t>(p.inputs));
      for (std::int64_t o = 0; o < p.outputs; ++o) {
        linear::unpack_row(w, o, row);
        exact.insert(exact.end(), row.begin(), row.end());
      }
      for (const precision kind : precisions) {
        if (!allowed(f, kind)) continue;
        const std::vector<float> y = row_by_row(p, w, kind);
        std::vector<double> expected;
        for (std::int64_t r = 0; r < 33; ++r) {
          const std::vector<float> x(p.x.begin() + r * p.inputs, p.x.begin() + (r + 1) * p.inputs);
          const auto operand = kind == precision::f32 ? std::vector<double>(x.begin(), x.end()) : heddle_reference::rounded_activations(x, bits_of(kind));
          for (const double v : heddle_reference::multiply(exact, operand, p.outputs)) expected.push_back(v);
        }
        EXPECT_LT(relative_error(y.data(), expected), 5e-7) << linear::name_of(f) << " x " << linear::name_of(kind) << ", " << p.inputs << " -> " << p.outputs;
      }
    }
}

TEST(Multiply, TwentyFourBitsAreAsAccurateAsFloats) {
  const problem& p = problems()[0];
  const std::vector<double> x(p.x.begin(), p.x.end());
  for (const format f : {format::q8_0, format::q4_1}) {
    const linear::packed_matrix w = p.packed(f);
    std::vector<double> weights;
    std::vector<float> row(static_cast<std::size_t>(p.inputs));
    for (std::int64_t o = 0; o < p.outputs; ++o) linear::unpack_row(w, o, row), weights.insert(weights.end(), row.begin(), row.end());
    std::vector<double> expected;
    for (std::int64_t r = 0; r < 33; ++r)
      for (const double v : heddle_reference::multiply(weights, {x.begin() + r * p.inputs, x.begin() + (r + 1) * p.inputs}, p.outputs)) expected.push_back(v);
    const double in_floats = relative_error(row_by_row(p, w, precision::f32).data(), expected), in_24_bits = relative_error(row_by_row(p, w, precision::int24).data(), expected);
    EXPECT_LT(in_24_bits, 5e-7);
    EXPECT_LT(in_24_bits, 3 * in_floats);
    EXPECT_LT(relative_error(row_by_row(p, w, precision::int16).data(), expected), 1e-4);
    EXPECT_LT(relative_error(row_by_row(p, w, precision::int8).data(), expected), 3e-2);
  }
}

TEST(Multiply, ARowIsTheSameBitsInEveryBatchOnAnyThreads) {
  for (const problem& p : problems())
    for (const format f : formats) {
      const linear::packed_matrix w = p.packed(f);
      for (const precision kind : precisions) {
        if (!allowed(f, kind)) continue;
        const std::vector<float> alone = row_by_row(p, w, kind);
        linear::activations x;
        for (std::size_t threads = 1; threads <= 3; ++threads) {
          thread_team team{threads};
          for (std::int64_t rows = threads == 1 ? 1 : 28; rows <= 33; ++rows) {
            const std::int64_t stride = p.outputs + 3;
            std::vector<float> y(static_cast<std::size_t>(rows * stride), 7.f);
            x.prepare(p.rows(33 - rows, rows), kind, {.executor = team});
            linear::multiply(w, x, tensor_view{y.data(), extents{rows, p.outputs}, extents{stride, std::int64_t{1}}}, {.executor = team});
            for (std::int64_t r = 0; r < rows; ++r) {
              const float* row = y.data() + r * stride;
              ASSERT_EQ(std::memcmp(row, alone.data() + (33 - rows + r) * p.outputs, static_cast<std::size_t>(p.outputs) * 4), 0)
                  << linear::name_of(f) << " x " << linear::name_of(kind) << ", " << p.inputs << " -> " << p.outputs << ", row " << r << " of " << rows << ", " << threads << " threads";
              for (std::int64_t gap = p.outputs; gap < stride; ++gap) ASSERT_EQ(row[gap], 7.f);
            }
          }
        }
      }
    }
}

TEST(Multiply, PrefillOfManyRowsIsEachRowDecoded) {
  const std::int64_t rows = 700, inputs = 544, outputs = 48;   // more rows than stay in cache, more than one chain of inputs
  problem p(inputs, outputs);
  std::vector<float> x(static_cast<std::size_t>(rows * inputs));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = p.x[i % p.x.size()] * (1.f + static_cast<float>(i / p.x.size()));
  thread_team team{2};
  for (const format f : {format::f32, format::bf16, format::q8_0, format::q4_1}) {
    const linear::packed_matrix w = p.packed(f);
    for (const precision kind : precisions) {
      if (!allowed(f, kind)) continue;
      linear::activations prepared;
      std::vector<float> all(static_cast<std::size_t>(rows * outputs)), one(static_cast<std::size_t>(outputs));
      prepared.prepare(tensor_view{x.data(), extents{rows, inputs}}, kind, {.executor = team});
      linear::multiply(w, prepared, view(all, rows, outputs), {.executor = team});
      for (std::int64_t r = 0; r < rows; r += 53) {
        prepared.prepare(tensor_view{x.data() + r * inputs, extents{std::int64_t{1}, inputs}}, kind);
        linear::multiply(w, prepared, view(one, 1, outputs));
        ASSERT_EQ(std::memcmp(one.data(), all.data() + r * outputs, one.size() * 4), 0) << linear::name_of(f) << " x " << linear::name_of(kind) << ", row " << r;
      }
    }
  }
}

TEST(Multiply, SeveralMatricesAtOnceAndStackedAreTheSameBits) {
  const problem q(160, 48), k(160, 20), v(160, 33);
  for (const precision kind : {precision::f32, precision::int24}) {
    linear::activations x;
    x.prepare(q.rows(0, 5), kind);
    const linear::packed_matrix wq = q.packed(format::q4_1), wk = k.packed(format::q8_0), wv = v.packed(format::q4_0);
    std::vector<float> yq(5 * 48), yk(5 * 20), yv(5 * 33), alone(5 * 48);
    const linear::product products[] = {{wq, view(yq, 5, 48)}, {wk, view(yk, 5, 20)}, {wv, view(yv, 5, 33)}};
    thread_team team{3};
    linear::multiply(products, x, {.executor = team});
    linear::multiply(wq, x, view(alone, 5, 48));
    EXPECT_EQ(std::memcmp(alone.data(), yq.data(), yq.size() * 4), 0);
    linear::multiply(wk, x, view(alone, 5, 20));
    EXPECT_EQ(std::memcmp(alone.data(), yk.data(), yk.size() * 4), 0);
    linear::multiply(wv, x, view(alone, 5, 33));
    EXPECT_EQ(std::memcmp(alone.data(), yv.data(), yv.size() * 4), 0);

    std::vector<float> stacked_weights = q.weights;
    stacked_weights.insert(stacked_weights.end(), k.weights.begin(), k.weights.end());
    const auto stored = [](const std::vector<float>& w, std::int64_t outputs) { return linear::stored_matrix{format::f32, outputs, 160, w.data()}; };
    if (kind != precision::f32) continue;
    const linear::packed_matrix stacked = linear::pack(std::array{stored(q.weights, 48), stored(k.weights, 20), stored(v.weights, 33)});
    std::vector<float> fused(5 * 101);
    linear::multiply(stacked, x, view(fused, 5, 101));
    linear::multiply(linear::pack(stored(k.weights, 20)), x, view(alone, 5, 20));
    for (std::size_t r = 0; r < 5; ++r) EXPECT_EQ(std::memcmp(fused.data() + r * 101 + 48, alone.data() + r * 20, 20 * 4), 0);
  }
}

TEST(Multiply, AValueThatIsNotFinitePoisonsItsRowAndNoOther) {
  const problem& p = problems()[1];
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    for (const format f : formats)
      for (const precision kind : precisions) {
        if (!allowed(f, kind)) continue;
        const linear::packed_matrix w = p.packed(f);
        const std::vector<float> clean = row_by_row(p, w, kind);
        for (const std::int64_t rows : {std::int64_t{5}, std::int64_t{14}}) {
          problem bad = p;
          bad.x[static_cast<std::size_t>(3 * p.inputs + 97)] = poison;   // in the block that is not full
          linear::activations x;
          x.prepare(bad.rows(0, rows), kind);
          std::vector<float> y(static_cast<std::size_t>(rows * p.outputs));
          linear::multiply(w, x, view(y, rows, p.outputs));
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t o = 0; o < p.outputs; ++o) {
              const float value = y[static_cast<std::size_t>(r * p.outputs + o)];
              if (r == 3) ASSERT_FALSE(std::isfinite(value)) << linear::name_of(f) << " x " << linear::name_of(kind);
              else ASSERT_EQ(value, clean[static_cast<std::size_t>(r * p.outputs + o)]);
            }
        }
      }
}

TEST(Multiply, ZerosTinyAndHugeValues) {
  const problem& p = problems()[0];
  for (const float magnitude : {0.f, 1e-38f, 1e-27f, 1e30f})
    for (const precision kind : precisions) {
      const linear::packed_matrix w = p.packed(format::q8_0);
      std::vector<float> x(p.x.begin(), p.x.begin() + p.inputs), y(static_cast<std::size_t>(p.outputs));
      for (float& v : x) v *= magnitude;
      linear::activations prepared;
      prepared.prepare(tensor_view{x.data(), extents{std::int64_t{1}, p.inputs}}, kind);
      linear::multiply(w, prepared, view(y, 1, p.outputs));
      const std::vector<float> unit = row_by_row(p, w, kind);
      for (std::int64_t o = 0; o < p.outputs; ++o) {
        const bool counts_as_zero = magnitude < 1e-30f && kind != precision::f32;   // below 2^-100, as documented
        const float expected = counts_as_zero ? 0.f : unit[static_cast<std::size_t>(o)] * magnitude;
        EXPECT_NEAR(y[static_cast<std::size_t>(o)], expected, counts_as_zero ? 0.f : magnitude * (kind == precision::int8 ? 2.f : 1e-2f));
      }
    }
}

TEST(Multiply, AllocatesNothingOnceMemoryIsThere) {
  const problem& p = problems()[0];
  const linear::packed_matrix w = p.packed(format::bf16), q = p.packed(format::q4_1);
  std::vector<float> y(static_cast<std::size_t>(33 * p.outputs));
  thread_team team{2};
  linear::activations floats(precision::f32, 33, p.inputs), integers(precision::int24, 33, p.inputs);
  std::vector<std::byte> workspace(linear::multiply_workspace_size(precision::f32, 33, {.executor = team}));
  EXPECT_GT(workspace.size(), 0u);
  EXPECT_EQ(linear::multiply_workspace_size(precision::int24, 33, {.executor = team}), 0u);
  EXPECT_EQ(allocations_of([&] {
              floats.prepare(p.rows(0, 33)), integers.prepare(p.rows(0, 33));
              linear::multiply(w, floats, view(y, 33, p.outputs), {.executor = team, .workspace = workspace});
              linear::multiply(q, integers, view(y, 33, p.outputs), {.executor = team});
            }),
            0);
}

TEST(Multiply, ErrorsNameTheArgument) {
  const problem& p = problems()[1];
  const linear::packed_matrix w = p.packed(format::q4_0), dense = p.packed(format::f16);
  linear::activations x;
  x.prepare(p.rows(0, 2), precision::int8);
  std::vector<float> y(2 * 37 * 2, 3.f);
  const auto expect = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  expect(message_of([&] { linear::multiply(w, x, view(y, 3, 37)); }), "'out': extent 0 is 3; expected 2");
  expect(message_of([&] { linear::multiply(w, x, view(y, 2, 36)); }), "'out': extent 1 is 36; expected 37");
  expect(message_of([&] { linear::multiply(w, x, tensor_view{y.data(), extents{2, 37}, extents{74, 2}}); }), "'out' has stride 2");
  expect(message_of([&] { linear::multiply(dense, x, view(y, 2, 37)); }), "'x' has precision int8; expected f32");
  expect(message_of([&] { linear::multiply(linear::packed_view{}, x, view(y, 2, 37)); }), "'outputs' is 0");
  expect(message_of([&] { linear::multiply(problem(64, 37).packed(format::q4_0), x, view(y, 2, 37)); }), "has 64 inputs; expected 100");
  expect(message_of([&] { x.prepare(tensor_view{p.x.data(), extents{2, 50}, extents{100, 2}}, precision::int8); }), "'x' has stride 2");
  x.prepare(p.rows(0, 33), precision::f32);
  std::vector<float> many(33 * 37, 3.f);
  std::byte small[16];
  expect(message_of([&] { linear::multiply(dense, x, view(many, 33, 37), {.workspace = small}); }), "'workspace' holds 16 bytes");
  for (const float v : y) EXPECT_EQ(v, 3.f);
  for (const float v : many) EXPECT_EQ(v, 3.f);

  x.prepare(p.rows(0, 0), precision::int8);
  linear::multiply(w, x, view(y, 0, 37));   // no rows: nothing to do
  for (const float v : y) EXPECT_EQ(v, 3.f);
}

}  // namespace
