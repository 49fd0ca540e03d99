// Attention: a fold of softmax states over keys. One kernel for decoding, verification of drafts and prefill.
//
//   out_i = sum_j p_ij v_j,   p_i = softmax_j(z_ij),   z_ij = adapted(scale q_i . k_j),   lse_i = ln sum_j e^{z_ij}
//
//   q      [rows, num_qo_heads, head_dim]      float, float16 or bfloat16, any strides
//   keys   a key source with adaptors, a merge of several, state maps: source.hpp, sources.hpp, cache/page_pool.hpp, adaptors.hpp, compose.hpp
//   out    [rows, num_qo_heads, head_dim_v]    float, float16 or bfloat16
//   lse    [rows, num_qo_heads]                float, natural logarithm; a view without data is not written
//
// Query head h reads KV head h / (num_qo_heads / num_kv_heads): any whole ratio. head_dim and head_dim_v are any numbers of 1 or more. The rows
// of a sequence are its last ones: row i of n over T keys has index i + T - n. A batch: q_indptr[b] .. q_indptr[b + 1] - 1 are the rows of
// sequence b (none to many); without it all rows belong to one sequence.
//
// Edge cases. No visible key, T = 0, or a negative index: out = 0, lse = -infinity. A logit of -infinity hides its key; +infinity gives a NaN row;
// NaN in a visible q, k or v makes exactly the rows that see it NaN. Hidden keys are left out, not multiplied by 0.
//
// Determinism. A row's bits do not depend on the other rows and sequences of the call, on trees, page size and order, threads or workspace: tiles
// of 64 tokens at multiples of 64, chunks of 512 that join in a tree fixed by their numbers (detail/query_block.hpp). So verification equals
// decoding, and prefill in pieces equals prefill at once, bit for bit. Bits are the same on every target with a fused multiply-add.
//
// Accumulator: float; the logit is one chain of multiply-adds. Errors: shapes, tables and parameters throw before anything is written.
// Cost: every visible tile is read once per KV head and block of 64 queries; 2 (head_dim + head_dim_v) flops per query head and key.
// Memory: options.workspace of attend_workspace_size() bytes; without one the call allocates. With one it does not.
//
// prepare_attend(same arguments) -> prepared_attention: everything that can fail. It checks the arguments, the workspace (it demands one) and that the keys
// are written; run() does the work, is noexcept, does not allocate, and may be repeated. Until then contents may change (of q, keys, values, biases),
// shapes, lengths, page tables and trees may not; several prepared calls may share one workspace as long as they do not run at the same time.
//
//     heddle::thread_team team{2};
//     heddle::attend(q, pool[sequences].layer(l) | heddle::causal(), out, lse, {.q_indptr = indptr, .executor = team});
//     auto step = heddle::prepare_attend(q, pool[sequences].layer(l) | heddle::causal(), out, lse, {.q_indptr = indptr, .workspace = memory});
//     step.run();                                                                      // the same bits
#pragma once
#include <heddle/attention/compose.hpp>
#include <heddle/attention/detail/attend_plan.hpp>
#include <heddle/core/workspace.hpp>

#include <array>
#include <span>

namespace heddle {

template <memory_space Space>
struct attend_options;
template <>
struct attend_options<host> {
  float scale = 0.f;                           ///< of q . k; 0: 1 / sqrt(head_dim)
  std::span<const std::int32_t> q_indptr{};    ///< batch + 1 entries, or none: one sequence
  executor_ref executor{};                     ///< serial by default
  std::span<std::byte> workspace{};            ///< attend_workspace_size() bytes, or none: the call allocates
};

namespace detail::inline HEDDLE_ISA {

template <class Part>
inline constexpr bool is_key_part = is_adapted<Part>;

template <class Expression>
class attention;

/// attend() of one expression.
template <class... Parts, class... Maps>
class attention<attention_expression<parts_of<Parts...>, Maps...>> {
 public:
  using expression = attention_expression<parts_of<Parts...>, Maps...>;
  static constexpr std::size_t num_parts = sizeof...(Parts);

