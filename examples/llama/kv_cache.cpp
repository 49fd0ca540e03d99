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
               .num_pages = shape.num_sequences * ((shape.capacity + page_size - 1) / page_size),
               .page_size = page_size,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim}) {
    for (int i = 0; i < shape.num_sequences; ++i) sequences_.push_back(pool_.new_sequence());
  }

  int num_sequences() const override { return static_cast<int>(sequences_.size()); }
  std::int64_t length(int sequence) const override { return pool_.committed(id(sequence)); }
  void reserve(const step_rows& rows) override {
    forget();
    indptr_.assign(rows.indptr.begin(), rows.indptr.end());
    parents_.assign(rows.parents.begin(), rows.parents.end());
    try {
      for (int s = 0; s < num_sequences(); ++s)
        if (const auto [first, count] = rows_of(s); count > 0) pool_.reserve(id(s), static_cast<std::int64_t>(count), rows.positions.subspan(first, count));
    } catch (...) {
      forget();
      throw;
    }
  }
  void write(int layer, const tensor_view<const float, 3>& keys, const tensor_view<const float, 3>& values,
             heddle::executor_ref executor) override {
    for (int s = 0; s < num_sequences(); ++s) {
      const auto [first, count] = rows_of(s);
      const auto from = static_cast<std::int64_t>(first), rows = static_cast<std::int64_t>(count);
      if (count > 0) pool_.write(id(s), layer, keys.slice(from, rows), values.slice(from, rows), {.executor = executor});
    }
  }
  void attend(int layer, const tensor_view<const float, 3>& queries, const tensor_view<float, 3>& out,
              heddle::executor_ref executor) override {
    const auto keys = pool_[sequences_].layer(layer) | heddle::causal();
    if (parents_.empty()) attend(queries, keys, out, executor);
    else attend(queries, keys | heddle::tree(parents_), out, executor);
  }
  void keep(int sequence, std::span<const std::int32_t> rows) override { pool_.compact(id(sequence), rows); }
  void keep_all() override {
    for (const auto sequence : sequences_) pool_.commit(sequence);
  }
  void forget() override {
    for (const auto sequence : sequences_) pool_.rollback(sequence);
  }
  void truncate(std::int64_t length, int sequence) override { pool_.truncate(id(sequence), length); }

  cache_usage usage() const override {
    const auto usage = pool_.usage();
    return {usage.live_bytes, usage.resident_bytes};
  }
  bool equals(const kv_cache& other) const override {
    bool all = num_sequences() == other.num_sequences();
    for (int s = 0; all && s < num_sequences(); ++s) all = equals(s, other, s);
    return all;
  }
  bool equals(int sequence, const kv_cache& other, int other_sequence) const override {
    const auto* const same_kind = dynamic_cast<const paged_cache*>(&other);
    return same_kind != nullptr && pool_.same_rows(id(sequence), same_kind->pool_, same_kind->id(other_sequence));
  }

 private:
  struct row_range {
    std::size_t first, count;
  };
  row_range rows_of(int sequence) const {
    const auto s = static_cast<std::size_t>(sequence);
    return {static_cast<std::size_t>(indptr_[s]), static_cast<std::size_t>(indptr_[s + 1] - indptr_[s])};
  }
  heddle::sequence_id id(int sequence) const { return sequences_.at(static_cast<std::size_t>(sequence)); }

  template <class Keys>
  void attend(const tensor_view<const float, 3>& queries, const Keys& keys, const tensor_view<float, 3>& out, heddle::executor_ref executor) {
    const std::size_t bytes = heddle::attend_workspace_size(queries, keys, {.q_indptr = indptr_, .executor = executor});
    if (workspace_.size() < bytes) workspace_.resize(bytes);
    heddle::attend(queries, keys, out, tensor_view<float, 2>{}, {.q_indptr = indptr_, .executor = executor, .workspace = workspace_});
  }

  static constexpr int page_size = 64;
  heddle::page_pool<Codec> pool_;
  std::vector<heddle::sequence_id> sequences_;
  std::vector<std::int32_t> indptr_, parents_;
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
