#include <heddle/speculative/losses/branch_packing.hpp>

#include <heddle/speculative/losses/end_to_end.hpp>

#include "attention/fixture.hpp"
#include "speculative/losses/block_rows.hpp"
#include "support/errors.hpp"

#include <array>
#include <cmath>
#include <vector>

namespace {

using namespace heddle;
using attention_test::result;
using attention_test::run;
using attention_test::values;
using tokens = std::vector<std::int32_t>;
using words = std::vector<std::uint64_t>;
using test::array;

constexpr std::int64_t length = 75, branches = 3, slots = 4, dim = 16;
const tokens anchors = {70, 3, 74, 0};   // 74 is the last token of the text

tokens text() { return test::random_labels(length, 50, 1); }
tokens drafts() { return test::random_labels(static_cast<std::int64_t>(anchors.size()) * branches * slots, 2, 2); }   // few tokens: shared prefixes
losses::packed_branches packed(bool merge = false) { return losses::pack_branches(text(), anchors, drafts(), {.branches = branches, .slots = slots, .merge_prefixes = merge}); }
tensor_view<std::uint64_t, 2> bits_of(words& w, std::int64_t rows) { return {w.data(), extents{rows, (rows + 63) / 64}}; }

/// The packed rows of the reference up to the anchor of a branch, and of the branch: its own text.
tokens path_of(const losses::packed_branches& p, std::size_t branch) {
  tokens path;
  for (std::int32_t t = 0; t <= anchors[branch / branches]; ++t) path.push_back(t);
  for (std::size_t i = 0; i < slots; ++i) path.push_back(p.node_rows[branch * slots + i]);
  return path;
}
values<float> gather(const values<float>& x, const tokens& rows) {
  values<float> out(static_cast<std::int64_t>(rows.size()), x.heads, x.dim);
  for (std::size_t i = 0; i < rows.size(); ++i) std::copy_n(x.data.begin() + rows[i] * x.heads * x.dim, x.heads * x.dim, out.data.begin() + static_cast<std::ptrdiff_t>(i) * x.heads * x.dim);
  return out;
}
/// f(path, branch): a branch with its reference rows.
template <class F>
void each_branch(const losses::packed_branches& p, F f) {
  for (std::size_t b = 0; b < anchors.size() * branches; ++b) f(path_of(p, b), b);
}

TEST(BranchPacking, Shape) {
  const auto p = packed();
  ASSERT_EQ(p.rows(), length + 4 * branches * slots);
  const tokens reference = text(), drafted = drafts();
  each_branch(p, [&](const tokens& path, std::size_t b) {
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto u = static_cast<std::size_t>(path[i]);
      const bool in_text = i + slots < path.size();
      EXPECT_EQ(p.parents[u], i == 0 ? -1 : path[i - 1]);
      EXPECT_EQ(p.positions[u], static_cast<std::int32_t>(i));
      EXPECT_EQ(p.tokens[u], in_text ? reference[i] : drafted[b * slots + i + slots - path.size()]);
      EXPECT_EQ(p.branch_of[u], in_text ? -1 : static_cast<std::int32_t>(b));
      if (!in_text) {
        EXPECT_EQ(p.law_rows[b * slots + i + slots - path.size()], path[i - 1]);
      }
    }
  });
}

