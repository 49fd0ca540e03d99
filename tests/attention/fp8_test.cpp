// The fp8 codecs in attend(): the laws of every codec, and the formula on decoded rows.
#include "attention/filled_pool.hpp"

using namespace attention_test;

namespace {

TEST(Fp8, PoolOfE4m3IsInvariant) { expect_invariant<codec::fp8_e4m3>(); }

TEST(Fp8, EqualsTheFormulaOnDecodedRows) {
  const int n = 130;
  values<float8_e5m2> k8(n, num_kv_heads, dim, 5), v8(n, num_kv_heads, dim_v, 6);
  const values<float> q3 = q.rows(0, 3);
  expect_near(run(q3, dense(k8.view(), v8.view()) | causal(), dim_v), [&](std::int64_t r, std::int64_t h) {
    return reference::attention(n, dim_v, [&](std::int64_t j) { return j <= n - 3 + r ? dot(q3, r, h, k8, j, h / 4) : hidden; }, [&](std::int64_t j, std::int64_t c) { return v8(j, h / 4, c); });
  }, 2, 1e-5, "e5m2");
}

}  // namespace
