#include <heddle/speculative/losses/greedy_rollout.hpp>

#include <heddle/speculative/losses/erase_gates.hpp>

#include "speculative/losses/block_rows.hpp"
#include "support/errors.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace {

using namespace heddle;
using numbers = std::vector<double>;
using test::array;
using tokens = std::vector<std::int32_t>;

/// A target whose law depends on the last two tokens.
struct markov {
  std::int64_t vocabulary;
  array<float> logits;   // [V * V, V]
  markov(std::int64_t v, double spread, std::uint64_t seed) : vocabulary(v), logits(v * v, v) {
    for (std::size_t i = 0; i < logits.values.size(); ++i) logits.values[i] = static_cast<float>(spread * std::sqrt(-2 * std::log(uniform({.seed = seed, .index = static_cast<std::uint32_t>(i)}))) * std::cos(6.2831853 * uniform({.seed = seed, .request = 1, .index = static_cast<std::uint32_t>(i)})));
  }
  std::int64_t row(std::int32_t before, std::int32_t last) const { return before * vocabulary + last; }
  std::int32_t next(std::int32_t before, std::int32_t last) const {
    const auto first = logits.values.begin() + row(before, last) * vocabulary;
    return static_cast<std::int32_t>(std::max_element(first, first + vocabulary) - first);
  }
  numbers law(std::int32_t before, std::int32_t last) const {
    numbers p;
    double sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) p.push_back(std::exp(static_cast<double>(logits(row(before, last), v)))), sum += p.back();
    for (double& x : p) x /= sum;
    return p;
  }
  tokens sample(std::int64_t length, std::uint32_t request) const {
    tokens x;
    for (std::int64_t t = 0; t < length; ++t) {
      double u = uniform({.seed = 77, .request = request, .position = static_cast<std::uint32_t>(t)});
      if (t < 2) {
        x.push_back(static_cast<std::int32_t>(u * static_cast<double>(vocabulary)));
        continue;
      }
      const numbers p = law(x[x.size() - 2], x.back());
      std::int32_t v = 0;
      while (v + 1 < vocabulary && (u -= p[static_cast<std::size_t>(v)]) > 0) ++v;
      x.push_back(v);
    }
    return x;
  }
};

/// The model that rollouts advance: the last two tokens of each.
struct rollout_model {
  const markov& target;
  tokens before, last;
  array<float> logits;
  int steps = 0;
  rollout_model(const markov& m, tokens b, tokens l) : target(m), before(b), last(l), logits(static_cast<std::int64_t>(b.size()), m.vocabulary) {}
  tensor_view<float, 2> operator()(std::int64_t k, std::span<const std::int32_t> tokens_before) {
    ++steps;
    EXPECT_EQ(k, steps);
    for (std::size_t a = 0; a < last.size(); ++a) {
      if (!tokens_before.empty()) before[a] = last[a], last[a] = tokens_before[a];
      for (std::int64_t v = 0; v < target.vocabulary; ++v) logits(static_cast<std::int64_t>(a), v) = last[a] < 0 ? NAN : target.logits(target.row(before[a], last[a]), v);
    }
    return logits.view();
  }
};

