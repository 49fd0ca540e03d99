// Keys and values in buffers of the caller's.
//
// dense(k, v)           [tokens, num_kv_heads, head_dim] and [tokens, num_kv_heads, head_dim_v]: one sequence. With an indptr of batch + 1
//                       entries, tokens indptr[b] .. indptr[b + 1] - 1 are sequence b.
// paged_rows<Element>   pages of any size >= 1, CSR page table:
//                         keys, values   [num_pages, num_kv_heads, page_size, head_dim] (and head_dim_v), any strides
//                         page_indices   page numbers, page_indptr[b] .. page_indptr[b + 1] - 1 are those of sequence b, any order
//                         lengths        tokens of every sequence
//                       page size 1, a partial last page and pages shared between sequences are legal; slots past the length are never read.
//
// Elements: float, float16, bfloat16, float8_e4m3, float8_e5m2. The last axis may have any stride. Rows are moved into runs one tile ahead of
// their use (about the cost of reading them once more from the second level cache); results equal those of a page_pool bit for bit.
//
//     std::vector<float> k(100 * 8 * 128), v(100 * 8 * 128);
//     auto keys = heddle::dense(heddle::tensor_view{k.data(), heddle::extents{100, 8, 128}}, heddle::tensor_view{v.data(), heddle::extents{100, 8, 128}});
#pragma once
#include <heddle/attention/source.hpp>
#include <heddle/cache/codec/element.hpp>

#include <span>

namespace heddle {
inline namespace HEDDLE_ISA {

}  // namespace HEDDLE_ISA
namespace detail::inline HEDDLE_ISA {

/// Copies sixteen or fewer rows into slots of a key run and a value run.
template <class E>
struct row_packer {
  using codec = codec::element_codec<E>;
  int head_dim, head_dim_v;

