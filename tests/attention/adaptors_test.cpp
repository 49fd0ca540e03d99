// Masks and score transforms against the formula, alone and together.
#include "attention/fixture.hpp"

using namespace attention_test;

namespace {

constexpr int rows = 9, keys = 700, num_qo_heads = 6, num_kv_heads = 2, group = 3, dim = 12;
const values<float> q(rows, num_qo_heads, dim, 1), k(keys, num_kv_heads, dim, 2), v(keys, num_kv_heads, dim, 3);

auto cache() { return dense(k.view(), v.view()); }
std::int64_t index_of(std::int64_t r) { return r + keys - rows; }

// adjust(r, h, j, z): the logit as the row sees it, or hidden
template <class Adjust>
void expect(const result& got, const std::string& what, Adjust adjust) {
  expect_near(got, [&](std::int64_t r, std::int64_t h) {
    return reference::attention(keys, dim, [&](std::int64_t j) { return adjust(r, h, j, dot(q, r, h, k, j, h / group)); }, [&](std::int64_t j, std::int64_t c) { return v(j, h / group, c); });
  }, 2, 1e-5, what);
}

TEST(Window, CountsTheRowItself) {   // known fault 5
  const values<float> q4(4, 1, 1), k4(4, 1, 1);
  values<float> v4(4, 1, 1);
  for (int i = 0; i < 4; ++i) v4.at(i, 0, 0) = 1.f;
  const result r = run(q4, dense(k4.view(), v4.view()) | causal() | window(2), 1);
  const std::vector<double> visible{1, 2, 2, 2};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(std::exp(r.lse(i, 0, 0)), visible[static_cast<std::size_t>(i)], 1e-6);
}

TEST(Window, OfEveryWidth) {
  for (const int w : {1, 2, 63, 64, 65, 300, 511, 512, 513, 5000})
    expect(run(q, cache() | causal() | window(w), dim), "window " + std::to_string(w), [&](std::int64_t r, std::int64_t, std::int64_t j, double z) { return j <= index_of(r) && j > index_of(r) - w ? z : hidden; });
  EXPECT_TRUE(same_bits(run(q, cache() | causal() | window(0), dim), run(q, cache() | causal(), dim)));
  EXPECT_ERROR(window{-1}, "window: argument 'keys' is -1");
}

TEST(SoftCap, EqualsTheFormula) {
  for (const float cap : {0.1f, 1.f, 30.f, 1e4f, 1e30f})
    expect(run(q, cache() | causal() | soft_cap(cap), dim), "soft cap", [&](std::int64_t r, std::int64_t, std::int64_t j, double z) { return j <= index_of(r) ? cap * std::tanh(z / cap) : hidden; });
  EXPECT_TRUE(same_bits(run(q, cache() | soft_cap(0.f), dim), run(q, cache(), dim)));
  EXPECT_ERROR(soft_cap{-1.f}, "'cap' is -1");
  EXPECT_ERROR(soft_cap{quiet_nan}, "'cap' is NaN");
}

TEST(SoftCap, RevivesNothing) {   // known fault 7
  const values<float> q1(1, 1, 1), k2(2, 1, 1), k65(65, 1, 1);
  values<float> v2(2, 1, 1), v65(65, 1, 1);
  v2.at(1, 0, 0) = 1.f;
  for (float& x : v65.data) x = 1.f;
  const std::vector<std::uint64_t> first{1};
  const tensor_view bits{first.data(), extents{1, 1}};
  EXPECT_EQ(run(q1, dense(k2.view(), v2.view()) | select(bits, {.block_size = 1}) | soft_cap(1.f), 1).out.data[0], 0.f);
  EXPECT_FLOAT_EQ(run(q1, dense(k65.view(), v65.view()) | soft_cap(1.f), 1).out.data[0], 1.f);
}

TEST(SoftCap, KeepsWhatABiasOrGateHid) {   // known fault 7
  const values<float> b(rows, num_qo_heads, keys, 9);
  values<float> gates(rows, num_kv_heads, keys / 100, 4), biases = b;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < num_kv_heads; ++g) gates.at(r, g, 3) = -infinity;
    for (std::int64_t h = 0; h < num_qo_heads; ++h) biases.at(r, h, 17 + r) = -infinity;
  }
  expect(run(q, cache() | log_gate(gates.view(), 100) | soft_cap(2.f), dim), "gate, cap", [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) {
    return j / 100 == 3 ? hidden : 2 * std::tanh((z + gates(r, h / group, j / 100)) / 2);
  });
  expect(run(q, cache() | bias(biases.view()) | soft_cap(2.f), dim), "bias, cap", [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) {
    return j == 17 + r ? hidden : 2 * std::tanh((z + b(r, h, j)) / 2);
  });
}

