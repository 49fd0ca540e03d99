// The outgoing edges of the states of an automaton over token ids: (token -> state), for alphabets of any size.
//
// A state keeps two edges in itself; further ones lie in a table of its own, four entries at first, twice as many whenever it fills: small tables are
// searched, larger ones are hashed (linear probing, at most 3/4 full). So a state costs one cache miss, its table at most one more, a copied state
// copies its table as bytes, and nothing is ever rehashed but the one table that grew. Outgrown tables are used again.
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::detail::inline HEDDLE_ISA {

struct transitions {
  std::int32_t tokens[2] = {-1, -1};
  std::int32_t targets[2] = {-1, -1};
  std::uint32_t table = 0;   // place of the table / 4 entries, and log2 of its entries in the low five bits; 0: none
};

class transition_pool {
 public:
  void clear() {
    entries_.assign(smallest, entry{});   // so that no table lies at 0
    for (std::uint32_t& head : free_) head = 0;
  }
  std::size_t bytes() const { return entries_.capacity() * sizeof(entry); }

  /// The target, -1 if there is no such edge.
  [[gnu::always_inline]] inline std::int32_t find(const transitions& of, std::int32_t token) const {
    if (of.tokens[0] == token) return of.targets[0];
    if (of.tokens[1] == token) return of.targets[1];
    return of.table ? entries_[slot_of(of.table, token)].target_if(token) : -1;
  }
  void replace(transitions& of, std::int32_t token, std::int32_t target) {
    for (int i = 0; i < 2; ++i)
      if (of.tokens[i] == token) return void(of.targets[i] = target);
    entries_[slot_of(of.table, token)].target = target;
  }
  /// Adds an edge for a token that has none.
  void insert(transitions& of, std::int32_t token, std::int32_t target) {
    for (int i = 0; i < 2; ++i)
      if (of.tokens[i] < 0) return void((of.tokens[i] = token, of.targets[i] = target));
    if (!of.table)
      of.table = allocate(2);
    else if (is_full(of.table))
      of.table = grown(of.table);
    put(of.table, token, target);
  }
  transitions copy(const transitions& from) {
    transitions to = from;
    if (!from.table) return to;
    to.table = allocate(class_of(from.table));
    const entry* const source = &entries_[place_of(from.table)];
    entry* const target = &entries_[place_of(to.table)];
    for (std::size_t i = 0; i < std::size_t{1} << class_of(from.table); ++i) target[i] = source[i];
    return to;
  }

 private:
  static constexpr std::int32_t empty = -1, header = -2;
  static constexpr std::size_t smallest = 4;
  static constexpr std::uint32_t searched = 3;   // tables of up to 2^3 entries, one cache line, are searched from the front

  struct entry {
    std::int32_t token = empty;
    std::int32_t target = -1;
    std::int32_t target_if(std::int32_t wanted) const { return token == wanted ? target : -1; }
  };

  static std::uint32_t class_of(std::uint32_t table) { return table & 31u; }
  static std::size_t place_of(std::uint32_t table) { return std::size_t{table >> 5} * smallest; }

  /// Where the token is, or would go: a slot with this token or an empty one; in a full small table some other slot.
  [[gnu::always_inline]] inline std::size_t slot_of(std::uint32_t table, std::int32_t token) const {
    const std::size_t place = place_of(table), size = std::size_t{1} << class_of(table);
    const entry* const entries = &entries_[place];
    if (class_of(table) <= searched) {
      std::size_t i = 0;
      while (i + 1 < size && entries[i].token != token && entries[i].token != empty) ++i;
      return place + i;
    }
    std::size_t i = static_cast<std::uint32_t>(token) * 0x9E3779B1u >> (32 - class_of(table));
    while (entries[i].token != token && entries[i].token != empty) i = (i + 1) & (size - 1);
    return place + i;
  }
  bool is_full(std::uint32_t table) const {
    const std::size_t place = place_of(table), size = std::size_t{1} << class_of(table);
    if (class_of(table) <= searched) return entries_[place + size - 1].token != empty;
    return 4 * (static_cast<std::size_t>(entries_[place].target) + 2) > 3 * size;   // the header takes a slot too
  }
  void put(std::uint32_t table, std::int32_t token, std::int32_t target) {
    entries_[slot_of(table, token)] = {token, target};
    if (class_of(table) > searched) ++entries_[place_of(table)].target;
  }
  std::uint32_t grown(std::uint32_t table) {
    const std::uint32_t larger = allocate(class_of(table) + 1);
    for (std::size_t i = 0; i < std::size_t{1} << class_of(table); ++i)
      if (const entry e = entries_[place_of(table) + i]; e.token >= 0) put(larger, e.token, e.target);
    entries_[place_of(table)].target = static_cast<std::int32_t>(free_[class_of(table)]);
    free_[class_of(table)] = table;
    return larger;
  }
  std::uint32_t allocate(std::uint32_t size_class) {
    const std::size_t size = std::size_t{1} << size_class;
    std::uint32_t table = free_[size_class];
    if (table) {
      free_[size_class] = static_cast<std::uint32_t>(entries_[place_of(table)].target);
      for (std::size_t i = 0; i < size; ++i) entries_[place_of(table) + i] = {};
    } else {
      const std::size_t place = entries_.size() / smallest;
      require(place + size / smallest < std::size_t{1} << 27, "suffix automaton: the edges of its states take more than 4 GiB; bound the text with 'max_tokens'");
      entries_.resize(entries_.size() + size);
      table = static_cast<std::uint32_t>(place) << 5 | size_class;
    }
    if (size_class > searched) entries_[place_of(table)] = {header, 0};
    return table;
  }

  aligned_vector<entry> entries_ = aligned_vector<entry>(smallest);
  std::uint32_t free_[32] = {};
};

}  // namespace heddle::detail::inline HEDDLE_ISA
