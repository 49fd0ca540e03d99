// attend() on a device: paged decoding and verification over 16-bit caches. Included by attend.hpp.
//
//   heddle::attend(q, heddle::paged_rows<heddle::bfloat16, heddle::device>{keys, values, page_indices, page_indptr, lengths} | heddle::causal(), out, lse,
//                  {.rows = 1, .max_kv_length = 4096, .stream = stream, .workspace = scratch});
//
//   q, keys, values    float16 or bfloat16, one element for all; head_dim 64 or 128, channels contiguous, other strides multiples of 8 elements
//   out                float or the element of q; lse float
//   page tables, lengths, q_indptr   int32 in device memory; checking them would read them, so page numbers are the caller's word. A sequence longer
//                      than max_kv_length gives NaN rows; rows beyond options.rows of a sequence are not computed
//
// The kernel and what it promises: paged_decode.cuh. Nothing is allocated or synchronised; the call can be captured in a graph.
#pragma once
#include <heddle/attention/attend.hpp>
#include <heddle/attention/paged_decode.cuh>
#include <heddle/attention/sources.hpp>

namespace heddle {

template <>
struct attend_options<device> {
  float scale = 0.f;                                     ///< of q . k; 0: 1 / sqrt(head_dim)
  std::int32_t rows = 1;                                 ///< query rows of every sequence; with q_indptr the most of any
  std::int64_t max_kv_length = 0;                        ///< at least the longest sequence: sizes the workspace
  tensor_view<const std::int32_t, 1, device> q_indptr{}; ///< batch + 1 entries, or none
  std::int32_t splits = 0;                               ///< blocks that share a sequence and KV head; 0: chosen by max_kv_length
  cuda::stream stream{};
  std::span<std::byte> workspace{};                      ///< device memory, attend_workspace_size() bytes
};

inline namespace HEDDLE_ISA {

/// Pages in device memory, as paged_rows of the host.
template <cuda::tensor_core_element E>
class paged_rows<E, device> {
 public:
  paged_rows(tensor_view<const E, 4, device> key_pages, tensor_view<const E, 4, device> value_pages, tensor_view<const std::int32_t, 1, device> indices, tensor_view<const std::int32_t, 1, device> indptr,
             tensor_view<const std::int32_t, 1, device> tokens)
      : keys(key_pages), values(value_pages), page_indices(indices), page_indptr(indptr), lengths(tokens) {
    require_shape("paged_rows", "values", values, keys.shape());
    require_shape("paged_rows", "page_indptr", page_indptr, extents<1>{lengths.extent(0) + 1});
    require(keys.extent(1) > 0 && keys.extent(2) > 0, "paged_rows: argument 'keys' has ", keys.extent(1), " heads and pages of ", keys.extent(2), "; expected 1 or more");
    require(keys.extent(3) == 64 || keys.extent(3) == 128, "paged_rows: argument 'keys' has head_dim ", keys.extent(3), "; expected 64 or 128 on a device");
    require_wide("keys", keys);
    require_wide("values", values);
  }
  tensor_view<const E, 4, device> keys, values;
  tensor_view<const std::int32_t, 1, device> page_indices, page_indptr, lengths;

 private:
  static void require_wide(const char* name, const tensor_view<const E, 4, device>& t) {
    require(t.stride(3) == 1 && t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && t.stride(2) % 8 == 0, "paged_rows: argument '", name, "' has strides ", t.stride(0), ", ", t.stride(1), ", ", t.stride(2), ", ", t.stride(3),
            "; expected contiguous channels and multiples of 8 elsewhere");
    require(reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0, "paged_rows: argument '", name, "' does not start at a multiple of 16 bytes");
  }
};

/// paged_rows | causal(): what attend() takes on a device.
template <class E>
struct causal_pages {
  paged_rows<E, device> source;
};
template <class E>
causal_pages<E> operator|(const paged_rows<E, device>& source, const causal&) {
  return {source};
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

inline std::int64_t chunks_of_length(std::int64_t length) { return (length + paged_decode::chunk_tokens - 1) / paged_decode::chunk_tokens; }

template <class E, class Q>
std::size_t device_state_bytes(const Q& q, const causal_pages<E>& keys, const attend_options<device>& options) {
  const paged_rows<E, device>& s = keys.source;
  return paged_decode::state_bytes(s.lengths.extent(0), static_cast<int>(s.keys.extent(1)), options.rows, static_cast<int>(q.extent(1) / s.keys.extent(1)), static_cast<int>(q.extent(2)), chunks_of_length(options.max_kv_length));
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <device_tensor Q, class E>
  requires tensor_of<Q, 3>
std::size_t attend_workspace_size(const Q& q, const causal_pages<E>& keys, const attend_options<device>& options) {
  return detail::device_state_bytes(view_of(q), keys, options) + scratch_alignment;
}

template <device_tensor Q, class E, device_tensor Out, device_tensor Lse>
  requires tensor_of<Q, 3> && tensor_of<Out, 3> && tensor_of<Lse, 2> && std::same_as<element_type<Q>, E> && (std::same_as<element_type<Out>, float> || std::same_as<element_type<Out>, E>) &&
           std::same_as<element_type<Lse>, float> && writable_tensor<Out> && writable_tensor<Lse>
void attend(const Q& q, const causal_pages<E>& keys, Out&& out, Lse&& lse, const attend_options<device>& options) {
  const auto query = view_of(q);
  const auto to = view_of(out);
  const auto to_lse = view_of(lse);
  const paged_rows<E, device>& s = keys.source;
  const std::int64_t sequences = s.lengths.extent(0), num_kv_heads = s.keys.extent(1), rows = query.extent(0);
  require(options.rows >= 1 && options.rows <= 16, "attend: argument 'rows' is ", options.rows, "; expected 1 to 16 on a device");
  require(options.max_kv_length >= 0, "attend: argument 'max_kv_length' is ", options.max_kv_length, "; expected 0 or more");
  require(query.extent(2) == s.keys.extent(3), "attend: argument 'q' has head_dim ", query.extent(2), "; expected ", s.keys.extent(3), ", as the keys have");
  require(query.extent(1) > 0 && query.extent(1) % num_kv_heads == 0, "attend: argument 'q' has ", query.extent(1), " query heads for ", num_kv_heads, " KV heads; expected a whole multiple");
  require(query.stride(2) == 1 && query.stride(0) % 8 == 0 && query.stride(1) % 8 == 0 && reinterpret_cast<std::uintptr_t>(query.data()) % 16 == 0, "attend: argument 'q' has strides ", query.stride(0), ", ", query.stride(1), ", ", query.stride(2),
          "; expected contiguous channels, multiples of 8 elsewhere, and a start at a multiple of 16 bytes");
  if (options.q_indptr.data()) require_shape("attend", "q_indptr", options.q_indptr, extents<1>{sequences + 1});
  else require(rows == sequences * options.rows, "attend: argument 'q' has ", rows, " rows; expected ", sequences * options.rows, ", ", options.rows, " for each of ", sequences, " sequences");
  require_shape("attend", "out", to, query.shape());
  require(to.stride(2) == 1, "attend: argument 'out' has stride ", to.stride(2), " between channels; expected 1");
  require_shape("attend", "lse", to_lse, extents<2>{rows, query.extent(1)});

  const int group = static_cast<int>(query.extent(1) / num_kv_heads), chunks = static_cast<int>(detail::chunks_of_length(options.max_kv_length));
  const std::size_t bytes = detail::device_state_bytes(query, keys, options);
  const std::size_t skip = (scratch_alignment - reinterpret_cast<std::uintptr_t>(options.workspace.data()) % scratch_alignment) % scratch_alignment;
  require(options.workspace.size() >= bytes + (bytes ? skip : 0), "attend: argument 'workspace' holds ", options.workspace.size(), " bytes of device memory; expected ", bytes + scratch_alignment);
  const int splits = options.splits > 0 ? options.splits : chunks < 1 ? 1 : chunks < 8 ? chunks : 8;
  const auto run = [&]<int head_dim>() {
    const detail::paged_decode::arguments<E> a{query.data(), s.keys.data(), s.values.data(), s.page_indices.data(), s.page_indptr.data(), s.lengths.data(), options.q_indptr.data(), nullptr, nullptr, nullptr,
                                               query.stride(0), query.stride(1), {s.keys.stride(0), s.keys.stride(1), s.keys.stride(2)}, {s.values.stride(0), s.values.stride(1), s.values.stride(2)},
                                               options.rows, group, static_cast<int>(num_kv_heads), static_cast<int>(s.keys.extent(2)), chunks,
                                               options.scale != 0.f ? options.scale : static_cast<float>(1. / __builtin_sqrt(static_cast<double>(head_dim)))};
    detail::paged_decode::launch<E, element_type<Out>, head_dim>(a, options.workspace.data() + skip, sequences, splits, to.data(), to.stride(0), to.stride(1), to_lse.data(), to_lse.stride(0), to_lse.stride(1), options.stream);
  };
  if (sequences == 0 || rows == 0) return;
  query.extent(2) == 64 ? run.template operator()<64>() : run.template operator()<128>();
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
