// Folds one source of keys, with its adaptors, into the softmax state of a block of rows: the loop over tiles. Thin, one per pipe; what costs
// time lies in tile_kernel, one per codec.
#pragma once
#include <heddle/attention/compose.hpp>
#include <heddle/attention/detail/attend_call.hpp>
#include <heddle/attention/detail/tile_kernel.hpp>

#include <bit>
#include <tuple>
#include <utility>

namespace heddle::detail::inline HEDDLE_ISA {

/// Keys of a sequence; heads may differ after eviction from single heads.
template <class S>
std::int64_t length_of(const S& source, std::int64_t sequence, int kv_head) {
  if constexpr (requires { source.length(sequence, kv_head); }) return source.length(sequence, kv_head);
  else return source.length(sequence);
}
template <class S>
const std::int32_t* positions_of(const S& source, std::int64_t sequence, int kv_head) {
  if constexpr (requires { source.positions(sequence, kv_head); }) return source.positions(sequence, kv_head);
  else if constexpr (positioned_source<S>) return source.positions(sequence);
  else return nullptr;
}

template <class Source, class... Adaptors>
class key_fold {
  using codec = typename Source::codec;
  using kernel = tile_kernel<codec>;
  static_assert(kernel_of<kernel, codec>);
  static constexpr bool has_tree = (tree_adaptor<Adaptors> || ...);
  static constexpr bool has_scores = (score_adaptor<Adaptors> || ...);
  static constexpr bool has_positions = positioned_source<Source> && (position_adaptor<Adaptors> || ...);
  template <class A>
  static constexpr bool per_query = [] {
    if constexpr (visibility_adaptor<A>) return A::level == granularity::query_head;
    else return false;
  }();

 public:
  /// depth: of every row of the call in its draft tree; null without one.
  key_fold(scratch_layout& memory, const adapted<Source, Adaptors...>& part, const attend_call& call, int capacity, std::int64_t chunks, const std::int32_t* depth)
      : part_(part),
        call_(call),
        depth_(depth),
        kernel_(memory, capacity, call.head_dim, part.source.head_dim_v(), chunks),
        query_(memory.take<float>(static_cast<std::size_t>(call.head_dim))),
        visible_(memory.take<std::uint64_t>(static_cast<std::size_t>(capacity))),
        pending_(memory.take<std::uint64_t>(static_cast<std::size_t>(capacity))),
        index_(memory.take<std::int64_t>(static_cast<std::size_t>(capacity / call.group))),
        in_place_(memory.take<std::int64_t>(static_cast<std::size_t>(has_tree ? capacity / call.group : 0))) {
    for (auto*& buffer : buffers_) buffer = memory.take<std::byte>(part.source.scratch_bytes());
    if constexpr (has_tree) {
      elsewhere_ = memory.take<std::byte>(part.source.scratch_bytes());
      gathered_ = memory.take<std::byte>(tile_runs * (codec::key_run_bytes(call.head_dim) + codec::value_run_bytes(part.source.head_dim_v())));
    }
  }

  /// Folds chunks first .. end - 1. False: no row sees any of their keys.
  bool run(const row_block& block, int kv_head, std::int64_t first, std::int64_t end) {
    begin(block, kv_head);
    const std::int64_t last = end > length_ / chunk_tokens ? length_ : end * chunk_tokens;
    std::int64_t token = seek(first * chunk_tokens, last), chunk = -1;
    tile tiles[2], *now = &tiles[0], *next = &tiles[1];
    if (token < last) find(token, *next);
    while (token < last) {
      std::swap(now, next);
      std::swap(visible_, pending_);
      const std::int64_t after = seek(token + tile_tokens, last);
      if (after < last) find(after, *next);
      if (token / chunk_tokens != chunk) {
        if (chunk >= 0) kernel_.close(chunk);
        chunk = token / chunk_tokens;
        kernel_.open();
      }
      step(token, *now, after < last ? next : nullptr);
      token = after;
    }
    if (chunk >= 0) kernel_.close(chunk);
    return chunk >= 0;
  }
  /// The state of the last run() that returned true; rows of `to` are `width` floats.
  void result(state_block to, int width) {
    const state_block from = kernel_.states().finish();
    for (int q = 0; q < kernel_.queries(); ++q) {
      to.maximum[q] = from.maximum[q], to.sum[q] = from.sum[q];
      kernel_.restore(from.output + static_cast<std::int64_t>(q) * kernel_.width(), to.output + static_cast<std::int64_t>(q) * width);
    }
  }

