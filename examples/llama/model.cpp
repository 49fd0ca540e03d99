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

bool is_chain(const heddle::token_tree& tree) {
  for (std::size_t i = 0; i < tree.parents.size(); ++i)
    if (tree.parents[i] != static_cast<std::int32_t>(i) - 1) return false;
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
  use(cache);
}

void model::use(kv_cache& cache) {
  cache_ = &cache;
  last_hidden_.assign(static_cast<std::size_t>(cache.num_sequences()), {});
}

void model::prefill(std::span<const token> tokens, int sequence) {
  while (!tokens.empty()) {
    const std::size_t rows = std::min(tokens.size(), prefill_rows);
    evaluate(tokens.first(rows), sequence, wanted::cache);
    cache_->keep_all();
    last_hidden_[static_cast<std::size_t>(sequence)].clear();
    tokens = tokens.subspan(rows);
  }
}

void model::prefill(std::span<const token> tokens, const tensor_view<float, 2>& hidden, int sequence) {
  heddle::require_shape("model::prefill", "hidden", hidden, extents{static_cast<std::int64_t>(tokens.size()), static_cast<std::int64_t>(config_.hidden_size)});
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t rows = std::min(tokens.size() - done, prefill_rows);
    const auto x = evaluate(tokens.subspan(done, rows), sequence, wanted::hidden);
    const auto out = hidden.slice(static_cast<std::int64_t>(done), static_cast<std::int64_t>(rows));
    norm(x, output_norm_, out);
    cache_->keep_all();
    const float* const last = out.at(out.extent(0) - 1);
    last_hidden_[static_cast<std::size_t>(sequence)].assign(last, last + config_.hidden_size);
    done += rows;
  }
}

tensor_view<const float, 2> model::append(std::span<const token> tokens, int sequence) {
  const auto logits = logits_of(evaluate(tokens, sequence, wanted::hidden));
  cache_->keep_all();
  if (!tokens.empty()) {
    const float* const last = final_.at(final_.extent(0) - 1);
    last_hidden_[static_cast<std::size_t>(sequence)].assign(last, last + config_.hidden_size);
  }
  return logits;
}

tensor_view<const float, 2> model::score(const heddle::token_tree& tree) { return score(std::span(&tree, 1)); }

tensor_view<const float, 2> model::score(std::span<const heddle::token_tree> trees) {
  return logits_of(evaluate(trees, wanted::hidden, layers_.size()));
}

tensor_view<const float, 2> model::score_with(std::size_t layers, const heddle::token_tree& tree, std::span<const std::int32_t> nodes, int sequence) {
  heddle::require(layers >= 1 && layers <= layers_.size(), "model::score_with: argument 'layers' is ", layers, "; expected 1 to ", layers_.size());
  std::vector<heddle::token_tree> trees(static_cast<std::size_t>(sequence) + 1);
  trees.back() = tree;
  const auto x = evaluate(trees, wanted::hidden, layers);
  cache_->forget();
  const auto chosen = chosen_.resize(static_cast<std::int64_t>(nodes.size()), x.extent(1));
  for (std::size_t i = 0; i < nodes.size(); ++i) std::copy_n(x.at(nodes[i]), config_.hidden_size, chosen.at(i));
  return logits_of(chosen);
}

void model::keep(int sequence, std::span<const std::int32_t> path) {
  kept_.assign(1, 0);
  kept_.insert(kept_.end(), path.begin(), path.end());
  cache_->keep(sequence, kept_);
  const float* const last = final_.at(indptr_[static_cast<std::size_t>(sequence)] + kept_.back());
  last_hidden_[static_cast<std::size_t>(sequence)].assign(last, last + config_.hidden_size);
}

tensor_view<float, 2> model::evaluate(std::span<const token> tokens, int sequence, wanted result) {
  std::vector<heddle::token_tree> trees(static_cast<std::size_t>(sequence) + 1);
  trees.back().tokens = tokens;
  return evaluate(trees, result, layers_.size());
}

// A tree without parents is a chain.
tensor_view<float, 2> model::evaluate(std::span<const heddle::token_tree> trees, wanted result, std::size_t layers) {
  const auto sequences = static_cast<std::size_t>(cache_->num_sequences());
  heddle::require(trees.size() <= sequences, "model: ", trees.size(), " trees for ", sequences, " sequences");
  const bool branches = !std::all_of(trees.begin(), trees.end(), is_chain);
  tokens_.clear(), positions_.clear(), parents_.clear();
  indptr_.assign(1, 0);
  for (std::size_t s = 0; s < sequences; ++s) {
    if (s < trees.size()) {
      const auto length = static_cast<std::int32_t>(cache_->length(static_cast<int>(s)));
      for (std::size_t i = 0; i < trees[s].tokens.size(); ++i) {
        tokens_.push_back(trees[s].tokens[i]);
        positions_.push_back(length + (trees[s].depths.empty() ? static_cast<std::int32_t>(i) : trees[s].depths[i]));
        if (branches) parents_.push_back(trees[s].parents.empty() ? static_cast<std::int32_t>(i) - 1 : trees[s].parents[i]);
      }
    }
    indptr_.push_back(static_cast<std::int32_t>(tokens_.size()));
  }
  const auto x = hidden_.resize(static_cast<std::int64_t>(tokens_.size()), static_cast<std::int64_t>(config_.hidden_size));
  embed(tokens_, x);
  cache_->reserve({indptr_, positions_, parents_});
  table_.assign(rope_, positions_);
  for (std::size_t i = 0; i < layers; ++i) {
    const bool is_last = i + 1 == layers;
    attention(layers_[i], static_cast<int>(i), x, is_last ? result : wanted::hidden);
    if (!is_last || result == wanted::hidden) feed_forward(layers_[i], x);
  }
  return x;
}

void model::embed(std::span<const token> tokens, const tensor_view<float, 2>& out) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) linear::unpack_row(embedding_.front(), tokens[i], {out.at(i), config_.hidden_size});
}

void model::attention(const layer& w, int index, const tensor_view<float, 2>& x, wanted result) {
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
  cache_->attend(index, q, heads(mixed, 0, queries), executor_);
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

tensor_view<const float, 2> model::logits_of(const tensor_view<float, 2>& x) {
  const auto rows = final_rows_.resize(x.extent(0), x.extent(1));
  norm(x, output_norm_, rows);
  final_ = rows;
  const auto logits = logits_.resize(x.extent(0), unembedding().outputs());
  unembed(final_, logits);
  return logits;
}

void model::unembed(const tensor_view<const float, 2>& hidden, const tensor_view<float, 2>& logits) {
  unembedding().apply(hidden, inputs_, logits, executor_);
}

void model::unembedding_rows(std::int64_t first, const tensor_view<float, 2>& out) const {
  for (std::int64_t i = 0; i < out.extent(0); ++i) linear::unpack_row(unembedding().front(), first + i, {out.at(i), config_.hidden_size});
}

void model::norm(const tensor_view<float, 2>& x, const heddle::aligned_vector<float>& weights, const tensor_view<float, 2>& out) const {
  linear::rms_norm(x, tensor_view{weights.data(), extents{x.extent(1)}}, config_.rms_epsilon, out, {.executor = executor_});
}

void model::normed_product(const tensor_view<float, 2>& x, const heddle::aligned_vector<float>& weights, const projection& w,
                           const tensor_view<float, 2>& out) {
  const auto normed = normed_.resize(x.extent(0), x.extent(1));
  norm(x, weights, normed);
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
