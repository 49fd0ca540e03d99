// Training of draft heads: losses and gradients against float64 and finite differences, and bits that depend on nothing but the batch.
#include <gtest/gtest.h>
#include <heddle/core/thread_team.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "llama/head_trainer.hpp"

namespace {

using namespace llama;

constexpr std::int64_t hidden = 6, width = 5, heads = 3, vocabulary = 9, runs = 2, length = training_batch::run_length, taught = length + heads - 1;

struct example {
  std::mt19937 random{4};
  float_matrix rows;
  training_batch batch;
  float number() { return static_cast<float>(random()) / 2147483648.f - 1.f; }
  void fill(const matrix& m, float scale) {
    for (std::int64_t i = 0; i < m.size(); ++i) m.data()[i] = scale * number();
  }
  example() {
    fill(rows.resize(vocabulary, hidden), 1.f);
    batch.anchors = runs * length, batch.heads = heads;
    fill(batch.states.resize(batch.anchors, hidden), 2.f);
    fill(batch.embeddings.resize(heads * batch.anchors, hidden), 1.5f);
    fill(batch.targets.resize(runs * taught, hidden), 2.f);
    for (std::int64_t r = 0; r < runs * taught; ++r) batch.other_logits.push_back(2 * number());
    for (std::int32_t r = 0; r < runs; ++r)
      for (std::int32_t a = 0; a < length; ++a)
        for (std::int32_t head = 0; head < heads; ++head) batch.target_of.push_back(r * static_cast<std::int32_t>(taught) + a + head);
  }
  heddle::draft_heads some_heads() {
    heddle::draft_heads out({hidden, width, heads, 20}, std::vector<std::int32_t>{0, 2, 3, 5, 7, 11, 13, 17, 19});
    for (float& w : out.weights()) w = 0.4f * number();
    return out;
  }
};

using vector = std::vector<double>;

vector softmax(vector z) {
  double sum = 0;
  for (double& x : z) sum += x = std::exp(x);
  for (double& x : z) x /= sum;
  return z;
}

// The formulas of draft_heads.hpp and head_trainer.hpp, a number at a time.
double reference_loss(head_loss loss, const heddle::draft_heads& shape, const vector& weights, const example& e) {
  const auto at = [](const auto& m, std::int64_t i, std::int64_t k) { return static_cast<double>(m(i, k)); };
  const auto logits = [&](const vector& state) {
    vector z(vocabulary);
    for (std::int64_t v = 0; v < vocabulary; ++v)
      for (std::int64_t k = 0; k < hidden; ++k) z[static_cast<std::size_t>(v)] += at(e.rows.view(), v, k) * state[static_cast<std::size_t>(k)];
    return z;
  };
  double total = 0;
  for (std::int64_t a = 0; a < e.batch.anchors; ++a) {
    vector state(hidden);
    for (std::int64_t k = 0; k < hidden; ++k) state[static_cast<std::size_t>(k)] = at(e.batch.states.view(), a, k);
    double reached = 1;
    for (std::int64_t head = 0; head < heads; ++head) {
      const double* const in = weights.data() + (shape.in(head).data() - shape.in(0).data());
      const double* const out = weights.data() + (shape.out(head).data() - shape.in(0).data());
      vector next = state;
      for (std::int64_t j = 0; j < width; ++j) {
        double inner = 0;
        for (std::int64_t k = 0; k < hidden; ++k) inner += in[j * 2 * hidden + k] * state[static_cast<std::size_t>(k)] + in[j * 2 * hidden + hidden + k] * at(e.batch.embeddings.view(), head * e.batch.anchors + a, k);
        for (std::int64_t k = 0; k < hidden; ++k) next[static_cast<std::size_t>(k)] += out[k * width + j] * inner / (1 + std::exp(-inner));
      }
      state = next;
      const vector q = softmax(logits(state));
      const std::int32_t row = e.batch.target_of[static_cast<std::size_t>(a * heads + head)];
      vector target(hidden);
      for (std::int64_t k = 0; k < hidden; ++k) target[static_cast<std::size_t>(k)] = at(e.batch.targets.view(), row, k);
      vector z = logits(target);
      const vector inside = softmax(z);
      z.push_back(static_cast<double>(e.batch.other_logits[static_cast<std::size_t>(row)]));
      const vector p = softmax(z);
      double kl = 0, tv = p.back() / 2;
      for (std::size_t v = 0; v < q.size(); ++v) kl += (1 - p.back()) * inside[v] * std::log(inside[v] / q[v]), tv += std::abs(p[v] - q[v]) / 2;
      const auto slots = static_cast<double>(e.batch.anchors * heads);
      if (loss == head_loss::forward_kl) total += kl / slots;
      if (loss == head_loss::tv) total += tv / slots;
      if (loss == head_loss::end_to_end) total -= (reached *= 1 - tv) / static_cast<double>(e.batch.anchors);
    }
  }
  return total;
}

class Losses : public ::testing::TestWithParam<head_loss> {};
INSTANTIATE_TEST_SUITE_P(HeadTrainer, Losses, ::testing::ValuesIn(head_losses), [](const auto& loss) { return std::string(name_of(loss.param)); });

TEST_P(Losses, HaveTheGradientOfFiniteDifferences) {
  example e;
  head_trainer trainer(GetParam(), e.some_heads(), 1);
  for (float& w : trainer.heads().weights()) w = 0.4f * e.number();
  products product{{}};
  const frozen_rows frozen(e.rows.view(), {});
  taught_laws laws;
  laws.assign(e.batch, frozen, product);
  const double value = trainer.evaluate(e.batch, frozen, laws, product);
  vector weights(trainer.heads().weights().begin(), trainer.heads().weights().end());
  EXPECT_NEAR(value, reference_loss(GetParam(), trainer.heads(), weights, e), 2e-6);
  double largest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    constexpr double step = 1e-6;
    const double w = weights[i];
    weights[i] = w + step;
    const double above = reference_loss(GetParam(), trainer.heads(), weights, e);
    weights[i] = w - step;
    const double below = reference_loss(GetParam(), trainer.heads(), weights, e);
    weights[i] = w;
    const double expected = (above - below) / (2 * step);
    largest = std::max(largest, std::abs(expected));
    ASSERT_NEAR(static_cast<double>(trainer.gradient()[i]), expected, 2e-6) << "weight " << i;
  }
  EXPECT_GT(largest, 1e-3);
}