TEST(BranchPacking, FullAttentionIsEveryBranchAlone) {
  for (const bool merge : {false, true}) {
    const auto p = packed(merge);
    const std::int64_t rows = p.rows();
    const auto features = [&](std::int64_t heads, unsigned seed) {
      values<float> x(rows, heads, dim);
      for (std::int64_t u = 0; u < rows; ++u)
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t c = 0; c < dim; ++c) x.at(u, h, c) = static_cast<float>(std::sin(seed + 3. * p.tokens[static_cast<std::size_t>(u)] + .7 * p.positions[static_cast<std::size_t>(u)] + 11. * static_cast<double>(h * dim + c)));
      return x;
    };
    const values<float> q = features(4, 1), k = features(2, 2), v = features(2, 3);
    const result tree_rows = run(q, dense(k.view(), v.view()) | tree(p.parents), dim);
    words mask(static_cast<std::size_t>(rows * ((rows + 63) / 64)), ~std::uint64_t{0});
    losses::ancestor_mask(p.parents, bits_of(mask, rows));
    const result masked_rows = run(q, dense(k.view(), v.view()) | select(bits_of(mask, rows), {.block_size = 1}), dim);
    each_branch(p, [&](const tokens& path, std::size_t) {
      const values<float> own_k = gather(k, path), own_v = gather(v, path);
      const result alone = run(gather(q, path), dense(own_k.view(), own_v.view()) | causal(), dim);
      EXPECT_TRUE(attention_test::same_bits(gather(tree_rows.out, path).data, alone.out.data));
      const values<float> by_mask = gather(masked_rows.out, path);
      for (std::size_t i = 0; i < alone.out.data.size(); ++i) ASSERT_NEAR(by_mask.data[i], alone.out.data[i], 1e-5);
    });
  }
}

// What one branch holds reaches no other: neither values nor, so, gradients.
TEST(BranchPacking, BranchesDoNotSeeEachOther) {
  const auto p = packed();
  const values<float> q(p.rows(), 2, dim, 1);
  values<float> k(p.rows(), 1, dim, 2), v(p.rows(), 1, dim, 3);
  const result before = run(q, dense(k.view(), v.view()) | tree(p.parents), dim);
  for (std::int64_t u = 0; u < p.rows(); ++u)
    if (p.branch_of[static_cast<std::size_t>(u)] == 4)
      for (std::int64_t c = 0; c < dim; ++c) k.at(u, 0, c) = v.at(u, 0, c) = attention_test::quiet_nan;
  const result after = run(q, dense(k.view(), v.view()) | tree(p.parents), dim);
  for (std::int64_t u = 0; u < p.rows(); ++u) EXPECT_EQ(attention_test::same_bits(after.rows(u, 1), before.rows(u, 1)), p.branch_of[static_cast<std::size_t>(u)] != 4);
}

TEST(BranchPacking, SparseAttentionChoosesAmongAncestors) {
  const auto p = packed();
  const std::int64_t rows = p.rows(), count = 9;
  const values<float> q(rows, 2, dim, 1), k(rows, 1, dim, 2), v(rows, 1, dim, 3);
  array<float> scores(rows, rows);
  for (std::size_t i = 0; i < scores.values.size(); ++i) scores.values[i] = static_cast<float>(random_bits({.seed = 3, .index = static_cast<std::uint32_t>(i)}) % 16);   // with ties
  words mask(static_cast<std::size_t>(rows * ((rows + 63) / 64)));
  losses::ancestor_mask(p.parents, bits_of(mask, rows));
  losses::top_ancestors(bits_of(mask, rows), scores.view(), count);
  const result all = run(q, dense(k.view(), v.view()) | select(bits_of(mask, rows), {.block_size = 1}), dim);
  each_branch(p, [&](const tokens& path, std::size_t) {
    const auto n = static_cast<std::int64_t>(path.size());
    words own(static_cast<std::size_t>(n * ((n + 63) / 64)));
    const auto own_bits = bits_of(own, n);
    for (std::int64_t u = 0; u < n; ++u) {   // the first of the highest, one after another
      const auto score = [&](std::int64_t x) { return scores(path[static_cast<std::size_t>(u)], path[static_cast<std::size_t>(x)]); };
      for (std::int64_t taken = 0; taken < count && taken <= u; ++taken) {
        std::int64_t best = -1;
        for (std::int64_t x = 0; x <= u; ++x)
          if (!(own_bits(u, x / 64) >> (x % 64) & 1) && (best < 0 || score(x) > score(best))) best = x;
        own_bits(u, best / 64) |= std::uint64_t{1} << (best % 64);
      }
    }
    const values<float> own_k = gather(k, path), own_v = gather(v, path);
    const result alone = run(gather(q, path), dense(own_k.view(), own_v.view()) | select(own_bits, {.block_size = 1}), dim);
    const values<float> got = gather(all.out, path);
    for (std::size_t i = 0; i < alone.out.data.size(); ++i) ASSERT_NEAR(got.data[i], alone.out.data[i], 1e-5);
  });
}

