// The keys and values of some sequences, behind an interface that does not know how they are stored. What depends on the codec, the pages
// and the attention over them, is compiled once for each codec, in kv_cache.cpp.
#pragma once

#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

struct cache_shape {
  int num_layers, num_kv_heads, head_dim;
  std::int64_t capacity;  // tokens of a sequence, those of a draft included
  int num_sequences = 1;
};

struct cache_usage {
  std::size_t live_bytes;      // of the rows held
  std::size_t resident_bytes;  // of the pages in use
};

// Rows of a step: sequence s has rows indptr[s] .. indptr[s + 1] - 1.
struct step_rows {
  std::span<const std::int32_t> indptr{};     // one entry more than there are sequences
  std::span<const std::int32_t> positions{};  // per row
  std::span<const std::int32_t> parents{};    // per row, as in heddle::tree; none: each row follows the one before
};

// One step: reserve rows for all layers, per layer write and attend, then keep some of the rows.
class kv_cache {
 public:
  virtual ~kv_cache() = default;

  virtual int num_sequences() const = 0;
  virtual std::int64_t length(int sequence = 0) const = 0;  // committed tokens
  // Rows of a step that was not ended are forgotten first. Without memory for all of `rows` nothing is reserved.
  virtual void reserve(const step_rows& rows) = 0;
  virtual void write(int layer, const heddle::tensor_view<const float, 3>& keys, const heddle::tensor_view<const float, 3>& values,
                     heddle::executor_ref executor) = 0;
  // Attention of the reserved rows.
  virtual void attend(int layer, const heddle::tensor_view<const float, 3>& queries, const heddle::tensor_view<float, 3>& out,
                      heddle::executor_ref executor) = 0;
  virtual void keep(int sequence, std::span<const std::int32_t> rows) = 0;  // indices into its reserved rows, ascending
  virtual void keep_all() = 0;
  virtual void forget() = 0;  // all reserved rows
  virtual void truncate(std::int64_t length, int sequence = 0) = 0;

  virtual cache_usage usage() const = 0;
  virtual bool equals(const kv_cache& other) const = 0;  // all sequences, bit for bit, of the same codec
  virtual bool equals(int sequence, const kv_cache& other, int other_sequence) const = 0;
};

std::vector<std::string> cache_codecs();  // f32, f16, bf16, fp8, int8
std::unique_ptr<kv_cache> make_cache(std::string_view codec, const cache_shape& shape);

}  // namespace llama
