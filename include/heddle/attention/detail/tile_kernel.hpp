// The kernel slot: what attention does with the codes of one tile. Compiled once per codec, whatever the adaptors around it.
//
// tile_kernel<Codec> is a query_block (logits, weights, accumulators and states in float) with these members. `queries` of a block share a KV
// head; calls take a range first .. first + count - 1 of them, because rows of a draft tree have tiles of their own.
//
//   tile_kernel(scratch_layout&, capacity, head_dim, head_dim_v, chunks)   takes its memory; a layout without a base measures
//   begin(queries, kv_head, codec)            a new block; `codec` is the source's instance (an empty object for codecs without parameters)
//   pack_query(q, query, scale)               head_dim floats, in the form that score() wants, scale included
//   score(now, next, first, count, runs)      logits(query)[64] of the first `runs` * 16 tokens; what follows may hold anything
//   soften(now, first, count)                 after mask(): exponentiate() and whatever weigh() wants of the weights
//   weigh(now, next, first, count)            output_[query] = output_[query] * factor_[query] + sum over live_[query] of weight * value
//   restore(accumulated, out)                 one row of accumulators -> head_dim_v channels (padded to 16); a copy unless values are transformed
//
// Laws: a query's bits do not depend on the other queries, on `first`, `count` or `next`; a key outside live_ never reaches output_, not even
// as 0 * NaN; a query with live_ == 0 keeps output_ * factor_ exactly. `next`, if not null, is the tile that follows: its lines are to be
// fetched evenly while this one computes.
#pragma once
#include <heddle/attention/detail/query_block.hpp>
#include <heddle/attention/detail/tile_kernel_element.hpp>
#include <heddle/attention/detail/tile_kernel_integer.hpp>

#include <concepts>

namespace heddle::detail::inline HEDDLE_ISA {

template <class K, class Codec>
concept kernel_of = std::derived_from<K, query_block> && requires(K& k, scratch_layout& memory, int n, const Codec& codec, const float* q, float* out, const tile& now, const tile* next) {
  K(memory, n, n, n, std::int64_t{});
  k.begin(n, n, codec);
  k.pack_query(q, n, 1.f);
  k.score(now, next, n, n, n);
  k.soften(now, n, n);
  k.weigh(now, next, n, n);
  k.restore(q, out);
};

}  // namespace heddle::detail::inline HEDDLE_ISA