TEST(TopKLabels, LossAsWrittenAndItsGradient) {
  for (const std::int64_t k : {1, 3, 6}) {
    array<double> z = test::random_logits(5, 6, 1), gradient(5, 6), t = test::random_logits(5, 6, 2);
    array<std::int32_t> ids(5, k);
    array<float> log_probs(5, k);
    tokens most(5);
    losses::note_top_k(t.view(), {}, ids.view(), log_probs.view(), most);
    const numbers v = {1, .5, 0, 2, .25};
    const auto loss = [&](array<double>& x, const auto& g) { return losses::labels_loss(x.view(), ids.view(), log_probs.view(), v, g).value; };
    double sum = 0, weight = 0;
    for (std::int64_t r = 0; r < 5; ++r) {
      EXPECT_EQ(most[static_cast<std::size_t>(r)], test::argmax(t, r));
      const numbers p = test::softmax(t, r), q = test::softmax(z, r);
      numbers order(6);
      std::vector<std::size_t> best(6);
      std::iota(best.begin(), best.end(), 0u);
      std::sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
      double l = 0, drafted = 0, label = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        const std::size_t c = best[static_cast<std::size_t>(j)];
        EXPECT_NE(std::find(ids.values.begin() + r * k, ids.values.begin() + (r + 1) * k, static_cast<std::int32_t>(c)), ids.values.begin() + (r + 1) * k);
        l -= p[c] * std::log(q[c]), drafted += q[c], label += p[c];
      }
      if (k < 6) l -= (1 - label) * std::log(1 - drafted);
      sum += v[static_cast<std::size_t>(r)] * l, weight += v[static_cast<std::size_t>(r)];
    }
    EXPECT_NEAR(loss(z, gradient.view()), sum / (weight + 1e-6), 1e-6);
    test::expect_slopes(gradient, z, [&](array<double>& x) { return loss(x, distillation::no_gradient); });
    // Where nothing is clamped: the divergence of buckets and its gradient.
    array<double> buckets(5, 6);
    const numbers scaled = v;
    distillation::loss(z.view(), distillation::given_top_k{tensor_view<const std::int32_t, 2>{ids.view()}, tensor_view<const float, 2>{log_probs.view()}, distillation::forward_kl{}}, buckets.view(), {.weights = scaled, .reduction = distillation::reduction::count, .count = weight + 1e-6});
    for (std::size_t i = 0; i < buckets.values.size(); ++i) EXPECT_NEAR(buckets.values[i], gradient.values[i], 1e-7);
  }
}

// The drafter holds all mass in the label's tokens: the tail is clamped, and pulls no more.
TEST(TopKLabels, ClampedTail) {
  array<double> z(1, 4), gradient(1, 4);
  z.values = {60, 60, 0, 0};
  const tokens ids = {0, 1};
  const std::vector<float> log_probs = {std::log(.4f), std::log(.4f)};
  const auto result = losses::labels_loss(z.view(), tensor_view<const std::int32_t, 2>{ids.data(), extents{1, 2}}, tensor_view<const float, 2>{log_probs.data(), extents{1, 2}}, numbers{1}, gradient.view());
  EXPECT_NEAR(result.row_values[0], -.8 * std::log(.5) - .2 * std::log(1e-6), 1e-6);
  for (const double g : gradient.values) EXPECT_NEAR(g, 0, 1e-7);
}

TEST(EraseGates, AsWritten) {
  numbers soft(4), hard(4);
  losses::soft_gate(numbers{.5, .25, NAN, .8}, std::vector<std::uint8_t>{1, 1, 0, 1}, soft);
  EXPECT_EQ(soft, (numbers{1, .5, .125, .125}));
  losses::hard_gate(tokens{3, 4, 5, 6}, tokens{3, 0, 5, 6}, std::vector<std::uint8_t>{1, 0, 1, 1}, hard);
  EXPECT_EQ(hard, numbers(4, 1.));
  losses::hard_gate(tokens{3, 4, 5, 6}, tokens{3, 0, 5, 6}, {}, hard);
  EXPECT_EQ(hard, (numbers{1, 1, 0, 0}));
  EXPECT_EQ(message_of([&] { losses::soft_gate(numbers{.5, NAN, 1, 1}, {}, soft); }), "losses::soft_gate: argument 'probabilities': entry 1 is NaN; expected 0 to 1");
}

