// A paged cache of keys and values for many sequences, with one transaction per step for all layers.
//
//   reserve(sequence, rows)      the only step that can fail for lack of pages; the error names the numbers, nothing has changed then
//   write(sequence, layer, k, v) encodes the reserved rows of one layer: [rows, num_kv_heads, head_dim], any strides, any real type
//   commit(sequence, rows)       keeps the first rows, rolls back the rest; every layer must have written what is kept
//   compact(sequence, path)      keeps the rows of an accepted tree path (indices into the reserved rows, strictly increasing): they move to the
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
// Memory: the constructor allocates all pages (and touches none) or takes `storage`; tables grow by doubling in new_sequence, reserve and fork;
// usage, read and same_rows use temporaries; nothing else allocates. Results never depend on the executor.
// Cost: a row of one layer reads num_kv_heads (head_dim + head_dim_v) elements and writes their codes; compact moves the codes of the rows that
// change place. Errors: heddle::error for stale ids, shapes, open or missing reservations, pages. std::bad_alloc leaves all as it was.
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
#include <heddle/cache/page_table.hpp>
#include <heddle/cache/source.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace heddle {

struct write_options {
  std::int64_t first_row = 0;   ///< among the reserved rows; the row ranges of a layer ascend without gaps, a range may be written again
  executor_ref executor{};
};

struct pool_usage {
  std::int64_t num_pages, pages_in_use;
  std::size_t live_bytes;       ///< of the rows that sequences hold, a row held by several counted once
  std::size_t resident_bytes;   ///< of the pages in use
  std::size_t capacity_bytes;   ///< of all pages
};

