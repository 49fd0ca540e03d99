// The fused linear form against logits that were written out.
#include "distillation/fixture.hpp"
#include "support/allocations.hpp"
#include "support/errors.hpp"

#include <heddle/core/thread_team.hpp>
#include <heddle/distillation/fused_linear.hpp>
#include <heddle/distillation/sampled_token.hpp>
#include <heddle/distillation/support.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace distillation_tests;
using namespace heddle::distillation;

template <class T>
logits<double> product(const logits<T>& h, const logits<T>& w) {
  logits<double> z(h.rows, w.rows);
  for (std::int64_t r = 0; r < h.rows; ++r)
    for (std::int64_t v = 0; v < w.rows; ++v)
      for (std::int64_t c = 0; c < h.columns; ++c) z(r, v) += static_cast<double>(h(r, c)) * static_cast<double>(w(v, c));
  return z;
}

struct gradients {
  logits<double> hidden, unembedding;
};
template <class T>
gradients of_logits(const logits<double>& dz, const logits<T>& h, const logits<T>& w) {
  gradients g{logits<double>(h.rows, h.columns), logits<double>(w.rows, w.columns)};
  for (std::int64_t r = 0; r < h.rows; ++r)
    for (std::int64_t v = 0; v < w.rows; ++v)
      for (std::int64_t c = 0; c < h.columns; ++c) g.hidden(r, c) += dz(r, v) * static_cast<double>(w(v, c)), g.unembedding(v, c) += dz(r, v) * static_cast<double>(h(r, c));
  return g;
}

void expect_close(const auto& got, const logits<double>& expected, double relative) {
  double scale = 0;
  for (const double x : expected.data) scale = std::max(scale, std::abs(x));
  for (std::size_t i = 0; i < expected.data.size(); ++i) ASSERT_NEAR(static_cast<double>(got.data[i]), expected.data[i], relative * scale);
}

TEST(FusedLinear, EqualsTheLossOfTheLogits) {
  struct shape {
    std::int64_t n, vocabulary, d;
  };
  for (const shape size : {shape{1, 1, 1}, shape{7, 100, 24}, shape{50, 515, 37}}) {
    const std::int64_t n = size.n, vocabulary = size.vocabulary, d = size.d;
    const auto h = noise(n, d, 1, 0.7f), w = noise(vocabulary, d, 2, 0.7f), y = noise(n, vocabulary, 3);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(n), 1);
    if (n > 5) mask[3] = 0;
    const loss_options options{.temperature = 1.4, .mask = mask};
    const auto check = [&]<class E, class T>(E, T, double tolerance) {
      const auto hidden = h.template as<E>(), unembedding = w.template as<E>();
      logits<T> dh(n, d), dw(vocabulary, d);
      dh.data.assign(dh.data.size(), NAN), dw.data.assign(dw.data.size(), NAN);
      const auto fused = fused_linear_loss(hidden.view(), unembedding.view(), y.view(), reverse_kl{}, dh.view(), dw.view(), options);
      const auto plain = evaluate(reverse_kl{}, options, product(h, w), y);
      EXPECT_NEAR(fused.value, plain.result.value, tolerance * (1 + plain.result.value));
      EXPECT_EQ(fused.rows_kept, plain.result.rows_kept);
      const gradients expected = of_logits(plain.gradient, h, w);
      expect_close(dh, expected.hidden, tolerance), expect_close(dw, expected.unembedding, tolerance);
    };
    check(float{}, float{}, 1e-5), check(double{}, double{}, 1e-12), check(heddle::bfloat16{}, float{}, 1e-5);
  }
}

