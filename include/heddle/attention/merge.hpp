// Merging attention states that are ready: shared prefixes, context-parallel shards, split caches.
//
//   L = ln(e^La + e^Lb),   O = e^{La - L} Oa + e^{Lb - L} Ob        (core/softmax_state.hpp)
//
//   a, b, out          [rows, num_qo_heads, head_dim_v]   float or double; channels contiguous, other strides any
//   a_lse, b_lse, lse  [rows, num_qo_heads]               the same element
//
// out and lse may be a and a_lse, or b and b_lse. A state with L = -infinity is empty: the other one is copied bit for bit and the empty O is not
// read; two empty states give (0, -infinity). Deterministic; weights are formed in double. On a device the same bits, float only.
// merge_backward: gradients of both states from those of the merged one; empty states get zeros. Its outputs share no memory with its inputs.
// Cost: 3 head_dim_v elements of traffic a row and head; three exponentials and a logarithm.
// To merge states with keys that are still to be folded, see state_source in source.hpp.
//
//     heddle::merge(prefix_out, prefix_lse, suffix_out, suffix_lse, out, lse);
#pragma once
#include <heddle/core/executor.hpp>
#include <heddle/core/softmax_state.hpp>
#include <heddle/core/tensor.hpp>

#include <concepts>

namespace heddle {

template <memory_space Space>
struct merge_options;
template <>
struct merge_options<host> {
  executor_ref executor{};   ///< serial by default
};

template <class T, class Space>
concept state_output = tensor_of<T, 3> && std::same_as<space_type<T>, Space> && (std::same_as<element_type<T>, float> || std::same_as<element_type<T>, double>);
template <class T, class Output>
concept state_lse = tensor_of<T, 2> && std::same_as<space_type<T>, space_type<Output>> && std::same_as<element_type<T>, element_type<Output>>;

namespace detail::inline HEDDLE_ISA {

template <class Out, class Lse>
struct state_view {
  Out out;
  Lse lse;
};
/// Checks one state of a call and returns its views.
template <class Output, class Lse>
auto state_views(const char* function, const char* name, const Output& out, const Lse& lse, const extents<3>& shape) {
  const auto o = view_of(out);
  const auto l = view_of(lse);
  require_shape(function, name, o, shape);
  require(l.extent(0) == shape[0] && l.extent(1) == shape[1], function, ": the lse of argument '", name, "' has shape [", l.extent(0), ", ", l.extent(1), "]; expected [", shape[0], ", ", shape[1], "]");
  require(o.stride(2) == 1 || shape[2] <= 1, function, ": argument '", name, "' has stride ", o.stride(2), " between channels; expected 1");
  return state_view<decltype(o), decltype(l)>{o, l};
}
/// f(row, head) for all, rows shared out.
template <class F>
void each_row(const extents<3>& shape, executor_ref executor, F f) {
  const auto workers = static_cast<std::int64_t>(executor.concurrency());
  const std::int64_t pieces = shape[0] < workers ? shape[0] : workers;
  executor.bulk(static_cast<std::size_t>(pieces), [&](std::size_t piece) {
    const auto i = static_cast<std::int64_t>(piece);
    for (std::int64_t row = shape[0] * i / pieces; row < shape[0] * (i + 1) / pieces; ++row)
      for (std::int64_t head = 0; head < shape[1]; ++head) f(row, head);
  });
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <state_output<host> A, state_lse<A> ALse, state_output<host> B, state_lse<B> BLse, state_output<host> Out, state_lse<Out> Lse>
  requires std::same_as<element_type<A>, element_type<B>> && std::same_as<element_type<A>, element_type<Out>> && writable_tensor<Out> && writable_tensor<Lse>
void merge(const A& a, const ALse& a_lse, const B& b, const BLse& b_lse, Out&& out, Lse&& lse, const merge_options<host>& options = {}) {
  using real = element_type<A>;
  const extents<3> shape = view_of(a).shape();
  const auto x = detail::state_views("merge", "a", a, a_lse, shape);
  const auto y = detail::state_views("merge", "b", b, b_lse, shape);
  const auto to = detail::state_views("merge", "out", out, lse, shape);
  detail::each_row(shape, options.executor, [&](std::int64_t row, std::int64_t head) {
    to.lse(row, head) = merge_state<real>(x.out.at(row, head), x.lse(row, head), y.out.at(row, head), y.lse(row, head), to.out.at(row, head), shape[2]);
  });
}

/// `out`, `lse` are the merged state; d_a, d_a_lse, d_b, d_b_lse are written.
template <state_output<host> A, state_lse<A> ALse, state_output<host> B, state_lse<B> BLse, state_output<host> Out, state_lse<Out> Lse, state_output<host> DOut, state_lse<DOut> DLse, state_output<host> DA, state_lse<DA> DALse, state_output<host> DB, state_lse<DB> DBLse>
  requires std::same_as<element_type<A>, element_type<DA>> && std::same_as<element_type<A>, element_type<DB>> && writable_tensor<DA> && writable_tensor<DALse> && writable_tensor<DB> && writable_tensor<DBLse>
void merge_backward(const A& a, const ALse& a_lse, const B& b, const BLse& b_lse, const Out& out, const Lse& lse, const DOut& d_out, const DLse& d_lse, DA&& d_a, DALse&& d_a_lse, DB&& d_b, DBLse&& d_b_lse, const merge_options<host>& options = {}) {
  using real = element_type<A>;
  const extents<3> shape = view_of(a).shape();
  const auto x = detail::state_views("merge_backward", "a", a, a_lse, shape);
  const auto y = detail::state_views("merge_backward", "b", b, b_lse, shape);
  const auto merged = detail::state_views("merge_backward", "out", out, lse, shape);
  const auto d = detail::state_views("merge_backward", "d_out", d_out, d_lse, shape);
  const auto dx = detail::state_views("merge_backward", "d_a", d_a, d_a_lse, shape);
  const auto dy = detail::state_views("merge_backward", "d_b", d_b, d_b_lse, shape);
  detail::each_row(shape, options.executor, [&](std::int64_t row, std::int64_t head) {
    merge_state_backward<real>(x.out.at(row, head), x.lse(row, head), y.out.at(row, head), y.lse(row, head), merged.out.at(row, head), merged.lse(row, head), d.out.at(row, head), d.lse(row, head), dx.out.at(row, head),
                               dx.lse.at(row, head), dy.out.at(row, head), dy.lse.at(row, head), shape[2]);
  });
}

}  // namespace HEDDLE_ISA
}  // namespace heddle

#if defined(__CUDACC__) || defined(HEDDLE_SIMT)
#include <heddle/attention/merge.cuh>
#endif
