#include "head_trainer.hpp"

#include <heddle/core/random.hpp>
#include <heddle/core/simd.hpp>
#include <heddle/linear/multiply.hpp>
#include <heddle/speculative/losses/end_to_end.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace llama {

void products::operator()(const const_matrix& x, const const_matrix& w, const matrix& out) { (*this)(x, heddle::linear::pack(w, {.executor = executor_}), out); }

void products::operator()(const const_matrix& x, const heddle::linear::packed_matrix& w, const matrix& out) {
  rows_.prepare(x, {.executor = executor_});
  heddle::linear::multiply(w, rows_, out, {.executor = executor_});
}

void products::outer(const const_matrix& x, const const_matrix& y, const matrix& out) {
  const matrix copy = turned_.resize(x.extent(1), x.extent(0));
  for (std::int64_t k = 0; k < x.extent(0); ++k)
    for (std::int64_t i = 0; i < x.extent(1); ++i) copy(i, k) = x(k, i);
  (*this)(copy, transposed(y), out);
}

frozen_rows::frozen_rows(const const_matrix& rows, heddle::executor_ref executor)
    : unembedding(heddle::linear::pack(rows, {.executor = executor})), unembedding_transposed(heddle::linear::pack(transposed(rows), {.executor = executor})) {}

void taught_laws::assign(const training_batch& batch, const frozen_rows& frozen, products& product) {
  const std::int64_t vocabulary = frozen.unembedding.outputs(), rows = batch.targets.view().extent(0);
  const matrix z = logits_.resize(rows, vocabulary + 1);
  product(batch.targets.view(), frozen.unembedding, columns(z, 0, vocabulary));
  mass_.assign(static_cast<std::size_t>(rows), 0.);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double other = static_cast<double>(batch.other_logits[static_cast<std::size_t>(r)]);
    z(r, vocabulary) = static_cast<float>(other);
    mass_[static_cast<std::size_t>(r)] = 1. / (1. + std::exp(other - log_sum_exp({z.at(r), static_cast<std::size_t>(vocabulary)})));
  }
  slot_mass_.clear();
  for (const std::int32_t row : batch.target_of) slot_mass_.push_back(mass_[static_cast<std::size_t>(row)]);
}

double taught_laws::log_sum_exp(std::span<const float> z) {
  const float most = *std::max_element(z.begin(), z.end());
  heddle::simd::f32x16 sum = heddle::simd::splat(0.f);
  const auto count = static_cast<std::int64_t>(z.size());
  std::int64_t v = 0;
  for (; v + heddle::simd::lanes <= count; v += heddle::simd::lanes) sum = sum + heddle::simd::exp(heddle::simd::load(z.data() + v) - heddle::simd::splat(most));
  double total = static_cast<double>(heddle::simd::reduce_add(sum));
  for (; v < count; ++v) total += std::exp(static_cast<double>(z[static_cast<std::size_t>(v)] - most));
  return static_cast<double>(most) + std::log(total);
}

head_trainer::head_trainer(head_loss loss, heddle::draft_heads heads, std::uint64_t seed) : loss_(loss), heads_(std::move(heads)) {
  const auto size = heads_.weights().size();
  gradient_.assign(size, 0.f), first_moment_.assign(size, 0.f), second_moment_.assign(size, 0.f);
  const heddle::draft_head_shape& s = heads_.shape();
  const double bound = std::sqrt(3. / static_cast<double>(2 * s.hidden_size));  // variance 1 / inputs
  for (std::int64_t head = 0; head < s.num_heads; ++head) {
    const matrix w = in(heads_.weights(), head);
    for (std::int64_t i = 0; i < w.size(); ++i)
      w.data()[i] = static_cast<float>(bound * (2 * heddle::uniform({.seed = seed, .request = static_cast<std::uint32_t>(head), .purpose = heddle::purpose::user, .index = static_cast<std::uint32_t>(i)}) - 1));
  }
}

double head_trainer::evaluate(const training_batch& batch, const frozen_rows& frozen, const taught_laws& laws, products& product) {
  forward(batch, product);
  const std::int64_t vocabulary = frozen.unembedding.outputs(), slots = batch.anchors * batch.heads;
  const matrix z = logits_.resize(slots, vocabulary + 1);
  product(states_.view(), frozen.unembedding, columns(z, 0, vocabulary));
  for (std::int64_t r = 0; r < slots; ++r) z(r, vocabulary) = -std::numeric_limits<float>::infinity();
  const double value = loss_and_gradient(z, laws, batch, product.executor());
  product(columns(z, 0, vocabulary), frozen.unembedding_transposed, state_gradients_.resize(slots, heads_.shape().hidden_size));
  backward(batch, product);
  return value;
}