// S_u = g_u S_par (I - beta_u k_u k_u^T) + beta_u v_u k_u^T,  o_u = S_u q_u, keys out of a convolution over the last three rows; replayed by parent.
using matrix4 = std::array<std::array<double, 4>, 4>;
struct linear_row {
  matrix4 state{};
  std::array<double, 4> inputs[3]{}, out{};   // of the convolution, this row's first
};
linear_row advance(const linear_row& parent, std::uint32_t feature) {
  const auto u = [&](std::uint32_t i) { return uniform({.seed = 9, .position = feature, .index = i}); };
  linear_row row;
  std::array<double, 4> k{};
  double norm = 0;
  row.inputs[1] = parent.inputs[0], row.inputs[2] = parent.inputs[1];
  for (std::uint32_t c = 0; c < 4; ++c) row.inputs[0][c] = u(c) - .5;
  for (std::size_t c = 0; c < 4; ++c) k[c] = .6 * row.inputs[0][c] + .3 * row.inputs[1][c] + .1 * row.inputs[2][c], norm += k[c] * k[c];
  for (double& x : k) x /= std::sqrt(norm);
  const double gate = .5 + u(8) / 2, beta = u(9);
  for (std::size_t i = 0; i < 4; ++i) {
    double read = 0;
    for (std::size_t c = 0; c < 4; ++c) read += parent.state[i][c] * k[c];
    for (std::size_t c = 0; c < 4; ++c) {
      row.state[i][c] = gate * (parent.state[i][c] - beta * read * k[c]) + beta * u(static_cast<std::uint32_t>(10 + i)) * k[c];
      row.out[i] += row.state[i][c] * u(static_cast<std::uint32_t>(20 + c));
    }
  }
  return row;
}
TEST(BranchPacking, RecurrentStateIsReplayedByParent) {
  const auto p = packed();
  std::vector<linear_row> rows;
  for (std::size_t u = 0; u < p.parents.size(); ++u) rows.push_back(advance(p.parents[u] < 0 ? linear_row{} : rows[static_cast<std::size_t>(p.parents[u])], static_cast<std::uint32_t>(u)));
  each_branch(p, [&](const tokens& path, std::size_t) {
    linear_row state;
    for (const std::int32_t u : path) {
      state = advance(state, static_cast<std::uint32_t>(u));
      EXPECT_EQ(state.out, rows[static_cast<std::size_t>(u)].out);
    }
  });
}

