// How the tokens of a page are laid out in memory.
//
//   lane_layout   runs of sixteen tokens (codec.hpp): what kernels read without moving anything. page_size is a multiple of 16.
//   row_layout    one record per token; any page_size >= 1. Kernels get runs packed into scratch: same bits, more work.
//
// A *block* holds one page of one KV head: page_size keys, then page_size values. Its size is a multiple of 64 bytes.
// Slots that were never written hold whatever the memory held.
//
//     heddle::page_pool<heddle::codec::f16> own{{.num_layers = 32, .num_pages = 512, .page_size = 64, .num_kv_heads = 8, .head_dim = 128}};
//     heddle::page_pool<heddle::codec::f16, heddle::row_layout> shared{{.num_layers = 32, .num_pages = 512, .page_size = 7, .num_kv_heads = 8, .head_dim = 128}};
#pragma once
#include <heddle/cache/codec/codec.hpp>
#include <heddle/cache/tile.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle {

struct lane_layout {};
struct row_layout {};

namespace detail::inline HEDDLE_ISA {

/// The geometry of a block and how its rows are reached. Slots are those of the page.
template <cache_codec Codec, class Layout>
class page_block;

template <cache_codec Codec>
class page_block<Codec, lane_layout> {
 public:
  page_block(int page_size, int head_dim, int head_dim_v)
      : page_size_(page_size),
        head_dim_(head_dim),
        head_dim_v_(head_dim_v),
        key_run_(Codec::key_run_bytes(head_dim)),
        value_run_(Codec::value_run_bytes(head_dim_v)) {
    require(page_size >= 16 && page_size % 16 == 0, "page_pool: argument 'page_size' is ", page_size,
            "; expected a multiple of 16 in the lane layout");
    values_ = runs() * key_run_;
  }
  std::size_t bytes() const { return values_ + runs() * value_run_; }
  std::size_t scratch_bytes() const { return 0; }

  template <class T>
  void encode_keys(const T* rows, std::int64_t row_stride, int count, std::byte* block, int slot) const {
    for (int done = 0, n; done < count; done += n) {
      n = rest_of_run(slot + done, count - done);
      Codec::encode_keys(rows + done * row_stride, row_stride, n, head_dim_, key_run(block, slot + done), (slot + done) % 16);
    }
  }
  template <class T>
  void encode_values(const T* rows, std::int64_t row_stride, int count, std::byte* block, int slot) const {
    for (int done = 0, n; done < count; done += n) {
      n = rest_of_run(slot + done, count - done);
      Codec::encode_values(rows + done * row_stride, row_stride, n, head_dim_v_, value_run(block, slot + done), (slot + done) % 16);
    }
  }
  void move_row(const std::byte* from, int from_slot, std::byte* to, int to_slot) const {
    Codec::copy_key(key_run(from, from_slot), from_slot % 16, key_run(to, to_slot), to_slot % 16, head_dim_);
    Codec::copy_value(value_run(from, from_slot), from_slot % 16, value_run(to, to_slot), to_slot % 16, head_dim_v_);
  }
  /// The row alone, in slot 0 of a run.
  void extract_key(const std::byte* block, int slot, std::byte* run) const {
    Codec::copy_key(key_run(block, slot), slot % 16, run, 0, head_dim_);
  }
  void extract_value(const std::byte* block, int slot, std::byte* run) const {
    Codec::copy_value(value_run(block, slot), slot % 16, run, 0, head_dim_v_);
  }

  template <class Byte>
  Byte* key_run(Byte* block, int slot) const {
    return block + static_cast<std::size_t>(slot / 16) * key_run_;
  }
  template <class Byte>
  Byte* value_run(Byte* block, int slot) const {
    return block + values_ + static_cast<std::size_t>(slot / 16) * value_run_;
  }

  /// Tokens first .. first + 63 of a table with `length` > first tokens; block_of(page) is the block of the table's page.
  template <class BlockOf>
  [[gnu::always_inline]] void find(const BlockOf& block_of, std::int64_t first, std::int64_t length, tile& t, std::byte*) const {
    auto page = static_cast<std::uint32_t>(first) / static_cast<std::uint32_t>(page_size_);
    int slot = static_cast<int>(static_cast<std::uint32_t>(first) - page * static_cast<std::uint32_t>(page_size_));
    for (int r = 0; r < tile_runs; ++r) {
      if (r > 0 && first + 16 * r >= length) {
        t.key[r] = t.key[r - 1], t.value[r] = t.value[r - 1];
        continue;
      }
      const std::byte* block = block_of(page);
      t.key[r] = key_run(block, slot), t.value[r] = value_run(block, slot);
      if ((slot += 16) == page_size_) slot = 0, ++page;
    }
  }

