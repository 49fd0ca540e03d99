// A paged cache of keys and values for many sequences, with one transaction per step for all layers.
//
//   reserve(sequence, rows)      the only step that can fail for lack of pages; the error names the numbers, nothing has changed then
//   write(sequence, layer, k, v) encodes the reserved rows of one layer: [rows, num_kv_heads, head_dim], any strides, any real type
//   commit(sequence, rows)       keeps the first rows, rolls back the rest; every layer must have written what is kept
//   compact(sequence, path)      keeps the rows of an accepted tree path (indices into the reserved rows, strictly increasing): they move
//   to the
//                                front bit for bit in all layers and heads, then they are committed, as if nothing else had been written
//   rollback, truncate, fork, free
//   drop, gather                 eviction of committed tokens: the others move up in order, without recoding
//
// Template parameters: the codec (codec/codec.hpp) and the layout (layout.hpp; lane_layout wants page_size to be a multiple of 16).
// Positions are explicit, int32 per token; by default they continue after the last one committed, whatever was evicted in between.
// Codecs of token groups are sealed at commit: only whole groups of committed tokens, once.
//
// fork shares pages by reference count. A shared page is never written: reserve, drop and gather copy it first and count the copy as a page
// they need. Slots never written hold what the memory held; readers never let them through.
// Threads: const members may run on many threads at once; so may write() for different layers or sequences. All else is exclusive.
// Memory: the constructor allocates all pages (and touches none) or takes `storage`; tables grow by doubling in new_sequence, reserve and
// fork; usage, read and same_rows use temporaries; nothing else allocates. Results never depend on the executor. Cost: a row of one layer
// reads num_kv_heads (head_dim + head_dim_v) elements and writes their codes; compact moves the codes of the rows that change place.
// Errors: heddle::error for stale ids, shapes, open or missing reservations, pages. std::bad_alloc leaves all as it was.
//
//     page_pool<codec::f16> pool{{.num_layers = 32, .num_pages = 4096, .num_kv_heads = 8, .head_dim = 128}};
//     sequence_id s = pool.new_sequence();
//     pool.reserve(s, rows);
//     for (int layer = 0; layer < 32; ++layer) {
//       pool.write(s, layer, k[layer], v[layer]);
//       attend(q[layer], pool[s].layer(layer) | causal(), out, lse);
//     }
//     pool.commit(s, accepted);
#pragma once
#include <heddle/cache/page_storage.hpp>
#include <heddle/cache/sequence_table.hpp>
#include <heddle/cache/source.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle {

struct write_options {
  std::int64_t first_row = 0;  ///< among the reserved rows; the row ranges of a layer ascend without gaps, a range may be written again
  executor_ref executor{};
};

struct pool_usage {
  std::int64_t num_pages, pages_in_use;
  std::size_t live_bytes;      ///< of the rows that sequences hold, a row held by several counted once
  std::size_t resident_bytes;  ///< of the pages in use
  std::size_t capacity_bytes;  ///< of all pages
};

