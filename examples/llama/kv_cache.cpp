#include "kv_cache.hpp"

#include <heddle/attention/attend.hpp>
#include <heddle/cache/codec/element.hpp>
#include <heddle/cache/codec/int8.hpp>
#include <heddle/cache/page_pool.hpp>
#include <heddle/core/aligned_vector.hpp>

#include <stdexcept>

namespace llama {
namespace {

using heddle::tensor_view;

template <class Codec>
class paged_cache final : public kv_cache {
 public:
  explicit paged_cache(const cache_shape& shape)
      : pool_({.num_layers = shape.num_layers,
               .num_pages = (shape.capacity + page_size - 1) / page_size,
               .page_size = page_size,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim}),
        sequence_(pool_.new_sequence()) {}

  std::int64_t length() const override { return pool_.committed(sequence_); }
  void reserve(std::span<const std::int32_t> positions) override {
    pool_.reserve(sequence_, static_cast<std::int64_t>(positions.size()), positions);
  }
  void write(int layer, const tensor_view<const float, 3>& keys, const tensor_view<const float, 3>& values,
             heddle::executor_ref executor) override {
    pool_.write(sequence_, layer, keys, values, {.executor = executor});
  }
  void attend(int layer, const tensor_view<const float, 3>& queries, std::span<const std::int32_t> parents,
              const tensor_view<float, 3>& out, heddle::executor_ref executor) override {
    const auto keys = pool_[sequence_].layer(layer) | heddle::causal();
    if (parents.empty()) attend(layer, queries, keys, out, executor);
    else attend(layer, queries, keys | heddle::tree(parents), out, executor);
  }
  void keep(std::span<const std::int32_t> rows) override { pool_.compact(sequence_, rows); }
  void keep_all() override { pool_.commit(sequence_); }
  void truncate(std::int64_t length) override { pool_.truncate(sequence_, length); }

  cache_usage usage() const override {
    const auto usage = pool_.usage();
    return {usage.live_bytes, usage.resident_bytes};
  }
  bool equals(const kv_cache& other) const override {
    const auto* const same_kind = dynamic_cast<const paged_cache*>(&other);
    return same_kind != nullptr && pool_.same_rows(sequence_, same_kind->pool_, same_kind->sequence_);
  }

 private:
  template <class Keys>
  void attend(int layer, const tensor_view<const float, 3>& queries, const Keys& keys, const tensor_view<float, 3>& out,
              heddle::executor_ref executor) {
    if (layer == 0) workspace_.resize(heddle::attend_workspace_size(queries, keys, {.executor = executor}));  // all layers are alike
    heddle::attend(queries, keys, out, tensor_view<float, 2>{}, {.executor = executor, .workspace = workspace_});
  }

  static constexpr int page_size = 64;
  heddle::page_pool<Codec> pool_;
  heddle::sequence_id sequence_;
  heddle::aligned_vector<std::byte> workspace_;
};

template <class Codec>
std::unique_ptr<kv_cache> make(const cache_shape& shape) {
  return std::make_unique<paged_cache<Codec>>(shape);
}
struct named_codec {
  std::string_view name;
  std::unique_ptr<kv_cache> (*make)(const cache_shape&);
};
constexpr named_codec codecs[]{{"f32", make<heddle::codec::f32>},
                               {"f16", make<heddle::codec::f16>},
                               {"bf16", make<heddle::codec::bf16>},
                               {"fp8", make<heddle::codec::fp8_e4m3>},
                               {"int8", make<heddle::codec::int8<>>}};

}  // namespace

std::vector<std::string> cache_codecs() {
  std::vector<std::string> names;
  for (const named_codec& c : codecs) names.emplace_back(c.name);
  return names;
}

std::unique_ptr<kv_cache> make_cache(std::string_view codec, const cache_shape& shape) {
  for (const named_codec& c : codecs)
    if (c.name == codec) return c.make(shape);
  throw std::invalid_argument("there is no cache codec '" + std::string(codec) + "'");
}

}  // namespace llama