 private:
  void begin(const row_block& block, int kv_head) {
    block_ = block, kv_head_ = kv_head;
    length_ = length_of(part_.source, block.sequence, kv_head);
    positions_ = has_positions ? positions_of(part_.source, block.sequence, kv_head) : nullptr;
    committed_ = length_ - block.sequence_rows;
    if constexpr (requires { part_.source.coder(kv_head); }) kernel_.begin(block.rows * call_.group, kv_head, part_.source.coder(kv_head));
    else kernel_.begin(block.rows * call_.group, kv_head, codec{});
    for (int r = 0; r < block.rows; ++r) {
      index_[r] = committed_ + block.in_sequence + r;
      if constexpr (has_tree) {
        index_[r] = committed_ + depth(block.in_sequence + r);
        std::int32_t node = block.in_sequence + r;
        while (node >= 0 && node != depth(node)) node = parent(node);
        in_place_[r] = committed_ + node + 1;
      }
      for (int h = 0; h < call_.group; ++h) {
        call_.q.read(block.first + r, kv_head * call_.group + h, call_.head_dim, query_);
        kernel_.pack_query(query_, r * call_.group + h, call_.scale);
      }
    }
  }
  void find(std::int64_t token, tile& t) {
    std::swap(buffers_[0], buffers_[1]);
    part_.source.find(block_.sequence, kv_head_, token, t, buffers_[0]);
  }
  place at(int row, int head) const { return {block_.sequence, block_.first + row, index_[row], kv_head_ * call_.group + head, kv_head_}; }
  template <class F>
  [[gnu::always_inline]] void each(F f) const {
    std::apply([&](const Adaptors&... a) __attribute__((always_inline)) { (f(a), ...); }, part_.adaptors);
  }

  // ---- visibility ----
  /// The first tile at or after `token` that some row sees; its words are in pending_.
  std::int64_t seek(std::int64_t token, std::int64_t end) {
    for (; token < end; token += tile_tokens) {
      std::uint64_t any = 0;
      for (int r = 0; r < block_.rows; ++r) any |= look(r, token);
      if (any) break;
    }
    return token;
  }
  std::uint64_t look(int row, std::int64_t token) {
    std::uint64_t* words = pending_ + static_cast<std::int64_t>(row) * call_.group;
    std::uint64_t seen = index_[row] < 0 ? 0 : lowest_bits((has_tree ? index_[row] + 1 : length_) - token), any = 0;
    std::int32_t moved[tile_tokens];
    const std::int32_t* positions = nullptr;
    if constexpr (has_positions)
      if (positions_ && seen) positions = positions_at(row, token, moved);
    each([&](const auto& a) __attribute__((always_inline)) {
      using A = std::remove_cvref_t<decltype(a)>;
      if constexpr (has_positions && position_adaptor<A>) {
        if (positions) seen &= a.visible_positions(positions, positions_[committed_ + block_.in_sequence + row]);
        else if (seen) seen &= a.visible(at(row, 0), token);
      } else if constexpr (visibility_adaptor<A> && !per_query<A>) {
        if (seen) seen &= a.visible(at(row, 0), token);
      }
    });
    for (int h = 0; h < call_.group; ++h) {
      std::uint64_t mine = seen;
      each([&](const auto& a) __attribute__((always_inline)) {
        if constexpr (per_query<std::remove_cvref_t<decltype(a)>>)
          if (mine) mine &= a.visible(at(row, h), token);
      });
      words[h] = mine, any |= mine;
    }
    return any;
  }
  /// Positions of the row's 64 keys from `token` on, in logical order.
  const std::int32_t* positions_at(int row, std::int64_t token, std::int32_t* moved) const {
    const bool stored_in_order = !has_tree || token + tile_tokens <= in_place_or(row, length_);
    if (stored_in_order && token + tile_tokens <= length_) return positions_ + token;
    const std::int64_t last = has_tree ? index_[row] : length_ - 1;
    for (int j = 0; j < tile_tokens; ++j) moved[j] = token + j <= last ? positions_[token + j] : 0;
    if constexpr (has_tree)
      ancestors(row, token, [&](std::int64_t key, std::int64_t stored) { moved[key - token] = positions_[stored]; });
    return moved;
  }

