#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/enumerate.hpp"

#include <gtest/gtest.h>

#include <random>

namespace {

using namespace heddle;
using namespace enumeration;

float logit(double p) { return p > 0 ? static_cast<float>(std::log(p)) : -std::numeric_limits<float>::infinity(); }

// A target and a drafter over a small vocabulary, as tables over prefixes. The laws are what float logits and float proposal rows hold.
struct world {
  std::size_t vocabulary;
  law_of_prefix raw_target, raw_proposal;
  row target(const tokens& prefix) const;
  row proposal(const tokens& prefix) const;
};

row normalised(row p) {
  double sum = 0;
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}
row through_logits(const row& p) {
  row out;
  for (double x : p) out.push_back(std::exp(static_cast<double>(logit(x))));
  return normalised(out);
}
row through_floats(const row& q) {
  row out;
  for (double x : q) out.push_back(static_cast<double>(static_cast<float>(x)));
  return normalised(out);
}
row world::target(const tokens& prefix) const { return through_logits(raw_target(prefix)); }
row world::proposal(const tokens& prefix) const { return through_floats(raw_proposal(prefix)); }
law_of_prefix target_of(const world& w) {
  return [&w](const tokens& prefix) { return w.target(prefix); };
}

// The kinds that a verifier has to stand: random, equal, disjoint, one-hot, zeros in q, zeros in p, nearly equal.
world make_world(std::size_t vocabulary, const std::string& kind, unsigned seed) {
  const auto random_row = [=](const tokens& prefix, unsigned salt) {
    std::seed_seq key{seed, salt, static_cast<unsigned>(prefix.size()), prefix.empty() ? 9u : static_cast<unsigned>(prefix.back()), prefix.size() > 1 ? static_cast<unsigned>(prefix[0]) : 9u};
    std::mt19937 random(key);
    row p(vocabulary);
    for (double& x : p) x = std::uniform_real_distribution<double>(0.02, 1)(random);
    return normalised(p);
  };
  const auto shape = [=](const tokens& prefix, bool of_target) {
    row p = random_row(prefix, of_target ? 1 : 2);
    const std::size_t turn = prefix.size() % vocabulary;
    if (kind == "equal") p.assign(vocabulary, 1. / static_cast<double>(vocabulary));
    if (kind == "disjoint")
      for (std::size_t v = 0; v < vocabulary; ++v) p[v] = (v < (vocabulary + 1) / 2) == of_target ? p[v] : 0;
    if (kind == "one-hot") p.assign(vocabulary, 0), p[of_target ? turn : (turn + prefix.size()) % vocabulary] = 1;
    if (kind == "zero in q" && !of_target) p[turn] = 0;
    if (kind == "zero in p" && of_target) p[turn] = 0;
    if (kind == "nearly equal") p = random_row(prefix, 1);
    return normalised(p);
  };
  return {vocabulary, [=](const tokens& prefix) { return shape(prefix, true); }, [=](const tokens& prefix) { return shape(prefix, false); }};
}

// A tree with its laws and logits, built along the tokens drafted.
template <draft_law Law>
struct drafted {
  tokens nodes = {0}, parents = {-1};
  std::vector<tokens> prefixes = {{}};
  std::vector<float> logits, laws;
  std::vector<std::int32_t> row_of;
  void add(std::int32_t parent, std::int32_t token) {
    nodes.push_back(token), parents.push_back(parent);
    tokens prefix = prefixes[static_cast<std::size_t>(parent)];
    prefix.push_back(token);
    prefixes.push_back(prefix);
  }
  // the law of the emitted text of `length` tokens: verifier's decisions, then the target
  template <class Chance>
  void verify(const world& w, Chance& chance, double probability, std::size_t length, std::map<tokens, double>& out) {
    logits.clear(), laws.clear(), row_of.clear();
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      for (double x : w.raw_target(prefixes[u])) logits.push_back(logit(x));
      for (double x : w.raw_proposal(prefixes[u])) laws.push_back(static_cast<float>(x));
      row_of.push_back(static_cast<std::int32_t>(u));
    }
    const extents shape{static_cast<std::int64_t>(nodes.size()), static_cast<std::int64_t>(w.vocabulary)};
    draft_tree<Law> tree{nodes, parents};
    if constexpr (is_sampled(Law)) tree.laws = {.row_of = row_of, .dense = {laws.data(), shape}};
    verify_workspace memory(shape[1]);
    const tensor_view<const float, 2> rows{logits.data(), shape};
    chance.run([&] {
      const auto v = verify::detail::walk_by_rejection(tree, rows, sampling::chain{}, nodes.size() ? std::span<const std::int32_t>(nodes).first(1) : std::span<const std::int32_t>{}, 1, memory, chance);
      ASSERT_EQ(v.status, status::ok);
      extend({v.tokens.begin(), v.tokens.end()}, probability * chance.probability(), length, target_of(w), out);
    });
  }
};

