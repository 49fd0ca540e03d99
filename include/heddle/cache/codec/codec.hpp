// How rows of keys and values are stored in a cache: what a codec is.
//
// A codec stores rows of head_dim numbers. It has two formats.
//
//   run      16 consecutive tokens of one KV head: codes, then whatever the codes need (scales). Self-contained: a page of the library's
//   own
//            layout is a sequence of runs. Runs start at multiples of 64 bytes; their sizes are multiples of 64.
//   record   one row alone, without alignment: pages of any size, buffers of other libraries.
//
// Members, all static (d: channels of the row; rows: channel stride 1, row_stride in elements of T; slot: 0 .. 15):
//
//   run_tokens = 16, group_tokens, name
//   key_run_bytes(d), value_run_bytes(d), key_row_bytes(d), value_row_bytes(d)
//   encode_keys(rows, row_stride, count, d, run, slot)   rows go to slots slot .. slot + count - 1 of one run
//   encode_values(...)                                   alike
//   encode_key_row(row, d, record), encode_value_row(row, d, record)
//   decode_key(run, slot, d, out), decode_value(...)     the stored numbers as floats, exactly
//   copy_key(from, from_slot, to, to_slot, d), copy_value(...)      moves one row bit for bit; `from` may be `to`
//   pack_key_row(record, run, slot, d), pack_value_row(...)         record -> run
//
// Laws (tests/cache/codec_laws.hpp checks them for every codec):
//   - the bytes of a row depend on that row alone: not on its slot, its neighbours, or how many rows are encoded at once;
//   - encoding a slot leaves the other fifteen as they are, whatever order they are written in; slots never written may hold any bytes;
//   - packing a record gives the bytes that encoding the row into the run would give; so does copying from another run;
//   - NaN and infinities of a row stay in that row.
// `element` names the element type of codecs that store plain numbers (element.hpp). Codecs whose codes need several tokens (group_tokens >
// 1) keep rows exact until a whole group is committed; see sealing_codec.
//
//     using Codec = heddle::codec::int8<>;
//     static_assert(heddle::cache_codec<Codec>);
//     const std::size_t block = 64 / 16 * (Codec::key_run_bytes(128) + Codec::value_run_bytes(128));   // of 64 tokens of one KV head
#pragma once
#include <heddle/core/element.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace heddle {

namespace detail {

template <class C, class T>
concept encodes = requires(const T* rows, std::int64_t row_stride, int n, std::byte* bytes) {
  C::encode_keys(rows, row_stride, n, n, bytes, n);
  C::encode_values(rows, row_stride, n, n, bytes, n);
  C::encode_key_row(rows, n, bytes);
  C::encode_value_row(rows, n, bytes);
};

}  // namespace detail

template <class C>
concept cache_codec = requires(const std::byte* from, std::byte* to, float* out, int n) {
  requires C::run_tokens == 16;
  requires C::group_tokens >= 1;
  { C::name } -> std::convertible_to<const char*>;
  { C::key_run_bytes(n) } -> std::same_as<std::size_t>;
  { C::value_run_bytes(n) } -> std::same_as<std::size_t>;
  { C::key_row_bytes(n) } -> std::same_as<std::size_t>;
  { C::value_row_bytes(n) } -> std::same_as<std::size_t>;
  requires detail::encodes<C, float> && detail::encodes<C, float16> && detail::encodes<C, bfloat16>;
  C::decode_key(from, n, n, out);
  C::decode_value(from, n, n, out);
  C::copy_key(from, n, to, n, n);
  C::copy_value(from, n, to, n, n);
  C::pack_key_row(from, to, n, n);
  C::pack_value_row(from, to, n, n);
};

/// A codec of plain numbers: a key run is [head_dim][16] of `element`, a value run [head_dim / 16 rounded up][16][16], a record [head_dim].
template <class C>
concept element_storage = cache_codec<C> && real_element<typename C::element>;

/// A codec that codes group_tokens tokens together (a multiple of 16, so that a group is whole runs). encode_* keep rows exact; the cache
/// calls seal_keys and seal_values once per group, on the group's first run, when all its tokens are committed, and never rewrites it
/// afterwards.
template <class C>
concept sealing_codec = cache_codec<C> &&(C::group_tokens % 16 == 0) && requires(std::byte* run, int head_dim) {
  C::seal_keys(run, head_dim);
  C::seal_values(run, head_dim);
};

}  // namespace heddle
