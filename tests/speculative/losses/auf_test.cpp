#include <heddle/speculative/losses/auf.hpp>

#include "speculative/losses/block_rows.hpp"
#include "support/errors.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using losses::block_options;
using numbers = std::vector<double>;
using test::array;
using mask = std::vector<std::uint8_t>;

constexpr std::int64_t block = 4, rows = 12, vocabulary = 3;   // few tokens: many hits

mask defined_support(const array<double>& z, const std::vector<std::int32_t>& y, const mask& valid) {
  mask support(valid.size());
  for (std::int64_t first = 0; first < z.rows; first += block) {
    std::int64_t end = first + block;   // behind the failure
    for (std::int64_t r = first + block; r-- > first;)
      if (valid[static_cast<std::size_t>(r)] && test::argmax(z, r) != y[static_cast<std::size_t>(r)]) end = r + 1;
    for (std::int64_t r = first; r < end; ++r) support[static_cast<std::size_t>(r)] = valid[static_cast<std::size_t>(r)];
  }
  return support;
}

TEST(Auf, IsBlockLossOnItsSupport) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    array<double> z = test::random_logits(rows, vocabulary, seed), gradient(rows, vocabulary), expected_gradient(rows, vocabulary);
    for (double& x : z.values) x = std::round(2 * x);   // with ties
    auto y = test::random_labels(rows, vocabulary, seed);
    mask valid(rows);
    for (std::size_t r = 0; r < valid.size(); ++r) {
      valid[r] = seed < 4 || uniform({.seed = seed, .position = 1, .index = static_cast<std::uint32_t>(r)}) < .7;
      if (uniform({.seed = seed, .position = 2, .index = static_cast<std::uint32_t>(r)}) < .6) y[r] = test::argmax(z, static_cast<std::int64_t>(r));
      if (!valid[r]) y[r] = -1;
    }
    const mask support = defined_support(z, y, valid);
    block_options options{.block = block, .included = valid, .weights = {.gamma = 2}, .temperature = .8};
    const auto result = losses::auf_loss(z.view(), y, gradient.view(), options);
    EXPECT_EQ(mask(result.support.begin(), result.support.end()), support);
    options.included = support;
    EXPECT_EQ(result.value, losses::block_loss(z.view(), distillation::nll{y}, expected_gradient.view(), options).value);
    EXPECT_EQ(gradient.values, expected_gradient.values);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < vocabulary; ++c) EXPECT_EQ(gradient(r, c) == 0, support[static_cast<std::size_t>(r)] == 0);
    for (std::size_t r = 0; r < rows; r += block)
      EXPECT_EQ(result.support[r], valid[r]);   // slot 1
  }
}

TEST(Auf, GradientByFiniteDifferences) {
  array<double> z = test::random_logits(rows, vocabulary, 5), gradient(rows, vocabulary);
  auto y = test::random_labels(rows, vocabulary, 6);
  for (const std::size_t r : {0u, 1u, 4u, 8u, 9u, 10u, 11u}) y[r] = test::argmax(z, static_cast<std::int64_t>(r));
  const block_options options{.block = block, .weights = {.kind = losses::weighting::decay, .gamma = 2}};
  losses::auf_loss(z.view(), y, gradient.view(), options);
  test::expect_slopes(gradient, z, [&](array<double>& x) { return losses::auf_loss(x.view(), y, distillation::no_gradient, options).value; });
}

TEST(Auf, AllCorrectIsTheWholeBlock) {
  array<double> z = test::random_logits(rows, vocabulary, 7);
  std::vector<std::int32_t> y;
  for (std::int64_t r = 0; r < rows; ++r) y.push_back(test::argmax(z, r));
  const block_options options{.block = block, .weights = {.gamma = 3}};
  EXPECT_EQ(losses::auf_loss(z.view(), y, distillation::no_gradient, options).value, losses::block_loss(z.view(), distillation::nll{y}, distillation::no_gradient, options).value);
}

// The branch that drafts decides for both.
TEST(Auf, TwoBranches) {
  array<double> z = test::random_logits(rows, vocabulary, 8), base = test::random_logits(rows, vocabulary, 9), gradient(rows, vocabulary);
  const auto y = test::random_labels(rows, vocabulary, 10);
  const auto result = losses::auf_loss(z.view(), y, distillation::no_gradient, {.block = block});
  const mask support = defined_support(z, y, mask(rows, 1));
  EXPECT_NE(support, defined_support(base, y, mask(rows, 1)));
  losses::block_loss(base.view(), distillation::nll{y}, gradient.view(), {.block = block, .included = result.support});
  for (std::int64_t r = 0; r < rows; ++r) EXPECT_EQ(gradient(r, 0) != 0, support[static_cast<std::size_t>(r)] != 0);
}