std::vector<std::uint64_t> random_words(std::size_t n) {
  std::mt19937_64 rng(5);
  std::vector<std::uint64_t> words(n);
  for (auto& w : words) w = rng();
  return words;
}

TEST(Select, EveryGranularityAndBlockSize) {
  for (const int block : {1, 7, 16, 64, 100}) {
    const int words = (keys + block * 64 - 1) / (block * 64);
    const std::vector<std::uint64_t> bits = random_words(static_cast<std::size_t>(rows * num_qo_heads * words));
    const auto seen = [&](std::int64_t list, std::int64_t j) { return (bits[static_cast<std::size_t>(list * words + j / block / 64)] >> (j / block % 64) & 1) != 0; };
    const select_options options{.block_size = block};
    const std::string what = "block size " + std::to_string(block);
    expect(run(q, cache() | select(tensor_view{bits.data(), extents{rows, words}}, options), dim), what, [&](std::int64_t r, std::int64_t, std::int64_t j, double z) { return seen(r, j) ? z : hidden; });
    expect(run(q, cache() | select(tensor_view{bits.data(), extents{rows, num_kv_heads, words}}, options), dim), what,
           [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) { return seen(r * num_kv_heads + h / group, j) ? z : hidden; });
    expect(run(q, cache() | causal() | select<granularity::query_head>(tensor_view{bits.data(), extents{rows, num_qo_heads, words}}, options), dim), what,
           [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) { return seen(r * num_qo_heads + h, j) && j <= index_of(r) ? z : hidden; });
  }
}

TEST(Select, NothingChosenIsAnEmptyState) {
  const std::vector<std::uint64_t> none(rows * 11, 0);
  const result r = run(q, cache() | select(tensor_view{none.data(), extents{rows, 11}}), dim);
  for (const float x : r.out.data) EXPECT_EQ(x, 0.f);
  for (const float x : r.lse.data) EXPECT_EQ(x, -infinity);
}

TEST(Select, IndexListsWithPadding) {   // known fault 17
  const values<float> q1(1, 1, 1), k3(3, 1, 1);
  values<float> v3(3, 1, 1);
  for (int i = 0; i < 3; ++i) v3.at(i, 0, 0) = 10.f * static_cast<float>(i + 1);
  const std::vector<std::int32_t> indices{-1, -1, 2, 0};
  std::vector<std::uint64_t> word{0};
  mark_blocks(indices, word);
  EXPECT_FLOAT_EQ(run(q1, dense(k3.view(), v3.view()) | select(tensor_view{word.data(), extents{1, 1}}, {.block_size = 1}), 1).out.data[0], 20.f);
  const std::vector<std::int32_t> far{3, 64}, negative{-2};
  EXPECT_ERROR(mark_blocks(far, word), "entry 1 is 64");
  EXPECT_ERROR(mark_blocks(negative, word), "entry 0 is -2");
  EXPECT_EQ(word[0], 5u);
}

TEST(Bias, AddsAfterWhatIsWrittenBefore) {
  const values<float> b(rows, num_qo_heads, keys, 9);
  expect(run(q, cache() | causal() | soft_cap(2.f) | bias(b.view()), dim), "cap, bias", [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) { return j <= index_of(r) ? 2 * std::tanh(z / 2) + b(r, h, j) : hidden; });
  expect(run(q, cache() | causal() | bias(b.view()) | soft_cap(2.f), dim), "bias, cap", [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) { return j <= index_of(r) ? 2 * std::tanh((z + b(r, h, j)) / 2) : hidden; });
  // one bias for all rows and heads, every other number of a buffer
  std::vector<float> wide(2 * keys);
  for (int j = 0; j < keys; ++j) wide[static_cast<std::size_t>(2 * j)] = -0.01f * static_cast<float>(j);
  expect(run(q, cache() | bias(tensor_view{wide.data(), extents{rows, num_qo_heads, keys}, extents{0, 0, 2}}), dim), "broadcast", [&](std::int64_t, std::int64_t, std::int64_t j, double z) { return z - 0.01f * static_cast<float>(j); });
}