// A corpus that is the greedy path gives the labels of the rollouts; depth cuts them; stop tokens end them.
TEST(GreedyRollout, LabelsAreThoseOfTheGreedyPath) {
  const markov target(11, 2, 5);
  const std::int64_t slots = 6;
  const tokens before = {1, 2, 10}, last = {4, 5, 0};
  rollout_model model(target, before, last);
  const auto labels = losses::greedy_rollouts(model, 3, {.slots = slots, .top = 4});
  tokens path, ids(18 * 4), most(18);
  std::vector<float> log_probs(18 * 4);
  array<float> logits(18, 11);
  for (std::size_t a = 0; a < 3; ++a) {   // teacher forced
    std::int32_t x = before[a], y = last[a];
    for (std::int64_t k = 0; k < slots; ++k) {
      std::copy_n(target.logits.values.begin() + target.row(x, y) * 11, 11, logits.values.begin() + static_cast<std::ptrdiff_t>(path.size()) * 11);
      path.push_back(target.next(x, y));
      x = y, y = path.back();
    }
  }
  losses::note_top_k(logits.view(), {}, tensor_view<std::int32_t, 2>{ids.data(), extents{18, 4}}, tensor_view<float, 2>{log_probs.data(), extents{18, 4}}, most);
  EXPECT_EQ(most, path);
  EXPECT_EQ(tokens(labels.greedy.begin(), labels.greedy.end()), path);
  EXPECT_EQ(tokens(labels.tokens.begin(), labels.tokens.end()), ids);
  EXPECT_EQ(std::vector<float>(labels.log_probs.begin(), labels.log_probs.end()), log_probs);

  rollout_model short_model(target, before, last);
  const auto cut = losses::greedy_rollouts(short_model, 3, {.slots = slots, .depth = 2, .top = 4});
  EXPECT_EQ(short_model.steps, 3);
  for (std::size_t r = 0; r < 18; ++r) {
    EXPECT_EQ(cut.weights[r], r % 6 <= 2 ? 1 : 0);
    EXPECT_EQ(cut.greedy[r], r % 6 <= 2 ? path[r] : -1);
  }

  const tokens stop = {path[2]};   // the third token of the first rollout
  rollout_model stopped(target, before, last);
  const auto ended = losses::greedy_rollouts(stopped, 3, {.slots = slots, .top = 4, .stop_tokens = stop});
  for (std::size_t a = 0; a < 3; ++a) {
    bool alive = true;
    for (std::size_t r = 6 * a; r < 6 * a + 6; ++r) {
      EXPECT_EQ(ended.weights[r], alive);
      alive = alive && path[r] != stop[0];
    }
  }
}

TEST(GreedyRollout, BlocksInsideOfRollouts) {
  const std::int64_t slots = 15, blocks = 9;
  const auto plan = losses::plan_blocks(blocks, slots, {.seed = 3});
  ASSERT_EQ(plan.size(), 9u);   // always m blocks
  EXPECT_EQ(std::count_if(plan.begin(), plan.end(), [](const auto& b) { return b.offset == 0; }), 5);
  for (std::size_t i = 5; i < 9; ++i) EXPECT_EQ(plan[i].rollout, static_cast<std::int32_t>(i) - 5);

  const markov target(11, 2, 5);
  rollout_model model(target, {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1});
  const tokens stop = {target.next(5, 4), 7};
  const auto rollouts = losses::greedy_rollouts(model, 5, {.slots = slots, .top = 3, .stop_tokens = stop});
  const auto labels = losses::block_labels(rollouts, plan, 2);
  for (std::size_t b = 0; b < plan.size(); ++b)
    for (std::int64_t k = 0; k < slots; ++k) {
      const auto row = b * 15 + static_cast<std::size_t>(k);
      const std::int64_t at = plan[b].offset + k;
      const auto from = static_cast<std::size_t>(plan[b].rollout * slots + at);
      if (at >= slots) {
        EXPECT_EQ(labels.weights[row], 0);
        continue;
      }
      EXPECT_NEAR(labels.weights[row], rollouts.weights[from] * std::exp(-static_cast<double>(k) / 2), 1e-15);
      for (std::size_t j = 0; j < 3; ++j) EXPECT_EQ(labels.tokens[row * 3 + j], rollouts.tokens[from * 3 + j]);
    }

  double supervised = 0;   // E[K - j] = 7
  const auto many = losses::plan_blocks(40000, slots, {.seed = 4});
  for (std::size_t i = 20000; i < many.size(); ++i) {
    ASSERT_TRUE(many[i].offset >= 2 && many[i].offset <= 14);
    supervised += static_cast<double>(slots - many[i].offset) / 20000;
  }
  EXPECT_NEAR(supervised, 7, 5 * std::sqrt(14. / 20000));
}