// Loss and gradient of the packed tree are the means of those of every branch, shared rows or not.
TEST(BranchPacking, LossIsThatOfTheBranches) {
  const std::int64_t vocabulary = 6, drafted = static_cast<std::int64_t>(anchors.size()) * branches * slots;
  const auto law_of = [&](const losses::packed_branches& p) {   // target logits that depend on the token, its position and its parent's token
    array<double> y(p.rows(), vocabulary);
    for (std::int64_t u = 0; u < p.rows(); ++u)
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        const std::int32_t parent = p.parents[static_cast<std::size_t>(u)];
        y(u, v) = std::sin(1. + 5 * p.tokens[static_cast<std::size_t>(u)] + p.positions[static_cast<std::size_t>(u)] + 3. * static_cast<double>(v) + (parent < 0 ? 0 : p.tokens[static_cast<std::size_t>(parent)]));
      }
    return y;
  };
  array<double> z = test::random_logits(drafted, vocabulary, 5), gradient(drafted, vocabulary), merged_gradient(drafted, vocabulary);
  const auto plain = packed(), merged = packed(true);
  EXPECT_LT(merged.rows(), plain.rows());
  array<double> y = law_of(plain), merged_y = law_of(merged);
  const double value = losses::end_to_end_tv(z.view(), distillation::select_rows(y.view(), plain.law_rows), slots, gradient.view()).value;
  EXPECT_EQ(value, losses::end_to_end_tv(z.view(), distillation::select_rows(merged_y.view(), merged.law_rows), slots, merged_gradient.view()).value);
  EXPECT_EQ(gradient.values, merged_gradient.values);
  double mean = 0;
  const double count = static_cast<double>(anchors.size() * branches);
  for (std::int64_t b = 0; b < drafted / slots; ++b) {
    array<double> own_z(slots, vocabulary), own_y(slots, vocabulary), own(slots, vocabulary);
    for (std::int64_t i = 0; i < slots; ++i)
      for (std::int64_t v = 0; v < vocabulary; ++v) own_z(i, v) = z(b * slots + i, v), own_y(i, v) = y(plain.law_rows[static_cast<std::size_t>(b * slots + i)], v);
    mean += losses::end_to_end_tv(own_z.view(), own_y.view(), slots, own.view()).value / count;
    for (std::int64_t i = 0; i < slots; ++i)
      for (std::int64_t v = 0; v < vocabulary; ++v) EXPECT_NEAR(gradient(b * slots + i, v), own(i, v) / count, 1e-15);
  }
  EXPECT_NEAR(value, mean, 1e-14);

  // A block drafter has one row per anchor and slot: the gradients of its branches add up there.
  tokens drafter_rows;
  for (std::int32_t r = 0; r < drafted; ++r) drafter_rows.push_back(r / static_cast<std::int32_t>(branches * slots) * static_cast<std::int32_t>(slots) + r % static_cast<std::int32_t>(slots));
  array<double> block = test::random_logits(static_cast<std::int64_t>(anchors.size()) * slots, vocabulary, 6), summed(block.rows, vocabulary);
  const auto shared = [&](array<double>& x, const auto& g) { return losses::end_to_end_tv(distillation::select_rows(x.view(), drafter_rows), distillation::select_rows(y.view(), plain.law_rows), slots, g).value; };
  shared(block, gradient.view());
  losses::sum_rows(gradient.view(), drafter_rows, summed.view());
  test::expect_slopes(summed, block, [&](array<double>& x) { return shared(x, distillation::no_gradient); });
}

TEST(BranchPacking, NothingToScore) {
  for (const auto& p : {losses::pack_branches(text(), anchors, {}, {.branches = 0, .slots = 4}), losses::pack_branches(text(), {}, {}, {.branches = 2, .slots = 4}), losses::pack_branches(text(), anchors, {}, {.branches = 2, .slots = 0})}) {
    EXPECT_EQ(tokens(p.tokens.begin(), p.tokens.end()), text());
    EXPECT_TRUE(p.law_rows.empty());
  }
}

TEST(BranchPacking, Errors) {
  EXPECT_EQ(message_of([] { losses::pack_branches(text(), anchors, tokens(5), {.branches = 1, .slots = 2}); }), "losses::pack_branches: argument 'drafts' has 5 tokens; expected one per anchor, branch and slot, 8");
  EXPECT_EQ(message_of([] { losses::pack_branches(text(), tokens{75}, tokens(2), {.branches = 1, .slots = 2}); }), "losses::pack_branches: argument 'anchors': entry 0 is 75; expected 0 to 74");
  EXPECT_EQ(message_of([] { losses::pack_branches(text(), anchors, {}, {.branches = -1}); }), "losses::pack_branches: option 'branches' is -1; expected 0 or more");
  words mask(2);
  EXPECT_EQ(message_of([&] { losses::ancestor_mask(tokens{-1, 1}, bits_of(mask, 2)); }), "losses::ancestor_mask: argument 'parents': entry 1 is 1; expected -1 or an earlier row");
  array<float> scores(2, 2);
  EXPECT_EQ(message_of([&] { losses::top_ancestors(bits_of(mask, 2), scores.view(), 0); }), "losses::top_ancestors: argument 'count' is 0; expected at least 1");
}

}  // namespace