inline namespace HEDDLE_ISA {

template <cache_codec Codec, class Layout = lane_layout>
class page_pool {
  static_assert(Codec::group_tokens == 1 || sealing_codec<Codec>, "a codec of token groups must know how to seal them");

 public:
  using codec = Codec;
  using layout = Layout;

  explicit page_pool(const page_pool_options& options)
      : storage_(options),
        sequences_(options.page_size, options.num_pages, storage_.num_tables(), options.num_layers, Codec::group_tokens) {}
  /// The bytes that options.storage must hold.
  static std::size_t storage_bytes(const page_pool_options& options) { return detail::page_storage<Codec, Layout>::bytes_for(options); }

  int num_layers() const { return storage_.options().num_layers; }
  int num_kv_heads() const { return storage_.options().num_kv_heads; }
  int head_dim() const { return storage_.options().head_dim; }
  int head_dim_v() const { return storage_.options().head_dim_v; }
  int page_size() const { return storage_.options().page_size; }
  std::int64_t num_pages() const { return sequences_.num_pages(); }
  std::int64_t free_pages() const { return sequences_.free_pages(); }

  // --- sequences ---

  sequence_id new_sequence() { return sequences_.new_sequence(); }
  /// A new sequence with the committed tokens of `parent`, or the first `length` of them, in the same pages.
  sequence_id fork(sequence_id parent) { return sequences_.fork(parent); }
  sequence_id fork(sequence_id parent, std::int64_t length) {
    sequences_.require_truncatable("fork", parent, length);
    const sequence_id child = fork(parent);
    truncate(child, length);
    return child;
  }
  void free(sequence_id id) { sequences_.free(id); }

  std::int64_t committed(sequence_id id) const { return sequences_.longest(sequences_.live("committed", id)); }
  std::int64_t reserved(sequence_id id) const { return sequences_.live("reserved", id).reserved; }
  /// Of the reserved rows, those that `layer` has written.
  std::int64_t written(sequence_id id, int layer) const {
    require_layer("written", layer);
    return sequences_.live("written", id).written[static_cast<std::size_t>(layer)];
  }
  /// Committed and reserved tokens. With per_head tables: of the longest head, or of one.
  std::int64_t length(sequence_id id) const { return committed(id) + reserved(id); }
  std::int64_t length(sequence_id id, int layer, int head) const { return table("length", id, layer, head).length(); }
  /// Of the committed and reserved tokens. The first form is for shared tables.
  std::span<const std::int32_t> positions(sequence_id id) const { return positions(id, 0, 0); }
  std::span<const std::int32_t> positions(sequence_id id, int layer, int head) const {
    const detail::page_table& t = table("positions", id, layer, head);
    return {t.positions.data(), t.positions.size()};
  }
  /// The position that the next reserved token gets by default.
  std::int64_t next_position(sequence_id id) const { return sequences_.live("next_position", id).next_position; }

  /// What attention reads: pool[ids].layer(l) is a key source.
  sequence_batch<page_pool> operator[](sequence_id id) const {
    sequences_.live("operator[]", id);
    return {*this, id};
  }
  sequence_batch<page_pool> operator[](std::span<const sequence_id> ids) const {
    for (const sequence_id id : ids) sequences_.live("operator[]", id);
    return {*this, ids};
  }

  // --- one step ---

  /// Pages that reserve(id, rows) would take, copies of shared pages included.
  std::int64_t pages_needed(sequence_id id, std::int64_t rows) const {
    return sequences_.pages_needed(sequences_.live("pages_needed", id), rows);
  }

  void reserve(sequence_id id, std::int64_t rows, std::span<const std::int32_t> positions = {}) {
    sequences_.reserve(id, rows, positions, copy_page());
  }

  /// Encodes rows options.first_row .. + k.extent(0) - 1 of the reserved ones.
  template <tensor_of<3> Keys, tensor_of<3> Values>
    requires(host_tensor<Keys>&& host_tensor<Values>&& real_element<element_type<Keys>>&& real_element<element_type<Values>>)
  void write(sequence_id id, int layer, const Keys& k, const Values& v, const write_options& options = {}) {
    detail::sequence_state& s = sequences_.live("write", id);
    require_layer("write", layer);
    const auto keys = view_of(k);
    const auto values = view_of(v);
    const std::int64_t rows = keys.extent(0), end = options.first_row + rows;
    require_shape("page_pool::write", "k", keys, extents{rows, num_kv_heads(), head_dim()});
    require_shape("page_pool::write", "v", values, extents{rows, num_kv_heads(), head_dim_v()});
    std::int64_t& written = s.written[static_cast<std::size_t>(layer)];
    require(options.first_row >= 0 && options.first_row <= written, "page_pool::write: argument 'first_row' is ", options.first_row,
            "; expected 0 to ", written, ", the rows of layer ", layer, " written so far");
    require(end <= s.reserved, "page_pool::write: argument 'k' holds rows ", options.first_row, " to ", end - 1, "; ", s.reserved,
            " rows are reserved");
    if (rows == 0) return;
    const auto table_of = [&](int head) -> const detail::page_table& { return s.tables[storage_.table_of(layer, head)]; };
    const auto first_token = [&](int head) { return table_of(head).committed + options.first_row; };
    storage_.write(layer, keys, values, table_of, first_token, options.executor);
    written = std::max(written, end);
  }

  /// Keeps all reserved rows, or the first `rows` of them.
  void commit(sequence_id id) { commit(id, reserved(id)); }
  void commit(sequence_id id, std::int64_t rows) {
    detail::sequence_state& s = sequences_.live("commit", id);
    require(rows >= 0 && rows <= s.reserved, "page_pool::commit: argument 'rows' is ", rows, "; expected 0 to ", s.reserved,
            ", the reserved rows");
    sequences_.require_written("commit", s, rows);
    sequences_.keep(s, rows, seal());
  }
  void rollback(sequence_id id) { sequences_.keep(sequences_.live("rollback", id), 0, seal()); }

  void compact(sequence_id id, std::span<const std::int32_t> path) {
    detail::sequence_state& s = sequences_.live("compact", id);
    sequences_.require_increasing("compact", "path", path, s.reserved);
    sequences_.require_written("compact", s, path.empty() ? 0 : path.back() + 1);
    for (std::size_t t = 0; t < s.tables.size(); ++t) {
      const std::int64_t start = s.tables[t].committed;
      for (std::size_t i = 0; i < path.size(); ++i) move_token()(t, s.tables[t], start + path[i], start + static_cast<std::int64_t>(i));
    }
    sequences_.keep(s, static_cast<std::int64_t>(path.size()), seal());
  }

  // --- committed tokens ---

  /// Keeps the first `length` committed tokens; positions continue after the last of them.
  void truncate(sequence_id id, std::int64_t length) {
    sequences_.truncate(sequences_.require_truncatable("truncate", id, length), length);
  }

  /// Evicts the tokens at `indices` (strictly increasing) from all layers and heads, or from one. Later reservations continue the
  /// positions.
  void drop(sequence_id id, std::span<const std::int32_t> indices) requires(Codec::group_tokens == 1) {
    sequences_.evict("drop", id, 0, storage_.num_tables(), indices, false, copy_page(), move_token());
  }
  void drop(sequence_id id, int layer, int head, std::span<const std::int32_t> indices) requires(Codec::group_tokens == 1) {
    const std::size_t t = own_table("drop", layer, head);
    sequences_.evict("drop", id, t, t + 1, indices, false, copy_page(), move_token());
  }
  /// Keeps the tokens at `indices` (strictly increasing) only.
  void gather(sequence_id id, std::span<const std::int32_t> indices) requires(Codec::group_tokens == 1) {
    sequences_.evict("gather", id, 0, storage_.num_tables(), indices, true, copy_page(), move_token());
  }
  void gather(sequence_id id, int layer, int head, std::span<const std::int32_t> indices) requires(Codec::group_tokens == 1) {
    const std::size_t t = own_table("gather", layer, head);
    sequences_.evict("gather", id, t, t + 1, indices, true, copy_page(), move_token());
  }

  // --- what is stored ---

  pool_usage usage() const {
    const std::int64_t in_use = num_pages() - free_pages();
    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    return {.num_pages = num_pages(),
            .pages_in_use = in_use,
            .live_bytes = count(sequences_.live_tokens()) * storage_.blocks_per_page() * storage_.row_bytes(),
            .resident_bytes = count(in_use) * storage_.page_bytes(),
            .capacity_bytes = count(num_pages()) * storage_.page_bytes()};
  }

  /// The stored keys and values of tokens first .. as floats: [tokens, num_kv_heads, head_dim].
  void read(sequence_id id, int layer, std::int64_t first, tensor_view<float, 3> keys, tensor_view<float, 3> values) const {
    const std::int64_t n = keys.extent(0);
    require_layer("read", layer);
    require_shape("page_pool::read", "keys", keys, extents{n, num_kv_heads(), head_dim()});
    require_shape("page_pool::read", "values", values, extents{n, num_kv_heads(), head_dim_v()});
    for (int head = 0; head < num_kv_heads(); ++head) {
      const std::int64_t length = table("read", id, layer, head).length();
      require(first >= 0 && first + n <= length, "page_pool::read: argument 'first' is ", first, " for ", n, " tokens; head ", head,
              " holds ", length);
    }
    lone_row row(*this);
    aligned_vector<float> numbers(static_cast<std::size_t>(std::max(head_dim(), head_dim_v())));
    for (int head = 0; head < num_kv_heads(); ++head)
      for (std::int64_t i = 0; i < n; ++i) {
        row.extract(table("read", id, layer, head), layer, head, first + i);
        Codec::decode_key(row.key.data(), 0, head_dim(), numbers.data());
        for (int c = 0; c < head_dim(); ++c) keys(i, head, c) = numbers[static_cast<std::size_t>(c)];
        Codec::decode_value(row.value.data(), 0, head_dim_v(), numbers.data());
        for (int c = 0; c < head_dim_v(); ++c) values(i, head, c) = numbers[static_cast<std::size_t>(c)];
      }
  }

  /// Whether two sequences hold the same tokens, bit for bit: positions, keys and values in all layers and heads, reserved ones included.
  /// The pools may differ in layout, page size and tables.
  template <class OtherLayout>
  bool same_rows(sequence_id a, const page_pool<Codec, OtherLayout>& other, sequence_id b) const {
    if (num_layers() != other.num_layers() || num_kv_heads() != other.num_kv_heads()) return false;
    if (head_dim() != other.head_dim() || head_dim_v() != other.head_dim_v()) return false;
    lone_row mine(*this);
    typename page_pool<Codec, OtherLayout>::lone_row theirs(other);
    for (int layer = 0; layer < num_layers(); ++layer)
      for (int head = 0; head < num_kv_heads(); ++head) {
        const auto &t = table("same_rows", a, layer, head), &u = other.table("same_rows", b, layer, head);
        if (t.positions != u.positions) return false;
        for (std::int64_t i = 0; i < t.length(); ++i) {
          mine.extract(t, layer, head, i), theirs.extract(u, layer, head, i);
          if (mine.key != theirs.key || mine.value != theirs.value) return false;
        }
      }
    return true;
  }

  // --- what sources need ---

  std::size_t scratch_bytes() const { return storage_.block().scratch_bytes(); }
  /// Tokens first .. first + 63 (first: a multiple of 64 below the head's length). Unchecked: ids were checked when the view was made.
  [[gnu::always_inline]] void find(sequence_id id, int layer, int head, std::int64_t first, tile& t, std::byte* scratch) const noexcept {
    const detail::page_table& table = sequences_[id].tables[storage_.table_of(layer, head)];
    const auto block_of = [&](std::uint32_t page) { return storage_.address(table.pages[page], layer, head); };
    storage_.block().find(block_of, first, table.length(), t, scratch);
  }

 private:
  template <cache_codec, class>
  friend class page_pool;

  // One token of one head, alone: in slot 0 of zeroed runs.
  struct lone_row {
    const page_pool& pool;
    aligned_vector<std::byte> key, value;
    explicit lone_row(const page_pool& p)
        : pool(p), key(Codec::key_run_bytes(p.head_dim())), value(Codec::value_run_bytes(p.head_dim_v())) {}
    void extract(const detail::page_table& t, int layer, int head, std::int64_t token) {
      const auto at = pool.storage_.place(token);
      const std::byte* block = pool.storage_.address(t.pages[at.page], layer, head);
      pool.storage_.block().extract_key(block, at.slot, key.data());
      pool.storage_.block().extract_value(block, at.slot, value.data());
    }
  };

  // --- what happens to the bytes when tables change ---

  auto copy_page() {
    return [this](std::int32_t from, std::int32_t to) { storage_.copy_page(from, to); };
  }
  auto move_token() {
    return [this](std::size_t table, detail::page_table& t, std::int64_t from, std::int64_t to) {
      if (from == to) return;
      storage_.move_token(table, t, from, to);
      t.positions[static_cast<std::size_t>(to)] = t.positions[static_cast<std::size_t>(from)];
    };
  }
  auto seal() {
    return [this](std::size_t table, const detail::page_table& t, std::int64_t before) { seal_groups(table, t, before); };
  }
  // Groups that became complete with the tokens from `before` on.
  void seal_groups([[maybe_unused]] std::size_t table, [[maybe_unused]] const detail::page_table& t, [[maybe_unused]] std::int64_t before) {
    if constexpr (Codec::group_tokens > 1)
      for (std::int64_t group = before / Codec::group_tokens; (group + 1) * Codec::group_tokens <= t.committed; ++group)
        storage_.seal(table, t, group * Codec::group_tokens);
  }

  // --- checks ---

  void require_layer(const char* function, int layer) const {
    require(layer >= 0 && layer < num_layers(), "page_pool::", function, ": argument 'layer' is ", layer, "; expected 0 to ",
            num_layers() - 1);
  }
  void require_head(const char* function, int head) const {
    require(head >= 0 && head < num_kv_heads(), "page_pool::", function, ": argument 'head' is ", head, "; expected 0 to ",
            num_kv_heads() - 1);
  }
  const detail::page_table& table(const char* function, sequence_id id, int layer, int head) const {
    const detail::sequence_state& s = sequences_.live(function, id);
    require_layer(function, layer), require_head(function, head);
    return s.tables[storage_.table_of(layer, head)];
  }
  std::size_t own_table(const char* function, int layer, int head) const {
    require(storage_.options().tables == page_tables::per_head, "page_pool::", function,
            ": layers and heads share their tables; construct the pool with .tables = page_tables::per_head to evict from one");
    require_layer(function, layer), require_head(function, head);
    return storage_.table_of(layer, head);
  }

  detail::page_storage<Codec, Layout> storage_;
  detail::sequence_table sequences_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
