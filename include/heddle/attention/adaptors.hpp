// Adaptors of one source of keys: which keys a row sees, and what their scores are. Bound with | in the order written.
//
//   causal()                     keys up to the row's own index; bottom-right aligned: row i of a call of n rows over T keys has index i + T - n
//   window(W)                    the last W keys, the row's own included; 0 = off. Goes by explicit position where the source has positions
//   tree(parents)                the rows are nodes of draft trees: see below
//   select(bits, {.block_size})  keys of chosen blocks only
//   soft_cap(c)                  z := c tanh(z / c); 0 = off; -infinity stays
//   bias(b)                      z := z + b[row][query head][key]; -infinity hides the key
//   log_gate(gates, unit)        z := z + gates[row][kv head][key / unit]; -infinity hides the unit
//
// Visibility adaptors intersect. A hidden key is left out, never multiplied by 0: nothing behind a mask reaches the output. Score adaptors
// apply in the order written, to scaled logits, and never revive a hidden key.
//
// tree: parents[r] is the parent of row r, counted within its sequence's rows, -1 for a child of the committed context; parents come before
// their children; several roots and any number of nodes are legal; trees of a batch lie one after another, as the rows do. A row sees the
// committed keys, its ancestors and itself, *as if they were stored one after another*: the ancestor at depth k is key n + k, and the row's index
// is n + depth, for every other adaptor too (where the source has positions, those of the rows are the caller's: n + depth as well). So a row's result equals that of sequential decoding, bit for bit, and does not depend on the tree.
//
// An adaptor of your own is a small type with one of these members (and, where it has something to check, `check(call)`):
//   std::uint64_t visible(const place&, std::int64_t token) const        64 keys from `token` on; with `static constexpr granularity level`
//   simd::f32x16 adjust(const place&, std::int64_t token, simd::f32x16 z) const      sixteen logits
// Both are called concurrently. Keys are counted by logical index (place in the sequence), never by storage.
//
//     auto keys = cache | heddle::causal() | heddle::window(4096) | heddle::soft_cap(30.f);
#pragma once
#include <heddle/attention/source.hpp>
#include <heddle/core/simd.hpp>

#include <concepts>
#include <span>