TEST(FusedLinear, TakesTheTeacherAsHiddenStatesOrAsTopK) {
  constexpr std::int64_t n = 9, vocabulary = 200, d = 20, k = 4;
  const auto h = noise(n, d, 1, 0.7f), w = noise(vocabulary, d, 2, 0.7f), th = noise(n, 31, 3, 0.6f), tw = noise(vocabulary, 31, 4, 0.6f);
  logits<float> dh(n, d), dw(vocabulary, d);
  const auto linear = fused_linear_loss(h.view(), w.view(), linear_rows{th.view(), tw.view()}, generalized_jsd{.beta = 0.3}, dh.view(), dw.view());
  const auto y = product(th, tw);
  const auto plain = evaluate(generalized_jsd{.beta = 0.3}, {}, product(h, w), y);
  EXPECT_NEAR(linear.value, plain.result.value, 1e-5);
  expect_close(dw, of_logits(plain.gradient, h, w).unembedding, 1e-5);

  logits<std::int32_t> ids(n, k);
  logits<float> log_probs(n, k);
  for (std::int64_t r = 0; r < n; ++r) {
    const auto best = reference::top_k(y.row(r), k);
    const auto p = reference::softmax(y.row(r), 1);
    for (std::size_t j = 0; j < k; ++j) {
      const std::size_t from = best[(j + 2) % k];   // in no order
      ids(r, static_cast<std::int64_t>(j)) = static_cast<std::int32_t>(from), log_probs(r, static_cast<std::int64_t>(j)) = static_cast<float>(std::log(p[from]));
    }
  }
  const given_top_k known{ids.view(), log_probs.view(), forward_kl{}};
  const auto given = fused_linear_loss(h.view(), w.view(), known, dh.view(), no_gradient);
  const auto same = evaluate(top_k_tail<forward_kl>{.k = k, .from = support::teacher, .divergence = forward_kl{}}, {}, product(h, w), y);
  EXPECT_NEAR(given.value, same.result.value, 1e-5);
  expect_close(dh, of_logits(same.gradient, h, w).hidden, 1e-5);
}

TEST(FusedLinear, BadAndMaskedRowsAddNothing) {
  constexpr std::int64_t n = 5, vocabulary = 90, d = 16;
  auto h = noise(n, d, 1, 0.7f);
  const auto w = noise(vocabulary, d, 2, 0.7f), y = noise(n, vocabulary, 3);
  const std::vector<std::uint8_t> without{1, 0, 1, 0, 1}, masked{1, 0, 1, 1, 1};
  logits<float> dh(n, d), dw(vocabulary, d), dh_without = dh, dw_without = dw;
  fused_linear_loss(h.view(), w.view(), y.view(), reverse_kl{}, dh_without.view(), dw_without.view(), {.mask = without, .reduction = reduction::sum});
  h(1, 2) = NAN, h(3, 4) = NAN;
  const auto out = fused_linear_loss(h.view(), w.view(), y.view(), reverse_kl{}, dh.view(), dw.view(), {.mask = masked, .reduction = reduction::sum});
  EXPECT_EQ(out.row_status[3], heddle::status::nan_logit);
  EXPECT_EQ(out.row_status[1], heddle::status::ok);
  EXPECT_EQ(dh.data, dh_without.data);
  EXPECT_EQ(dw.data, dw_without.data);
  EXPECT_NE(message_of([&] { fused_linear_loss(h.view(), w.view(), y.view(), reverse_kl{}, logits<float>(n, d + 1).view(), dw.view()); }).find("'d_hidden': extent 1 is 17"), std::string::npos);
  EXPECT_NE(message_of([&] { fused_linear_loss(h.view(), noise(vocabulary, d - 1, 1).view(), y.view(), reverse_kl{}, dh.view(), dw.view()); }).find("width of the unembedding is 15"), std::string::npos);
}

TEST(FusedLinear, BlocksAndThreadsChangeNothing) {
  constexpr std::int64_t n = 400, vocabulary = 130, d = 19;   // several blocks of rows
  const auto h = noise(n, d, 1, 0.7f), w = noise(vocabulary, d, 2, 0.7f), y = noise(n, vocabulary, 3);
  logits<float> dh(n, d), dw(vocabulary, d), dh_shared = dh, dw_shared = dw;
  const double alone = fused_linear_loss(h.view(), w.view(), y.view(), forward_kl{}, dh.view(), dw.view()).value;
  heddle::thread_team team(3);
  EXPECT_EQ(fused_linear_loss(h.view(), w.view(), y.view(), forward_kl{}, dh_shared.view(), dw_shared.view(), {.executor = team}).value, alone);
  EXPECT_EQ(dh_shared.data, dh.data);
  EXPECT_EQ(dw_shared.data, dw.data);
  const auto plain = evaluate(forward_kl{}, {}, product(h, w), y);
  const gradients expected = of_logits(plain.gradient, h, w);
  expect_close(dh, expected.hidden, 1e-5), expect_close(dw, expected.unembedding, 1e-5);
}

