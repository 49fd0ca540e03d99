// The sequences of a page pool: their tables, transactions and eviction, without any bytes of keys or values. page_pool.hpp says what the
// operations mean; here is what each checks and which pages it takes. Where pages must be copied or tokens moved, the pool is called back.
#pragma once
#include <heddle/cache/page_table.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle::detail::inline HEDDLE_ISA {

class sequence_table {
 public:
  sequence_table(int page_size, std::int64_t num_pages, std::size_t num_tables, int num_layers, int group_tokens)
      : page_size_(page_size),
        group_tokens_(group_tokens),
        num_tables_(num_tables),
        num_layers_(num_layers),
        allocator_(static_cast<std::int32_t>(num_pages)) {}

  std::int64_t num_pages() const { return allocator_.num_pages(); }
  std::int64_t free_pages() const { return allocator_.num_free(); }

  // --- sequences ---

  sequence_id new_sequence() {
    if (free_ids_.empty()) {
      make_room(free_ids_, static_cast<std::int64_t>(sequences_.size()) + 1);
      sequence_state fresh;
      fresh.tables.resize(num_tables_);
      fresh.written.resize(static_cast<std::size_t>(num_layers_));
      sequences_.push_back(static_cast<sequence_state&&>(fresh));
      free_ids_.push_back(static_cast<std::uint32_t>(sequences_.size() - 1));
    }
    const std::uint32_t index = free_ids_.back();
    free_ids_.pop_back();
    sequence_state& s = sequences_[index];
    s.live = true, s.reserved = 0, s.next_position = 0;
    return {index, ++s.generation};
  }
  sequence_id fork(sequence_id parent) {
    require_closed("fork", parent);
    aligned_vector<page_table> tables = sequences_[parent.index].tables;
    const sequence_id child = new_sequence();
    sequence_state& s = sequences_[child.index];
    s.tables = static_cast<aligned_vector<page_table>&&>(tables);
    s.next_position = sequences_[parent.index].next_position;
    for (const page_table& t : s.tables)
      for (const std::int32_t page : t.pages) allocator_.share(page);
    return child;
  }
  void free(sequence_id id) {
    sequence_state& s = live("free", id);
    for (page_table& t : s.tables) t.committed = 0, shrink(t);
    s.live = false;
    free_ids_.push_back(id.index);  // has room: see new_sequence
  }

  const sequence_state& live(const char* function, sequence_id id) const {
    require(id.index < sequences_.size() && sequences_[id.index].live && sequences_[id.index].generation == id.generation,
            "page_pool::", function, ": argument 'sequence' (index ", id.index, ", generation ", id.generation,
            ") names no sequence of this pool");
    return sequences_[id.index];
  }
  sequence_state& live(const char* function, sequence_id id) {
    return const_cast<sequence_state&>(static_cast<const sequence_table*>(this)->live(function, id));
  }
  /// Without any check.
  const sequence_state& operator[](sequence_id id) const { return sequences_[id.index]; }

  /// Committed tokens, of the longest table.
  static std::int64_t longest(const sequence_state& s) {
    std::int64_t n = 0;
    for (const page_table& t : s.tables) n = std::max(n, t.committed);
    return n;
  }

  // --- one step ---

  std::int64_t pages_needed(const sequence_state& s, std::int64_t rows) const {
    std::int64_t needed = 0;
    for (const page_table& t : s.tables) needed += pages_of(t.committed + rows) - pages_of(t.committed) + (rows > 0 && tail_is_shared(t));
    return needed;
  }