 private:
  std::size_t runs() const { return static_cast<std::size_t>(page_size_ / 16); }
  static int rest_of_run(int slot, int count) { return count < 16 - slot % 16 ? count : 16 - slot % 16; }

  int page_size_, head_dim_, head_dim_v_;
  std::size_t key_run_, value_run_, values_ = 0;
};

template <cache_codec Codec>
class page_block<Codec, row_layout> {
 public:
  page_block(int page_size, int head_dim, int head_dim_v)
      : page_size_(page_size),
        head_dim_(head_dim),
        head_dim_v_(head_dim_v),
        key_row_(Codec::key_row_bytes(head_dim)),
        value_row_(Codec::value_row_bytes(head_dim_v)),
        values_((slots(page_size) * key_row_ + 63) / 64 * 64) {
    require(page_size >= 1, "page_pool: argument 'page_size' is ", page_size, "; expected 1 or more");
  }
  std::size_t bytes() const { return values_ + (slots(page_size_) * value_row_ + 63) / 64 * 64; }
  std::size_t scratch_bytes() const { return tile_runs * (Codec::key_run_bytes(head_dim_) + Codec::value_run_bytes(head_dim_v_)); }

  template <class T>
  void encode_keys(const T* rows, std::int64_t row_stride, int count, std::byte* block, int slot) const {
    for (int i = 0; i < count; ++i) Codec::encode_key_row(rows + i * row_stride, head_dim_, key_record(block, slot + i));
  }
  template <class T>
  void encode_values(const T* rows, std::int64_t row_stride, int count, std::byte* block, int slot) const {
    for (int i = 0; i < count; ++i) Codec::encode_value_row(rows + i * row_stride, head_dim_v_, value_record(block, slot + i));
  }
  void move_row(const std::byte* from, int from_slot, std::byte* to, int to_slot) const {
    std::memmove(key_record(to, to_slot), key_record(from, from_slot), key_row_);
    std::memmove(value_record(to, to_slot), value_record(from, from_slot), value_row_);
  }
  void extract_key(const std::byte* block, int slot, std::byte* run) const {
    Codec::pack_key_row(key_record(block, slot), run, 0, head_dim_);
  }
  void extract_value(const std::byte* block, int slot, std::byte* run) const {
    Codec::pack_value_row(value_record(block, slot), run, 0, head_dim_v_);
  }

  template <class Byte>
  Byte* key_record(Byte* block, int slot) const {
    return block + slots(slot) * key_row_;
  }
  template <class Byte>
  Byte* value_record(Byte* block, int slot) const {
    return block + values_ + slots(slot) * value_row_;
  }

  template <class BlockOf>
  void find(const BlockOf& block_of, std::int64_t first, std::int64_t length, tile& t, std::byte* scratch) const {
    const std::size_t key_run = Codec::key_run_bytes(head_dim_), value_run = Codec::value_run_bytes(head_dim_v_);
    auto page = static_cast<std::uint32_t>(first) / static_cast<std::uint32_t>(page_size_);
    int slot = static_cast<int>(static_cast<std::uint32_t>(first) - page * static_cast<std::uint32_t>(page_size_));
    for (int r = 0; r < tile_runs; ++r) {
      const std::int64_t left = length - first - 16 * r;
      if (r > 0 && left <= 0) {
        t.key[r] = t.key[r - 1], t.value[r] = t.value[r - 1];
        continue;
      }
      std::byte *keys = scratch + slots(r) * key_run, *values = scratch + tile_runs * key_run + slots(r) * value_run;
      t.key[r] = keys, t.value[r] = values;
      for (int done = 0, n, rows = left < 16 ? static_cast<int>(left) : 16; done < rows; done += n) {
        n = rows - done < page_size_ - slot ? rows - done : page_size_ - slot;
        pack_keys(key_record(block_of(page), slot), n, keys, done);
        pack_values(value_record(block_of(page), slot), n, values, done);
        if ((slot += n) == page_size_) slot = 0, ++page;
      }
    }
  }

 private:
  static constexpr std::size_t slots(int n) { return static_cast<std::size_t>(n); }
  void pack_keys(const std::byte* records, int count, std::byte* run, int slot) const {
    if constexpr (element_storage<Codec>)
      Codec::encode_keys(reinterpret_cast<const typename Codec::element*>(records), head_dim_, count, head_dim_, run, slot);
    else
      for (int i = 0; i < count; ++i) Codec::pack_key_row(records + slots(i) * key_row_, run, slot + i, head_dim_);
  }
  void pack_values(const std::byte* records, int count, std::byte* run, int slot) const {
    for (int i = 0; i < count; ++i) Codec::pack_value_row(records + slots(i) * value_row_, run, slot + i, head_dim_v_);
  }

  int page_size_, head_dim_, head_dim_v_;
  std::size_t key_row_, value_row_, values_;
};

}  // namespace detail::inline HEDDLE_ISA
}  // namespace heddle
