// The bytes of codecs and pools are the same for every instruction set.
#include "support/bits.hpp"

#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>

namespace heddle_bits {
inline namespace HEDDLE_BITS_UNIT {

// Rows of a tree step, compacted, and what is stored then.
template <class Codec>
vector<float> stored() {
  constexpr std::int64_t rows = 37, heads = 2, dim = 41;
  heddle::page_pool<Codec> pool({.num_pages = 4, .page_size = 16, .num_kv_heads = heads, .head_dim = dim});
  inputs in{3};
  vector<float> numbers = in.uniform(rows * heads * dim);
  for (std::size_t i = 0; i < numbers.size(); i += 7) numbers[i] *= 1e-6f;
  for (std::size_t i = 0; i < numbers.size(); i += 11) numbers[i] *= 3000.f;
  const heddle::tensor_view view{numbers.data(), heddle::extents{rows, heads, dim}};
  const heddle::sequence_id s = pool.new_sequence();
  pool.reserve(s, rows);
  pool.write(s, 0, view, view);
  std::int32_t path[rows];
  std::size_t kept = 0;
  for (std::int32_t i = 0; i < rows; ++i)
    if (i % 5 != 3) path[kept++] = i;
  pool.compact(s, std::span<const std::int32_t>(path, kept));
  vector<float> out(2 * kept * heads * dim);
  const heddle::extents<3> shape{static_cast<std::int64_t>(kept), heads, dim};
  pool.read(s, 0, 0, {out.data(), shape}, {out.data() + kept * heads * dim, shape});
  return out;
}

}  // namespace HEDDLE_BITS_UNIT
}  // namespace heddle_bits

HEDDLE_BITS(cache_page_pool, report) {
  report.add("cache/f16", heddle_bits::stored<heddle::codec::f16>());
  report.add("cache/bf16", heddle_bits::stored<heddle::codec::bf16>());
  report.add("cache/fp8_e4m3", heddle_bits::stored<heddle::codec::fp8_e4m3>());
  report.add("cache/fp8_e5m2", heddle_bits::stored<heddle::codec::fp8_e5m2>());
  report.add("cache/int8", heddle_bits::stored<heddle::codec::int8<>>());
}
