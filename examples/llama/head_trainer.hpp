// Training of draft heads (heddle/speculative/draft/draft_heads.hpp) on a model's own texts, with losses of heddle:
//
//   forward KL    mean over slots of KL(p || q)            p the model's law at the slot, q the head's
//   TV            mean over slots of TV(p, q)
//   end to end    -mean over anchors of sum_i prod_{j <= i} (1 - TV_j): minus the drafts that token rejection accepts
//
// An anchor is a token x_n of a text: head i = 1 .. K reads x_n .. x_{n+i-1} and the hidden state before x_n, and is held to the model's law of x_{n+i}. Laws of
// the model come from its hidden states and the frozen unembedding, over the draft vocabulary and one column for all other tokens, which the heads give no
// mass; forward KL leaves that column out, where it is infinite, and weighs a slot with the model's mass in the draft vocabulary (that gradient is exact).
// Products, losses and gradients are heddle's: their bits do not depend on threads, so a run that is stopped and resumed gives the same heads.
#pragma once

#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/executor.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/linear/activations.hpp>
#include <heddle/linear/pack.hpp>
#include <heddle/speculative/draft/draft_heads.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llama {

using matrix = heddle::tensor_view<float, 2>;
using const_matrix = heddle::tensor_view<const float, 2>;

enum class head_loss { forward_kl, tv, end_to_end };
inline constexpr head_loss head_losses[] = {head_loss::forward_kl, head_loss::tv, head_loss::end_to_end};
constexpr const char* name_of(head_loss loss) {
  constexpr const char* names[] = {"forward_kl", "tv", "end_to_end"};
  return names[static_cast<int>(loss)];
}

class float_matrix {
 public:
  float_matrix() = default;
  float_matrix(float_matrix&&) = default;
  float_matrix& operator=(float_matrix&&) = default;
  matrix resize(std::int64_t rows, std::int64_t columns) {
    values_.resize(static_cast<std::size_t>(rows * columns));
    return view_ = {values_.data(), heddle::extents{rows, columns}};
  }
  const matrix& view() const { return view_; }

 private:
  heddle::aligned_vector<float> values_;
  matrix view_;
};

template <class View>
View transposed(const View& x) {
  return {x.data(), heddle::extents{x.extent(1), x.extent(0)}, heddle::extents{x.stride(1), x.stride(0)}};
}
template <class View>
View columns(const View& x, std::int64_t first, std::int64_t count) {
  return {x.at(0, first), heddle::extents{x.extent(0), count}, x.strides()};
}

// out = x w^T: x [rows, k] with contiguous rows, w [outputs, k] of any strides.
class products {
 public:
  explicit products(heddle::executor_ref executor) : executor_(executor) {}
  heddle::executor_ref executor() const { return executor_; }

  void operator()(const const_matrix& x, const const_matrix& w, const matrix& out);
  void operator()(const const_matrix& x, const heddle::linear::packed_matrix& w, const matrix& out);
  // out = x^T y: x and y [k, ..]
  void outer(const const_matrix& x, const const_matrix& y, const matrix& out);

 private:
  heddle::executor_ref executor_;
  heddle::linear::activations rows_{heddle::linear::precision::f32, 1, 1};
  float_matrix turned_;
};

// The part of a text that was generated. state[j] is the hidden state that decided token[j], [tokens, hidden size].
struct generated_text {
  std::vector<std::int32_t> tokens;
  std::vector<float> states;
  std::vector<float> other_logits;  // per state: log of the sum of e^z over tokens outside the draft vocabulary
  std::int64_t anchors(std::int64_t heads) const { return std::max<std::int64_t>(0, static_cast<std::int64_t>(tokens.size()) - heads); }
};

// Runs of consecutive anchors, so that laws of the model serve several of them. anchors = runs * run_length, anchor a of run r is row r * run_length + a.
struct training_batch {
  static constexpr std::int64_t run_length = 8;
  std::int64_t anchors = 0, heads = 0;
  float_matrix states;       // [anchors, d] before the anchor's token
  float_matrix embeddings;   // [heads * anchors, d] each scaled to rms 1: those of head i from row i * anchors
  float_matrix targets;      // [runs * (run_length + heads - 1), d] hidden states whose laws are taught
  std::vector<float> other_logits;
  std::vector<std::int32_t> target_of;  // per slot anchor * heads + head: row of `targets`
};

// The frozen parts of the model that the heads share.
struct frozen_rows {
  heddle::linear::packed_matrix unembedding, unembedding_transposed;  // of the draft vocabulary: [M, d], [d, M]
  frozen_rows(const const_matrix& rows, heddle::executor_ref executor);
};

// The laws that a batch teaches: made once, whatever the number of losses.
class taught_laws {
 public:
  void assign(const training_batch& batch, const frozen_rows& frozen, products& product);
  const matrix& logits() const { return logits_.view(); }                     // [targets, M + 1]
  std::span<const double> slot_mass() const { return slot_mass_; }            // of the model in the draft vocabulary

  static double log_sum_exp(std::span<const float> z);

 private:
  float_matrix logits_;
  std::vector<double> mass_, slot_mass_;
};

struct adam_options {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8;
};

class head_trainer {
 public:
  head_trainer(head_loss loss, heddle::draft_heads heads, std::uint64_t seed);

  head_loss loss() const { return loss_; }
  const heddle::draft_heads& heads() const { return heads_; }
  heddle::draft_heads& heads() { return heads_; }
  std::span<const float> gradient() const { return gradient_; }
  // All that a resumed run needs beside its step number.
  std::vector<std::span<float>> state() { return {heads_.weights(), first_moment_, second_moment_}; }

  // The loss of a batch and its gradient with respect to all weights.
  double evaluate(const training_batch& batch, const frozen_rows& frozen, const taught_laws& laws, products& product);

  // step: 1, 2, ... of `steps`; the learning rate rises over the first twentieth and falls to 0 along a cosine.
  void update(std::int64_t step, std::int64_t steps, const adam_options& o, heddle::executor_ref executor);

 private:
  matrix in(std::span<float> all, std::int64_t head) const { return {all.data() + (heads_.in(head).data() - heads_.in(0).data()), heads_.in(0).shape()}; }
  matrix out(std::span<float> all, std::int64_t head) const { return {all.data() + (heads_.out(head).data() - heads_.in(0).data()), heads_.out(0).shape()}; }
  // s_i of all anchors, i = 1 .. K: rows anchor * K + i - 1.
  matrix states_of(const matrix& all, std::int64_t head, const training_batch& batch) const {
    return {all.at(head), heddle::extents{batch.anchors, all.extent(1)}, heddle::extents{batch.heads * all.stride(0), all.stride(1)}};
  }

  void forward(const training_batch& batch, products& product);
  // Logits to loss; the gradient takes their place.
  double loss_and_gradient(const matrix& z, const taught_laws& laws, const training_batch& batch, heddle::executor_ref executor);
  void backward(const training_batch& batch, products& product);

  head_loss loss_;
  heddle::draft_heads heads_;
  heddle::aligned_vector<float> gradient_, first_moment_, second_moment_;
  std::vector<float_matrix> inputs_, inner_, gated_;  // per head
  float_matrix states_, logits_, state_gradients_, carried_, inner_gradient_;
};

}  // namespace llama