std::map<tokens, double> target_law(const world& w, std::size_t length) {
  std::map<tokens, double> out;
  extend({}, 1, length, target_of(w), out);
  return out;
}

// A chain of `length` sampled drafts.
template <class Chance>
std::map<tokens, double> chain_law(const world& w, std::size_t length, Chance& chance) {
  std::map<tokens, double> drafts, out;
  extend({}, 1, length, [&](const tokens& prefix) { return w.proposal(prefix); }, drafts);
  for (const auto& [text, probability] : drafts) {
    drafted<draft_law::independent> tree;
    for (std::size_t i = 0; i < text.size(); ++i) tree.add(static_cast<std::int32_t>(i), text[i]);
    tree.verify(w, chance, probability, length + 1, out);
  }
  return out;
}

// `width` children of the root and of its first child, drawn by the law; order_children: what is done to siblings after drawing them.
template <draft_law Law, class Chance>
std::map<tokens, double> tree_law(const world& w, std::size_t width, Chance& chance, bool sort_children = false) {
  std::map<tokens, double> out;
  const auto draw = [&](const row& law, std::size_t count, auto&& self, tokens drawn, double probability, const std::function<void(const tokens&, double)>& then) -> void {
    if (drawn.size() == count) return then(drawn, probability);
    row rest = law;
    double sum = 1;
    if (Law == draft_law::without_replacement)
      for (std::int32_t v : drawn) sum -= rest[static_cast<std::size_t>(v)], rest[static_cast<std::size_t>(v)] = 0;
    bool any = false;
    for (std::size_t v = 0; v < rest.size(); ++v)
      if (rest[v] > 0) {
        any = true;
        tokens more = drawn;
        more.push_back(static_cast<std::int32_t>(v));
        self(law, count, self, more, probability * rest[v] / sum, then);
      }
    if (!any) then(drawn, probability);  // fewer children than asked for: the support is exhausted
  };
  const row root = w.proposal({});
  draw(root, width, draw, {}, 1, [&](const tokens& drawn, double p1) {
    tokens first = drawn;
    if (sort_children) std::stable_sort(first.begin(), first.end(), [&](std::int32_t a, std::int32_t b) { return root[static_cast<std::size_t>(a)] > root[static_cast<std::size_t>(b)]; });
    draw(w.proposal({first[0]}), width, draw, {}, p1, [&](const tokens& second, double p2) {
      drafted<Law> tree;
      for (std::int32_t v : first) tree.add(0, v);
      for (std::int32_t v : second) tree.add(1, v);
      tree.verify(w, chance, p2, 3, out);
    });
  });
  return out;
}

const char* const kinds[] = {"random", "equal", "disjoint", "one-hot", "zero in q", "zero in p", "nearly equal"};

TEST(TokenRejection, ChainsKeepTheTargetLawExactly) {
  for (const std::size_t vocabulary : {2u, 3u, 4u})
    for (const std::size_t length : {1u, 2u, 3u})
      for (const char* kind : kinds) {
        const world w = make_world(vocabulary, kind, 11 * static_cast<unsigned>(vocabulary + length));
        every_choice chance;
        EXPECT_LT(distance(chain_law(w, length, chance), target_law(w, length + 1)), 1e-12) << kind << " V " << vocabulary << " K " << length;
      }
}