  // ---- draft trees ----
  std::int32_t depth(std::int32_t node) const { return depth_[block_.first - block_.in_sequence + node]; }
  std::int32_t parent(std::int32_t node) const {
    std::int32_t p = -1;
    each([&](const auto& a) {
      if constexpr (tree_adaptor<std::remove_cvref_t<decltype(a)>>) p = a.parents[static_cast<std::size_t>(block_.first - block_.in_sequence + node)];
    });
    return p;
  }
  std::int64_t in_place_or(int row, std::int64_t otherwise) const {
    if constexpr (has_tree) return in_place_[row];
    else return otherwise;
  }
  /// f(key, stored) for the keys of one tile that are ancestors stored elsewhere than at their place in the sequence.
  template <class F>
  void ancestors(int row, std::int64_t token, F f) const {
    std::int32_t node = block_.in_sequence + row;
    for (std::int64_t key = index_[row]; key >= token && key >= in_place_[row]; --key, node = parent(node))
      if (key < token + tile_tokens) f(key, committed_ + node);
  }
  /// The tile as the row sees it: runs that lie in order where they are, others put together in scratch.
  void gather(int row, std::int64_t token, const tile& now, tile& to) {
    const int dim = call_.head_dim, dim_v = part_.source.head_dim_v();
    const std::size_t key_bytes = codec::key_run_bytes(dim), value_bytes = codec::value_run_bytes(dim_v);
    std::byte *keys = gathered_, *values = gathered_ + tile_runs * key_bytes;
    for (int r = 0; r < tile_runs; ++r) {
      const std::int64_t run = token + 16 * r;
      to.key[r] = now.key[r], to.value[r] = now.value[r];
      if (run > index_[row]) {
        to.key[r] = to.key[r - 1], to.value[r] = to.value[r - 1];
      } else if (run + 16 > in_place_[row]) {
        for (std::int64_t key = run; key < in_place_[row]; ++key) copy(now, static_cast<int>(key - token), keys, values, static_cast<int>(key - token));
        to.key[r] = keys + static_cast<std::size_t>(r) * key_bytes, to.value[r] = values + static_cast<std::size_t>(r) * value_bytes;
      }
    }
    tile other;
    std::int64_t found = -1;
    ancestors(row, token, [&](std::int64_t key, std::int64_t stored) {
      const std::int64_t start = stored / tile_tokens * tile_tokens;
      if (start != token && start != found) part_.source.find(block_.sequence, kv_head_, found = start, other, elsewhere_);
      copy(start == token ? now : other, static_cast<int>(stored - start), keys, values, static_cast<int>(key - token));
    });
  }
  void copy(const tile& from, int slot, std::byte* keys, std::byte* values, int to) const {
    const int dim = call_.head_dim, dim_v = part_.source.head_dim_v();
    codec::copy_key(from.key[slot / 16], slot % 16, keys + static_cast<std::size_t>(to / 16) * codec::key_run_bytes(dim), to % 16, dim);
    codec::copy_value(from.value[slot / 16], slot % 16, values + static_cast<std::size_t>(to / 16) * codec::value_run_bytes(dim_v), to % 16, dim_v);
  }

  // ---- one tile ----
  void step(std::int64_t token, const tile& now, const tile* next) {
    if constexpr (has_tree) {
      if (token + tile_tokens > committed_) {
        for (int r = 0, n; r < block_.rows; r += n) {
          n = 1;
          if (moved(r, token)) {
            tile own;
            gather(r, token, now, own);
            fold(token, own, nullptr, r, 1);
          } else {
            while (r + n < block_.rows && !moved(r + n, token)) ++n;
            fold(token, now, next, r, n);
          }
        }
        return;
      }
    }
    fold(token, now, next, 0, block_.rows);
  }
  bool moved(int row, std::int64_t token) const { return index_[row] >= in_place_[row] && index_[row] >= token && token + tile_tokens > in_place_[row]; }

  void fold(std::int64_t token, const tile& now, const tile* next, int row, int rows) {
    int first = row * call_.group, end = first + rows * call_.group;
    while (first < end && !visible_[first]) ++first;
    while (first < end && !visible_[end - 1]) --end;
    if (first == end) return;
    std::uint64_t any = 0;
    for (int q = first; q < end; ++q) any |= visible_[q];
    kernel_.score(now, next, first, end - first, (static_cast<int>(std::bit_width(any)) + 15) / 16);
    if constexpr (has_scores)
      for (int q = first; q < end; ++q) adjust(q, token);
    kernel_.mask(first, end - first, visible_);
    kernel_.soften(now, first, end - first);
    kernel_.weigh(now, next, first, end - first);
  }
  void adjust(int query, std::int64_t token) {
    const place where = at(query / call_.group, query % call_.group);
    float* z = kernel_.logits(query);
    for (int b = 0; b < tile_runs; ++b) {
      if ((visible_[query] >> (16 * b) & 0xffffu) == 0) continue;
      simd::f32x16 x = simd::load(z + 16 * b);
      each([&](const auto& a) __attribute__((always_inline)) {
        if constexpr (score_adaptor<std::remove_cvref_t<decltype(a)>>) x = a.adjust(where, token + 16 * b, x);
      });
      simd::store(z + 16 * b, x);
    }
  }

  const adapted<Source, Adaptors...>& part_;
  const attend_call& call_;
  const std::int32_t* depth_;
  kernel kernel_;
  float* query_;
  std::uint64_t *visible_, *pending_;     // [query]
  std::int64_t *index_, *in_place_;       // [row]: index; first key of the row's path that is not stored at its place
  std::byte* buffers_[2];
  std::byte *elsewhere_ = nullptr, *gathered_ = nullptr;
  row_block block_{};
  int kv_head_ = 0;
  std::int64_t length_ = 0, committed_ = 0;
  const std::int32_t* positions_ = nullptr;
};

}  // namespace heddle::detail::inline HEDDLE_ISA
