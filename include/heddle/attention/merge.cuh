// merge() of tensors on a device: one warp per row and head, the arithmetic of core/softmax_state.hpp, so the bits are those of the host.
// Included by merge.hpp.
#pragma once
#include <heddle/attention/merge.hpp>
#include <heddle/cuda/primitives.hpp>

namespace heddle {

template <>
struct merge_options<device> {
  cuda::stream stream{};
};

namespace detail::inline HEDDLE_ISA {

struct merge_arguments {
  tensor_view<const float, 3, device> a, b;
  tensor_view<const float, 2, device> a_lse, b_lse;
  tensor_view<float, 3, device> out;
  tensor_view<float, 2, device> lse;
};

inline constexpr int merge_warps = 4;

__global__ void __launch_bounds__(32 * merge_warps) merge_kernel(merge_arguments m) {
  const auto heads = m.a.extent(1), item = static_cast<std::int64_t>(blockIdx.x) * merge_warps + (static_cast<int>(threadIdx.x) >> 5);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if (item >= m.a.extent(0) * heads) return;
  const std::int64_t row = item / heads, head = item % heads;
  const float first = *m.a_lse.at(row, head), second = *m.b_lse.at(row, head);
  const float *a = m.a.at(row, head), *b = m.b.at(row, head);
  float* out = m.out.at(row, head);
  float lse = 0.f;
  for (std::int64_t c = lane; c < m.a.extent(2); c += 32) lse = merge_state(a + c, first, b + c, second, out + c, 1);
  __syncwarp();   // every lane has read both lse: the result may replace one
  if (lane == 0) *m.lse.at(row, head) = m.a.extent(2) > 0 ? lse : merge_weights(first, second).lse;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <state_output<device> A, state_lse<A> ALse, state_output<device> B, state_lse<B> BLse, state_output<device> Out, state_lse<Out> Lse>
  requires std::same_as<element_type<A>, float> && std::same_as<element_type<B>, float> && std::same_as<element_type<Out>, float> && writable_tensor<Out> && writable_tensor<Lse>
void merge(const A& a, const ALse& a_lse, const B& b, const BLse& b_lse, Out&& out, Lse&& lse, const merge_options<device>& options = {}) {
  const extents<3> shape = view_of(a).shape();
  const auto x = detail::state_views("merge", "a", a, a_lse, shape);
  const auto y = detail::state_views("merge", "b", b, b_lse, shape);
  const auto to = detail::state_views("merge", "out", out, lse, shape);
  const std::int64_t items = shape[0] * shape[1];
  if (items == 0) return;
  cuda::launch("merge", dim3(static_cast<unsigned>((items + detail::merge_warps - 1) / detail::merge_warps)), dim3(32 * detail::merge_warps), 0, options.stream, detail::merge_kernel,
               detail::merge_arguments{x.out, y.out, x.lse, y.lse, to.out, to.lse});
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