TEST(Bias, MinusInfinityHidesAndPlusInfinityIsNaN) {
  std::vector<float> b(keys, 0.f);
  b[100] = -infinity;
  values<float> poisoned = k;
  for (int c = 0; c < dim; ++c) poisoned.at(100, 0, c) = 1e30f, poisoned.at(100, 1, c) = quiet_nan;
  values<float> poisoned_values = v;
  for (int c = 0; c < dim; ++c) poisoned_values.at(100, 0, c) = infinity, poisoned_values.at(100, 1, c) = quiet_nan;
  const tensor_view view{b.data(), extents{rows, num_qo_heads, keys}, extents{0, 0, 1}};
  expect(run(q, dense(poisoned.view(), poisoned_values.view()) | bias(view) | soft_cap(1e6f), dim), "hidden by bias", [&](std::int64_t, std::int64_t, std::int64_t j, double z) { return j == 100 ? hidden : z; });
  b[100] = infinity;
  const result r = run(q, cache() | bias(view), dim);
  for (const float x : r.out.data) EXPECT_TRUE(std::isnan(x));
}

TEST(LogGate, EveryUnit) {
  for (const int unit : {1, 16, 48, 64, 100}) {
    const int units = (keys + unit - 1) / unit;
    values<float> gates(rows, num_kv_heads, units, 4);
    gates.at(2, 1, units / 2) = -infinity;
    expect(run(q, cache() | causal() | log_gate(gates.view(), unit), dim), "unit " + std::to_string(unit),
           [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) { return j <= index_of(r) ? z + gates(r, h / group, j / unit) : hidden; });
  }
}

// Everything at once, on two threads.
TEST(Adaptors, Compose) {
  const std::vector<std::uint64_t> bits = random_words(rows * num_qo_heads);
  const values<float> gates(rows, num_kv_heads, 11, 4), b(rows, num_qo_heads, keys, 9);
  thread_team team{2};
  const auto keys_ = cache() | causal() | window(600) | select<granularity::query_head>(tensor_view{bits.data(), extents{rows, num_qo_heads, 1}}, {.block_size = 20}) | soft_cap(3.f) | log_gate(gates.view(), 64) | bias(b.view());
  expect(run(q, keys_, dim, {.executor = team}), "all", [&](std::int64_t r, std::int64_t h, std::int64_t j, double z) {
    const bool seen = j <= index_of(r) && j > index_of(r) - 600 && (bits[static_cast<std::size_t>(r * num_qo_heads + h)] >> (j / 20) & 1);
    return seen ? 3 * std::tanh(z / 3) + gates(r, h / group, j / 64) + b(r, h, j) : hidden;
  });
}

// A mask of the caller's own: every third key.
struct every_third {
  static constexpr granularity level = granularity::row;
  std::uint64_t visible(const place&, std::int64_t token) const {
    std::uint64_t word = 0;
    for (int j = 0; j < tile_tokens; ++j) word |= std::uint64_t{(token + j) % 3 == 0} << j;
    return word;
  }
};
TEST(Adaptors, OfTheCallersOwn) {
  expect(run(q, cache() | every_third{}, dim), "every third", [&](std::int64_t, std::int64_t, std::int64_t j, double z) { return j % 3 == 0 ? z : hidden; });
}

TEST(Adaptors, ShapesAreChecked) {   // known fault 15
  const std::vector<std::uint64_t> word(1000);
  const values<float> b(rows, num_qo_heads, keys - 1), swapped(num_qo_heads, rows, keys), gates(rows, num_kv_heads, 10);
  const auto call = [&](const auto& adaptor) { run(q, cache() | adaptor, dim); };
  EXPECT_ERROR(call(select(tensor_view{word.data(), extents{rows, 10}}, {.block_size = 1})), "bits for 700 keys");
  EXPECT_ERROR(call(select(tensor_view{word.data(), extents{rows - 1, 11}})), "'bits': extent 0 is 8; expected 9");
  EXPECT_ERROR(call(select(tensor_view{word.data(), extents{rows, num_qo_heads, 11}})), "'bits': extent 1 is 6; expected 2");
  EXPECT_ERROR(select(tensor_view{word.data(), extents{rows, 11}}, {.block_size = 0}), "'block_size' is 0");
  EXPECT_ERROR(call(bias(b.view())), "'values': extent 2 is 699");
  EXPECT_ERROR(call(bias(swapped.view())), "'values': extent 0 is 6; expected 9");
  EXPECT_ERROR(call(log_gate(gates.view(), 64)), "10 units of 64 keys; expected gates for 700 keys");
}

}  // namespace
