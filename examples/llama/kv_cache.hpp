// The keys and values of one sequence, behind an interface that does not know how they are stored. What depends on the codec, the pages and
// the attention over them, is compiled once for each codec, in kv_cache.cpp.
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
  std::int64_t capacity;  // tokens, those of a draft included
};

struct cache_usage {
  std::size_t live_bytes;      // of the rows held
  std::size_t resident_bytes;  // of the pages in use
};

// One step: reserve rows for all layers, per layer write and attend, then keep some of the rows.
class kv_cache {
 public:
  virtual ~kv_cache() = default;

  virtual std::int64_t length() const = 0;  // committed tokens
  virtual void reserve(std::span<const std::int32_t> positions) = 0;
  virtual void write(int layer, const heddle::tensor_view<const float, 3>& keys, const heddle::tensor_view<const float, 3>& values,
                     heddle::executor_ref executor) = 0;
  // Attention of the reserved rows, `parents` as in heddle::tree; no parents: each row follows the one before.
  virtual void attend(int layer, const heddle::tensor_view<const float, 3>& queries, std::span<const std::int32_t> parents,
                      const heddle::tensor_view<float, 3>& out, heddle::executor_ref executor) = 0;
  virtual void keep(std::span<const std::int32_t> rows) = 0;  // indices into the reserved rows, ascending
  virtual void keep_all() = 0;
  virtual void truncate(std::int64_t length) = 0;

  virtual cache_usage usage() const = 0;
  virtual bool equals(const kv_cache& other) const = 0;  // bit for bit, of the same codec
};

std::vector<std::string> cache_codecs();  // f32, f16, bf16, fp8, int8
std::unique_ptr<kv_cache> make_cache(std::string_view codec, const cache_shape& shape);

}  // namespace llama