  attention(const attend_call& call, const expression& e) : call_(call), e_(e) {
    check();
    std::size_t i = 0;
    each_part([&](const auto& part, std::size_t) { chunks_[i++] = chunks_of(longest(part)); });
    plan_ = plan_of(call_, chunks_);
  }
  std::size_t workspace_bytes() const {
    scratch_layout memory;
    place_memory(memory);
    return memory.bytes();
  }
  /// Sources that can tell must hold all their rows; asked apart, so that workspace sizes are known before the rows are written.
  void require_readable() const {
    each_part([&](const auto& part, std::size_t) {
      if constexpr (requires { part.source.require_readable(std::int64_t{}); })
        for (std::int64_t s = 0; s < call_.sequences; ++s)
          if (call_.rows_of(s) > 0) part.source.require_readable(s);
    });
  }
  /// memory: workspace_bytes() bytes on a cache line.
  void run(std::byte* memory) const {
    if (plan_.units == 0) return;
    scratch_layout pieces{memory};
    place_memory(pieces);
    fill_blocks(call_, plan_, blocks_);
    each_part([&](const auto& part, std::size_t i) {
      if (depth_[i]) fill_depths(call_, parents(part), depth_[i]);
    });
    if (plan_.range == 0) {
      share(plan_.units, [&](std::int64_t unit, std::byte* mine) { whole_unit(unit, mine); });
    } else {
      share(plan_.units * plan_.pieces, [&](std::int64_t item, std::byte* mine) { piece(item, mine); });
      share(plan_.units, [&](std::int64_t unit, std::byte* mine) { join_pieces(unit, mine); });
    }
  }

 private:
  template <class F>
  void each_part(F f) const {
    std::apply([&](const Parts&... part) {
      std::size_t i = 0;
      (f(part, i++), ...);
    }, e_.parts);
  }
  template <class Part>
  static std::span<const std::int32_t> parents(const Part& part) {
    std::span<const std::int32_t> p;
    if constexpr (is_key_part<Part>)
      std::apply([&](const auto&... a) {
        ([&](const auto& one) {
          if constexpr (tree_adaptor<std::remove_cvref_t<decltype(one)>>) p = one.parents;
        }(a), ...);
      }, part.adaptors);
    return p;
  }
  template <class Part>
  static constexpr bool has_tree = [] {
    if constexpr (is_key_part<Part>) return []<class S, class... A>(const adapted<S, A...>*) { return (tree_adaptor<A> || ...); }(static_cast<const Part*>(nullptr));
    else return false;
  }();
  template <class Part>
  std::int64_t longest(const Part& part) const {
    std::int64_t most = 0;
    if constexpr (is_key_part<Part>)
      for (std::int64_t s = 0; s < call_.sequences; ++s)
        if (const std::int64_t n = part.source.length(s); call_.rows_of(s) > 0 && n > most) most = n;
    return most;
  }

  void check() const {
    each_part([&](const auto& part, std::size_t) { check(part); });
    const call_shape shape{call_.rows, call_.sequences, 0, call_.num_qo_heads, call_.num_kv_heads};
    std::apply([&](const Maps&... map) { (check_with(map, shape), ...); }, e_.maps);
  }
  template <class A>
  static void check_with(const A& adaptor, const call_shape& shape) {
    if constexpr (requires { adaptor.check(shape); }) adaptor.check(shape);
  }
  void check(const state_source& part) const {
    require_shape("attend", "state_source.out", part.out, extents<3>{call_.rows, std::int64_t{call_.num_qo_heads}, std::int64_t{call_.head_dim_v}});
    require_shape("attend", "state_source.lse", part.lse, extents<2>{call_.rows, std::int64_t{call_.num_qo_heads}});
  }
  template <class S, class... A>
  void check(const adapted<S, A...>& part) const {
    const S& source = part.source;
    require(source.num_sequences() == call_.sequences, "attend: argument 'keys' has ", source.num_sequences(), " sequences; expected ", call_.sequences, call_.q_indptr.empty() ? ", as there is no q_indptr" : ", as in q_indptr");
    require(source.num_kv_heads() == call_.num_kv_heads, "attend: argument 'keys': a source has ", source.num_kv_heads(), " KV heads, another ", call_.num_kv_heads, "; expected the same number");
    require(source.head_dim() == call_.head_dim, "attend: argument 'keys' has head_dim ", source.head_dim(), "; expected ", call_.head_dim, ", as q has");
    require(source.head_dim_v() == call_.head_dim_v, "attend: argument 'out' has ", call_.head_dim_v, " channels; expected head_dim_v = ", source.head_dim_v());
    const call_shape shape{call_.rows, call_.sequences, longest(part), call_.num_qo_heads, call_.num_kv_heads};
    std::apply([&](const A&... a) { (check_with(a, shape), ...); }, part.adaptors);
    if constexpr (has_tree<adapted<S, A...>>) {
      require_tree(call_, parents(part));
      for (std::int64_t s = 0; s < call_.sequences; ++s)
        for (int h = 0; h < call_.num_kv_heads; ++h)
          require(length_of(source, s, h) >= call_.rows_of(s), "tree: sequence ", s, " has ", length_of(source, s, h), " keys; expected at least its ", call_.rows_of(s), " rows, which are its last keys");
    }
  }