TEST(GreedyRollout, Errors) {
  EXPECT_EQ(message_of([] { losses::plan_blocks(1, 15, {}); }), "losses::plan_blocks: argument 'blocks' is 1; expected at least 2 valid anchors");
  EXPECT_EQ(message_of([] { losses::plan_blocks(2, 2, {}); }), "losses::plan_blocks: argument 'slots' is 2; expected at least 3");
  const markov target(5, 2, 5);
  rollout_model model(target, {1}, {2});
  EXPECT_EQ(message_of([&] { losses::greedy_rollouts(model, 1, {}); }), "losses::greedy_rollouts: option 'slots' is 0; expected at least 1");
  EXPECT_EQ(message_of([&] { losses::greedy_rollouts(model, 1, {.slots = 2}); }), "losses::note_top_k: argument 'tokens': extent 1 is 8; expected 1 to 5");
}

// The toy of the paper: a target of order two, a corpus of which half is foreign, and a drafter that is a table over the last two tokens.
class corpus_toy {
 public:
  static constexpr std::int64_t vocabulary = 24, slots = 15, batch = 16, length = 24, sequences = 40;
  enum class method { dflash, kd, erase, alr, ira };

  /// Tokens per round of greedy verification after training.
  double mean_accepted(method m) const {
    array<float> drafter(vocabulary * vocabulary * slots, vocabulary);
    array<float> z(batch * slots, vocabulary), gradient(batch * slots, vocabulary);
    for (std::uint32_t step = 0; step < 500; ++step) {
      const example e = draw(m, step);
      for (std::int64_t r = 0; r < z.rows; ++r) std::copy_n(drafter.view().at(table_row(e, r)), vocabulary, z.view().at(r));
      losses::labels_loss(z.view(), e.labels.token_rows(), e.labels.log_prob_rows(), e.labels.weights, gradient.view());
      for (std::int64_t r = 0; r < z.rows; ++r)
        for (std::int64_t v = 0; v < vocabulary; ++v) drafter(table_row(e, r), v) -= 50 * gradient(r, v);
    }
    return evaluate(drafter);
  }

 private:
  struct example {
    std::vector<std::pair<std::int32_t, std::int32_t>> anchors;   // the last two tokens of every block
    losses::labelled_blocks labels;
  };
  static std::int64_t table_row(const example& e, std::int64_t r) {
    const auto [before, last] = e.anchors[static_cast<std::size_t>(r / slots)];
    return (before * vocabulary + last) * slots + r % slots;
  }