// A row that cannot be read does not end a block; a label without mass does.
TEST(Auf, BadRows) {
  array<double> z = test::random_logits(rows, vocabulary, 8), gradient(rows, vocabulary);
  std::vector<std::int32_t> y;
  for (std::int64_t r = 0; r < rows; ++r) y.push_back(test::argmax(z, r));
  z(1, 0) = NAN, z(5, y[5]) = -INFINITY;
  const auto result = losses::auf_loss(z.view(), y, gradient.view(), {.block = block});
  EXPECT_EQ(mask(result.support.begin(), result.support.end()), (mask{1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(result.row_status[1], status::nan_logit);
  EXPECT_EQ(result.row_status[5], status::infinite_divergence);
  EXPECT_EQ(result.value, INFINITY);
  for (const double g : gradient.values) EXPECT_TRUE(std::isfinite(g));
  EXPECT_EQ(losses::auf_loss(z.view(), y, gradient.view(), {.block = block, .included = mask(rows)}).value, 0);
  for (const double g : gradient.values) EXPECT_EQ(g, 0);
}

// A drafter that is too small for its target: slot k adds a row of the last token to one of the token before it, all pairs being anchors. Supervision up to the
// first failure gives less accurate tokens and longer accepted drafts than the whole block under decay, and with it decay changes next to nothing.
class small_drafter_toy {
 public:
  static constexpr std::int64_t tokens = 16, slots = 5, anchors = tokens * tokens;
  struct outcome {
    double accuracy, accepted;
  };

  template <class Loss>
  static outcome train(std::uint64_t seed, Loss loss) {
    std::vector<std::int32_t> next, labels;
    for (std::uint32_t c = 0; c < anchors; ++c) next.push_back(static_cast<std::int32_t>(random_bits({.seed = seed, .index = c}) % tokens));
    for (std::int32_t c = 0; c < anchors; ++c)
      for (std::int64_t k = 0, at = c; k < slots; ++k) labels.push_back(next[static_cast<std::size_t>(at)]), at = at % tokens * tokens + labels.back();
    array<float> of_last(slots * tokens, tokens), of_before(slots * tokens, tokens), z(anchors * slots, tokens), gradient(anchors * slots, tokens);
    for (int step = 0; step <= 300; ++step) {
      for (std::int64_t r = 0; r < z.rows; ++r)
        for (std::int64_t v = 0; v < tokens; ++v) z(r, v) = of_last(last(r), v) + of_before(before(r), v);
      if (step == 300) break;
      loss(z, labels, gradient);
      for (std::int64_t r = 0; r < z.rows; ++r)
        for (std::int64_t v = 0; v < tokens; ++v) of_last(last(r), v) -= 40 * gradient(r, v), of_before(before(r), v) -= 40 * gradient(r, v);
    }
    outcome o{};
    for (std::int64_t c = 0; c < anchors; ++c) {
      bool accepted = true;
      for (std::int64_t r = c * slots; r < (c + 1) * slots; ++r) {
        const auto first = z.values.begin() + r * tokens;
        const bool hit = std::max_element(first, first + tokens) - first == labels[static_cast<std::size_t>(r)];
        accepted = accepted && hit;
        o.accuracy += hit / static_cast<double>(z.rows), o.accepted += accepted / static_cast<double>(anchors);
      }
    }
    return o;
  }

 private:
  static std::int64_t last(std::int64_t r) { return r % slots * tokens + r / slots % tokens; }
  static std::int64_t before(std::int64_t r) { return r % slots * tokens + r / slots / tokens; }
};

TEST(Auf, LongerDraftsOfASmallDrafter) {
  small_drafter_toy::outcome truncated{}, truncated_decay{}, decay{};
  const auto add = [](small_drafter_toy::outcome& sum, const small_drafter_toy::outcome& o) { sum.accuracy += o.accuracy / 3, sum.accepted += o.accepted / 3; };
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto auf = [](double gamma) {
      return [gamma](array<float>& z, const auto& y, array<float>& g) { losses::auf_loss(z.view(), y, g.view(), {.block = small_drafter_toy::slots, .weights = {.gamma = gamma}}); };
    };
    add(truncated, small_drafter_toy::train(seed, auf(INFINITY)));
    add(truncated_decay, small_drafter_toy::train(seed, auf(4)));
    add(decay, small_drafter_toy::train(seed, [](array<float>& z, const auto& y, array<float>& g) { losses::block_loss(z.view(), distillation::nll{y}, g.view(), {.block = small_drafter_toy::slots, .weights = {.gamma = 4}}); }));
  }
  EXPECT_GT(truncated.accepted, 1.05 * decay.accepted);
  EXPECT_GT(decay.accuracy, truncated.accuracy);
  EXPECT_LT(std::abs(truncated.accepted - truncated_decay.accepted), .1 * (truncated.accepted - decay.accepted));
}

TEST(Auf, Errors) {
  array<double> z = test::random_logits(rows, vocabulary, 8);
  const auto y = test::random_labels(rows, vocabulary, 10);
  EXPECT_EQ(message_of([&] { losses::auf_loss(z.view(), y, distillation::no_gradient, {.block = 5}); }), "losses::auf_loss: 12 rows are no whole number of blocks of 5 slots");
  EXPECT_EQ(message_of([&] { losses::auf_loss(z.view(), std::span(y).first(8), distillation::no_gradient, {.block = 4}); }), "losses::auf_loss: argument 'labels' has 8 entries; expected one per row, 12");
  EXPECT_EQ(message_of([&] { losses::auf_loss(z.view(), std::vector<std::int32_t>(rows, 3), distillation::no_gradient, {.block = 4}); }), "losses::auf_loss: argument 'labels': entry 0 is 3; expected 0 to 2");
}

}  // namespace