  // ---- memory ----
  void place_memory(scratch_layout& memory) const {
    blocks_ = memory.take<row_block>(static_cast<std::size_t>(plan_.blocks));
    each_part([&](const auto& part, std::size_t i) {
      depth_[i] = has_tree<std::remove_cvref_t<decltype(part)>> ? memory.take<std::int32_t>(static_cast<std::size_t>(call_.rows)) : nullptr;
    });
    partial_ = memory.take<float>(plan_.range ? static_cast<std::size_t>(plan_.units * plan_.pieces * plan_.state_floats(call_)) : 0);
    scratch_layout one;
    joined_state(one, call_, plan_.capacity);
    std::size_t most = 0;
    each_part([&](const auto& part, std::size_t i) {
      scratch_layout fold = one;
      if constexpr (is_key_part<std::remove_cvref_t<decltype(part)>>) {
        make_fold(fold, part, i);
        if (fold.bytes() > most) most = fold.bytes();
      }
    });
    if (plan_.range)
      for (const std::int64_t c : chunks_) {
        scratch_layout join = one;
        chunk_states(join, plan_.capacity, call_.width(), c);
        if (join.bytes() > most) most = join.bytes();
      }
    if (one.bytes() > most) most = one.bytes();
    worker_bytes_ = most;
    workers_ = memory.take<std::byte>(worker_bytes_ * static_cast<std::size_t>(plan_.workers));
  }
  template <class S, class... A>
  key_fold<S, A...> make_fold(scratch_layout& memory, const adapted<S, A...>& part, std::size_t i) const {
    return key_fold<S, A...>(memory, part, call_, plan_.capacity, chunks_[i], depth_[i]);
  }

  // ---- work ----
  template <class F>
  void share(std::int64_t items, F f) const {
    share_items(call_.executor, static_cast<std::size_t>(plan_.workers), items, [&](std::size_t worker, std::int64_t i) { f(i, workers_ + worker * worker_bytes_); });
  }
  const row_block& block_of(std::int64_t unit) const { return blocks_[plan_.blocks - 1 - unit % plan_.blocks]; }   // long rows first
  int head_of(std::int64_t unit) const { return static_cast<int>(unit / plan_.blocks); }