  template <class CopyPage>
  void reserve(sequence_id id, std::int64_t rows, std::span<const std::int32_t> positions, const CopyPage& copy_page) {
    sequence_state& s = require_closed("reserve", id);
    constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
    const std::int64_t length = longest(s);
    require(rows >= 0 && rows <= limit - length, "page_pool::reserve: argument 'rows' is ", rows, "; expected 0 to ", limit - length);
    require(positions.empty() || static_cast<std::int64_t>(positions.size()) == rows, "page_pool::reserve: argument 'positions' holds ",
            positions.size(), " entries; expected ", rows);
    require(!positions.empty() || s.next_position + rows <= limit + 1, "page_pool::reserve: argument 'positions' is empty, and ", rows,
            " positions from ", s.next_position, " on pass 2^31");
    const std::int64_t needed = pages_needed(s, rows);
    require(needed <= free_pages(), "page_pool::reserve: ", needed, " pages needed, ", free_pages(), " free of ", num_pages(),
            " (sequence ", id.index, ", length ", length, "); nothing was changed");
    for (page_table& t : s.tables) {
      make_room(t.pages, pages_of(t.committed + rows));
      make_room(t.positions, t.committed + rows);
    }
    for (page_table& t : s.tables) {
      if (rows > 0 && tail_is_shared(t)) make_private(t.pages.back(), copy_page);
      while (static_cast<std::int64_t>(t.pages.size()) < pages_of(t.committed + rows)) t.pages.push_back(allocator_.take());
      for (std::int64_t i = 0; i < rows; ++i)
        t.positions.push_back(positions.empty() ? static_cast<std::int32_t>(s.next_position + i) : positions[static_cast<std::size_t>(i)]);
    }
    s.reserved = rows;
    for (std::int64_t& rows_written : s.written) rows_written = 0;
  }

  /// The end of a step: the first `rows` reserved rows are committed. sealed(table, tokens before) is told of every table.
  template <class Seal>
  void keep(sequence_state& s, std::int64_t rows, const Seal& seal) noexcept {
    for (std::size_t i = 0; i < s.tables.size(); ++i) {
      page_table& t = s.tables[i];
      t.committed += rows;
      shrink(t);
      seal(i, t, t.committed - rows);
    }
    if (rows > 0) s.next_position = std::int64_t{s.tables[0].positions.back()} + 1;
    s.reserved = 0;
  }

  // --- committed tokens ---

  void truncate(sequence_state& s, std::int64_t length) noexcept {
    if (length == longest(s)) return;
    for (page_table& t : s.tables) t.committed = length, shrink(t);
    s.next_position = length ? std::int64_t{s.tables[0].positions.back()} + 1 : 0;
  }

  /// Tables first .. last - 1 lose the committed tokens at `indices`, or, with `kept`, all others.
  template <class CopyPage, class MoveToken>
  void evict(const char* function, sequence_id id, std::size_t first, std::size_t last, std::span<const std::int32_t> indices, bool kept,
             const CopyPage& copy_page, const MoveToken& move_token) {
    sequence_state& s = require_closed(function, id);
    const auto given = static_cast<std::int64_t>(indices.size());
    const std::int64_t unmoved = first_to_move(indices, kept);
    const auto remaining = [&](const page_table& t) { return kept ? given : t.committed - given; };
    const auto moves = [&](const page_table& t) { return unmoved < remaining(t) && remaining(t) < t.committed; };
    std::int64_t needed = 0;
    for (std::size_t i = first; i < last; ++i) {
      const page_table& t = s.tables[i];
      require_increasing(function, "indices", indices, t.committed);
      if (moves(t))
        for (std::int64_t page = unmoved / page_size_; page < pages_of(remaining(t)); ++page)
          needed += allocator_.is_shared(t.pages[static_cast<std::size_t>(page)]);
    }
    require(needed <= free_pages(), "page_pool::", function, ": ", needed, " pages needed to copy shared ones, ", free_pages(), " free of ",
            num_pages(), " (sequence ", id.index, "); nothing was changed");
    for (std::size_t i = first; i < last; ++i) {
      page_table& t = s.tables[i];
      const std::int64_t length = remaining(t);
      if (moves(t)) {
        for (std::int64_t page = unmoved / page_size_; page < pages_of(length); ++page)
          make_private(t.pages[static_cast<std::size_t>(page)], copy_page);
        std::size_t next = kept ? static_cast<std::size_t>(unmoved) : 0;
        std::int64_t from = unmoved;
        for (std::int64_t to = unmoved; to < length; ++to, ++from) {
          if (kept) from = indices[next++];
          else
            while (next < indices.size() && indices[next] == from) ++from, ++next;
          move_token(i, t, from, to);
        }
      }
      t.committed = length;
      shrink(t);
    }
  }