std::vector<float> trained(head_loss loss, std::int64_t steps, std::int64_t pause_at, heddle::executor_ref executor) {
  example e;
  products product{executor};
  const frozen_rows frozen(e.rows.view(), executor);
  taught_laws laws;
  laws.assign(e.batch, frozen, product);
  const heddle::draft_heads fresh = e.some_heads();
  auto trainer = std::make_unique<head_trainer>(loss, fresh, 1);
  for (std::int64_t step = 1; step <= steps; ++step) {
    trainer->evaluate(e.batch, frozen, laws, product);
    trainer->update(step, steps, {.learning_rate = 0.02}, executor);
    if (step == pause_at) {  // stopped and resumed
      auto resumed = std::make_unique<head_trainer>(loss, fresh, 1);
      for (std::size_t part = 0; part < 3; ++part) std::copy(trainer->state()[part].begin(), trainer->state()[part].end(), resumed->state()[part].begin());
      trainer = std::move(resumed);
    }
  }
  std::vector<float> out(trainer->heads().weights().begin(), trainer->heads().weights().end());
  out.push_back(static_cast<float>(trainer->evaluate(e.batch, frozen, laws, product)));
  return out;
}

TEST_P(Losses, TrainingGetsThemDownAndDependsNeitherOnThreadsNorOnPauses) {
  const auto whole = trained(GetParam(), 60, 0, {}), first = trained(GetParam(), 1, 0, {});
  EXPECT_LT(whole.back(), first.back() - 0.1f);
  heddle::thread_team team(3);
  EXPECT_EQ(trained(GetParam(), 60, 25, team), whole);
}

// A batch's forward pass is the one a drafter makes, a token at a time.
TEST(HeadTrainer, TrainsWhatDraftersUse) {
  example e;
  const auto heads_of = e.some_heads();
  head_trainer trainer(head_loss::tv, heads_of, 1);
  std::copy(heads_of.weights().begin(), heads_of.weights().end(), trainer.heads().weights().begin());
  products product{{}};
  const frozen_rows frozen(e.rows.view(), {});
  // The laws of the states that the drafter reaches, as targets: nothing is left to learn.
  std::vector<float> state(e.batch.states.view().at(0), e.batch.states.view().at(0) + hidden);
  heddle::draft_head_scratch scratch;
  for (std::int64_t head = 0; head < heads; ++head) {
    float* const embedding = e.batch.embeddings.view().at(head * e.batch.anchors);
    const float scale = heddle::draft_heads::inverse_rms({embedding, hidden});
    for (std::int64_t k = 0; k < hidden; ++k) embedding[k] *= scale;
    heads_of.advance(head, {embedding, hidden}, state, scratch);
    std::copy(state.begin(), state.end(), e.batch.targets.view().at(head));
  }
  for (auto& z : e.batch.other_logits) z = -std::numeric_limits<float>::infinity();
  training_batch& one = e.batch;   // of its first anchor alone
  float_matrix embeddings;
  const matrix own = embeddings.resize(heads, hidden);
  for (std::int64_t head = 0; head < heads; ++head) std::copy_n(one.embeddings.view().at(head * one.anchors), hidden, own.at(head));
  one.anchors = 1;
  one.target_of.resize(heads);
  one.embeddings = std::move(embeddings);
  taught_laws laws;
  laws.assign(one, frozen, product);
  EXPECT_NEAR(trainer.evaluate(one, frozen, laws, product), 0., 1e-6);
}

}  // namespace