  void whole_unit(std::int64_t unit, std::byte* mine) const {
    const row_block& block = block_of(unit);
    scratch_layout memory{mine};
    const joined_state state(memory, call_, plan_.capacity);
    const int queries = block.rows * call_.group;
    state.clear(queries);
    each_part([&](const auto& part, std::size_t i) {
      if constexpr (is_key_part<std::remove_cvref_t<decltype(part)>>) {
        scratch_layout fold_memory = memory;
        auto fold = make_fold(fold_memory, part, i);
        if (!fold.run(block, head_of(unit), 0, chunks_[i])) return;
        fold.result(state.part, call_.width());
        join_states(state.total, state.part, queries, call_.width());
      } else {
        join_source(part, call_, block, head_of(unit), state);
      }
    });
    finish(block, head_of(unit), state.total);
  }
  state_block partial(std::int64_t item) const {
    float* p = partial_ + item * plan_.state_floats(call_);
    return {p, p + plan_.capacity, p + 2 * plan_.capacity};
  }
  void piece(std::int64_t item, std::byte* mine) const {
    const std::int64_t unit = item / plan_.pieces;
    std::int64_t index = item % plan_.pieces;
    const state_block to = partial(item);
    each_part([&](const auto& part, std::size_t i) {
      if constexpr (is_key_part<std::remove_cvref_t<decltype(part)>>) {
        const std::int64_t pieces = pieces_of(chunks_[i], plan_.range), mine_index = index;
        index -= pieces;
        if (mine_index < 0 || mine_index >= pieces) return;
        scratch_layout memory{mine};
        auto fold = make_fold(memory, part, i);
        if (fold.run(block_of(unit), head_of(unit), mine_index * plan_.range, (mine_index + 1) * plan_.range)) return fold.result(to, call_.width());
        for (int q = 0; q < plan_.capacity; ++q) to.sum[q] = 0.f;
      }
    });
  }
  void join_pieces(std::int64_t unit, std::byte* mine) const {
    const row_block& block = block_of(unit);
    const int queries = block.rows * call_.group, width = call_.width();
    scratch_layout memory{mine};
    const joined_state state(memory, call_, plan_.capacity);
    state.clear(queries);
    std::int64_t item = unit * plan_.pieces;
    each_part([&](const auto& part, std::size_t i) {
      if constexpr (is_key_part<std::remove_cvref_t<decltype(part)>>) {
        scratch_layout stack_memory = memory;
        chunk_states stack(stack_memory, plan_.capacity, width, chunks_[i]);
        stack.reset(queries);
        for (std::int64_t k = 0; k < pieces_of(chunks_[i], plan_.range); ++k, ++item) {
          const state_block from = partial(item), to = stack.push(k * plan_.range);
          std::memcpy(to.maximum, from.maximum, static_cast<std::size_t>(queries) * sizeof(float));
          std::memcpy(to.sum, from.sum, static_cast<std::size_t>(queries) * sizeof(float));
          std::memcpy(to.output, from.output, static_cast<std::size_t>(queries) * static_cast<std::size_t>(width) * sizeof(float));
        }
        if (!stack.empty()) join_states(state.total, stack.finish(), queries, width);
      } else {
        join_source(part, call_, block, head_of(unit), state);
      }
    });
    finish(block, head_of(unit), state.total);
  }
  void finish(const row_block& block, int kv_head, const state_block& state) const {
    for (int q = 0; q < block.rows * call_.group; ++q) {
      const std::int64_t row = block.first + q / call_.group;
      const int head = kv_head * call_.group + q % call_.group;
      row_state s{state.maximum[q], state.sum[q], 1.f};
      float* output = state.output + static_cast<std::int64_t>(q) * call_.width();
      if constexpr (sizeof...(Maps) > 0) {
        if (s.sum == 0.f) std::memset(output, 0, static_cast<std::size_t>(call_.width()) * sizeof(float));
        std::apply([&](const Maps&... map) { (map.map(row, head, s), ...); }, e_.maps);
      }
      write_row(call_, row, head, s.maximum, s.sum, s.factor, output);
    }
  }

