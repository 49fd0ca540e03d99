// attend() over dense sources against the formula: shapes, element types, ragged batches, and the edge cases.
#include "attention/fixture.hpp"

using namespace attention_test;

namespace {

reference::softmax_state causal_row(const values<float>& q, const values<float>& k, const values<float>& v, std::int64_t r, std::int64_t h) {
  const std::int64_t index = r + k.n - q.n, g = h / (q.heads / k.heads);
  return reference::attention(k.n, v.dim, [&](std::int64_t j) { return j <= index ? dot(q, r, h, k, j, g) : hidden; }, [&](std::int64_t j, std::int64_t c) { return v(j, g, c); });
}

struct shape {
  int rows, keys, num_qo_heads, num_kv_heads, head_dim, head_dim_v;
};
std::string name(const shape& s) {
  return std::to_string(s.rows) + "x" + std::to_string(s.keys) + " h" + std::to_string(s.num_qo_heads) + "x" + std::to_string(s.num_kv_heads) + " d" + std::to_string(s.head_dim) + "," + std::to_string(s.head_dim_v);
}

class Shapes : public testing::TestWithParam<shape> {};

TEST_P(Shapes, CausalEqualsTheFormula) {
  const shape s = GetParam();
  const values<float> q(s.rows, s.num_qo_heads, s.head_dim, 1), k(s.keys, s.num_kv_heads, s.head_dim, 2), v(s.keys, s.num_kv_heads, s.head_dim_v, 3);
  expect_near(run(q, dense(k.view(), v.view()) | causal(), s.head_dim_v), [&](std::int64_t r, std::int64_t h) { return causal_row(q, k, v, r, h); }, 2, 1e-5, name(s));
}
// tile boundaries, chunk boundaries, every whole head ratio, odd widths, rows from one to prefill, more rows than keys
INSTANTIATE_TEST_SUITE_P(All, Shapes,
                         testing::Values(shape{1, 1, 1, 1, 1, 1}, shape{1, 15, 2, 2, 3, 5}, shape{1, 16, 3, 1, 16, 16}, shape{1, 17, 5, 1, 37, 16}, shape{1, 63, 7, 1, 64, 20}, shape{1, 64, 8, 1, 80, 64},
                                         shape{1, 65, 12, 1, 33, 33}, shape{1, 511, 6, 3, 24, 8}, shape{1, 512, 9, 3, 64, 64}, shape{1, 513, 8, 8, 16, 48}, shape{2, 64, 4, 4, 128, 128}, shape{3, 129, 10, 2, 40, 40},
                                         shape{5, 1100, 4, 2, 16, 16}, shape{16, 70, 24, 2, 8, 100}, shape{33, 33, 7, 7, 12, 3}, shape{64, 65, 8, 2, 32, 32}, shape{130, 130, 2, 1, 20, 24}, shape{600, 600, 1, 1, 4, 4},
                                         shape{7, 3, 2, 1, 8, 8}, shape{4, 0, 4, 2, 8, 8}, shape{2, 30, 71, 1, 6, 6}),
                         [](const auto& i) { return "Shape" + std::to_string(i.index); });

// q, cache and out in 16 bits: the inputs are exact, so the error is that of float; a 16-bit output adds its own rounding.
template <class E>
class Elements : public testing::Test {};
using element_types = testing::Types<float, float16, bfloat16>;
TYPED_TEST_SUITE(Elements, element_types);

TYPED_TEST(Elements, QueryCacheAndOutput) {
  using E = TypeParam;
  const values<E> q(3, 4, 24, 1), k(80, 2, 24, 2), v(80, 2, 24, 3);
  const auto expected = [&](std::int64_t r, std::int64_t h) {
    return reference::attention(k.n, v.dim, [&](std::int64_t j) { return dot(q, r, h, k, j, h / 2); }, [&](std::int64_t j, std::int64_t c) { return v(j, h / 2, c); });
  };
  const result wide = run(q, dense(k.view(), v.view()), 24);
  expect_near(wide, expected, 2, 1e-5, "float out");
  values<E> out(3, 4, 24);
  attend(q.view(), dense(k.view(), v.view()), out.view(), tensor_view<float, 2>{});
  for (std::size_t i = 0; i < out.data.size(); ++i) EXPECT_EQ(static_cast<float>(out.data[i]), static_cast<float>(E(wide.out.data[i])));
}

TEST(Attend, EveryStrideOfEveryTensor) {
  const int rows = 3, keys = 70, heads = 2, dim = 5;
  const values<float> q(rows, heads, dim, 1), k(keys, heads, dim, 2), v(keys, heads, dim, 3);
  const result expected = run(q, dense(k.view(), v.view()) | causal(), dim);
  // [dim][heads][n] with gaps, seen as [n][heads][dim]
  const auto transposed = [&](const values<float>& x, std::vector<float>& memory) {
    const extents<3> strides{2, 2 * x.n + 1, (2 * x.n + 1) * heads + 3};
    memory.assign(static_cast<std::size_t>(strides[2] * dim + 2), quiet_nan);
    tensor_view<float, 3> t{memory.data(), extents<3>{x.n, heads, dim}, strides};
    for (std::int64_t i = 0; i < x.n; ++i)
      for (int h = 0; h < heads; ++h)
        for (int c = 0; c < dim; ++c) t(i, h, c) = static_cast<float>(x(i, h, c));
    return t;
  };
  std::vector<float> qm, km, vm, om;
  const values<float> blank(rows, heads, dim);
  const auto out = transposed(blank, om);
  std::vector<float> lse(rows * heads * 3, -1.f);
  attend(transposed(q, qm), dense(transposed(k, km), transposed(v, vm)) | causal(), out, tensor_view<float, 2>{lse.data(), extents<2>{rows, heads}, extents<2>{3, 9}});
  for (int r = 0; r < rows; ++r)
    for (int h = 0; h < heads; ++h) {
      EXPECT_EQ(lse[static_cast<std::size_t>(3 * r + 9 * h)], static_cast<float>(expected.lse(r, h, 0)));
      for (int c = 0; c < dim; ++c) EXPECT_EQ(out(r, h, c), static_cast<float>(expected.out(r, h, c)));
    }
}

TEST(Attend, RaggedBatchEqualsItsSequencesAlone) {
  const std::vector<std::int32_t> q_indptr{0, 1, 1, 6, 9, 29}, kv_indptr{0, 70, 90, 95, 95, 700};   // decode, no rows, more rows than keys - 1, no keys, prefill
  const values<float> q(29, 6, 16, 1), k(700, 2, 16, 2), v(700, 2, 8, 3);
  const result all = run(q, dense(k.view(), v.view(), kv_indptr) | causal(), 8, {.q_indptr = q_indptr});
  for (std::size_t b = 0; b + 1 < q_indptr.size(); ++b) {
    const std::int64_t first = q_indptr[b], rows = q_indptr[b + 1] - first;
    const values<float> kb = k.rows(kv_indptr[b], kv_indptr[b + 1] - kv_indptr[b]), vb = v.rows(kv_indptr[b], kv_indptr[b + 1] - kv_indptr[b]);
    EXPECT_TRUE(same_bits(all.rows(first, rows), run(q.rows(first, rows), dense(kb.view(), vb.view()) | causal(), 8))) << "sequence " << b;
  }
}

TEST(Attend, ScaleIsTheCallersOrOneOverTheRootOfTheTrueHeadDim) {
  const values<float> q(1, 1, 20, 1), k(50, 1, 20, 2), v(50, 1, 4, 3);
  EXPECT_TRUE(same_bits(run(q, dense(k.view(), v.view()), 4), run(q, dense(k.view(), v.view()), 4, {.scale = static_cast<float>(1 / std::sqrt(20.))})));
  const auto with = [&](double scale) {
    return [&, scale](std::int64_t r, std::int64_t h) {
      return reference::attention(50, 4, [&](std::int64_t j) { return dot(q, r, h, k, j, h) * std::sqrt(20.) * scale; }, [&](std::int64_t j, std::int64_t c) { return v(j, h, c); });
    };
  };
  expect_near(run(q, dense(k.view(), v.view()), 4, {.scale = -0.7f}), with(-0.7f), 2, 1e-5, "negative scale");
}

// known fault 1 and its kind
TEST(Attend, RowsWithoutKeysAreZeroAndMinusInfinity) {
  const values<float> q(3, 1, 4, 1), k(1, 1, 4, 2);
  values<float> v(1, 1, 1);
  v.at(0, 0, 0) = 7.f;
  thread_team team{2};
  for (const attend_options<host>& options : {attend_options<host>{}, attend_options<host>{.executor = team}}) {
    const result r = run(q, dense(k.view(), v.view()) | causal(), 1, options);
    EXPECT_EQ(r.out.data, (std::vector<float>{0.f, 0.f, 7.f}));
    EXPECT_EQ(r.lse.data[0], -infinity);
    EXPECT_EQ(r.lse.data[1], -infinity);
    EXPECT_NEAR(r.lse.data[2], dot(q, 2, 0, k, 0, 0), 1e-6);
    const values<float> none(0, 1, 4), no_value(0, 1, 1);
    const result empty = run(q, dense(none.view(), no_value.view()), 1, options);   // known fault 3
    EXPECT_EQ(empty.out.data, (std::vector<float>(3, 0.f)));
    EXPECT_EQ(empty.lse.data, (std::vector<float>(3, -infinity)));
  }
}

// known fault 10
TEST(Attend, HeadRatiosThatAreNotWholeAreRefused) {
  const values<float> q(1, 7, 4, 1), k(3, 2, 4, 2), v(3, 2, 4, 3);
  EXPECT_ERROR(run(q, dense(k.view(), v.view()), 4), "7 query heads for 2 KV heads");
}

// known fault 18
TEST(Attend, ProductsBeyondTheRangeOfHalfPrecision) {
  values<float16> q(1, 1, 64), k(2, 1, 64), v(2, 1, 1);
  for (int c = 0; c < 64; ++c) q.at(0, 0, c) = float16(40.f), k.at(0, 0, c) = float16(40.f);
  v.at(0, 0, 0) = float16(1.f);
  const result r = run(q, dense(k.view(), v.view()), 1, {.scale = 0.125f});
  EXPECT_EQ(r.out.data[0], 1.f);
  EXPECT_EQ(r.lse.data[0], 12800.f);
}

// known fault 69: a long row of equal logits sums to its length, in every split
TEST(Attend, LongRowsOfEqualLogits) {
  const int keys = 40000;
  const values<float> q(1, 1, 1), k(keys, 1, 1);
  values<float> v(keys, 1, 1);
  for (float& x : v.data) x = 1.f;
  const result r = run(q, dense(k.view(), v.view()), 1);
  EXPECT_FLOAT_EQ(r.out.data[0], 1.f);
  EXPECT_NEAR(r.lse.data[0], std::log(40000.), 1e-6);
}

TEST(Attend, NonFiniteInputsReachExactlyTheRowsThatSeeThem) {
  const int rows = 12, keys = 100, seen_from = 5;
  const values<float> q0(rows, 4, 20, 1), k0(keys, 2, 20, 2), v0(keys, 2, 20, 3);
  const int poisoned = keys - rows + seen_from;
  const result clean = run(q0, dense(k0.view(), v0.view()) | causal(), 20);
  for (const float bad : {quiet_nan, infinity, -infinity})
    for (const bool key : {true, false}) {
      values<float> k = k0, v = v0;
      for (int h = 0; h < 2; ++h) (key ? k : v).at(poisoned, h, 7) = bad;
      const result r = run(q0, dense(k.view(), v.view()) | causal(), 20);
      EXPECT_TRUE(same_bits(clean.rows(0, seen_from), r.rows(0, seen_from)));
      for (int i = seen_from; i < rows; ++i)
        for (int h = 0; h < 4; ++h) {
          const float logit = static_cast<float>(q0(i, h, 7)) * bad;
          if (key && logit == -infinity) {   // a logit of -infinity hides its key
            EXPECT_TRUE(std::isfinite(r.lse(i, h, 0)));
          } else if (key) {
            EXPECT_TRUE(std::isnan(r.out(i, h, 0))) << bad;
          } else {
            EXPECT_FALSE(std::isfinite(r.out(i, h, 7))) << bad;
          }
        }
    }
  values<float> q = q0;
  q.at(3, 1, 0) = quiet_nan;
  const result r = run(q, dense(k0.view(), v0.view()) | causal(), 20);
  for (int i = 0; i < rows; ++i)
    for (int h = 0; h < 4; ++h) EXPECT_EQ(std::isnan(r.out(i, h, 0)), i == 3 && h == 1);
}

TEST(Attend, WorkspaceHoldsEverything) {
  const values<float> q(5, 4, 16, 1), k(3000, 2, 16, 2), v(3000, 2, 16, 3);
  thread_team team{3};
  const auto keys = dense(k.view(), v.view()) | causal();
  const std::size_t bytes = attend_workspace_size(q.view(), keys, {.executor = team});
  std::vector<std::byte> workspace(bytes, std::byte{0xff});   // NaN everywhere
  const result r = run(q, keys, 16, {.executor = team, .workspace = workspace});
  EXPECT_TRUE(same_bits(r, run(q, keys, 16)));
  EXPECT_ERROR(run(q, keys, 16, {.executor = team, .workspace = std::span(workspace).first(bytes / 2)}), "workspace");
}

TEST(Attend, ErrorsNameTheArgumentAndWriteNothing) {
  const values<float> q(4, 4, 8, 1), k(10, 2, 8, 2), v(10, 2, 6, 3), narrow(10, 2, 7, 4);
  result r(4, 4, 6);
  const auto call = [&](const auto& keys, const attend_options<host>& options) { attend(q.view(), keys, r.out.view(), r.lse_view(), options); };
  const std::vector<std::int32_t> falling{0, 3, 2, 4}, short_one{0, 3}, late{1, 4};
  EXPECT_ERROR(call(dense(narrow.view(), v.view()), {}), "head_dim 7; expected 8");
  EXPECT_ERROR(call(dense(k.view(), narrow.view()), {}), "'out'");
  EXPECT_ERROR(call(dense(k.view(), v.view()), {.q_indptr = falling}), "'q_indptr': entry 2 is 2, less than entry 1 (3)");
  EXPECT_ERROR(call(dense(k.view(), v.view()), {.q_indptr = short_one}), "'q_indptr': the last entry is 3; expected 4");
  EXPECT_ERROR(call(dense(k.view(), v.view()), {.q_indptr = late}), "'q_indptr': entry 0 is 1");
  EXPECT_ERROR(call(dense(k.view(), v.view()), {.scale = quiet_nan}), "'scale' is NaN");
  const std::vector<std::int32_t> two{0, 2, 4};
  EXPECT_ERROR(call(dense(k.view(), v.view()), {.q_indptr = two}), "1 sequences; expected 2");
  result wrong(4, 4, 5);
  EXPECT_ERROR(attend(q.view(), dense(k.view(), v.view()), wrong.out.view(), r.lse_view()), "'out': extent 2 is 5; expected 6");
  EXPECT_ERROR(attend(q.view(), dense(k.view(), v.view()), r.out.view(), tensor_view<float, 2>(r.lse.data.data(), extents<2>{4, 3})), "'lse': extent 1 is 3; expected 4");
  for (const float x : r.out.data) EXPECT_EQ(x, -777.f);
}

}  // namespace