void head_trainer::update(std::int64_t step, std::int64_t steps, const adam_options& o, heddle::executor_ref executor) {
  const double warm = std::max(1., 0.05 * static_cast<double>(steps)), now = static_cast<double>(step);
  const double rate = now < warm ? now / warm : 0.5 * (1 + std::cos(3.141592653589793 * (now - warm) / std::max(1., static_cast<double>(steps) - warm)));
  const auto scale = static_cast<float>(o.learning_rate * rate * std::sqrt(1 - std::pow(o.beta2, now)) / (1 - std::pow(o.beta1, now)));
  const auto beta1 = static_cast<float>(o.beta1), beta2 = static_cast<float>(o.beta2), epsilon = static_cast<float>(o.epsilon);
  constexpr std::size_t piece = 65536;
  const std::span<float> weights = heads_.weights();
  executor.bulk((weights.size() + piece - 1) / piece, [&](std::size_t p) {
    for (std::size_t i = p * piece; i < weights.size() && i < (p + 1) * piece; ++i) {
      const float g = gradient_[i];
      first_moment_[i] = beta1 * first_moment_[i] + (1 - beta1) * g;
      second_moment_[i] = beta2 * second_moment_[i] + (1 - beta2) * g * g;
      weights[i] -= scale * first_moment_[i] / (std::sqrt(second_moment_[i]) + epsilon);
    }
  });
}

void head_trainer::forward(const training_batch& batch, products& product) {
  const std::int64_t d = heads_.shape().hidden_size, width = heads_.shape().width;
  const matrix states = states_.resize(batch.anchors * batch.heads, d);
  inputs_.resize(static_cast<std::size_t>(batch.heads)), inner_.resize(inputs_.size()), gated_.resize(inputs_.size());
  for (std::int64_t head = 0; head < batch.heads; ++head) {
    const auto i = static_cast<std::size_t>(head);
    const matrix x = inputs_[i].resize(batch.anchors, 2 * d), a = inner_[i].resize(batch.anchors, width), gated = gated_[i].resize(batch.anchors, width);
    const matrix before = head == 0 ? batch.states.view() : states_of(states, head - 1, batch), after = states_of(states, head, batch);
    for (std::int64_t r = 0; r < batch.anchors; ++r) {
      std::copy_n(before.at(r), d, x.at(r));
      std::copy_n(batch.embeddings.view().at(head * batch.anchors + r), d, x.at(r, d));
    }
    product(x, heads_.in(head), a);
    for (std::int64_t k = 0; k < a.size(); ++k) gated.data()[k] = a.data()[k] * heddle::detail::sigmoid(a.data()[k]);
    product(gated, heads_.out(head), after);
    for (std::int64_t r = 0; r < batch.anchors; ++r)
      for (std::int64_t k = 0; k < d; ++k) after(r, k) += before(r, k);
  }
}

double head_trainer::loss_and_gradient(const matrix& z, const taught_laws& laws, const training_batch& batch, heddle::executor_ref executor) {
  namespace distillation = heddle::distillation;
  const std::int64_t vocabulary = z.extent(1) - 1;
  distillation::loss_options options{.on_bad_row = heddle::on_bad_row::throw_error, .executor = executor};
  if (loss_ == head_loss::forward_kl) {
    options.weights = laws.slot_mass();
    const matrix own = columns(z, 0, vocabulary);
    return distillation::loss(own, distillation::select_rows(columns(laws.logits(), 0, vocabulary), batch.target_of), distillation::forward_kl{}, own, options).value;
  }
  const auto target = distillation::select_rows(laws.logits(), batch.target_of);
  if (loss_ == head_loss::tv) return distillation::loss(z, target, distillation::total_variation{}, z, options).value;
  return heddle::losses::end_to_end_tv(z, target, batch.heads, z, options).value;
}

void head_trainer::backward(const training_batch& batch, products& product) {
  const std::int64_t d = heads_.shape().hidden_size, width = heads_.shape().width;
  const matrix carried = carried_.resize(batch.anchors, d), inner = inner_gradient_.resize(batch.anchors, width);
  for (std::int64_t head = batch.heads; head-- > 0;) {
    const auto i = static_cast<std::size_t>(head);
    const matrix own = states_of(state_gradients_.view(), head, batch);
    if (head + 1 < batch.heads) {
      for (std::int64_t r = 0; r < batch.anchors; ++r)
        for (std::int64_t k = 0; k < d; ++k) own(r, k) += carried(r, k);
    }
    product.outer(own, gated_[i].view(), out(gradient_, head));
    product(own, transposed(heads_.out(head)), inner);
    const float* const a = inner_[i].view().data();
    for (std::int64_t k = 0; k < inner.size(); ++k) {
      const float sigma = heddle::detail::sigmoid(a[k]);
      inner.data()[k] *= sigma * (1.f + a[k] * (1.f - sigma));
    }
    product.outer(inner, inputs_[i].view(), in(gradient_, head));
    if (head == 0) continue;
    product(inner, transposed(columns(heads_.in(head), 0, d)), carried);
    for (std::int64_t r = 0; r < batch.anchors; ++r)
      for (std::int64_t k = 0; k < d; ++k) carried(r, k) += own(r, k);
  }
}

}  // namespace llama