  attend_call call_;
  expression e_;
  std::array<std::int64_t, num_parts> chunks_{};
  attend_plan plan_;
  mutable row_block* blocks_ = nullptr;
  mutable std::array<std::int32_t*, num_parts> depth_{};
  mutable float* partial_ = nullptr;
  mutable std::byte* workers_ = nullptr;
  mutable std::size_t worker_bytes_ = 0;
};

template <class Q>
attend_call call_of(const Q& q, int num_kv_heads, int head_dim_v, const attend_options<host>& options) {
  attend_call call;
  call.q = row_tensor<const std::byte>(q);
  call.rows = q.extent(0), call.num_qo_heads = static_cast<int>(q.extent(1)), call.head_dim = static_cast<int>(q.extent(2));
  call.num_kv_heads = num_kv_heads, call.head_dim_v = head_dim_v;
  require(q.extent(1) > 0 && q.extent(2) > 0, "attend: argument 'q' has shape [", q.extent(0), ", ", q.extent(1), ", ", q.extent(2), "]; expected at least one head and one channel");
  if (num_kv_heads > 0) {
    require(call.num_qo_heads % num_kv_heads == 0, "attend: argument 'q' has ", call.num_qo_heads, " query heads for ", num_kv_heads, " KV heads; expected a whole multiple");
    call.group = call.num_qo_heads / num_kv_heads;
  }
  require(options.scale == options.scale && options.scale > -simd::infinity && options.scale < simd::infinity, "attend: argument 'scale' is ", static_cast<double>(options.scale), "; expected a finite number, or 0 (1 / sqrt(head_dim))");
  call.scale = options.scale != 0.f ? options.scale : static_cast<float>(1. / __builtin_sqrt(static_cast<double>(call.head_dim)));
  call.q_indptr = options.q_indptr, call.executor = options.executor;
  if (!call.q_indptr.empty()) {
    require_indptr(call.q_indptr, call.rows);
    call.sequences = static_cast<std::int64_t>(call.q_indptr.size()) - 1;
  }
  return call;
}
/// KV heads and value channels of the first key source; states alone have neither.
template <class... P>
void shape_of(const std::tuple<P...>& parts, int& num_kv_heads, int& head_dim_v) {
  std::apply([&](const P&... part) {
    ([&](const auto& one) {
      if constexpr (is_key_part<std::remove_cvref_t<decltype(one)>>) {
        if (num_kv_heads == 0) num_kv_heads = one.source.num_kv_heads(), head_dim_v = one.source.head_dim_v();
      }
    }(part), ...);
  }, parts);
}

}  // namespace detail::inline HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

template <class Q, class Keys, class Out, class Lse>
auto attention_of(const Q& q, const Keys& keys, const Out& out, const Lse& lse, const attend_options<host>& options) {
  const auto expression = as_expression(keys);
  const auto query = view_of(q);
  const auto result = view_of(out);
  const auto lse_view = view_of(lse);
  int num_kv_heads = 0, head_dim_v = static_cast<int>(result.extent(2));
  shape_of(expression.parts, num_kv_heads, head_dim_v);
  if (num_kv_heads == 0) num_kv_heads = static_cast<int>(query.extent(1));
  attend_call call = call_of(query, num_kv_heads, head_dim_v, options);
  require_shape("attend", "out", result, extents<3>{call.rows, std::int64_t{call.num_qo_heads}, std::int64_t{head_dim_v}});
  if (lse_view.data()) require_shape("attend", "lse", lse_view, extents<2>{call.rows, std::int64_t{call.num_qo_heads}});
  call.out = row_tensor<std::byte>(result), call.lse = lse_view;
  return attention<std::remove_const_t<decltype(expression)>>(call, expression);
}
template <class Q, class Keys, class Out, class Lse>
concept attend_arguments = host_tensor<Q> && attention_input<Keys> && host_tensor<Out> && host_tensor<Lse> && tensor_of<Q, 3> && tensor_of<Out, 3> && tensor_of<Lse, 2> && row_element<element_type<Q>> && row_element<element_type<Out>> &&
                           std::same_as<element_type<Lse>, float> && writable_tensor<Out> && writable_tensor<Lse>;

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <class Q, class Keys, class Out, class Lse>
  requires detail::attend_arguments<Q, Keys, Out, Lse>
void attend(const Q& q, const Keys& keys, Out&& out, Lse&& lse, const attend_options<host>& options = {}) {
  const auto attention = detail::attention_of(q, keys, out, lse, options);
  attention.require_readable();
  const scratch memory("attend", options.workspace, attention.workspace_bytes());
  attention.run(memory.data());
}

/// A call of attend() that can no longer fail. The tensors, tables, workspace and executor that it was made from must outlive it.
template <class Attention>
class prepared_attention {
 public:
  prepared_attention(const Attention& attention, std::span<std::byte> workspace) : attention_(attention) {
    attention_.require_readable();
    const std::size_t bytes = attention_.workspace_bytes();
    require(!workspace.empty(), "attend: argument 'workspace' is empty; expected at least ", bytes + scratch_alignment, " bytes, as a prepared call does not allocate");
    memory_ = scratch("attend", workspace, bytes).data();
  }
  void run() const noexcept { attention_.run(memory_); }

 private:
  Attention attention_;
  std::byte* memory_;
};

template <class Q, class Keys, class Out, class Lse>
  requires detail::attend_arguments<Q, Keys, Out, Lse>
[[nodiscard]] auto prepare_attend(const Q& q, const Keys& keys, Out&& out, Lse&& lse, const attend_options<host>& options) {
  return prepared_attention(detail::attention_of(q, keys, out, lse, options), options.workspace);
}

/// Bytes of workspace that the same call wants: they depend on shapes, lengths and the executor's concurrency.
template <host_tensor Q, attention_input Keys>
  requires tensor_of<Q, 3> && detail::row_element<element_type<Q>>
std::size_t attend_workspace_size(const Q& q, const Keys& keys, const attend_options<host>& options = {}) {
  const auto expression = detail::as_expression(keys);
  int num_kv_heads = 0, head_dim_v = 0;
  detail::shape_of(expression.parts, num_kv_heads, head_dim_v);
  if (num_kv_heads == 0) num_kv_heads = static_cast<int>(view_of(q).extent(1));
  const detail::attend_call call = detail::call_of(view_of(q), num_kv_heads, head_dim_v, options);
  return detail::attention<std::remove_const_t<decltype(expression)>>(call, expression).workspace_bytes() + scratch_alignment;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle

#if defined(__CUDACC__) || defined(HEDDLE_SIMT)
#include <heddle/attention/attend.cuh>
#endif