// 1,024 rows that add 2^-9 each to what one row has made 1, over several blocks of rows: a sum kept in the type of the states would stay at 1.
TEST(FusedLinear, ManySmallGradientsAddUp) {
  constexpr std::int64_t n = 1025;
  logits<heddle::bfloat16> h(n, 1), w(2, 1);   // the unembedding is 0: both tokens have probability 1/2
  for (auto& x : h.data) x = heddle::bfloat16{0x1p-8f};
  h(0, 0) = heddle::bfloat16{2.f};
  const std::vector<std::int32_t> tokens(n, 0);
  logits<float> dh(n, 1), dw(2, 1);
  fused_linear_loss(h.view(), w.view(), nll{tokens}, dh.view(), dw.view(), {.reduction = reduction::sum});
  EXPECT_EQ(dw(0, 0), -3);
  EXPECT_EQ(dw(1, 0), 3);
}

TEST(FusedLinear, NeverHoldsAllLogits) {
  constexpr std::int64_t n = 300, vocabulary = 49152, d = 4;   // 59 MB of logits
  const auto h = noise(n, d, 1, 0.7f), w = noise(vocabulary, d, 2, 0.7f);
  std::vector<std::int32_t> ids(n, 7);
  std::vector<float> log_probs(n, -1.f);
  const given_top_k teacher{tensor_view<const std::int32_t, 2>{ids.data(), extents{n, 1}}, tensor_view<const float, 2>{log_probs.data(), extents{n, 1}}, reverse_kl{}};
  logits<float> dh(n, d), dw(vocabulary, d);
  heddle::thread_team team(2);
  const std::int64_t most = most_bytes_of([&] { fused_linear_loss(h.view(), w.view(), teacher, dh.view(), dw.view(), {.executor = team}); });
  EXPECT_LE(most, 33554432);
  EXPECT_GT(most, 1 << 20);   // the count counts
}

// A gradient that would be summed in fewer bits than it is computed in does not compile.
template <class D>
concept sums_into = requires(tensor_view<const heddle::bfloat16, 2> h, tensor_view<const float, 2> y, D d) { fused_linear_loss(h, h, y, reverse_kl{}, d, d); };
static_assert(sums_into<tensor_view<float, 2>> && sums_into<no_gradient_type>);
static_assert(!sums_into<tensor_view<heddle::bfloat16, 2>>);

TEST(FusedLinear, GradientsDoNotReplaceInputs) {
  auto h = noise(3, 4, 1), w = noise(5, 4, 2);
  const auto y = noise(3, 5, 3);
  logits<float> dh(3, 4), dw(5, 4);
  EXPECT_NE(message_of([&] { fused_linear_loss(h.view(), w.view(), y.view(), reverse_kl{}, h.view(), dw.view()); }).find("'d_hidden' lies where an input does"), std::string::npos);
  EXPECT_NE(message_of([&] { fused_linear_loss(h.view(), w.view(), y.view(), reverse_kl{}, dh.view(), w.view()); }).find("'d_unembedding' lies where an input does"), std::string::npos);
  std::vector<float> memory(64, 0.25f);
  const auto view = [&](std::ptrdiff_t at, std::int64_t rows) { return tensor_view<float, 2>{memory.data() + at, extents<2>{rows, 4}}; };
  EXPECT_NE(message_of([&] { fused_linear_loss(view(0, 3), w.view(), y.view(), reverse_kl{}, view(11, 3), dw.view()); }).find("'d_hidden' lies where an input does"), std::string::npos);
  EXPECT_NE(message_of([&] { fused_linear_loss(h.view(), w.view(), y.view(), reverse_kl{}, view(8, 3), view(0, 5)); }).find("'d_unembedding' lies where 'd_hidden' does"), std::string::npos);
  EXPECT_EQ(message_of([&] { fused_linear_loss(view(0, 3), view(12, 5), y.view(), reverse_kl{}, view(32, 3), view(44, 5)); }), "no error");
  // a selection that names rows often is no longer than they are; behind its last row there may be a gradient
  const std::vector<std::int32_t> map{1, 0, 1};
  const auto selected = select_rows(tensor_view<const float, 2>{memory.data(), extents<2>{2, 5}}, map);
  EXPECT_EQ(message_of([&] { fused_linear_loss(h.view(), w.view(), selected, reverse_kl{}, view(12, 3), dw.view()); }), "no error");
  EXPECT_NE(message_of([&] { fused_linear_loss(h.view(), w.view(), selected, reverse_kl{}, view(9, 3), dw.view()); }).find("'d_hidden' lies where an input does"), std::string::npos);
  const tensor_view<float, 2> turned{memory.data(), extents<2>{3, 4}, extents<2>{1, 3}};
  EXPECT_NE(message_of([&] { fused_linear_loss(turned, w.view(), y.view(), reverse_kl{}, view(0, 3), dw.view()); }).find("'d_hidden' lies where an input does"), std::string::npos);
}

}  // namespace