namespace heddle {

/// Where a row stands while a kernel asks an adaptor.
struct place {
  std::int64_t sequence;      ///< of the batch
  std::int64_t row;           ///< of the call
  std::int64_t index;         ///< of the row in its sequence
  int query_head, kv_head;
};

/// On what visibility depends besides the key (the kernel loads what any of its queries sees, and selects per query).
enum class granularity : std::uint8_t { row, kv_head, query_head };

/// What a call looks like, for adaptors that check their arguments.
struct call_shape {
  std::int64_t rows, sequences, longest;   ///< longest: keys of the longest sequence of the source
  int num_qo_heads, num_kv_heads;
};

inline namespace HEDDLE_ISA {

/// The lowest n of 64 bits.
[[gnu::always_inline]] constexpr std::uint64_t lowest_bits(std::int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1; }

template <class A>
concept visibility_adaptor = requires(const A& a, const place& at, std::int64_t token) {
  { a.visible(at, token) } -> std::same_as<std::uint64_t>;
  { A::level } -> std::convertible_to<granularity>;
};
template <class A>
concept score_adaptor = requires(const A& a, const place& at, std::int64_t token, simd::f32x16 z) {
  { a.adjust(at, token, z) } -> std::same_as<simd::f32x16>;
};
/// Visibility by explicit positions of 64 keys and of the row, where the source has them.
template <class A>
concept position_adaptor = requires(const A& a, const std::int32_t* positions, std::int32_t position) {
  { a.visible_positions(positions, position) } -> std::same_as<std::uint64_t>;
};
/// Rows that are nodes of draft trees.
template <class A>
concept tree_adaptor = requires(const A& a) {
  { a.parents } -> std::convertible_to<std::span<const std::int32_t>>;
};
template <class A>
concept key_adaptor = visibility_adaptor<A> || score_adaptor<A> || tree_adaptor<A>;

struct causal {
  static constexpr granularity level = granularity::row;
  std::uint64_t visible(const place& at, std::int64_t token) const { return lowest_bits(at.index + 1 - token); }
};

class window {
 public:
  static constexpr granularity level = granularity::row;
  explicit window(std::int64_t keys) : keys_(keys) { require(keys >= 0, "window: argument 'keys' is ", keys, "; expected the number of visible keys, the row's own included, or 0 (off)"); }
  std::uint64_t visible(const place& at, std::int64_t token) const { return keys_ ? ~lowest_bits(at.index - keys_ + 1 - token) : ~std::uint64_t{0}; }
  std::uint64_t visible_positions(const std::int32_t* positions, std::int32_t position) const {
    const std::int64_t hidden = std::int64_t{position} - (keys_ < every_distance ? keys_ : every_distance);   // the last position that is not seen
    if (!keys_ || hidden < std::numeric_limits<std::int32_t>::min()) return ~std::uint64_t{0};
    const simd::i32x16 last = simd::splat(static_cast<std::int32_t>(hidden));
    std::uint64_t word = 0;
    for (int b = 0; b < tile_runs; ++b) {
      const simd::i32x16 p = simd::load_words(positions + 16 * b), rest = last - p;
      const simd::i32x16 sign = (rest ^ ((last ^ p) & (rest ^ last))) & simd::splat(std::numeric_limits<std::int32_t>::min());   // of last - p, had it not wrapped
      word |= std::uint64_t{simd::bits_of(simd::less(simd::floats_of(sign | simd::splat(0x3f800000)), simd::splat(0.f)))} << (16 * b);
    }
    return word;
  }

 private:
  static constexpr std::int64_t every_distance = std::int64_t{1} << 32;
  std::int64_t keys_;
};

struct tree {
  std::span<const std::int32_t> parents;   ///< one per row of the call
  explicit tree(std::span<const std::int32_t> p) : parents(p) {}
};

/// bits: [rows][words], [rows][num_kv_heads][words] or [rows][num_qo_heads][words] for the three granularities.
template <granularity Level>
class selection {
  static constexpr std::size_t rank = Level == granularity::row ? 2 : 3;

 public:
  static constexpr granularity level = Level;
  selection(tensor_view<const std::uint64_t, rank> bits, std::int64_t block_size) : bits_(bits), block_size_(block_size) {
    require(block_size >= 1, "select: argument 'block_size' is ", block_size, "; expected 1 or more");
  }
  void check(const call_shape& call) const {
    extents<rank> expected = bits_.shape();
    expected[0] = call.rows;
    if constexpr (rank == 3) expected[1] = Level == granularity::kv_head ? call.num_kv_heads : call.num_qo_heads;
    require_shape("select", "bits", bits_, expected);
    require(bits_.extent(rank - 1) * 64 * block_size_ >= call.longest, "select: argument 'bits' holds ", bits_.extent(rank - 1), " words of 64 blocks of ", block_size_, " keys; expected bits for ", call.longest, " keys");
  }
  std::uint64_t visible(const place& at, std::int64_t token) const {
    const std::uint64_t* words;
    if constexpr (Level == granularity::row) words = bits_.at(at.row);
    else words = bits_.at(at.row, Level == granularity::kv_head ? at.kv_head : at.query_head);
    const std::int64_t last = bits_.extent(rank - 1) * 64, stride = bits_.stride(rank - 1);
    std::uint64_t seen = 0;
    for (std::int64_t block = token / block_size_; block < last && block * block_size_ < token + tile_tokens; ++block)
      if (words[block / 64 * stride] >> (block % 64) & 1) seen |= lowest_bits((block + 1) * block_size_ - token) & ~lowest_bits(block * block_size_ - token);
    return seen;
  }

 private:
  tensor_view<const std::uint64_t, rank> bits_;
  std::int64_t block_size_;
};
struct select_options {
  std::int64_t block_size = 64;   ///< keys per bit; has nothing to do with pages
};
/// Keys of block b (b * block_size and following) are seen where bit b % 64 of word b / 64 is set.
template <granularity Level, class Bits>
selection<Level> select(const Bits& bits, select_options options = {}) {
  return {view_of(bits), options.block_size};
}
template <tensor_of<2> Bits>
selection<granularity::row> select(const Bits& bits, select_options options = {}) {
  return {view_of(bits), options.block_size};
}
template <tensor_of<3> Bits>
selection<granularity::kv_head> select(const Bits& bits, select_options options = {}) {
  return {view_of(bits), options.block_size};
}

/// Sets the bits of the listed blocks, for select(); entries of -1 are padding. Words are not cleared first.
inline void mark_blocks(std::span<const std::int32_t> blocks, std::span<std::uint64_t> words) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    require(blocks[i] >= -1 && blocks[i] < static_cast<std::int64_t>(words.size()) * 64, "mark_blocks: argument 'blocks': entry ", i, " is ", blocks[i], "; expected -1 (padding) or a block below ", words.size() * 64);
  for (const std::int32_t b : blocks)
    if (b >= 0) words[static_cast<std::size_t>(b) / 64] |= std::uint64_t{1} << (b % 64);
}

class soft_cap {
 public:
  explicit soft_cap(float cap) : cap_(cap) { require(cap >= 0.f && cap < simd::infinity, "soft_cap: argument 'cap' is ", static_cast<double>(cap), "; expected a finite number above 0, or 0 (off)"); }
  [[gnu::always_inline]] simd::f32x16 adjust(const place&, std::int64_t, simd::f32x16 z) const {
    if (cap_ == 0.f) return z;
    const simd::f32x16 x = simd::abs(z) / simd::splat(cap_), square = simd::product(x, x), one = simd::splat(1.f);
    const simd::f32x16 e = simd::exp(simd::product(x, simd::splat(-2.f)));   // tanh x = (1 - e) / (1 + e), which cancels for small x: a series there
    const simd::f32x16 capped = simd::product(simd::splat(cap_), (one - e) / (one + e));
    simd::f32x16 series = simd::splat(62.f / 2835.f);
    for (const float term : {-17.f / 315.f, 2.f / 15.f, -1.f / 3.f}) series = simd::fma(series, square, simd::splat(term));
    const simd::f32x16 near_zero = simd::fma(simd::product(z, square), series, z);
    const simd::f32x16 result = simd::select(simd::less(x, simd::splat(0.3f)), near_zero, simd::select(simd::less(z, simd::splat(0.f)), -capped, capped));
    return simd::select(simd::less(simd::splat(-simd::infinity), z), result, z);   // NaN stays; so does -infinity, a key that a bias or gate hid
  }