  /// Tokens that lie in pages, those of a shared page counted once.
  std::int64_t live_tokens() const {
    aligned_vector<std::int32_t> tokens(static_cast<std::size_t>(num_pages()));  // per page, the most that any table holds
    for (const sequence_state& s : sequences_)
      for (const page_table& t : s.tables)
        for (std::size_t i = 0; i < t.pages.size(); ++i) {
          const std::int64_t here = std::min<std::int64_t>(page_size_, t.length() - static_cast<std::int64_t>(i) * page_size_);
          std::int32_t& most = tokens[static_cast<std::size_t>(t.pages[i])];
          most = std::max(most, static_cast<std::int32_t>(here));
        }
    std::int64_t sum = 0;
    for (const std::int32_t n : tokens) sum += n;
    return sum;
  }

  // --- checks ---

  sequence_state& require_closed(const char* function, sequence_id id) {
    sequence_state& s = live(function, id);
    require(s.reserved == 0, "page_pool::", function, ": sequence ", id.index, " has ", s.reserved,
            " reserved rows; commit or roll back first");
    return s;
  }
  sequence_state& require_truncatable(const char* function, sequence_id id, std::int64_t length) {
    sequence_state& s = require_closed(function, id);
    const std::int64_t most = longest(s);
    require(length >= 0 && length <= most, "page_pool::", function, ": argument 'length' is ", length, "; expected 0 to ", most);
    if (length == most) return s;
    for (const page_table& t : s.tables)
      require(t.committed == most, "page_pool::", function, ": argument 'length' is ", length, ", but after eviction heads hold ",
              t.committed, " to ", most, " tokens");
    require(length % group_tokens_ == 0 || length >= most - most % group_tokens_, "page_pool::", function, ": argument 'length' is ",
            length, ", inside a sealed group; expected a multiple of ", group_tokens_);
    return s;
  }
  static void require_written(const char* function, const sequence_state& s, std::int64_t rows) {
    for (std::size_t layer = 0; layer < s.written.size(); ++layer)
      require(s.written[layer] >= rows, "page_pool::", function, ": layer ", layer, " has written ", s.written[layer], " of the ", rows,
              " rows to keep");
  }
  static void require_increasing(const char* function, const char* argument, std::span<const std::int32_t> indices, std::int64_t end) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t least = i ? std::int64_t{indices[i - 1]} + 1 : 0;
      require(indices[i] >= least && indices[i] < end, "page_pool::", function, ": argument '", argument, "': entry ", i, " is ",
              indices[i], "; expected ", least, " to ", end - 1, ", strictly increasing");
    }
  }

 private:
  std::int64_t pages_of(std::int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }
  bool tail_is_shared(const page_table& t) const {
    return t.committed % page_size_ != 0 && allocator_.is_shared(t.pages[static_cast<std::size_t>(t.committed / page_size_)]);
  }
  template <class CopyPage>
  void make_private(std::int32_t& page, const CopyPage& copy_page) noexcept {
    if (!allocator_.is_shared(page)) return;
    const std::int32_t copy = allocator_.take();
    copy_page(page, copy);
    allocator_.release(page);
    page = copy;
  }
  // Cuts a table to its committed tokens.
  void shrink(page_table& t) noexcept {
    while (static_cast<std::int64_t>(t.pages.size()) > pages_of(t.committed)) allocator_.release(t.pages.back()), t.pages.pop_back();
    t.positions.resize(static_cast<std::size_t>(t.committed));
  }
  static std::int64_t first_to_move(std::span<const std::int32_t> indices, bool kept) {
    if (!kept) return indices.empty() ? 0 : indices[0];
    std::int64_t n = 0;
    while (n < static_cast<std::int64_t>(indices.size()) && indices[static_cast<std::size_t>(n)] == n) ++n;
    return n;
  }

  int page_size_, group_tokens_;
  std::size_t num_tables_;
  int num_layers_;
  page_allocator allocator_;
  aligned_vector<sequence_state> sequences_;
  aligned_vector<std::uint32_t> free_ids_;  // room for all of sequences_
};

}  // namespace heddle::detail::inline HEDDLE_ISA
