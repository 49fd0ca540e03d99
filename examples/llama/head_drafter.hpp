// Draft heads (heddle/speculative/draft/draft_heads.hpp) of a file or in memory, as the head of a drafter for the example model. Trained by
// distill_drafter.
#pragma once

#include <heddle/core/tensor.hpp>
#include <heddle/linear/multiply.hpp>
#include <heddle/speculative/draft/head_file.hpp>
#include <heddle/speculative/draft_tree.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mapped_file.hpp"
#include "model.hpp"

namespace llama {

// The rows of a model's unembedding for some tokens: [tokens, hidden size].
inline void gather_unembedding(const model& net, std::span<const std::int32_t> tokens, const tensor_view<float, 2>& out) {
  for (std::size_t i = 0; i < tokens.size(); ++i) net.unembedding_rows(tokens[i], out.slice(static_cast<std::int64_t>(i), 1));
}

// Heads with what they need of the model to speak: shared by the sequences of a batch.
class speaking_heads {
 public:
  speaking_heads(const model& net, heddle::draft_heads heads, const std::string& name = "the heads") : heads_(std::move(heads)) {
    const auto& s = heads_.shape();
    const auto hidden = static_cast<std::int64_t>(net.config().hidden_size), vocabulary = static_cast<std::int64_t>(net.config().vocab_size);
    if (s.hidden_size != hidden || s.vocabulary_size != vocabulary)
      throw file_error(name + ": made for a model of hidden size " + std::to_string(s.hidden_size) + " and " + std::to_string(s.vocabulary_size) + " tokens; this model has " +
                       std::to_string(hidden) + " and " + std::to_string(vocabulary));
    if (heads_.tokens().empty()) return;
    row_buffer rows;
    const auto kept = rows.resize(heads_.draft_vocabulary_size(), hidden);
    gather_unembedding(net, heads_.tokens(), kept);
    unembedding_ = heddle::linear::pack(kept, heddle::linear::format::q8_0);
  }
  speaking_heads(const model& net, const std::string& file) : speaking_heads(net, read(file), file) {}

  const heddle::draft_heads& heads() const { return heads_; }
  // logits [states, vocabulary size] of states [states, hidden size]: -infinity outside the draft vocabulary.
  void speak(model& net, const tensor_view<const float, 2>& states, const tensor_view<float, 2>& logits) const {
    if (heads_.tokens().empty()) return net.unembed(states, logits);
    heddle::linear::activations inputs(heddle::linear::precision::int8, states.extent(0), states.extent(1));
    inputs.prepare(states);
    row_buffer columns;
    const auto kept = columns.resize(states.extent(0), heads_.draft_vocabulary_size());
    heddle::linear::multiply(unembedding_, inputs, kept, {.executor = net.executor()});
    for (std::int64_t r = 0; r < logits.extent(0); ++r) {
      std::fill_n(logits.at(r), logits.extent(1), -std::numeric_limits<float>::infinity());
      for (std::int64_t c = 0; c < kept.extent(1); ++c) logits(r, heads_.token_of(c)) = kept(r, c);
    }
  }

 private:
  static heddle::draft_heads read(const std::string& file) {
    const mapped_file bytes(file);
    try {
      return heddle::read_head_file(bytes.bytes());
    } catch (const heddle::error& error) {
      throw file_error(file + ": " + error.what());
    }
  }
  heddle::draft_heads heads_;
  heddle::linear::packed_matrix unembedding_;
};

// A head as chains and trees of drafts ask for it: logits after nodes of a tree that grows from the newest token.
class head_drafter {
 public:
  head_drafter(model& net, std::shared_ptr<const speaking_heads> heads, int sequence = 0) : net_(net), heads_(std::move(heads)), sequence_(sequence) {}
  head_drafter(model& net, const std::string& file, int sequence = 0) : head_drafter(net, std::make_shared<speaking_heads>(net, file), sequence) {}

  // Tokens it can draft: none where nobody has computed the hidden state before the newest token.
  std::int32_t depth() const { return net_.last_hidden(sequence_).empty() ? 0 : static_cast<std::int32_t>(heads_->heads().shape().num_heads); }

  tensor_view<const float, 2> expand(const heddle::token_tree& tree, std::span<const std::int32_t> frontier) {
    const auto hidden = static_cast<std::int64_t>(net_.config().hidden_size);
    const auto width = static_cast<std::size_t>(hidden);
    embedding_.resize(width);
    states_.resize(width * tree.tokens.size());
    const auto state_of = [&](std::int32_t node) { return std::span(states_).subspan(width * static_cast<std::size_t>(node), width); };
    const auto spoken = spoken_.resize(static_cast<std::int64_t>(frontier.size()), hidden);
    for (std::size_t i = 0; i < frontier.size(); ++i) {
      const std::int32_t node = frontier[i];
      const auto u = static_cast<std::size_t>(node);
      const std::span<const float> before = node == 0 ? net_.last_hidden(sequence_) : state_of(tree.parents[u]);
      const std::span<float> state = state_of(node);
      std::copy(before.begin(), before.end(), state.begin());
      net_.embed({&tree.tokens[u], 1}, {embedding_.data(), heddle::extents{std::int64_t{1}, hidden}});
      heads_->heads().advance(tree.depths[u], embedding_, state, scratch_);
      std::copy(state.begin(), state.end(), spoken.at(static_cast<std::int64_t>(i)));
    }
    const auto logits = logits_.resize(spoken.extent(0), static_cast<std::int64_t>(net_.config().vocab_size));
    heads_->speak(net_, spoken, logits);
    return logits;
  }

 private:
  model& net_;
  std::shared_ptr<const speaking_heads> heads_;
  int sequence_;
  heddle::draft_head_scratch scratch_;
  std::vector<float> embedding_, states_;
  row_buffer spoken_, logits_;
};

}  // namespace llama