inline namespace HEDDLE_ISA {

template <cache_codec Codec, class Layout = lane_layout>
class page_pool {
  static_assert(Codec::group_tokens == 1 || sealing_codec<Codec>, "a codec of token groups must know how to seal them");

 public:
  using codec = Codec;
  using layout = Layout;

  explicit page_pool(const page_pool_options& options) : storage_(options), allocator_(static_cast<std::int32_t>(options.num_pages)) {}
  /// The bytes that options.storage must hold.
  static std::size_t storage_bytes(const page_pool_options& options) { return detail::page_storage<Codec, Layout>::bytes_for(options); }

  int num_layers() const { return storage_.options().num_layers; }
  int num_kv_heads() const { return storage_.options().num_kv_heads; }
  int head_dim() const { return storage_.options().head_dim; }
  int head_dim_v() const { return storage_.options().head_dim_v; }
  int page_size() const { return storage_.options().page_size; }
  std::int64_t num_pages() const { return allocator_.num_pages(); }
  std::int64_t free_pages() const { return allocator_.num_free(); }

  // --- sequences ---

  sequence_id new_sequence() {
    if (free_ids_.empty()) {
      detail::make_room(free_ids_, static_cast<std::int64_t>(sequences_.size()) + 1);
      detail::sequence_state fresh;
      fresh.tables.resize(storage_.num_tables());
      fresh.written.resize(static_cast<std::size_t>(num_layers()));
      sequences_.push_back(static_cast<detail::sequence_state&&>(fresh));
      free_ids_.push_back(static_cast<std::uint32_t>(sequences_.size() - 1));
    }
    const std::uint32_t index = free_ids_.back();
    free_ids_.pop_back();
    detail::sequence_state& s = sequences_[index];
    s.live = true, s.reserved = 0, s.next_position = 0;
    return {index, ++s.generation};
  }

  /// A new sequence with the committed tokens of `parent`, or the first `length` of them, in the same pages.
  sequence_id fork(sequence_id parent) {
    require_closed("fork", parent);
    aligned_vector<detail::page_table> tables = sequences_[parent.index].tables;
    const sequence_id child = new_sequence();
    detail::sequence_state& s = sequences_[child.index];
    s.tables = static_cast<aligned_vector<detail::page_table>&&>(tables);
    s.next_position = sequences_[parent.index].next_position;
    for (const detail::page_table& t : s.tables)
      for (const std::int32_t page : t.pages) allocator_.share(page);
    return child;
  }
  sequence_id fork(sequence_id parent, std::int64_t length) {
    require_truncatable("fork", parent, length);
    const sequence_id child = fork(parent);
    truncate(child, length);
    return child;
  }

  void free(sequence_id id) {
    detail::sequence_state& s = live("free", id);
    for (detail::page_table& t : s.tables) t.committed = 0, shrink(t);
    s.live = false;
    free_ids_.push_back(id.index);   // has room: see new_sequence
  }

  std::int64_t committed(sequence_id id) const { return longest(live("committed", id)); }
  std::int64_t reserved(sequence_id id) const { return live("reserved", id).reserved; }
  /// Committed and reserved tokens. With per_head tables: of the longest head, or of one.
  std::int64_t length(sequence_id id) const { return longest(live("length", id)) + live("length", id).reserved; }
  std::int64_t length(sequence_id id, int layer, int head) const { return table("length", id, layer, head).length(); }
  /// Of the committed and reserved tokens. The first form is for shared tables.
  std::span<const std::int32_t> positions(sequence_id id) const { return positions(id, 0, 0); }
  std::span<const std::int32_t> positions(sequence_id id, int layer, int head) const {
    const detail::page_table& t = table("positions", id, layer, head);
    return {t.positions.data(), t.positions.size()};
  }
  /// The position that the next reserved token gets by default.
  std::int64_t next_position(sequence_id id) const { return live("next_position", id).next_position; }

  sequence_batch<page_pool> operator[](sequence_id id) const { return live("operator[]", id), sequence_batch<page_pool>(*this, id); }
  sequence_batch<page_pool> operator[](std::span<const sequence_id> ids) const {
    for (const sequence_id id : ids) live("operator[]", id);
    return {*this, ids};
  }

  // --- one step ---

  /// Pages that reserve(id, rows) would take, copies of shared pages included.
  std::int64_t pages_needed(sequence_id id, std::int64_t rows) const {
    std::int64_t needed = 0;
    for (const detail::page_table& t : live("pages_needed", id).tables) needed += pages_of(t.committed + rows) - pages_of(t.committed) + (rows > 0 && tail_is_shared(t));
    return needed;
  }

  void reserve(sequence_id id, std::int64_t rows, std::span<const std::int32_t> positions = {}) {
    detail::sequence_state& s = require_closed("reserve", id);
    constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
    require(rows >= 0 && rows <= limit - longest(s), "page_pool::reserve: argument 'rows' is ", rows, "; expected 0 to ", limit - longest(s));
    require(positions.empty() || static_cast<std::int64_t>(positions.size()) == rows, "page_pool::reserve: argument 'positions' holds ", positions.size(), " entries; expected ", rows);
    require(!positions.empty() || s.next_position + rows <= limit + 1, "page_pool::reserve: argument 'positions' is empty and ", rows, " positions after ", s.next_position, " pass 2^31");
    const std::int64_t needed = pages_needed(id, rows);
    require(needed <= free_pages(), "page_pool::reserve: ", needed, " pages needed, ", free_pages(), " free of ", num_pages(), " (sequence ", id.index, ", length ", longest(s), "); nothing was changed");
    for (detail::page_table& t : s.tables) {
      detail::make_room(t.pages, pages_of(t.committed + rows));
      detail::make_room(t.positions, t.committed + rows);
    }
    for (detail::page_table& t : s.tables) {
      if (rows > 0 && tail_is_shared(t)) make_private(t.pages.back());
      while (static_cast<std::int64_t>(t.pages.size()) < pages_of(t.committed + rows)) t.pages.push_back(allocator_.take());
      for (std::int64_t i = 0; i < rows; ++i) t.positions.push_back(positions.empty() ? static_cast<std::int32_t>(s.next_position + i) : positions[static_cast<std::size_t>(i)]);
    }
    s.reserved = rows;
    std::fill(s.written.begin(), s.written.end(), 0);
  }

  /// Encodes rows options.first_row .. + k.extent(0) - 1 of the reserved ones.
  template <tensor_of<3> Keys, tensor_of<3> Values>
    requires(host_tensor<Keys> && host_tensor<Values> && real_element<element_type<Keys>> && real_element<element_type<Values>>)
  void write(sequence_id id, int layer, const Keys& k, const Values& v, const write_options& options = {}) {
    detail::sequence_state& s = live("write", id);
    require_layer("write", layer);
    const auto keys = view_of(k);
    const auto values = view_of(v);
    const std::int64_t rows = keys.extent(0), end = options.first_row + rows;
    require_shape("page_pool::write", "k", keys, extents{rows, num_kv_heads(), head_dim()});
    require_shape("page_pool::write", "v", values, extents{rows, num_kv_heads(), head_dim_v()});
    std::int64_t& written = s.written[static_cast<std::size_t>(layer)];
    require(options.first_row >= 0 && options.first_row <= written, "page_pool::write: argument 'first_row' is ", options.first_row, "; expected 0 to ", written, ", the rows of layer ", layer, " written so far");
    require(end <= s.reserved, "page_pool::write: argument 'k' holds rows ", options.first_row, " to ", end - 1, "; ", s.reserved, " rows are reserved");
    if (rows == 0) return;
    const auto table_of = [&](int head) -> const detail::page_table& { return s.tables[storage_.table_of(layer, head)]; };
    storage_.write(layer, keys, values, table_of, [&](int head) { return table_of(head).committed + options.first_row; }, options.executor);
    written = std::max(written, end);
  }

  /// Keeps all reserved rows, or the first `rows` of them.
  void commit(sequence_id id) { commit(id, live("commit", id).reserved); }
  void commit(sequence_id id, std::int64_t rows) {
    detail::sequence_state& s = live("commit", id);
    require(rows >= 0 && rows <= s.reserved, "page_pool::commit: argument 'rows' is ", rows, "; expected 0 to ", s.reserved, ", the reserved rows");
    require_written("commit", s, rows);
    keep(s, rows);
  }
  void rollback(sequence_id id) { keep(live("rollback", id), 0); }

  void compact(sequence_id id, std::span<const std::int32_t> path) {
    detail::sequence_state& s = live("compact", id);
    require_increasing("compact", "path", path, s.reserved);
    require_written("compact", s, path.empty() ? 0 : path.back() + 1);
    for (std::size_t t = 0; t < s.tables.size(); ++t) {
      const std::int64_t start = s.tables[t].committed;
      for (std::size_t i = 0; i < path.size(); ++i) move_token(t, s.tables[t], start + path[i], start + static_cast<std::int64_t>(i));
    }
    keep(s, static_cast<std::int64_t>(path.size()));
  }

  // --- committed tokens ---

  /// Keeps the first `length` committed tokens; positions continue after the last of them.
  void truncate(sequence_id id, std::int64_t length) {
    detail::sequence_state& s = require_truncatable("truncate", id, length);
    if (length == longest(s)) return;
    for (detail::page_table& t : s.tables) t.committed = length, shrink(t);
    s.next_position = length ? std::int64_t{s.tables[0].positions.back()} + 1 : 0;
  }

  /// Evicts the tokens at `indices` (strictly increasing) from all layers and heads, or from one. Later reservations continue the positions.
  void drop(sequence_id id, std::span<const std::int32_t> indices)
    requires(Codec::group_tokens == 1)
  {
    evict("drop", id, 0, storage_.num_tables(), indices, false);
  }
  void drop(sequence_id id, int layer, int head, std::span<const std::int32_t> indices)
    requires(Codec::group_tokens == 1)
  {
    const std::size_t t = own_table("drop", layer, head);
    evict("drop", id, t, t + 1, indices, false);
  }
  /// Keeps the tokens at `indices` (strictly increasing) only.
  void gather(sequence_id id, std::span<const std::int32_t> indices)
    requires(Codec::group_tokens == 1)
  {
    evict("gather", id, 0, storage_.num_tables(), indices, true);
  }
  void gather(sequence_id id, int layer, int head, std::span<const std::int32_t> indices)
    requires(Codec::group_tokens == 1)
  {
    const std::size_t t = own_table("gather", layer, head);
    evict("gather", id, t, t + 1, indices, true);
  }

  // --- what is stored ---

  pool_usage usage() const {
    aligned_vector<std::int32_t> tokens(static_cast<std::size_t>(num_pages()));   // per page, the most that any sequence holds
    for (const detail::sequence_state& s : sequences_)
      for (const detail::page_table& t : s.tables)
        for (std::size_t i = 0; i < t.pages.size(); ++i) {
          const std::int64_t here = std::min<std::int64_t>(page_size(), t.length() - static_cast<std::int64_t>(i) * page_size());
          std::int32_t& most = tokens[static_cast<std::size_t>(t.pages[i])];
          most = std::max(most, static_cast<std::int32_t>(here));
        }
    std::size_t live_tokens = 0;
    for (const std::int32_t n : tokens) live_tokens += static_cast<std::size_t>(n);
    const std::int64_t in_use = num_pages() - free_pages();
    return {num_pages(), in_use, live_tokens * storage_.blocks_per_page() * storage_.row_bytes(), static_cast<std::size_t>(in_use) * storage_.page_bytes(), static_cast<std::size_t>(num_pages()) * storage_.page_bytes()};
  }

  /// The stored keys and values of tokens first .. as floats: [tokens, num_kv_heads, head_dim].
  void read(sequence_id id, int layer, std::int64_t first, tensor_view<float, 3> keys, tensor_view<float, 3> values) const {
    const std::int64_t n = keys.extent(0);
    require_layer("read", layer);
    require_shape("page_pool::read", "keys", keys, extents{n, num_kv_heads(), head_dim()});
    require_shape("page_pool::read", "values", values, extents{n, num_kv_heads(), head_dim_v()});
    for (int head = 0; head < num_kv_heads(); ++head)
      require(first >= 0 && first + n <= table("read", id, layer, head).length(), "page_pool::read: argument 'first' is ", first, "; expected tokens within 0 to ", table("read", id, layer, head).length());
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

  /// Whether two sequences hold the same tokens, bit for bit: positions, keys and values in all layers and heads, reserved ones included. The
  /// pools may differ in layout, page size and tables.
  template <class OtherLayout>
  bool same_rows(sequence_id a, const page_pool<Codec, OtherLayout>& other, sequence_id b) const {
    if (num_layers() != other.num_layers() || num_kv_heads() != other.num_kv_heads() || head_dim() != other.head_dim() || head_dim_v() != other.head_dim_v()) return false;
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
    const detail::page_table& table = sequences_[id.index].tables[storage_.table_of(layer, head)];
    storage_.block().find([&](std::uint32_t page) { return storage_.address(table.pages[page], layer, head); }, first, table.length(), t, scratch);
  }

 private:
  template <cache_codec, class>
  friend class page_pool;

  // One token of one head, alone: in slot 0 of zeroed runs.
  struct lone_row {
    const page_pool& pool;
    aligned_vector<std::byte> key, value;
    explicit lone_row(const page_pool& p) : pool(p), key(Codec::key_run_bytes(p.head_dim())), value(Codec::value_run_bytes(p.head_dim_v())) {}
    void extract(const detail::page_table& t, int layer, int head, std::int64_t token) {
      const auto at = pool.storage_.place(token);
      const std::byte* block = pool.storage_.address(t.pages[at.page], layer, head);
      pool.storage_.block().extract_key(block, at.slot, key.data());
      pool.storage_.block().extract_value(block, at.slot, value.data());
    }
  };

  // --- checks ---

  const detail::sequence_state& live(const char* function, sequence_id id) const {
    require(id.index < sequences_.size() && sequences_[id.index].live && sequences_[id.index].generation == id.generation, "page_pool::", function, ": argument 'sequence' (index ", id.index, ", generation ", id.generation,
            ") names no sequence of this pool");
    return sequences_[id.index];
  }
  detail::sequence_state& live(const char* function, sequence_id id) { return const_cast<detail::sequence_state&>(static_cast<const page_pool*>(this)->live(function, id)); }
  detail::sequence_state& require_closed(const char* function, sequence_id id) {
    detail::sequence_state& s = live(function, id);
    require(s.reserved == 0, "page_pool::", function, ": sequence ", id.index, " has ", s.reserved, " reserved rows; commit or roll back first");
    return s;
  }
  detail::sequence_state& require_truncatable(const char* function, sequence_id id, std::int64_t length) {
    detail::sequence_state& s = require_closed(function, id);
    const std::int64_t most = longest(s);
    require(length >= 0 && length <= most, "page_pool::", function, ": argument 'length' is ", length, "; expected 0 to ", most);
    if (length == most) return s;
    for (const detail::page_table& t : s.tables) require(t.committed == most, "page_pool::", function, ": argument 'length' is ", length, ", but heads hold ", t.committed, " to ", most, " tokens after eviction");
    require(length % Codec::group_tokens == 0 || length >= most - most % Codec::group_tokens, "page_pool::", function, ": argument 'length' is ", length, ", inside a sealed group; expected a multiple of ", Codec::group_tokens);
    return s;
  }
  void require_layer(const char* function, int layer) const { require(layer >= 0 && layer < num_layers(), "page_pool::", function, ": argument 'layer' is ", layer, "; expected 0 to ", num_layers() - 1); }
  void require_written(const char* function, const detail::sequence_state& s, std::int64_t rows) const {
    for (std::size_t layer = 0; layer < s.written.size(); ++layer) require(s.written[layer] >= rows, "page_pool::", function, ": layer ", layer, " has written ", s.written[layer], " of the ", rows, " rows to keep");
  }
  static void require_increasing(const char* function, const char* argument, std::span<const std::int32_t> indices, std::int64_t end) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t least = i ? std::int64_t{indices[i - 1]} + 1 : 0;
      require(indices[i] >= least && indices[i] < end, "page_pool::", function, ": argument '", argument, "': entry ", i, " is ", indices[i], "; expected ", least, " to ", end - 1, ", strictly increasing");
    }
  }
  const detail::page_table& table(const char* function, sequence_id id, int layer, int head) const {
    const detail::sequence_state& s = live(function, id);
    require_layer(function, layer);
    require(head >= 0 && head < num_kv_heads(), "page_pool::", function, ": argument 'head' is ", head, "; expected 0 to ", num_kv_heads() - 1);
    return s.tables[storage_.table_of(layer, head)];
  }
  std::size_t own_table(const char* function, int layer, int head) const {
    require(storage_.options().tables == page_tables::per_head, "page_pool::", function, ": layers and heads share their tables; construct the pool with .tables = page_tables::per_head to evict from one");
    require_layer(function, layer);
    require(head >= 0 && head < num_kv_heads(), "page_pool::", function, ": argument 'head' is ", head, "; expected 0 to ", num_kv_heads() - 1);
    return storage_.table_of(layer, head);
  }

  // --- changes, none of which can fail ---

  std::int64_t pages_of(std::int64_t tokens) const { return (tokens + page_size() - 1) / page_size(); }
  static std::int64_t longest(const detail::sequence_state& s) {
    std::int64_t n = 0;
    for (const detail::page_table& t : s.tables) n = std::max(n, t.committed);
    return n;
  }
  bool tail_is_shared(const detail::page_table& t) const { return t.committed % page_size() != 0 && allocator_.is_shared(t.pages[static_cast<std::size_t>(t.committed / page_size())]); }
  void make_private(std::int32_t& page) noexcept {
    if (!allocator_.is_shared(page)) return;
    const std::int32_t copy = allocator_.take();
    storage_.copy_page(page, copy);
    allocator_.release(page);
    page = copy;
  }
  // Cuts a table to its committed tokens.
  void shrink(detail::page_table& t) noexcept {
    while (static_cast<std::int64_t>(t.pages.size()) > pages_of(t.committed)) allocator_.release(t.pages.back()), t.pages.pop_back();
    t.positions.resize(static_cast<std::size_t>(t.committed));
  }
  void move_token(std::size_t table, detail::page_table& t, std::int64_t from, std::int64_t to) noexcept {
    if (from == to) return;
    storage_.move_token(table, t, from, to);
    t.positions[static_cast<std::size_t>(to)] = t.positions[static_cast<std::size_t>(from)];
  }
  // The end of a step: the first `rows` reserved rows are committed.
  void keep(detail::sequence_state& s, std::int64_t rows) noexcept {
    for (std::size_t i = 0; i < s.tables.size(); ++i) {
      detail::page_table& t = s.tables[i];
      const std::int64_t before = t.committed;
      t.committed += rows;
      shrink(t);
      seal(i, t, before);
    }
    if (rows > 0) s.next_position = std::int64_t{s.tables[0].positions.back()} + 1;
    s.reserved = 0;
  }
  // Groups that became complete with the tokens from `before` on.
  void seal([[maybe_unused]] std::size_t table, [[maybe_unused]] const detail::page_table& t, [[maybe_unused]] std::int64_t before) noexcept {
    if constexpr (Codec::group_tokens > 1)
      for (std::int64_t group = before / Codec::group_tokens; (group + 1) * Codec::group_tokens <= t.committed; ++group)
        storage_.for_each_head(table, [&](int layer, int head) {
          const auto at = storage_.place(group * Codec::group_tokens);
          std::byte* block = storage_.address(t.pages[at.page], layer, head);
          Codec::seal_keys(storage_.block().key_run(block, at.slot), head_dim());
          Codec::seal_values(storage_.block().value_run(block, at.slot), head_dim_v());
        });
  }

  // Tables first .. last - 1 lose the committed tokens at `indices`, or (kept) all others.
  void evict(const char* function, sequence_id id, std::size_t first, std::size_t last, std::span<const std::int32_t> indices, bool kept) {
    detail::sequence_state& s = require_closed(function, id);
    const auto given = static_cast<std::int64_t>(indices.size());
    std::int64_t unmoved = 0;   // tokens before the first that moves
    while (unmoved < given && kept && indices[static_cast<std::size_t>(unmoved)] == unmoved) ++unmoved;
    if (!kept && given > 0) unmoved = indices[0];
    const auto remaining = [&](const detail::page_table& t) { return kept ? given : t.committed - given; };
    std::int64_t needed = 0;
    for (std::size_t i = first; i < last; ++i) {
      const detail::page_table& t = s.tables[i];
      require_increasing(function, "indices", indices, t.committed);
      if (unmoved < remaining(t) && remaining(t) < t.committed)
        for (std::int64_t page = unmoved / page_size(); page < pages_of(remaining(t)); ++page) needed += allocator_.is_shared(t.pages[static_cast<std::size_t>(page)]);
    }
    require(needed <= free_pages(), "page_pool::", function, ": ", needed, " pages needed to copy shared ones, ", free_pages(), " free of ", num_pages(), " (sequence ", id.index, "); nothing was changed");
    for (std::size_t i = first; i < last; ++i) {
      detail::page_table& t = s.tables[i];
      const std::int64_t length = remaining(t);
      if (length == t.committed) continue;
      if (unmoved < length)
        for (std::int64_t page = unmoved / page_size(); page < pages_of(length); ++page) make_private(t.pages[static_cast<std::size_t>(page)]);
      if (kept) {
        for (std::int64_t to = unmoved; to < length; ++to) move_token(i, t, indices[static_cast<std::size_t>(to)], to);
      } else {
        std::int64_t to = unmoved;
        std::size_t next = 0;
        for (std::int64_t from = unmoved; from < t.committed; ++from)
          if (next < indices.size() && indices[next] == from) ++next;
          else move_token(i, t, from, to++);
      }
      t.committed = length;
      shrink(t);
    }
  }

  detail::page_storage<Codec, Layout> storage_;
  detail::page_allocator allocator_;
  aligned_vector<detail::sequence_state> sequences_;
  aligned_vector<std::uint32_t> free_ids_;   // room for all of sequences_
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
