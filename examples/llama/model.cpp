#include "model.hpp"

#include <heddle/linear/elementwise.hpp>
#include <heddle/linear/norm.hpp>

#include <algorithm>
#include <cstring>
#include <initializer_list>

namespace llama {
namespace {

constexpr std::size_t prefill_rows = 256;  // at a time: their hidden states stay in the cache of a core

heddle::aligned_vector<float> copy_of(const release_pages& release, const tensor_info& tensor) {
  heddle::aligned_vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  release(tensor.data);
  return out;
}

bool is_chain(std::span<const std::int32_t> parents) {
  for (std::size_t i = 0; i < parents.size(); ++i)
    if (parents[i] != static_cast<std::int32_t>(i) - 1) return false;
  return true;
}

}  // namespace

model::model(const release_pages& release, const model_config& config, const model_weights& weights, linear::precision activations,
             kv_cache& cache, heddle::executor_ref executor)
    : config_(config),
      cache_(&cache),
      executor_(executor),
      rope_({.head_dim = static_cast<std::int64_t>(config.head_dim), .base = config.rope_base}),
      inputs_(activations),
      embedding_({weights.embedding}, arena_, release, executor),
      output_norm_(copy_of(release, *weights.output_norm)) {
  const auto pack = [&](std::initializer_list<const tensor_info*> tensors) { return projection(tensors, arena_, release, executor); };
  for (const layer_weights& w : weights.layers)
    layers_.push_back({copy_of(release, *w.attention_norm), pack({w.query, w.key, w.value}), pack({w.attention_output}),
                       copy_of(release, *w.feed_forward_norm), pack({w.gate, w.up}), pack({w.down})});
  if (weights.unembedding != weights.embedding) unembedding_.push_back(pack({weights.unembedding}));
}

void model::prefill(std::span<const token> tokens) {
  while (!tokens.empty()) {
    const std::size_t rows = std::min(tokens.size(), prefill_rows);
    evaluate({tokens.first(rows), {}, {}}, wanted::cache);
    cache_->keep_all();
    tokens = tokens.subspan(rows);
  }
}

tensor_view<const float, 2> model::append(std::span<const token> tokens) {
  const auto x = evaluate({tokens, {}, {}}, wanted::hidden);
  cache_->keep_all();
  return unembed(x);
}

tensor_view<const float, 2> model::score(const heddle::token_tree& tree) { return unembed(evaluate(tree, wanted::hidden)); }

void model::keep(std::span<const std::int32_t> path) {
  kept_.assign(1, 0);
  kept_.insert(kept_.end(), path.begin(), path.end());
  cache_->keep(kept_);
}

tensor_view<float, 2> model::evaluate(const heddle::token_tree& rows, wanted result) {
  const auto x = embed(rows.tokens);
  const auto length = static_cast<std::int32_t>(cache_->length());
  positions_.resize(rows.tokens.size());
  for (std::size_t i = 0; i < positions_.size(); ++i)
    positions_[i] = length + (rows.depths.empty() ? static_cast<std::int32_t>(i) : rows.depths[i]);
  const auto parents = is_chain(rows.parents) ? std::span<const std::int32_t>{} : rows.parents;
  cache_->reserve(positions_);
  table_.assign(rope_, positions_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool is_last = i + 1 == layers_.size();
    attention(layers_[i], static_cast<int>(i), x, parents, is_last ? result : wanted::hidden);
    if (!is_last || result == wanted::hidden) feed_forward(layers_[i], x);
  }
  return x;
}

tensor_view<float, 2> model::embed(std::span<const token> tokens) {
  const auto x = hidden_.resize(static_cast<std::int64_t>(tokens.size()), static_cast<std::int64_t>(config_.hidden_size));
  for (std::size_t i = 0; i < tokens.size(); ++i) linear::unpack_row(embedding_.front(), tokens[i], {x.at(i), config_.hidden_size});
  return x;
}

void model::attention(const layer& w, int index, const tensor_view<float, 2>& x, std::span<const std::int32_t> parents, wanted result) {
  const std::size_t dim = config_.head_dim, queries = config_.num_qo_heads, keys = config_.num_kv_heads;
  const auto projected = projected_.resize(x.extent(0), w.query_key_value.outputs());
  normed_product(x, w.attention_norm, w.query_key_value, projected);
  const auto q = heads(projected, 0, queries);
  const auto k = heads(projected, queries * dim, keys), v = heads(projected, (queries + keys) * dim, keys);
  table_.rotate(k, {.executor = executor_});
  cache_->write(index, k, v, executor_);
  if (result == wanted::cache) return;
  table_.rotate(q, {.executor = executor_});
  const auto mixed = mixed_.resize(x.extent(0), static_cast<std::int64_t>(queries * dim));
  cache_->attend(index, q, parents, heads(mixed, 0, queries), executor_);
  add_product(mixed, w.attention_output, x);
}

void model::feed_forward(const layer& w, const tensor_view<float, 2>& x) {
  const auto width = static_cast<std::int64_t>(config_.intermediate_size);
  const auto gate_up = projected_.resize(x.extent(0), 2 * width);
  normed_product(x, w.feed_forward_norm, w.gate_up, gate_up);
  const extents<2> half{x.extent(0), width};
  const tensor_view gate{gate_up.data(), half, gate_up.strides()}, up{gate_up.at(0, width), half, gate_up.strides()};
  const auto gated = mixed_.resize(x.extent(0), width);
  linear::silu_gate(gate, up, gated, {.executor = executor_});
  add_product(gated, w.down, x);
}

tensor_view<const float, 2> model::unembed(const tensor_view<float, 2>& x) {
  const projection& w = unembedding_.empty() ? embedding_ : unembedding_.front();
  const auto logits = logits_.resize(x.extent(0), w.outputs());
  normed_product(x, output_norm_, w, logits);
  return logits;
}

void model::normed_product(const tensor_view<float, 2>& x, const heddle::aligned_vector<float>& norm, const projection& w,
                           const tensor_view<float, 2>& out) {
  const auto normed = normed_.resize(x.extent(0), x.extent(1));
  linear::rms_norm(x, tensor_view{norm.data(), extents{x.extent(1)}}, config_.rms_epsilon, normed, {.executor = executor_});
  w.apply(normed, inputs_, out, executor_);
}

void model::add_product(const tensor_view<float, 2>& y, const projection& w, const tensor_view<float, 2>& x) {
  const auto product = normed_.resize(x.extent(0), x.extent(1));
  w.apply(y, inputs_, product, executor_);
  linear::add(x, product, x, {.executor = executor_});
}

tensor_view<float, 3> model::heads(const tensor_view<float, 2>& rows, std::size_t first, std::size_t count) const {
  const auto dim = static_cast<std::int64_t>(config_.head_dim);
  return {rows.at(0, first), extents{rows.extent(0), static_cast<std::int64_t>(count), dim}, extents{rows.stride(0), dim, std::int64_t{1}}};
}

}  // namespace llama
