// Which types are sources, parts and adaptors, and which nearly are.
#include <heddle/attention/attend.hpp>
#include <heddle/attention/merge.hpp>
#include <heddle/attention/sources.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>

#include <gtest/gtest.h>

namespace {

using namespace heddle;

using dense_keys = dense_source<float>;
using pool = page_pool<codec::int8<>>;
using pool_keys = layer_source<pool>;
using merged = decltype(merge(std::declval<dense_keys>(), std::declval<pool_keys>() | causal()));
using mapped = decltype(std::declval<merged>() | std::declval<with_sink>());
using view3 = tensor_view<float, 3>;

struct without_scratch {
  using codec = heddle::codec::f32;
  std::int64_t num_sequences() const, length(std::int64_t) const;
  int num_kv_heads() const, head_dim() const, head_dim_v() const;
  void find(std::int64_t, int, std::int64_t, tile&, std::byte*) const;
};
struct source : without_scratch {
  std::size_t scratch_bytes() const;
};
struct source_that_moves_only : source {
  source_that_moves_only(source_that_moves_only&&);
};
struct with_wrong_positions : source {
  const std::int64_t* positions(std::int64_t) const;
};
static_assert(key_source<dense_keys> && key_source<paged_rows<float16>> && key_source<pool_keys> && key_source<source>);
static_assert(!key_source<without_scratch> && !key_source<source_that_moves_only> && !key_source<pool> && !key_source<sequence_batch<pool>> && !key_source<view3> && !key_source<state_source> && !key_source<adapted<dense_keys, causal>>);
static_assert(positioned_source<pool_keys> && !positioned_source<dense_keys> && !positioned_source<with_wrong_positions>);

struct no_level {
  std::uint64_t visible(const place&, std::int64_t) const;
};
struct sees_32_bits {
  static constexpr granularity level = granularity::row;
  std::uint32_t visible(const place&, std::int64_t) const;
};
struct adds_floats {
  float adjust(const place&, std::int64_t, float) const;
};
struct adds_in_place {
  void adjust(const place&, std::int64_t, simd::f32x16&) const;
};
static_assert(visibility_adaptor<causal> && visibility_adaptor<window> && visibility_adaptor<selection<granularity::query_head>> && !visibility_adaptor<soft_cap> && !visibility_adaptor<tree>);
static_assert(!visibility_adaptor<no_level> && !visibility_adaptor<sees_32_bits> && !key_adaptor<no_level> && !key_adaptor<sees_32_bits>);
static_assert(score_adaptor<soft_cap> && score_adaptor<bias> && score_adaptor<log_gate> && !score_adaptor<causal> && !score_adaptor<adds_floats> && !score_adaptor<adds_in_place>);
static_assert(position_adaptor<window> && !position_adaptor<causal>);
static_assert(tree_adaptor<tree> && !tree_adaptor<causal> && !tree_adaptor<std::span<const std::int32_t>>);
static_assert(state_map<with_sink> && !state_map<causal> && !state_map<soft_cap>);

static_assert(attention_part<dense_keys> && attention_part<adapted<pool_keys, causal>> && attention_part<state_source> && !attention_part<merged> && !attention_part<mapped> && !attention_part<causal>);
static_assert(attention_input<merged> && attention_input<mapped> && attention_input<dense_keys> && !attention_input<with_sink> && !attention_input<view3> && !attention_input<pool>);

static_assert(state_output<view3, host> && state_output<tensor_view<const double, 3>, host> && !state_output<view3, device> && !state_output<tensor_view<float16, 3>, host> && !state_output<tensor_view<float, 2>, host>);
static_assert(state_lse<tensor_view<float, 2>, view3> && !state_lse<tensor_view<double, 2>, view3> && !state_lse<tensor_view<float, 1>, view3> && !state_lse<tensor_view<float, 2, device>, view3>);

template <class Q, class Keys, class Out, class Lse>
concept attends = requires(const Q& q, const Keys& keys, Out& out, Lse& lse) { attend(q, keys, out, lse); };
static_assert(attends<tensor_view<const bfloat16, 3>, mapped, view3, tensor_view<float, 2>>);
static_assert(!attends<tensor_view<double, 3>, merged, view3, tensor_view<float, 2>> && !attends<view3, merged, tensor_view<const float, 3>, tensor_view<float, 2>> && !attends<view3, merged, view3, tensor_view<double, 2>>);
static_assert(!attends<tensor_view<float, 3, device>, merged, view3, tensor_view<float, 2>> && !attends<view3, merged, tensor_view<float, 3, device>, tensor_view<float, 2>> && !attends<tensor_view<float, 2>, merged, view3, tensor_view<float, 2>>);

TEST(Concepts, AreCheckedAtCompileTime) { SUCCEED(); }

}  // namespace