  std::size_t key_bytes() const { return codec::key_run_bytes(head_dim); }
  std::size_t value_bytes() const { return codec::value_run_bytes(head_dim_v); }
  std::size_t tile_bytes() const { return tile_runs * (key_bytes() + value_bytes()); }
  void place(tile& t, std::byte* scratch, int runs) const {
    for (int r = 0; r < tile_runs; ++r) {
      const auto used = static_cast<std::size_t>(r < runs ? r : runs - 1);
      t.key[r] = scratch + used * key_bytes();
      t.value[r] = scratch + tile_runs * key_bytes() + used * value_bytes();
    }
  }
  /// token: slot of the tile; strides in elements
  void pack(const E* key, std::int64_t key_row, std::int64_t key_channel, const E* value, std::int64_t value_row, std::int64_t value_channel, int count, int token, std::byte* scratch) const {
    while (count > 0) {
      const int slot = token % 16, n = count < 16 - slot ? count : 16 - slot;
      const auto run = static_cast<std::size_t>(token / 16);
      std::byte *keys = scratch + run * key_bytes(), *values = scratch + tile_runs * key_bytes() + run * value_bytes();
      if (key_channel == 1) codec::encode_keys(key, key_row, n, head_dim, keys, slot);
      else
        for (int i = 0; i < n; ++i)
          for (int c = 0; c < head_dim; ++c) reinterpret_cast<E*>(keys)[c * 16 + slot + i] = key[i * key_row + c * key_channel];
      if (value_channel == 1) codec::encode_values(value, value_row, n, head_dim_v, values, slot);
      else {
        const int width = codec::round16(head_dim_v);
        for (int i = 0; i < n; ++i)
          for (int c = 0; c < width; ++c) reinterpret_cast<E*>(values)[(slot + i) * width + c] = c < head_dim_v ? value[i * value_row + c * value_channel] : E(0.f);
      }
      key += n * key_row, value += n * value_row, token += n, count -= n;
    }
  }
};

}  // namespace detail::inline HEDDLE_ISA
inline namespace HEDDLE_ISA {

template <class E>
class dense_source {
 public:
  using codec = codec::element_codec<E>;

  dense_source(tensor_view<const E, 3> keys, tensor_view<const E, 3> values, std::span<const std::int32_t> indptr) : keys_(keys), values_(values), indptr_(indptr) {
    require(keys.extent(1) > 0 && keys.extent(2) > 0, "dense: argument 'keys' has shape [", keys.extent(0), ", ", keys.extent(1), ", ", keys.extent(2), "]; expected at least one head and one channel");
    require_shape("dense", "values", values, extents<3>{keys.extent(0), keys.extent(1), std::int64_t{-1}});
    require(values.extent(2) > 0, "dense: argument 'values' has no channels; expected 1 or more");
    for (std::size_t i = 0; i < indptr.size(); ++i)
      require(indptr[i] >= (i ? indptr[i - 1] : 0) && indptr[i] <= keys.extent(0), "dense: argument 'indptr': entry ", i, " is ", indptr[i], "; expected a non-decreasing list of token numbers up to ", keys.extent(0));
  }

  std::int64_t num_sequences() const { return indptr_.empty() ? 1 : static_cast<std::int64_t>(indptr_.size()) - 1; }
  std::int64_t length(std::int64_t sequence) const { return indptr_.empty() ? keys_.extent(0) : indptr_[static_cast<std::size_t>(sequence) + 1] - begin(sequence); }
  int num_kv_heads() const { return static_cast<int>(keys_.extent(1)); }
  int head_dim() const { return static_cast<int>(keys_.extent(2)); }
  int head_dim_v() const { return static_cast<int>(values_.extent(2)); }
  std::size_t scratch_bytes() const { return packer().tile_bytes(); }

  [[gnu::noinline]] void find(std::int64_t sequence, int kv_head, std::int64_t first_token, tile& t, std::byte* scratch) const {
    const std::int64_t rest = length(sequence) - first_token, at = begin(sequence) + first_token;
    const int count = static_cast<int>(rest < tile_tokens ? rest : tile_tokens);
    packer().place(t, scratch, (count + 15) / 16);
    packer().pack(keys_.at(at, kv_head), keys_.stride(0), keys_.stride(2), values_.at(at, kv_head), values_.stride(0), values_.stride(2), count, 0, scratch);
  }

 private:
  std::int64_t begin(std::int64_t sequence) const { return indptr_.empty() ? 0 : indptr_[static_cast<std::size_t>(sequence)]; }
  detail::row_packer<E> packer() const { return {head_dim(), head_dim_v()}; }

  tensor_view<const E, 3> keys_, values_;
  std::span<const std::int32_t> indptr_;
};

/// Keys and values of one sequence, or of a ragged batch with `indptr`. The tensors must outlive the source.
template <tensor_of<3> K, tensor_of<3> V>
  requires host_tensor<K> && host_tensor<V> && std::same_as<element_type<K>, element_type<V>> && real_element<element_type<K>> && (!std::same_as<element_type<K>, double>)
auto dense(const K& keys, const V& values, std::span<const std::int32_t> indptr = {}) {
  using E = element_type<K>;
  return dense_source<E>(tensor_view<const E, 3>(view_of(keys)), tensor_view<const E, 3>(view_of(values)), indptr);
}

template <class E, memory_space Space = host>
class paged_rows;

template <class E>
class paged_rows<E, host> {
 public:
  using codec = codec::element_codec<E>;

  /// Tables are checked here, once: every page number and every sequence that needs more pages than it has.
  paged_rows(tensor_view<const E, 4> keys, tensor_view<const E, 4> values, tensor_view<const std::int32_t, 1> page_indices, tensor_view<const std::int32_t, 1> page_indptr, tensor_view<const std::int32_t, 1> lengths)
      : keys_(keys), values_(values), pages_(page_indices), indptr_(page_indptr), lengths_(lengths) {
    require(keys.extent(1) > 0 && keys.extent(2) > 0 && keys.extent(3) > 0, "paged_rows: argument 'keys' has shape [", keys.extent(0), ", ", keys.extent(1), ", ", keys.extent(2), ", ", keys.extent(3), "]; expected heads, page size and head_dim of 1 or more");
    require_shape("paged_rows", "values", values, extents<4>{keys.extent(0), keys.extent(1), keys.extent(2), std::int64_t{-1}});
    require(values.extent(3) > 0, "paged_rows: argument 'values' has no channels; expected 1 or more");
    require_shape("paged_rows", "page_indptr", page_indptr, extents<1>{lengths.extent(0) + 1});
    for (std::int64_t b = 0; b < lengths.extent(0); ++b) {
      const std::int64_t first = page_indptr(b), last = page_indptr(b + 1);
      require(first >= 0 && last >= first && last <= page_indices.extent(0), "paged_rows: argument 'page_indptr': entries ", b, " and ", b + 1, " are ", first, " and ", last, "; expected a non-decreasing list up to ", page_indices.extent(0));
      require(lengths(b) >= 0 && lengths(b) <= (last - first) * keys.extent(2), "paged_rows: argument 'lengths': sequence ", b, " has ", lengths(b), " tokens; expected 0 to ", (last - first) * keys.extent(2), ", what its ", last - first, " pages hold");
      for (std::int64_t p = first; p < first + (lengths(b) + keys.extent(2) - 1) / keys.extent(2); ++p)
        require(page_indices(p) >= 0 && page_indices(p) < keys.extent(0), "paged_rows: argument 'page_indices': entry ", p, " is ", page_indices(p), "; expected a page below ", keys.extent(0));
    }
  }

  std::int64_t num_sequences() const { return lengths_.extent(0); }
  std::int64_t length(std::int64_t sequence) const { return lengths_(sequence); }
  int num_kv_heads() const { return static_cast<int>(keys_.extent(1)); }
  int head_dim() const { return static_cast<int>(keys_.extent(3)); }
  int head_dim_v() const { return static_cast<int>(values_.extent(3)); }
  std::size_t scratch_bytes() const { return packer().tile_bytes(); }

  [[gnu::noinline]] void find(std::int64_t sequence, int kv_head, std::int64_t first_token, tile& t, std::byte* scratch) const {
    const std::int64_t rest = length(sequence) - first_token, page_size = keys_.extent(2);
    const int count = static_cast<int>(rest < tile_tokens ? rest : tile_tokens);
    packer().place(t, scratch, (count + 15) / 16);
    std::int64_t page = indptr_(sequence) + first_token / page_size, slot = first_token % page_size;
    for (int token = 0; token < count; slot = 0, ++page) {
      const int n = static_cast<int>(page_size - slot < count - token ? page_size - slot : count - token);
      const std::int64_t p = pages_(page);
      packer().pack(keys_.at(p, kv_head, slot), keys_.stride(2), keys_.stride(3), values_.at(p, kv_head, slot), values_.stride(2), values_.stride(3), n, token, scratch);
      token += n;
    }
  }

 private:
  detail::row_packer<E> packer() const { return {head_dim(), head_dim_v()}; }

  tensor_view<const E, 4> keys_, values_;
  tensor_view<const std::int32_t, 1> pages_, indptr_, lengths_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
