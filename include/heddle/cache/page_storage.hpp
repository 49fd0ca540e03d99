// The bytes of a page pool, without bookkeeping: where the block of a page, layer and head lies, and what is done to its rows.
//
// Pages are head-major: [layer][page][kv_head][block] when the page tables are shared, [page][block] when every layer and head has its own.
#pragma once
#include <heddle/cache/layout.hpp>
#include <heddle/cache/page_table.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heddle {

struct page_pool_options {
  int num_layers = 1;
  std::int64_t num_pages = 0;  ///< with page_tables::per_head, of single layers and heads
  int page_size = 64;          ///< tokens
  int num_kv_heads = 1;
  int head_dim = 0;    ///< of keys, 1 to 4096
  int head_dim_v = 0;  ///< of values; 0: head_dim
  page_tables tables = page_tables::shared;
  std::span<std::byte> storage{};  ///< memory of the pages, 64-byte aligned, that outlives the pool; empty: the pool allocates
};

namespace detail::inline HEDDLE_ISA {

template <cache_codec Codec, class Layout>
class page_storage {
 public:
  using block_type = page_block<Codec, Layout>;
  static constexpr int max_head_dim = 4096;
  static constexpr std::int64_t elements_per_worker = 1 << 14;  // less is not worth waking a thread for

  explicit page_storage(const page_pool_options& o)
      : options_(checked(o)), block_(options_.page_size, options_.head_dim, options_.head_dim_v) {
    if constexpr (Codec::group_tokens > 1)
      require(o.page_size % Codec::group_tokens == 0, "page_pool: argument 'page_size' is ", o.page_size, "; expected a multiple of ",
              Codec::group_tokens, ", the codec's group");
    const std::size_t bytes = bytes_for(options_);
    const bool shared = options_.tables == page_tables::shared;
    head_stride_ = shared ? block_.bytes() : 0;
    page_stride_ = shared ? block_.bytes() * count(options_.num_kv_heads) : block_.bytes();
    layer_stride_ = shared ? page_stride_ * static_cast<std::size_t>(options_.num_pages) : 0;
    if (o.storage.empty()) {
      owned_.reset(static_cast<std::byte*>(::operator new(bytes, huge_page)));
      base_ = owned_.get();
#if defined(__linux__)
      // Prefetches that miss the translation buffer halve the speed of a streaming read.
      if (bytes >= static_cast<std::size_t>(huge_page)) ::madvise(base_, bytes, MADV_HUGEPAGE);
#endif
    } else {
      require(o.storage.size() >= bytes, "page_pool: argument 'storage' holds ", o.storage.size(), " bytes; expected at least ", bytes);
      require(reinterpret_cast<std::uintptr_t>(o.storage.data()) % 64 == 0, "page_pool: argument 'storage' is not aligned to 64 bytes");
      base_ = o.storage.data();
    }
  }

  static std::size_t bytes_for(const page_pool_options& given) {
    const page_pool_options o = checked(given);
    std::size_t bytes = block_type(o.page_size, o.head_dim, o.head_dim_v).bytes();
    bool overflow = __builtin_mul_overflow(bytes, static_cast<std::size_t>(o.num_pages), &bytes);
    if (o.tables == page_tables::shared) {
      overflow |= __builtin_mul_overflow(bytes, count(o.num_layers), &bytes);
      overflow |= __builtin_mul_overflow(bytes, count(o.num_kv_heads), &bytes);
    }
    require(!overflow && bytes <= std::numeric_limits<std::size_t>::max() / 2, "page_pool: argument 'num_pages' is ", o.num_pages,
            "; the pages do not fit the address space");
    return bytes;
  }

  const page_pool_options& options() const { return options_; }
  const block_type& block() const { return block_; }
  std::size_t num_tables() const {
    return options_.tables == page_tables::shared ? 1 : count(options_.num_layers) * count(options_.num_kv_heads);
  }
  std::size_t table_of(int layer, int head) const {
    return options_.tables == page_tables::shared ? 0 : count(layer) * count(options_.num_kv_heads) + count(head);
  }
  /// Bytes of one page over all layers and heads that share it.
  std::size_t page_bytes() const {
    return options_.tables == page_tables::shared ? page_stride_ * count(options_.num_layers) : page_stride_;
  }
  /// Bytes of one token of one layer and head.
  std::size_t row_bytes() const { return Codec::key_row_bytes(options_.head_dim) + Codec::value_row_bytes(options_.head_dim_v); }
  /// Blocks that share one page.
  std::size_t blocks_per_page() const { return page_bytes() / block_.bytes(); }

  std::byte* address(std::int32_t page, int layer, int head) { return base_ + offset(page, layer, head); }
  const std::byte* address(std::int32_t page, int layer, int head) const { return base_ + offset(page, layer, head); }

  /// f(layer, head) for everything that table t covers.
  template <class F>
  void for_each_head(std::size_t table, const F& f) const {
    if (options_.tables == page_tables::per_head)
      return f(static_cast<int>(table / count(options_.num_kv_heads)), static_cast<int>(table % count(options_.num_kv_heads)));
    for (int layer = 0; layer < options_.num_layers; ++layer)
      for (int head = 0; head < options_.num_kv_heads; ++head) f(layer, head);
  }

  void copy_page(std::int32_t from, std::int32_t to) noexcept {
    const int slices = options_.tables == page_tables::shared ? options_.num_layers : 1;
    for (int layer = 0; layer < slices; ++layer) std::memcpy(address(to, layer, 0), address(from, layer, 0), page_stride_);
  }
  /// Token `from` of a table takes the place of token `to`.
  void move_token(std::size_t table, const page_table& t, std::int64_t from, std::int64_t to) noexcept {
    const auto [from_page, from_slot] = place(from);
    const auto [to_page, to_slot] = place(to);
    const std::int32_t source = t.pages[from_page], target = t.pages[to_page];
    for_each_head(table, [&, a = from_slot, b = to_slot](int layer, int head) {
      block_.move_row(address(source, layer, head), a, address(target, layer, head), b);
    });
  }