TEST(TokenRejection, TreesKeepTheTargetLawExactly) {
  for (const char* kind : kinds)
    for (const std::size_t width : {2u, 3u}) {
      const world w = make_world(3, kind, 5);
      every_choice chance;
      EXPECT_LT(distance(tree_law<draft_law::independent>(w, width, chance), target_law(w, 3)), 1e-12) << kind;
      EXPECT_LT(distance(tree_law<draft_law::without_replacement>(w, width, chance), target_law(w, 3)), 1e-12) << kind;
    }
}

TEST(TokenRejection, DeterministicDraftsArePointMasses) {
  for (const char* kind : kinds) {
    const world w = make_world(4, kind, 8);
    for (std::int32_t a = 0; a < 4; ++a)
      for (std::int32_t b = 0; b < 4; ++b) {
        drafted<draft_law::deterministic> tree;
        tree.add(0, a), tree.add(1, b);
        if (a != b) tree.add(0, b), tree.add(1, a);  // siblings on both levels
        std::map<tokens, double> out;
        every_choice chance;
        tree.verify(w, chance, 1, 3, out);
        EXPECT_LT(distance(out, target_law(w, 3)), 1e-12) << kind;
      }
  }
}

// --- what must fail the same check ---

TEST(TokenRejectionMutants, SamplingTheTargetInsteadOfTheResidual) {
  const world w = make_world(3, "random", 5);
  struct : every_choice {
    row p;
    std::size_t pick(std::int64_t, std::span<const double>) { return choose(p); }
  } chance;
  chance.p = w.target({});
  EXPECT_GT(distance(chain_law(w, 1, chance), target_law(w, 2)), 1e-2);
}

TEST(TokenRejectionMutants, DeterministicDraftVerifiedAsIfSampled) {  // known fault 50
  const world w{2, [](const tokens&) { return row{.6, .4}; }, [](const tokens&) { return row{.6, .4}; }};
  std::map<tokens, double> wrong, right;
  every_choice chance;
  drafted<draft_law::independent> as_sampled;
  as_sampled.add(0, 0);
  as_sampled.verify(w, chance, 1, 1, wrong);
  EXPECT_NEAR(wrong[{0}], 1, 1e-7);
  drafted<draft_law::deterministic> as_chosen;
  as_chosen.add(0, 0);
  as_chosen.verify(w, chance, 1, 1, right);
  EXPECT_NEAR(right[{0}], .6, 1e-7);
}

TEST(TokenRejectionMutants, AcceptingByAnotherLawThanTheOneDrawnFrom) {
  const world w = make_world(3, "random", 5);
  world other = w;
  other.raw_proposal = [&](const tokens& prefix) { return normalised([&] { row q = w.proposal(prefix); for (double& x : q) x = x * x; return q; }()); };
  std::map<tokens, double> drafts, out;
  extend({}, 1, 1, [&](const tokens& prefix) { return w.proposal(prefix); }, drafts);
  every_choice chance;
  for (const auto& [text, probability] : drafts) {
    drafted<draft_law::independent> tree;
    tree.add(0, text[0]);
    tree.verify(other, chance, probability, 2, out);
  }
  EXPECT_GT(distance(out, target_law(w, 2)), 1e-2);
}

TEST(TokenRejectionMutants, SortingChildrenAfterDrawingThem) {
  const world w{3, [](const tokens&) { return row{.6, .3, .1}; }, [](const tokens&) { return row{.2, .3, .5}; }};
  every_choice chance;
  std::map<tokens, double> first;
  for (const auto& [text, probability] : tree_law<draft_law::without_replacement>(w, 2, chance, true)) first[{text[0]}] += probability;
  EXPECT_NEAR(first[{0}], 47. / 70, 1e-6);
  EXPECT_NEAR(first[{1}], 9. / 56, 1e-6);
  EXPECT_NEAR(first[{2}], 47. / 280, 1e-6);
}

// --- acceptance, strictness, errors ---

