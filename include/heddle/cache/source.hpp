// A page pool as attention sees it: sequences of a batch, then one layer of them, then the keys and values of a layer.
//
//   pool[sequence], pool[sequences]     sequence_batch: which sequences, in which order
//   .layer(l)                           layer_source: a key source of attend()
//   .layer(l).head(h)                   the same with one KV head alone
//
// All are small views, valid as long as the pool and the span of ids live; they show the pool as it is when they are read. Lengths count
// reserved tokens too: those are the rows of the step in progress. Reading is safe from many threads while nobody changes the pool.
//
//     const auto keys = pool[sequences].layer(3);                    // a batch; pool[sequence] is a batch of one
//     heddle::attend(q, keys | heddle::causal(), out, lse, {.q_indptr = indptr});
//     const std::int64_t tokens = keys.length(0);                    // of sequences[0], the rows of this step included
#pragma once
#include <heddle/cache/page_table.hpp>
#include <heddle/cache/tile.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline HEDDLE_ISA {

template <class Pool>
class layer_source;

template <class Pool>
class sequence_batch {
 public:
  sequence_batch(const Pool& pool, sequence_id id) : pool_(&pool), one_(id) {}
  sequence_batch(const Pool& pool, std::span<const sequence_id> ids)
      : pool_(&pool), ids_(ids.data()), size_(static_cast<std::int64_t>(ids.size())) {}
  std::int64_t size() const { return size_; }
  sequence_id operator[](std::int64_t i) const { return ids_ ? ids_[i] : one_; }
  const Pool& pool() const { return *pool_; }
  layer_source<Pool> layer(int l) const {
    require(l >= 0 && l < pool_->num_layers(), "page_pool: argument 'layer' is ", l, "; expected 0 to ", pool_->num_layers() - 1);
    return {*this, l, 0, pool_->num_kv_heads()};
  }

 private:
  const Pool* pool_;
  const sequence_id* ids_ = nullptr;
  sequence_id one_{};
  std::int64_t size_ = 1;
};

template <class Pool>
class layer_source {
 public:
  using codec = typename Pool::codec;
  layer_source(const sequence_batch<Pool>& batch, int layer, int first_head, int num_heads)
      : batch_(batch), layer_(layer), first_head_(first_head), num_heads_(num_heads) {}

  std::int64_t num_sequences() const { return batch_.size(); }
  int num_kv_heads() const { return num_heads_; }
  int head_dim() const { return pool().head_dim(); }
  int head_dim_v() const { return pool().head_dim_v(); }

  /// Tokens of a KV head, reserved ones included. They differ between heads after eviction from single heads only.
  std::int64_t length(std::int64_t sequence, int kv_head) const { return pool().length(batch_[sequence], layer_, first_head_ + kv_head); }
  /// The longest of the heads.
  std::int64_t length(std::int64_t sequence) const {
    std::int64_t longest = 0;
    for (int h = 0; h < num_heads_; ++h)
      if (const std::int64_t n = length(sequence, h); n > longest) longest = n;
    return longest;
  }
  /// Throws unless this layer has written all rows of the step in progress: attention calls it before it reads anything.
  void require_readable(std::int64_t sequence) const {
    const std::int64_t reserved = pool().reserved(batch_[sequence]), written = pool().written(batch_[sequence], layer_);
    require(written >= reserved, "page_pool: layer ", layer_, " has written ", written, " of the ", reserved, " reserved rows of sequence ",
            batch_[sequence].index, "; write() comes before attention reads them");
  }
  std::int64_t committed(std::int64_t sequence) const { return length(sequence) - pool().reserved(batch_[sequence]); }

  const std::int32_t* positions(std::int64_t sequence, int kv_head) const {
    return pool().positions(batch_[sequence], layer_, first_head_ + kv_head).data();
  }
  const std::int32_t* positions(std::int64_t sequence) const { return positions(sequence, 0); }

  std::size_t scratch_bytes() const { return pool().scratch_bytes(); }
  /// Where tokens first_token .. first_token + 63 of a head lie; first_token is a multiple of 64 below the head's length.
  [[gnu::always_inline]] void find(std::int64_t sequence, int kv_head, std::int64_t first_token, tile& t,
                                   std::byte* scratch) const noexcept {
    pool().find(batch_[sequence], layer_, first_head_ + kv_head, first_token, t, scratch);
  }

  layer_source head(int h) const {
    require(h >= 0 && h < num_heads_, "page_pool: argument 'head' is ", h, "; expected 0 to ", num_heads_ - 1);
    return {batch_, layer_, first_head_ + h, 1};
  }

 private:
  const Pool& pool() const { return batch_.pool(); }
  sequence_batch<Pool> batch_;
  int layer_, first_head_, num_heads_;
};

}  // namespace heddle::inline HEDDLE_ISA
