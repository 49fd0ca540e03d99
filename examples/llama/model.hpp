// A model of the Llama architecture out of heddle's parts: weights packed once, one function that evaluates rows.
//
//   x <- embedding[token]
//   per layer   x <- x + W_o attention(rope(W_q n), rope(W_k n), W_v n),   n = rms_norm(x)
//               x <- x + W_down (silu(W_gate m) * (W_up m)),               m = rms_norm(x)
//   logits      W_out rms_norm(x)
//
// Rows are the nodes of a token tree behind the committed context: a prompt, one token, or a draft. Whatever a row is evaluated with, its
// logits and its cache entries are the same, bit for bit, because every part promises that.
#pragma once

#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/position/rope.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "architecture.hpp"
#include "kv_cache.hpp"
#include "projection.hpp"
#include "tokenizer.hpp"
#include "weight_arena.hpp"

namespace llama {

// A matrix of floats that keeps its memory when it changes its size.
class row_buffer {
 public:
  tensor_view<float, 2> resize(std::int64_t rows, std::int64_t width) {
    const auto size = static_cast<std::size_t>(rows * width);
    if (values_.size() < size) values_.resize(size);
    return {values_.data(), extents{rows, width}};
  }

 private:
  heddle::aligned_vector<float> values_;
};

class model {
 public:
  // Copies what it needs of the file, tensor by tensor: the file can be closed afterwards.
  model(const release_pages& release, const model_config& config, const model_weights& weights, linear::precision activations,
        kv_cache& cache, heddle::executor_ref executor);

  // Takes in a prompt, without logits. Any division of it into calls leaves the same cache.
  void prefill(std::span<const token> tokens, int sequence = 0);
  // The same with the final hidden state of every token: out [tokens, hidden size].
  void prefill(std::span<const token> tokens, const tensor_view<float, 2>& hidden, int sequence = 0);
  // The same with the logits of every token; valid until the next call.
  tensor_view<const float, 2> append(std::span<const token> tokens, int sequence = 0);

  // What a decode loop asks of its target: logits of every node of a tree, then which of them stay.
  tensor_view<const float, 2> score(const heddle::token_tree& tree);
  void keep(std::span<const std::int32_t> path) { keep(0, path); }
  // For a batch: the tree of sequence s is trees[s] (without nodes: the sequence rests), their rows lie one after another.
  tensor_view<const float, 2> score(std::span<const heddle::token_tree> trees);
  void keep(int sequence, std::span<const std::int32_t> path);

  // What the first layers alone would say: logits after `nodes` of the tree, [nodes, vocabulary size]. Reads the cache, does not change it: the
  // rows of lower layers do not depend on those above.
  tensor_view<const float, 2> score_with(std::size_t layers, const heddle::token_tree& tree, std::span<const std::int32_t> nodes, int sequence = 0);

  // The final hidden states (behind the last norm, what the unembedding reads) of the rows of the last score() or append(); valid until
  // the next call of either, or of prefill().
  tensor_view<const float, 2> hidden() const { return final_; }
  // The final hidden state of the last token in the cache of a sequence; empty where no call has computed it (a prefill without `hidden`).
  std::span<const float> last_hidden(int sequence = 0) const { return last_hidden_.at(static_cast<std::size_t>(sequence)); }
  // logits[row] <- W_out hidden[row]: the very product that score() does, bit for bit. [rows, hidden size] -> [rows, vocabulary size]
  void unembed(const tensor_view<const float, 2>& hidden, const tensor_view<float, 2>& logits);
  // out[row] <- embedding of a token: [tokens, hidden size]
  void embed(std::span<const token> tokens, const tensor_view<float, 2>& out) const;
  // Rows first .. first + out.extent(0) - 1 of the unembedding as floats: [rows, hidden size]
  void unembedding_rows(std::int64_t first, const tensor_view<float, 2>& out) const;

  const model_config& config() const { return config_; }
  kv_cache& cache() { return *cache_; }
  heddle::executor_ref executor() const { return executor_; }
  void use(kv_cache& cache);

 private:
  struct layer {
    heddle::aligned_vector<float> attention_norm;
    projection query_key_value, attention_output;
    heddle::aligned_vector<float> feed_forward_norm;
    projection gate_up, down;
  };
  enum class wanted { cache, hidden };

  // Rows behind the committed context: their keys and values are reserved and written, not committed. Their hidden states, if wanted.
  tensor_view<float, 2> evaluate(std::span<const token> tokens, int sequence, wanted result);
  tensor_view<float, 2> evaluate(std::span<const heddle::token_tree> trees, wanted result, std::size_t layers);
  void attention(const layer& w, int index, const tensor_view<float, 2>& x, wanted result);
  void feed_forward(const layer& w, const tensor_view<float, 2>& x);
  const projection& unembedding() const { return unembedding_.empty() ? embedding_ : unembedding_.front(); }
  // Norms the hidden states into final_; their logits.
  tensor_view<const float, 2> logits_of(const tensor_view<float, 2>& x);
  void norm(const tensor_view<float, 2>& x, const heddle::aligned_vector<float>& weights, const tensor_view<float, 2>& out) const;

  // out <- W rms_norm(x)
  void normed_product(const tensor_view<float, 2>& x, const heddle::aligned_vector<float>& norm, const projection& w,
                      const tensor_view<float, 2>& out);
  // x <- x + W y
  void add_product(const tensor_view<float, 2>& y, const projection& w, const tensor_view<float, 2>& x);
  // Columns first .. first + count * head_dim of a matrix, as heads.
  tensor_view<float, 3> heads(const tensor_view<float, 2>& rows, std::size_t first, std::size_t count) const;

  model_config config_;
  kv_cache* cache_;
  heddle::executor_ref executor_;
  heddle::rope<heddle::interleaved> rope_;
  heddle::rope_table<heddle::interleaved> table_{rope_, {}};
  projection::inputs inputs_;
  weight_arena arena_;
  projection embedding_;
  heddle::aligned_vector<float> output_norm_;
  std::vector<projection> unembedding_;  // empty: the embedding serves
  std::vector<layer> layers_;
  std::vector<token> tokens_;  // of the rows of a step
  std::vector<std::int32_t> indptr_, positions_, parents_, kept_;
  row_buffer hidden_, chosen_, normed_, projected_, mixed_, final_rows_, logits_;
  tensor_view<const float, 2> final_;
  std::vector<std::vector<float>> last_hidden_;
};

}  // namespace llama