TEST(TokenRejection, AcceptanceIsOneMinusTotalVariation) {
  const row p = {.6, .3, .1}, q = {.2, .3, .5};
  double acceptance = 0;
  for (std::size_t v = 0; v < 3; ++v) acceptance += q[v] * verify::accept_probability(p[v], q[v]);
  EXPECT_NEAR(acceptance, .6, 1e-15);
  row rest = p;
  EXPECT_NEAR(verify::subtract_proposal(rest, q), .4, 1e-15);
  EXPECT_NEAR(rest[0], 1, 1e-15);
  EXPECT_EQ(verify::accept_probability(0, .5), 0);
  EXPECT_EQ(verify::accept_probability(.5, 0), 0);
  EXPECT_EQ(verify::accept_probability(.5, .5), 1);
}

struct one_draft {
  std::vector<float> logits = {0.f, -std::numeric_limits<float>::infinity(), 1.f, 0.f, 0.f, 0.f}, law;
  tokens nodes, parents = {-1, 0}, rows = {0, -1};
  one_draft(std::int32_t token, std::vector<float> q) : law(std::move(q)), nodes{2, token} {}
  tensor_view<const float, 2> view() const { return {logits.data(), extents{2, 3}}; }
  draft_tree<draft_law::independent> tree() const { return {nodes, parents, {.row_of = rows, .dense = {law.data(), extents{1, 3}}}}; }
};

TEST(TokenRejection, ImpossibleTokenIsRejectedEvenByACoinOfZero) {  // known fault 48
  one_draft draft(1, {.1f, .8f, .1f});
  struct : verify::detail::keyed_chance {
    bool accept(std::int64_t, std::uint32_t, double p, double q) const { return 0. * q < p; }
  } chance;
  verify_workspace memory(3);
  const auto v = verify::detail::walk_by_rejection(draft.tree(), draft.view(), sampling::chain{}, {}, 1, memory, chance);
  EXPECT_EQ(v.accepted, 0);
  EXPECT_NE(v.tokens[0], 1);
}

TEST(TokenRejection, DraftOutsideItsOwnLaw) {
  one_draft draft(0, {0.f, .5f, .5f});
  verify_workspace memory(3);
  const tokens context = {2};
  EXPECT_THROW(verify::token{}(draft.tree(), draft.view(), sampling::chain{}, context, memory), error);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto v = (verify::token{.seed = seed, .mode = verify::strictness::lenient}(draft.tree(), draft.view(), sampling::chain{}, context, memory));
    EXPECT_EQ(v.accepted, 0);
  }
}

TEST(TokenRejection, BadInputIsNamed) {
  verify_workspace memory(3);
  const tokens context = {2};
  const auto fails = [&](const draft_tree<draft_law::independent>& tree, const one_draft& d) {
    EXPECT_THROW(verify::token{}(tree, d.view(), sampling::chain{}, context, memory), error);
  };
  const one_draft good(0, {.5f, .3f, .2f});
  const tokens wrong_parent = {-1, 1}, wrong_root = {1, 0}, outside = {2, 3}, missing_row = {-1, -1};
  auto tree = good.tree();
  tree.parents = wrong_parent, fails(tree, good);
  tree = good.tree(), tree.tokens = wrong_root, fails(tree, good);
  tree = good.tree(), tree.tokens = outside, fails(tree, good);
  tree = good.tree(), tree.laws.row_of = missing_row, fails(tree, good);
  fails(one_draft(0, {-.5f, .3f, .2f}).tree(), good);
  fails(one_draft(0, {.5f, std::numeric_limits<float>::quiet_NaN(), .2f}).tree(), good);
  fails(one_draft(0, {0.f, 0.f, 0.f}).tree(), good);
  one_draft nan(0, {.5f, .3f, .2f});
  nan.logits[1] = std::numeric_limits<float>::quiet_NaN();
  const auto v = verify::token{}(nan.tree(), nan.view(), sampling::chain{}, context, memory);
  EXPECT_EQ(v.status, status::nan_logit);
  EXPECT_TRUE(v.tokens.empty() && v.path.empty());
}

