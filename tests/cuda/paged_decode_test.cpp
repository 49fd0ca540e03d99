// The paged decode kernels, run by the SIMT emulator: against float64, and bit for bit against themselves.
#define HEDDLE_SIMT
#include "../support/simt/simt.hpp"

#include <heddle/attention/attend.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace {

using namespace heddle;
namespace paged_decode = heddle::detail::paged_decode;

struct shape {
  int rows = 1, group = 1, num_kv_heads = 1, page_size = 16;
  std::vector<std::int32_t> lengths{1};
  unsigned seed = 1;
  bool ragged = false;   // rows by q_indptr: 1, 2, ... rows
};

/// Sequences in shuffled pages; slots that hold no token are NaN.
template <class T, int head_dim>
struct fixture {
  shape s;
  int heads, pages = 0, chunks = 0, total_rows = 0, longest = 0;
  std::vector<std::int32_t> indices, indptr{0}, q_indptr{0};
  std::vector<T> q, k, v;
  std::vector<float> out, lse;

  explicit fixture(const shape& wanted) : s(wanted), heads(s.group * s.num_kv_heads) {
    for (std::size_t i = 0; i < s.lengths.size(); ++i) {
      const int n = s.lengths[i], rows = s.ragged ? static_cast<int>(i) % s.rows + 1 : s.rows;
      longest = std::max(longest, n), pages += (n + s.page_size - 1) / s.page_size, chunks = std::max(chunks, (n + 511) / 512);
      indptr.push_back(pages), q_indptr.push_back(q_indptr.back() + rows);
    }
    total_rows = q_indptr.back();
    indices.resize(static_cast<std::size_t>(pages));
    std::iota(indices.begin(), indices.end(), 1);
    std::shuffle(indices.begin(), indices.end(), std::mt19937(s.seed * 7919u + static_cast<unsigned>(s.page_size)));
    const std::size_t cells = static_cast<std::size_t>(pages + 1) * static_cast<std::size_t>(s.num_kv_heads * s.page_size) * head_dim;
    k.assign(cells, T(std::numeric_limits<float>::quiet_NaN())), v = k;
    std::mt19937 random(s.seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(total_rows * heads) * head_dim);
    for (T& x : q) x = T(normal(random));
    for (std::size_t i = 0; i < s.lengths.size(); ++i)
      for (int token = 0; token < s.lengths[i]; ++token)
        for (int h = 0; h < s.num_kv_heads; ++h)
          for (int c = 0; c < head_dim; ++c) k[cell(i, token, h) + static_cast<std::size_t>(c)] = T(normal(random)), v[cell(i, token, h) + static_cast<std::size_t>(c)] = T(normal(random));
    out.assign(q.size(), 7.f), lse.assign(static_cast<std::size_t>(total_rows * heads), 7.f);
  }
  std::size_t cell(std::size_t sequence, int token, int head) const {
    const int page = indices[static_cast<std::size_t>(indptr[sequence] + token / s.page_size)];
    return static_cast<std::size_t>((page * s.num_kv_heads + head) * s.page_size + token % s.page_size) * head_dim;
  }
  paged_decode::arguments<T> arguments() const {
    const std::int64_t slot = head_dim, head = slot * s.page_size, page = head * s.num_kv_heads;
    return {q.data(), k.data(), v.data(), indices.data(), indptr.data(), s.lengths.data(), s.ragged ? q_indptr.data() : nullptr, nullptr, nullptr, nullptr, heads * slot, slot,
            {page, head, slot}, {page, head, slot}, s.rows, s.group, s.num_kv_heads, s.page_size, chunks, 1.f / std::sqrt(static_cast<float>(head_dim))};
  }
  /// Through the public call.
  void run(int splits) {
    const std::int64_t sequences = static_cast<std::int64_t>(s.lengths.size());
    const extents<4> pages_shape{static_cast<std::int64_t>(pages + 1), s.num_kv_heads, s.page_size, head_dim};
    using table = tensor_view<const std::int32_t, 1, device>;
    const paged_rows<T, device> cache{tensor_view<const T, 4, device>{k.data(), pages_shape}, tensor_view<const T, 4, device>{v.data(), pages_shape}, table{indices.data(), extents<1>{static_cast<std::int64_t>(indices.size())}},
                                      table{indptr.data(), extents<1>{sequences + 1}}, table{s.lengths.data(), extents<1>{sequences}}};
    const tensor_view<const T, 3, device> query{q.data(), extents<3>{total_rows, heads, head_dim}};
    attend_options<device> options{.rows = s.rows, .max_kv_length = longest, .splits = splits};
    if (s.ragged) options.q_indptr = table{q_indptr.data(), extents<1>{sequences + 1}};
    std::vector<std::byte> memory(attend_workspace_size(query, cache | causal(), options), std::byte{0xFF});
    options.workspace = memory;
    attend(query, cache | causal(), tensor_view<float, 3, device>{out.data(), extents<3>{total_rows, heads, head_dim}}, tensor_view<float, 2, device>{lse.data(), extents<2>{total_rows, heads}}, options);
  }
  void run(const paged_decode::arguments<T>& a, int splits, float* to, float* to_lse) const {
    const auto sequences = static_cast<std::int64_t>(s.lengths.size());
    std::vector<float> states(paged_decode::state_bytes(sequences, s.num_kv_heads, a.rows, s.group, head_dim, chunks) / 4 + 4, std::numeric_limits<float>::quiet_NaN());
    auto* memory = reinterpret_cast<std::byte*>(states.data());
    while (reinterpret_cast<std::uintptr_t>(memory) % 16) memory += 4;
    paged_decode::launch<T, float, head_dim>(a, memory, sequences, splits, to, heads * head_dim, head_dim, to_lse, heads, 1, {});
  }
  bool sees(std::size_t sequence, int row, int token) const { return token <= s.lengths[sequence] - (q_indptr[sequence + 1] - q_indptr[sequence]) + row; }

