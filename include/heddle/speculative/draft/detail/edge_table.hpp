// The edges (state, token) -> state of an automaton over token ids, for alphabets of any size.
//
// A state keeps two edges in itself; further ones lie in a hash table over (state, token), whose slot is known before the state is read: both misses of the
// cache overlap. The table is cut into eight parts that double on their own (linear probing, at most 3/4 full), so that no single insertion moves more
// than an eighth of it. The edges of a state outside of it form a list by tokens, which is what copying a state walks.
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/speculative/draft/detail/large_vector.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace heddle::detail::inline HEDDLE_ISA {

/// A state's own part of its edges.
struct own_edges {
  std::int32_t first_outside = -1;   // token of the first edge of the list; -1: none
  std::int32_t tokens[2] = {-1, -1};
  std::int32_t targets[2] = {-1, -1};
};

class edge_table {
 public:
  void clear() {
    for (part& p : parts_) p = {};
  }
  std::size_t bytes() const {
    std::size_t entries = 0;
    for (const part& p : parts_) entries += p.entries.size();
    return entries * sizeof(entry);
  }

  /// Fetches what find() will need of the table.
  [[gnu::always_inline]] inline void prefetch(std::int32_t state, std::int32_t token) const {
    const std::uint64_t h = hash(state, token);
    if (const part& p = part_of(h); p.size) __builtin_prefetch(p.entries.data() + p.home(h));
  }
  /// The target, -1 if there is no such edge.
  [[gnu::always_inline]] inline std::int32_t find(std::int32_t state, const own_edges& own, std::int32_t token) const {
    if (own.tokens[0] == token) return own.targets[0];
    if (own.tokens[1] == token) return own.targets[1];
    if (own.first_outside < 0) return -1;
    const entry* const e = slot_of(state, token);
    return e->state < 0 ? -1 : e->target;
  }
  /// f(token, target) for every edge of the state.
  template <class F>
  void for_each(std::int32_t state, const own_edges& own, const F& f) const {
    for (int i = 0; i < 2; ++i)
      if (own.tokens[i] >= 0) f(own.tokens[i], own.targets[i]);
    for (std::int32_t token = own.first_outside; token >= 0;) {
      const entry& e = *slot_of(state, token);
      f(token, e.target);
      token = e.next_token;
    }
  }
  void replace(std::int32_t state, own_edges& own, std::int32_t token, std::int32_t target) {
    for (int i = 0; i < 2; ++i)
      if (own.tokens[i] == token) return void(own.targets[i] = target);
    slot_of(state, token)->target = target;
  }
  /// Adds an edge for a token that has none.
  void insert(std::int32_t state, own_edges& own, std::int32_t token, std::int32_t target) {
    for (int i = 0; i < 2; ++i)
      if (own.tokens[i] < 0) return void((own.tokens[i] = token, own.targets[i] = target));
    put({state, token, target, own.first_outside});
    own.first_outside = token;
  }
  /// The edges of `from` outside of it, for state `to`, whose own edges are a copy of from's.
  void copy(std::int32_t from, std::int32_t to, const own_edges& own) {
    for (std::int32_t token = own.first_outside; token >= 0;) {
      entry e = *slot_of(from, token);
      token = e.next_token;
      e.state = to;
      put(e);
    }
  }

 private:
  struct entry {
    std::int32_t state = -1;   // -1: empty
    std::int32_t token = -1;
    std::int32_t target = -1;
    std::int32_t next_token = -1;
  };
  struct part {
    large_vector<entry> entries{};
    std::uint32_t size = 0;    // of entries, a power of two; 0: no memory yet
    std::uint32_t shift = 61;  // 64 - log2 of it
    std::uint32_t used = 0;
    std::size_t home(std::uint64_t h) const { return static_cast<std::size_t>((h << 3) >> shift); }
  };
  static constexpr std::uint32_t smallest = 8;

  static std::uint64_t hash(std::int32_t state, std::int32_t token) {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(state)) << 32 | static_cast<std::uint32_t>(token);
    const std::uint64_t mixed = key * 0x9E3779B97F4A7C15ull;
    return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93ull;
  }
  const part& part_of(std::uint64_t h) const { return parts_[h >> 61]; }

  /// The slot of the edge, or the empty one where it would go.
  [[gnu::always_inline]] static inline std::size_t slot_in(const part& p, std::uint64_t h, std::int32_t state, std::int32_t token) {
    std::size_t i = p.home(h);
    const entry* const entries = p.entries.data();
    while (entries[i].state >= 0 && !(entries[i].state == state && entries[i].token == token)) i = (i + 1) & (p.size - 1);
    return i;
  }
  [[gnu::always_inline]] inline const entry* slot_of(std::int32_t state, std::int32_t token) const {
    static constexpr entry nothing{};
    const std::uint64_t h = hash(state, token);
    const part& p = part_of(h);
    return p.size ? p.entries.data() + slot_in(p, h, state, token) : &nothing;
  }
  entry* slot_of(std::int32_t state, std::int32_t token) { return const_cast<entry*>(static_cast<const edge_table&>(*this).slot_of(state, token)); }

  void put(const entry& e) {
    const std::uint64_t h = hash(e.state, e.token);
    part& p = parts_[h >> 61];
    if (4 * (p.used + 1) > 3 * p.size) grow(p);
    p.entries[slot_in(p, h, e.state, e.token)] = e;
    ++p.used;
  }
  static void grow(part& p) {
    require(p.size < 1u << 29, "suffix automaton: its states have more than 2^31 edges; bound the text with 'max_tokens'");
    const large_vector<entry> old = std::move(p.entries);
    p.size = old.empty() ? smallest : 2 * p.size;
    p.shift = old.empty() ? 61 : p.shift - 1;
    p.entries = large_vector<entry>(p.size);
    for (const entry& e : old)
      if (e.state >= 0) p.entries[slot_in(p, hash(e.state, e.token), e.state, e.token)] = e;
  }

  part parts_[8];
};

}  // namespace heddle::detail::inline HEDDLE_ISA