TEST(TokenRejection, SparseAndSharedLawsDecideLikeDenseOnes) {
  constexpr std::int64_t vocabulary = 9;
  std::mt19937 random(3);
  std::vector<float> logits(5 * vocabulary), dense(2 * vocabulary, 0.f);
  for (float& x : logits) x = std::normal_distribution<float>(0.f, 1.f)(random);
  for (const std::size_t likely : {8, 4, 9 + 5, 18 + 4}) logits[likely] += 2.f;
  const std::vector<std::int64_t> indptr = {0, 3, 7};
  const tokens in_law = {8, 1, 4, 2, 0, 5, 7};
  const std::vector<float> probabilities = {.5f, .25f, .25f, .1f, .2f, .3f, .4f};
  for (std::size_t i = 0; i < in_law.size(); ++i) dense[(i < 3 ? 0 : vocabulary) + static_cast<std::size_t>(in_law[i])] = probabilities[i];
  const tokens nodes = {3, 8, 4, 5, 4}, parents = {-1, 0, 0, 1, 2}, rows = {0, 1, 0, -1, -1};  // node 2 shares the root's row
  const tensor_view<const float, 2> target{logits.data(), extents{5, vocabulary}};
  const auto decide = [&](const proposal_laws& laws, std::uint64_t seed, auto tree) {
    verify_workspace memory(vocabulary);
    tree.tokens = nodes, tree.parents = parents, tree.laws = laws;
    const auto v = verify::token{.seed = seed}(tree, target, sampling::chain{sampling::top_k(6)}, std::span<const std::int32_t>(nodes).first(1), memory);
    return tokens(v.tokens.begin(), v.tokens.end());
  };
  std::size_t accepted = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const proposal_laws as_dense{.row_of = rows, .dense = {dense.data(), extents{2, vocabulary}}}, as_sparse{.row_of = rows, .indptr = indptr, .tokens = in_law, .probabilities = probabilities};
    const auto a = decide(as_dense, seed, draft_tree<draft_law::independent>{}), b = decide(as_dense, seed, draft_tree<draft_law::without_replacement>{});
    EXPECT_EQ(decide(as_sparse, seed, draft_tree<draft_law::independent>{}), a);
    EXPECT_EQ(decide(as_sparse, seed, draft_tree<draft_law::without_replacement>{}), b);
    accepted += a.size() - 1;
  }
  EXPECT_GT(accepted, 20u);
}

// The keyed verifier on float rows: 2e5 first tokens against the target, and the rate of acceptance.
TEST(TokenRejection, KeyedDrawsFollowTheLaw) {
  const row p = {.6, .3, .1}, q = {.2, .3, .5};
  const std::vector<float> logits = {logit(.6), logit(.3), logit(.1), 0.f, 0.f, 0.f}, law = {.2f, .3f, .5f};
  const tokens parents = {-1, 0}, rows = {0, -1};
  verify_workspace memory(3);
  constexpr int n = 200000;
  double counts[3] = {}, accepted = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const double u = uniform({.seed = 3, .position = i, .purpose = purpose::draft});
    const tokens nodes = {2, u < .2 ? 0 : u < .5 ? 1 : 2};
    const draft_tree<draft_law::independent> tree{nodes, parents, {.row_of = rows, .dense = {law.data(), extents{1, 3}}}};
    const auto v = verify::token{.seed = 9}(tree, tensor_view<const float, 2>{logits.data(), extents{2, 3}}, sampling::chain{}, {}, memory, i);
    ++counts[v.tokens[0]], accepted += v.accepted;
    ASSERT_EQ(v.residual_fallback, 0);
  }
  double chi2 = 0;
  for (std::size_t v = 0; v < 3; ++v) chi2 += (counts[v] - n * p[v]) * (counts[v] - n * p[v]) / (n * p[v]);
  EXPECT_LT(chi2, 27.6);  // two degrees of freedom, probability 1e-6
  EXPECT_NEAR(accepted / n, .6, 5 * std::sqrt(.24 / n));
}

}  // namespace
