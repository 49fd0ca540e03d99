// What attention reads.
//
// key_source      keys and values of one or more sequences, in tiles of 64 tokens (cache/tile.hpp), encoded by one codec: dense and paged
//                 buffers (sources.hpp), a layer of a page pool (cache/page_pool.hpp). A small view, copied by value:
//
//     typename S::codec
//     num_sequences(), length(sequence)            length counts the rows of the call: their keys are already there
//     num_kv_heads(), head_dim(), head_dim_v()
//     find(sequence, kv_head, first_token, tile, scratch)     addresses of the tile at first_token, a multiple of 64 below length;
//                                                  `scratch` holds scratch_bytes() bytes on a cache line for sources that have to move rows
//     positions(sequence)                          optional: explicit positions of the tokens, or null where they equal the index
//     coder(kv_head)                               optional: the codec instance, for codecs with parameters
//     require_readable(sequence)                   optional: throws if rows of the step in progress have not been written yet
//
// state_source    ready softmax states: (out, lse) of every row and query head.
//
// find is called from many threads at once.
//
//     const auto keys = pool[id].layer(0);
//     static_assert(heddle::key_source<decltype(keys)>);
//     heddle::attend(q, heddle::merge(keys | heddle::causal(), heddle::state_source{remote_out, remote_lse}), out, lse);
#pragma once
#include <heddle/cache/tile.hpp>
#include <heddle/core/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace heddle {

template <class S>
concept key_source = std::copy_constructible<S> && requires(const S& s, std::int64_t sequence, int kv_head, tile& t, std::byte* scratch) {
  typename S::codec;
  { s.num_sequences() } -> std::convertible_to<std::int64_t>;
  { s.length(sequence) } -> std::convertible_to<std::int64_t>;
  { s.num_kv_heads() } -> std::convertible_to<int>;
  { s.head_dim() } -> std::convertible_to<int>;
  { s.head_dim_v() } -> std::convertible_to<int>;
  { s.scratch_bytes() } -> std::convertible_to<std::size_t>;
  s.find(sequence, kv_head, sequence, t, scratch);
};

template <class S>
concept positioned_source = key_source<S> && requires(const S& s, std::int64_t sequence) {
  { s.positions(sequence) } -> std::convertible_to<const std::int32_t*>;
};

/// Ready softmax states of every row and query head, e.g. of keys that another machine holds. An lse of -infinity marks an empty state, whose
/// output is not read. heddle::state_source makes one: merge(cache | causal(), state_source{out, lse}).
struct state_source {
  tensor_view<const float, 3> out;   ///< [rows, num_qo_heads, head_dim_v]
  tensor_view<const float, 2> lse;   ///< [rows, num_qo_heads]
};

}  // namespace heddle