  example draw(method m, std::uint32_t step) const {
    example e;
    std::vector<const std::int32_t*> text;
    for (std::uint32_t b = 0; b < batch; ++b) {
      const std::uint32_t anchor = random_bits({.seed = 1, .position = step, .index = b}) % static_cast<std::uint32_t>(sequences * (length - 1));
      text.push_back(corpus_[anchor / (length - 1)].data() + 1 + anchor % (length - 1));
      e.anchors.emplace_back(text.back()[-1], text.back()[0]);
    }
    if (m == method::alr || m == method::ira) {
      const std::int64_t rollouts = m == method::ira ? batch / 2 : batch;
      tokens before, last;
      for (std::int64_t b = 0; b < rollouts; ++b) before.push_back(e.anchors[static_cast<std::size_t>(b)].first), last.push_back(e.anchors[static_cast<std::size_t>(b)].second);
      const auto labels = losses::greedy_rollouts(rollout_model(target_, before, last), rollouts, {.slots = slots});
      auto plan = losses::plan_blocks(2 * rollouts, slots, {.seed = 2, .position = step});
      if (m == method::alr) plan.resize(static_cast<std::size_t>(rollouts));
      for (std::size_t b = static_cast<std::size_t>(rollouts); b < plan.size(); ++b) {
        const auto at = static_cast<std::size_t>(plan[b].rollout * slots + plan[b].offset);
        e.anchors[b] = {labels.greedy[at - 2], labels.greedy[at - 1]};
      }
      e.labels = losses::block_labels(labels, plan, 2);
      return e;
    }
    e.labels.slots = slots, e.labels.top = 8;
    const std::int64_t rows = batch * slots;
    array<float> logits(rows, vocabulary);
    tokens most(static_cast<std::size_t>(rows)), next;
    for (const std::int32_t* x : text)
      for (std::int64_t k = 0; k < slots; ++k) std::copy_n(target_.logits.values.begin() + target_.row(x[k - 1], x[k]) * vocabulary, vocabulary, logits.view().at(static_cast<std::int64_t>(next.size()))), next.push_back(x[k + 1]);
    e.labels.tokens.resize(static_cast<std::size_t>(rows * 8)), e.labels.log_probs.resize(static_cast<std::size_t>(rows * 8)), e.labels.weights.resize(static_cast<std::size_t>(rows));
    losses::note_top_k(logits.view(), {}, tensor_view<std::int32_t, 2>{e.labels.tokens.data(), extents<2>{rows, 8}}, tensor_view<float, 2>{e.labels.log_probs.data(), extents<2>{rows, 8}}, most);
    numbers gates(slots, 1.);
    for (std::size_t b = 0; b < batch; ++b) {
      const std::size_t first = b * slots;
      if (m == method::erase) losses::hard_gate(std::span(next).subspan(first, slots), std::span(most).subspan(first, slots), {}, gates);
      for (std::size_t k = 0; k < slots; ++k) e.labels.weights[first + k] = gates[k] * std::exp(-static_cast<double>(k) / 2);
    }
    if (m == method::dflash)   // one token with all the mass; seven more with none
      for (std::size_t r = 0; r < next.size(); ++r)
        for (std::int32_t j = 0; j < 8; ++j) e.labels.tokens[r * 8 + static_cast<std::size_t>(j)] = (next[r] + j) % vocabulary, e.labels.log_probs[r * 8 + static_cast<std::size_t>(j)] = j == 0 ? 0.f : -INFINITY;
    return e;
  }

  double evaluate(const array<float>& drafter) const {
    double rounds = 0, generated = 0;
    for (std::uint32_t prompt = 0; prompt < 60; ++prompt) {
      const tokens start = target_.sample(6, 1000 + prompt);
      std::int32_t before = start[4], last = start[5];
      for (std::int64_t n = 0; n < 48;) {
        ++rounds;
        const std::int64_t anchor = (before * vocabulary + last) * slots;
        for (std::int64_t k = 0; k <= slots; ++k) {   // one more after a whole block
          const std::int32_t y = target_.next(before, last);
          before = last, last = y, ++n, ++generated;
          if (k == slots) break;
          const auto first = drafter.values.begin() + (anchor + k) * vocabulary;
          if (std::max_element(first, first + vocabulary) - first != y) break;
        }
      }
    }
    return generated / rounds;
  }

  static std::vector<tokens> half_foreign(const markov& target, const markov& foreign) {
    std::vector<tokens> corpus;
    for (std::uint32_t i = 0; i < sequences; ++i) corpus.push_back((i % 2 ? foreign : target).sample(length + slots + 1, i));
    return corpus;
  }
  markov target_{vocabulary, 2.5, 11};
  std::vector<tokens> corpus_ = half_foreign(target_, markov(vocabulary, 2.5, 12));
};

TEST(GreedyRollout, OrderOfTheToy) {
  const corpus_toy toy;
  using method = corpus_toy::method;
  double before = 0;
  for (const method m : {method::dflash, method::kd, method::erase, method::alr, method::ira}) {
    const double tokens_per_round = toy.mean_accepted(m);
    RecordProperty("tokens_per_round_" + std::to_string(static_cast<int>(m)), std::to_string(tokens_per_round));
    EXPECT_GT(tokens_per_round, 1.02 * before) << static_cast<int>(m);
    before = tokens_per_round;
  }
}

}  // namespace