  /// Largest error of out relative to sum p |v|, and of lse.
  std::pair<double, double> errors() const {
    double worst_out = 0, worst_lse = 0;
    const auto record = [](double& worst, double x) { worst = std::isnan(x) ? std::numeric_limits<double>::infinity() : std::max(worst, x); };
    for (std::size_t i = 0; i < s.lengths.size(); ++i)
      for (int r = 0; r < q_indptr[i + 1] - q_indptr[i]; ++r)
        for (int h = 0; h < heads; ++h) {
          const std::size_t row = static_cast<std::size_t>((q_indptr[i] + r) * heads + h);
          std::vector<double> sum(head_dim), magnitude(head_dim), logits(static_cast<std::size_t>(s.lengths[i]));
          double largest = -std::numeric_limits<double>::infinity(), total = 0;
          for (int token = 0; token < s.lengths[i]; ++token) {
            if (!sees(i, r, token)) continue;
            double dot = 0;
            for (std::size_t c = 0; c < head_dim; ++c) dot += static_cast<double>(q[row * head_dim + c]) * static_cast<double>(k[cell(i, token, h / s.group) + c]);
            logits[static_cast<std::size_t>(token)] = dot / std::sqrt(double{head_dim});
            largest = std::max(largest, logits[static_cast<std::size_t>(token)]);
          }
          for (int token = 0; token < s.lengths[i]; ++token) {
            if (!sees(i, r, token)) continue;
            const double p = std::exp(logits[static_cast<std::size_t>(token)] - largest);
            total += p;
            for (std::size_t c = 0; c < head_dim; ++c) {
              const double x = v[cell(i, token, h / s.group) + c];
              sum[c] += p * x, magnitude[c] += p * std::abs(x);
            }
          }
          for (std::size_t c = 0; c < head_dim; ++c) {
            const double got = out[row * head_dim + c];
            if (total > 0) record(worst_out, std::abs(got - sum[c] / total) / (magnitude[c] / total));
            else record(worst_out, std::abs(got));
          }
          if (total > 0) record(worst_lse, std::abs(lse[row] - (largest + std::log(total))));
          else EXPECT_EQ(lse[row], -std::numeric_limits<float>::infinity());
        }
    return {worst_out, worst_lse};
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

template <class T>
constexpr double tolerance = std::is_same_v<T, bfloat16> ? 3e-5 : 3e-6;

template <class T>
struct PagedDecode : testing::Test {};
using elements = testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(PagedDecode, elements);

TYPED_TEST(PagedDecode, EqualsFloat64) {
  for (const int length : {0, 1, 63, 64, 65, 513, 1100})
    for (const auto& [rows, group] : {std::pair{1, 4}, {3, 5}, {16, 4}}) {
      if (length > 600 && rows == 3) continue;
      SCOPED_TRACE(testing::Message() << length << " tokens, " << rows << " rows, group " << group);
      fixture<TypeParam, 64> f({.rows = rows, .group = group, .page_size = length % 2 ? 16 : 3, .lengths = {length}, .seed = static_cast<unsigned>(length + rows)});
      f.run(2);
      const auto [out, lse] = f.errors();
      EXPECT_LT(out, tolerance<TypeParam>);
      EXPECT_LT(lse, 1e-4);
    }
}

TYPED_TEST(PagedDecode, RaggedBatchEqualsFloat64) {
  fixture<TypeParam, 128> f({.rows = 3, .group = 3, .num_kv_heads = 2, .lengths = {0, 130, 1, 513}, .seed = 9, .ragged = true});
  f.run(2);
  const auto [out, lse] = f.errors();
  EXPECT_LT(out, tolerance<TypeParam>);
  EXPECT_LT(lse, 1e-4);
}

TYPED_TEST(PagedDecode, BitsDependOnNothingButTheRow) {
  const shape s{.rows = 9, .group = 4, .num_kv_heads = 1, .lengths = {1100}, .seed = 3};
  fixture<TypeParam, 128> base(s);
  base.run(1);
  for (const int splits : {2, 3}) {
    fixture<TypeParam, 128> f(s);
    f.run(splits);
    EXPECT_TRUE(same(f.out, base.out) && same(f.lse, base.lse)) << splits << " splits";
  }
  for (const auto& o : {simt::options{.order = simt::order::random, .copies = simt::copies::early, .seed = 5, .poison = 0x7B}, simt::options{.order = simt::order::descending}}) {
    simt::current_options() = o;
    fixture<TypeParam, 128> f(s);
    f.run(2);
    simt::current_options() = {};
    EXPECT_TRUE(same(f.out, base.out)) << "thread order";
  }
  for (const int page_size : {1, 48}) {
    shape other = s;
    other.page_size = page_size;
    fixture<TypeParam, 128> f(other);
    f.run(2);
    EXPECT_TRUE(same(f.out, base.out) && same(f.lse, base.lse)) << "pages of " << page_size;
  }
  const std::size_t row_values = 4 * 128;
  for (const int r : {0, 4, 8}) {   // each row as a decode step of its own
    auto a = base.arguments();
    const std::int32_t length = s.lengths[0] - s.rows + 1 + r;
    a.rows = 1, a.lengths = &length, a.q += static_cast<std::size_t>(r) * row_values;
    std::vector<float> out(row_values), lse(4);
    base.run(a, 2, out.data(), lse.data());
    EXPECT_EQ(std::memcmp(out.data(), base.out.data() + static_cast<std::size_t>(r) * row_values, row_values * 4), 0) << "row " << r;
    EXPECT_EQ(std::memcmp(lse.data(), base.lse.data() + static_cast<std::size_t>(r) * 4, 16), 0) << "row " << r;
  }
}

TYPED_TEST(PagedDecode, NaNReachesExactlyTheRowsThatSeeIt) {
  const shape s{.rows = 9, .group = 2, .lengths = {100}};
  fixture<TypeParam, 64> base(s), f(s);
  base.run(1);
  const int token = s.lengths[0] - 4;
  for (std::size_t c = 0; c < 64; ++c) f.v[f.cell(0, token, 0) + c] = TypeParam(std::numeric_limits<float>::quiet_NaN());
  f.run(1);
  for (int r = 0; r < s.rows; ++r)
    for (std::size_t i = 0; i < 2 * 64; ++i) {
      const std::size_t at = static_cast<std::size_t>(r) * 2 * 64 + i;
      if (f.sees(0, r, token)) EXPECT_TRUE(std::isnan(f.out[at]));
      else EXPECT_EQ(f.out[at], base.out[at]);
    }
}

TEST(PagedDecodeErrors, ASequenceLongerThanTheWorkspaceIsNotANumber) {
  fixture<float16, 64> f({.lengths = {600, 30}});
  f.longest = 512;
  f.run(1);
  EXPECT_TRUE(std::isnan(f.lse[0]) && std::isnan(f.out[0]));
  EXPECT_FALSE(std::isnan(f.lse[1]) || std::isnan(f.out[64]));
}
TEST(PagedDecodeErrors, ShapesAreCheckedBeforeTheLaunch) {
  std::vector<float16> data(4096);
  std::vector<std::int32_t> table(8);
  using t = tensor_view<const std::int32_t, 1, device>;
  const auto pages = [&](std::int64_t dim) {
    return paged_rows<float16, device>{tensor_view<const float16, 4, device>{data.data(), extents<4>{1, 1, 16, dim}}, tensor_view<const float16, 4, device>{data.data(), extents<4>{1, 1, 16, dim}}, t{table.data(), extents<1>{1}}, t{table.data(), extents<1>{2}}, t{table.data(), extents<1>{1}}};
  };
  EXPECT_THROW(pages(80), error);
  const auto cache = pages(64) | causal();
  std::vector<float> out(4096);
  const auto call = [&](std::int64_t rows, attend_options<device> options) {
    attend(tensor_view<const float16, 3, device>{data.data(), extents<3>{rows, 1, 64}}, cache, tensor_view<float, 3, device>{out.data(), extents<3>{rows, 1, 64}}, tensor_view<float, 2, device>{out.data(), extents<2>{rows, 1}}, options);
  };
  EXPECT_THROW(call(2, {.rows = 1}), error);
  EXPECT_THROW(call(17, {.rows = 17}), error);
  EXPECT_THROW(call(1, {.rows = 1, .max_kv_length = 16}), error);   // no workspace
}
template <class Q, class Out>
concept attends_device = requires(Q q, paged_rows<float16, device> pages, Out out, tensor_view<float, 2, device> lse, attend_options<device> o) { attend(q, pages | causal(), out, lse, o); };
static_assert(attends_device<tensor_view<const float16, 3, device>, tensor_view<float, 3, device>>);
static_assert(!attends_device<tensor_view<const float16, 3, host>, tensor_view<float, 3, device>> && !attends_device<tensor_view<const float16, 3, device>, tensor_view<float, 3, host>>, "memory spaces do not mix");
static_assert(!attends_device<tensor_view<const bfloat16, 3, device>, tensor_view<float, 3, device>>, "queries have the element of the cache");

// The emulator must find what it is there to find.
__global__ void barrier_in_a_branch(int) {
  if (threadIdx.x < 16) __syncthreads();
  else
    __syncthreads();
}
__global__ void shuffle_from_outside(int) { __shfl_sync(0x1u << simt::self().lane, 1, 5); }
__global__ void copy_without_wait(float* out) {
  alignas(16) static const float source[4] = {1, 2, 3, 4};
  if (threadIdx.x == 0) heddle::cuda::copy_async_16(0, source, true), heddle::cuda::copy_async_commit();
  *out = *reinterpret_cast<float*>(heddle::cuda::shared_memory());
}
TEST(SimtEmulator, FindsDivergentBarriersForeignLanesAndMissingWaits) {
  EXPECT_THROW(simt::launch(dim3(1), dim3(32), 0, barrier_in_a_branch, 0), simt::launch_error);
  EXPECT_THROW(simt::launch(dim3(1), dim3(32), 0, shuffle_from_outside, 0), simt::launch_error);
  float read = 0;
  simt::launch(dim3(1), dim3(1), 16, copy_without_wait, &read);
  EXPECT_TRUE(std::isnan(read));
}

}  // namespace