 private:
  float cap_;
};

/// z + b; where b is -infinity the key is hidden, whatever z is.
[[gnu::always_inline]] inline simd::f32x16 add_or_hide(simd::f32x16 z, simd::f32x16 b) { return simd::select(simd::less(simd::splat(-simd::infinity), b), z + b, b); }

class bias {
 public:
  template <tensor_of<3> B>
  explicit bias(const B& values) : values_(view_of(values)) {}
  void check(const call_shape& call) const {
    require_shape("bias", "values", values_, extents<3>{call.rows, std::int64_t{call.num_qo_heads}, std::int64_t{-1}});
    require(values_.extent(2) >= call.longest, "bias: argument 'values': extent 2 is ", values_.extent(2), "; expected a value for each of ", call.longest, " keys");
  }
  [[gnu::always_inline]] simd::f32x16 adjust(const place& at, std::int64_t token, simd::f32x16 z) const {
    const float* row = values_.at(at.row, at.query_head, token);
    const std::int64_t rest = values_.extent(2) - token;
    if (values_.stride(2) == 1) return add_or_hide(z, simd::load_first(row, rest));
    alignas(64) float buffer[simd::lanes] = {};
    for (std::int64_t i = 0; i < rest && i < simd::lanes; ++i) buffer[i] = row[i * values_.stride(2)];
    return add_or_hide(z, simd::load(buffer));
  }

 private:
  tensor_view<const float, 3> values_;   // [rows, num_qo_heads, keys]
};

class log_gate {
 public:
  template <tensor_of<3> G>
  log_gate(const G& gates, std::int64_t unit) : gates_(view_of(gates)), unit_(unit) { require(unit >= 1, "log_gate: argument 'unit' is ", unit, "; expected 1 or more"); }
  void check(const call_shape& call) const {
    require_shape("log_gate", "gates", gates_, extents<3>{call.rows, std::int64_t{call.num_kv_heads}, std::int64_t{-1}});
    require(gates_.extent(2) * unit_ >= call.longest, "log_gate: argument 'gates' holds ", gates_.extent(2), " units of ", unit_, " keys; expected gates for ", call.longest, " keys");
  }
  [[gnu::always_inline]] simd::f32x16 adjust(const place& at, std::int64_t token, simd::f32x16 z) const {
    const float* row = gates_.at(at.row, at.kv_head);
    const auto gate = [&](std::int64_t t) { return t / unit_ < gates_.extent(2) ? row[t / unit_ * gates_.stride(2)] : 0.f; };
    if (token / unit_ == (token + simd::lanes - 1) / unit_) return add_or_hide(z, simd::splat(gate(token)));
    alignas(64) float buffer[simd::lanes];
    for (int i = 0; i < simd::lanes; ++i) buffer[i] = gate(token + i);
    return add_or_hide(z, simd::load(buffer));
  }

 private:
  tensor_view<const float, 3> gates_;   // [rows, num_kv_heads, units]
  std::int64_t unit_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