  /// Seals the group of tokens that starts at `first`.
  void seal(std::size_t table, const page_table& t, std::int64_t first) noexcept {
    const auto [page, slot] = place(first);
    for_each_head(table, [&, p = t.pages[page], at = slot](int layer, int head) {
      std::byte* block = address(p, layer, head);
      Codec::seal_keys(block_.key_run(block, at), options_.head_dim);
      Codec::seal_values(block_.value_run(block, at), options_.head_dim_v);
    });
  }

  /// Rows of one layer: row i of head h becomes token first_token(h) + i of the table of that head. Work is shared page by page.
  template <class Keys, class Values, class TableOf, class FirstToken>
  void write(int layer, const Keys& k, const Values& v, const TableOf& table_of_head, const FirstToken& first_token,
             executor_ref executor) {
    const std::int64_t rows = k.extent(0), pages = rows / options_.page_size + 2, items = pages * options_.num_kv_heads;
    const std::int64_t elements = rows * options_.num_kv_heads * (options_.head_dim + options_.head_dim_v);
    const auto workers = std::min<std::int64_t>(static_cast<std::int64_t>(executor.concurrency()), 1 + elements / elements_per_worker);
    executor.bulk(static_cast<std::size_t>(workers), [&](std::size_t worker) {
      const auto w = static_cast<std::int64_t>(worker);
      for (std::int64_t item = items * w / workers; item < items * (w + 1) / workers; ++item) {
        const int head = static_cast<int>(item % options_.num_kv_heads);  // heads of one page in turn: they lie side by side in k and v
        const std::int64_t start = first_token(head), page = start / options_.page_size + item / options_.num_kv_heads;
        const std::int64_t first = std::max(start, page * options_.page_size),
                           last = std::min(start + rows, (page + 1) * options_.page_size);
        if (first >= last) continue;
        const int slot = static_cast<int>(first - page * options_.page_size), n = static_cast<int>(last - first);
        std::byte* block = address(table_of_head(head).pages[static_cast<std::size_t>(page)], layer, head);
        encode(k, head, first - start, n, slot,
               [&](const auto* r, std::int64_t stride, int m, int s) { block_.encode_keys(r, stride, m, block, s); });
        encode(v, head, first - start, n, slot,
               [&](const auto* r, std::int64_t stride, int m, int s) { block_.encode_values(r, stride, m, block, s); });
      }
    });
  }

  struct token_place {
    std::size_t page;
    int slot;
  };
  token_place place(std::int64_t token) const {
    return {static_cast<std::size_t>(token / options_.page_size), static_cast<int>(token % options_.page_size)};
  }

 private:
  static constexpr std::size_t count(int n) { return static_cast<std::size_t>(n); }
  std::size_t offset(std::int32_t page, int layer, int head) const {
    return static_cast<std::size_t>(page) * page_stride_ + count(layer) * layer_stride_ + count(head) * head_stride_;
  }

  static page_pool_options checked(page_pool_options o) {
    if (o.head_dim_v == 0) o.head_dim_v = o.head_dim;
    require(o.num_layers >= 1, "page_pool: argument 'num_layers' is ", o.num_layers, "; expected 1 or more");
    require(o.num_kv_heads >= 1, "page_pool: argument 'num_kv_heads' is ", o.num_kv_heads, "; expected 1 or more");
    require(o.num_pages >= 1 && o.num_pages <= std::numeric_limits<std::int32_t>::max(), "page_pool: argument 'num_pages' is ", o.num_pages,
            "; expected 1 to 2147483647");
    require(o.head_dim >= 1 && o.head_dim <= max_head_dim, "page_pool: argument 'head_dim' is ", o.head_dim, "; expected 1 to ",
            max_head_dim);
    require(o.head_dim_v >= 1 && o.head_dim_v <= max_head_dim, "page_pool: argument 'head_dim_v' is ", o.head_dim_v,
            "; expected 0 (head_dim) to ", max_head_dim);
    return o;
  }

  // Codecs read rows whose channels are adjacent: others are gathered, up to one run at a time.
  template <class View, class Encode>
  static void encode(const View& rows, int head, std::int64_t first, int n, int slot, const Encode& f) {
    const std::int64_t d = rows.extent(2);
    if (rows.stride(2) == 1 || d == 1) return f(rows.at(first, head), rows.stride(0), n, slot);
    alignas(64) std::remove_const_t<typename View::element> gathered[max_head_dim];
    const int at_once = static_cast<int>(std::min<std::int64_t>(16, max_head_dim / d));
    for (int done = 0, m; done < n; done += m) {
      m = std::min({at_once, n - done, 16 - (slot + done) % 16});
      for (int i = 0; i < m; ++i)
        for (std::int64_t c = 0; c < d; ++c) gathered[i * d + c] = rows(first + done + i, head, c);
      f(gathered, d, m, slot + done);
    }
  }

  static constexpr std::align_val_t huge_page{std::size_t{2} << 20};
  struct deallocate {
    void operator()(std::byte* p) const { ::operator delete(p, huge_page); }
  };

  page_pool_options options_;
  block_type block_;
  std::size_t head_stride_ = 0, page_stride_ = 0, layer_stride_ = 0;
  std::unique_ptr<std::byte, deallocate> owned_;
  std::byte* base_ = nullptr;
};

}  // namespace detail::inline HEDDLE_ISA
}  // namespace heddle
