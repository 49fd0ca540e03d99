// The bookkeeping of a page pool, without any bytes of keys or values: who holds which page, which token lies where.
//
// sequence_id      names a sequence of a pool; ids of freed sequences are recognised as stale
// page_allocator   free pages and reference counts
// page_table       pages and positions of consecutive tokens
//
//     const heddle::sequence_id id = pool.new_sequence();
//     pool.free(id);
//     const heddle::sequence_id other = pool.new_sequence();         // may take the same place
//     const bool same = id == other;                                 // never: the generation differs, and calls with `id` throw
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/isa.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle {

struct sequence_id {
  std::uint32_t index = 0xffffffffu;
  std::uint32_t generation = 0;
  friend bool operator==(const sequence_id&, const sequence_id&) = default;
};

/// Which tokens share a page table. shared: one table per sequence, a page holds its tokens for all layers and heads. per_head: a table for
/// every layer and KV head, so that eviction may keep other tokens in every head; a page then holds tokens of one layer and head.
enum class page_tables : std::uint8_t { shared, per_head };

namespace detail::inline HEDDLE_ISA {

class page_allocator {
 public:
  explicit page_allocator(std::int32_t num_pages)
      : references_(static_cast<std::size_t>(num_pages)), free_(static_cast<std::size_t>(num_pages)) {
    for (std::int32_t i = 0; i < num_pages; ++i) free_[static_cast<std::size_t>(i)] = num_pages - 1 - i;
  }
  std::int64_t num_pages() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  bool is_shared(std::int32_t page) const { return references_[static_cast<std::size_t>(page)] > 1; }
  std::int32_t references(std::int32_t page) const { return references_[static_cast<std::size_t>(page)]; }

  /// A free page, now held once. There must be one.
  std::int32_t take() noexcept {
    const std::int32_t page = free_.back();
    free_.pop_back();
    references_[static_cast<std::size_t>(page)] = 1;
    return page;
  }
  void share(std::int32_t page) noexcept { ++references_[static_cast<std::size_t>(page)]; }
  void release(std::int32_t page) noexcept {
    if (--references_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);  // never grows: it was this long at the start
  }

 private:
  aligned_vector<std::int32_t> references_, free_;
};

/// Room for n elements; grows geometrically.
template <class T>
void make_room(aligned_vector<T>& v, std::int64_t n) {
  const auto wanted = static_cast<std::size_t>(n);
  if (v.capacity() < wanted) v.reserve(wanted < 2 * v.capacity() ? 2 * v.capacity() : wanted);
}

struct page_table {
  std::int64_t committed = 0;
  aligned_vector<std::int32_t> pages;      ///< of committed and reserved tokens
  aligned_vector<std::int32_t> positions;  ///< one per committed or reserved token

  std::int64_t length() const { return static_cast<std::int64_t>(positions.size()); }
};

struct sequence_state {
  std::uint32_t generation = 0;
  bool live = false;
  std::int64_t reserved = 0;
  std::int64_t next_position = 0;
  aligned_vector<page_table> tables;
  aligned_vector<std::int64_t> written;  ///< per layer: reserved rows written so far
};

}  // namespace detail::inline HEDDLE_ISA
}  // namespace heddle
