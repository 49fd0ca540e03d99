// Merges of sources, ready states, state maps; and what does not compile.
#include "attention/fixture.hpp"

using namespace attention_test;

namespace {

constexpr int rows = 5, num_qo_heads = 4, num_kv_heads = 2, dim = 10, dim_v = 6;
const values<float> q(rows, num_qo_heads, dim, 1), ka(600, num_kv_heads, dim, 2), va(600, num_kv_heads, dim_v, 3), kb(70, num_kv_heads, dim, 4), vb(70, num_kv_heads, dim_v, 5);

reference::softmax_state row_of(const values<float>& k, const values<float>& v, std::int64_t r, std::int64_t h, bool causal_mask, double cap = 0) {
  return reference::attention(k.n, dim_v, [&](std::int64_t j) {
    const double z = dot(q, r, h, k, j, h / 2);
    return causal_mask && j > r + k.n - rows ? hidden : cap > 0 ? cap * std::tanh(z / cap) : z;
  }, [&](std::int64_t j, std::int64_t c) { return v(j, h / 2, c); });
}

TEST(Merge, KeySourcesEachWithItsAdaptors) {
  thread_team team{2};
  for (const attend_options<host>& options : {attend_options<host>{}, attend_options<host>{.executor = team}})
    expect_near(run(q, merge(dense(ka.view(), va.view()) | causal(), dense(kb.view(), vb.view()) | soft_cap(1.f)), dim_v, options), [&](std::int64_t r, std::int64_t h) {
      return reference::merge(row_of(ka, va, r, h, true), row_of(kb, vb, r, h, false, 1));
    }, 2, 1e-5, "merge");
}

TEST(Merge, ReadyStates) {
  const result ready = run(q, dense(kb.view(), vb.view()), dim_v);
  const state_source state{ready.out.view(), tensor_view<const float, 2>{ready.lse.data.data(), extents<2>{rows, num_qo_heads}}};
  const auto joined = [&](std::int64_t r, std::int64_t h) { return reference::merge(row_of(ka, va, r, h, true), row_of(kb, vb, r, h, false)); };
  expect_near(run(q, merge(dense(ka.view(), va.view()) | causal(), state), dim_v), joined, 2, 1e-5, "keys, state");
  expect_near(run(q, merge(state, dense(ka.view(), va.view()) | causal()), dim_v), joined, 2, 1e-5, "state, keys");
  thread_team team{3};
  EXPECT_TRUE(same_bits(run(q, merge(state, dense(ka.view(), va.view()) | causal()), dim_v, {.executor = team}), run(q, merge(state, dense(ka.view(), va.view()) | causal()), dim_v)));
  const result alone = run(q, state, dim_v);
  for (std::size_t i = 0; i < alone.out.data.size(); ++i) EXPECT_FLOAT_EQ(alone.out.data[i], ready.out.data[i]);
  EXPECT_TRUE(same_bits(alone.lse.data, ready.lse.data));
}

TEST(Merge, EmptyStatesAreNeverRead) {   // known fault 3
  result empty(rows, num_qo_heads, dim_v);
  for (float& x : empty.out.data) x = quiet_nan;
  for (float& x : empty.lse.data) x = -infinity;
  const state_source state{empty.out.view(), tensor_view<const float, 2>{empty.lse.data.data(), extents<2>{rows, num_qo_heads}}};
  const auto keys = dense(ka.view(), va.view()) | causal();
  EXPECT_TRUE(same_bits(run(q, merge(keys, state), dim_v), run(q, keys, dim_v)));
  EXPECT_TRUE(same_bits(run(q, merge(state, keys), dim_v), run(q, keys, dim_v)));
  const result none = run(q, merge(state, state), dim_v);
  for (const float x : none.out.data) EXPECT_EQ(x, 0.f);
  for (const float x : none.lse.data) EXPECT_EQ(x, -infinity);
}

TEST(Merge, NestedMergesAreFlat) {
  const auto a = dense(ka.view(), va.view()), b = dense(kb.view(), vb.view());
  EXPECT_TRUE(same_bits(run(q, merge(merge(a | causal(), b), a), dim_v), run(q, merge(a | causal(), b, a), dim_v)));
}

TEST(Sink, JoinsTheDenominatorOfEveryRow) {
  const std::vector<float> logits{0.5f, -infinity, 9.f, -3.f};
  expect_near(run(q, dense(ka.view(), va.view()) | causal() | with_sink(logits), dim_v), [&](std::int64_t r, std::int64_t h) {
    return reference::attention(ka.n, dim_v, [&](std::int64_t j) { return j <= r + ka.n - rows ? dot(q, r, h, ka, j, h / 2) : hidden; }, [&](std::int64_t j, std::int64_t c) { return va(j, h / 2, c); },
                                static_cast<double>(logits[static_cast<std::size_t>(h)]));
  }, 2, 1e-5, "sink");
  const values<float> none(0, num_kv_heads, dim), no_value(0, num_kv_heads, dim_v);
  const result r = run(q, dense(none.view(), no_value.view()) | with_sink(logits), dim_v);
  for (const float x : r.out.data) EXPECT_EQ(x, 0.f);
  for (int i = 0; i < rows; ++i)
    for (int h = 0; h < num_qo_heads; ++h) EXPECT_EQ(r.lse(i, h, 0), static_cast<double>(logits[static_cast<std::size_t>(h)]));
  EXPECT_TRUE(same_bits(run(q, merge(dense(ka.view(), va.view())) | with_sink(logits), dim_v), run(q, dense(ka.view(), va.view()) | with_sink(logits), dim_v)));
  EXPECT_ERROR(run(q, dense(ka.view(), va.view()) | with_sink(std::span(logits).first(3)), dim_v), "3 entries; expected one for each of 4");
}

TEST(Merge, SourcesMustAgree) {
  const values<float> k1(5, 1, dim, 1), v1(5, 1, dim_v, 1), wide(5, num_kv_heads, dim_v + 1, 1);
  EXPECT_ERROR(run(q, merge(dense(ka.view(), va.view()), dense(k1.view(), v1.view())), dim_v), "1 KV heads, another 2");
  EXPECT_ERROR(run(q, merge(dense(ka.view(), va.view()), dense(kb.rows(0, 5).view(), wide.view())), dim_v), "head_dim_v = 7");
  const result ready(rows, num_qo_heads + 1, dim_v);
  EXPECT_ERROR(run(q, merge(dense(ka.view(), va.view()), state_source{ready.out.view(), {}}), dim_v), "'state_source.out': extent 1 is 5");
}

// ---- what does not compile ----
using source = dense_source<float>;
template <class A, class B>
concept pipes = requires(const A& a, const B& b) { a | b; };
template <class... T>
concept merges = requires(const T&... t) { merge(t...); };
template <class K>
concept attends = requires(tensor_view<float, 3> t, tensor_view<float, 2> lse, const K& k) { attend(t, k, t, lse); };
using adapted_source = decltype(std::declval<source>() | causal());
using merged_source = decltype(merge(std::declval<source>(), std::declval<adapted_source>()));
using mapped_source = decltype(std::declval<source>() | std::declval<with_sink>());

static_assert(key_source<source> && key_source<paged_rows<bfloat16>> && !key_source<adapted_source> && !key_source<tensor_view<float, 3>> && !key_source<state_source> && !key_source<int>);
static_assert(key_adaptor<causal> && key_adaptor<window> && key_adaptor<soft_cap> && key_adaptor<tree> && !key_adaptor<with_sink> && !key_adaptor<source> && !key_adaptor<float>);
static_assert(state_map<with_sink> && !state_map<causal>);
static_assert(pipes<source, causal> && pipes<adapted_source, soft_cap> && pipes<adapted_source, with_sink> && pipes<merged_source, with_sink> && pipes<mapped_source, with_sink>);
static_assert(!pipes<merged_source, causal>, "adaptors belong to one source");
static_assert(!pipes<mapped_source, causal>, "an adaptor after a state map");
static_assert(!pipes<state_source, causal>, "states have no keys to adapt");
static_assert(merges<source, state_source, adapted_source> && merges<merged_source, source> && !merges<mapped_source, source>, "a state map comes after the merge");
static_assert(!merges<> && !merges<causal>);
static_assert(attends<source> && attends<adapted_source> && attends<merged_source> && attends<mapped_source> && attends<state_source> && !attends<causal> && !attends<tensor_view<float, 3>>);
template <class Q>
concept queries = requires(tensor_view<Q, 3> t, tensor_view<float, 3> out, tensor_view<float, 2> lse, source k) { attend(t, k, out, lse); };
static_assert(queries<float> && queries<const float> && queries<float16> && queries<bfloat16> && !queries<double> && !queries<int> && !queries<float8_e4m3>);
template <class O>
concept outputs = requires(tensor_view<float, 3> q3, tensor_view<O, 3> t, tensor_view<float, 2> lse, source k) { attend(q3, k, t, lse); };
static_assert(outputs<float> && outputs<bfloat16> && !outputs<const float>);

}  // namespace
