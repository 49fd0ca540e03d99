#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/verify/worlds.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

const verify::token rule{};

TEST(TokenRejection, ChainsKeepTheTargetLawExactly) {
  for (const std::size_t vocabulary : {2u, 3u, 4u})
    for (const std::size_t length : {1u, 2u, 3u})
      for (const char* kind : kinds) {
        const world w = make_world(vocabulary, kind, 11 * static_cast<unsigned>(vocabulary + length));
        every_choice chance;
        EXPECT_LT(distance(chain_law(rule, w, length, chance), target_law(w, length + 1)), 1e-12) << kind << " V " << vocabulary << " K " << length;
      }
}

TEST(TokenRejection, TreesKeepTheTargetLawExactly) {
  for (const char* kind : kinds)
    for (const std::size_t width : {2u, 3u}) {
      const world w = make_world(3, kind, 5);
      every_choice chance;
      EXPECT_LT(distance(tree_law<draft_law::independent>(rule, w, width, chance), target_law(w, 3)), 1e-12) << kind;
      EXPECT_LT(distance(tree_law<draft_law::without_replacement>(rule, w, width, chance), target_law(w, 3)), 1e-12) << kind;
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
        tree.verify(rule, w, chance, 1, 3, out);
        EXPECT_LT(distance(out, target_law(w, 3)), 1e-12) << kind;
      }
  }
}

// Siblings of several drafters: each drawn from, and judged by, a law of its own.
TEST(TokenRejection, SeveralDraftersKeepTheTargetLawExactly) {
  for (const char* kind : kinds) {
    const world w = make_world(3, kind, 21), other = make_world(3, "random", 22);
    every_choice chance;
    std::map<tokens, double> out;
    const row of_first = w.proposal({}), of_second = other.proposal({});
    for (std::int32_t a = 0; a < 3; ++a)
      for (std::int32_t b = 0; b < 3; ++b) {
        const double probability = of_first[static_cast<std::size_t>(a)] * of_second[static_cast<std::size_t>(b)];
        if (probability <= 0) continue;
        std::vector<float> logits, laws(3, 0.f);   // row 0 is nobody's
        for (const tokens& prefix : {tokens{}, tokens{a}, tokens{b}})
          for (double x : w.raw_target(prefix)) logits.push_back(logit(x));
        for (const world* drafter : {&w, &other})
          for (double x : drafter->raw_proposal({})) laws.push_back(static_cast<float>(x));
        laws[0] = 1.f;
        const tokens nodes = {0, a, b}, parents = {-1, 0, 0}, rows = {-1, 1, 2};
        const draft_tree<draft_law::several> tree{nodes, parents, {.row_of = rows, .dense = {laws.data(), extents{3, 3}}}};
        verify_workspace memory(3);
        const sampling::chain policy{};
        const verify::scored_draft<draft_law::several, tensor_view<const float, 2>, sampling::chain<>> draft{tree, {logits.data(), extents{3, 3}}, policy, {}, 1, memory};
        chance.run([&] {
          const auto v = walk(rule, draft, chance);
          extend({v.tokens.begin(), v.tokens.end()}, probability * chance.probability(), 2, target_of(w), out);
        });
      }
    EXPECT_LT(distance(out, target_law(w, 2)), 1e-12) << kind;
  }
}

// Own-token pruning (C6): each draft of a chain is kept with a probability that depends on the token; the first one dropped ends the chain.
// `judged_by_whole_law`: the mistake of handing over q instead of q a.
std::map<tokens, double> pruned_chain_law(const world& w, const row& keep, bool judged_by_whole_law) {
  world handed = w;
  handed.raw_proposal = [&](const tokens& prefix) {
    row q = w.raw_proposal(prefix);
    for (std::size_t v = 0; v < q.size() && !judged_by_whole_law; ++v) q[v] = static_cast<double>(static_cast<float>(q[v])) * keep[v];
    return q;
  };
  std::map<tokens, double> out;
  every_choice chance;
  const auto grow = [&](auto&& self, const drafted<draft_law::pruned>& so_far, double probability) -> void {
    if (so_far.nodes.size() == 3) {
      auto tree = so_far;
      return tree.verify(rule, handed, chance, probability, 3, out);
    }
    const row q = w.raw_proposal(so_far.prefixes.back());
    double dropped = 0;
    for (std::size_t v = 0; v < q.size(); ++v) {
      const double q_v = static_cast<double>(static_cast<float>(q[v]));
      dropped += q_v * (1 - keep[v]);
      if (q_v * keep[v] <= 0) continue;
      auto tree = so_far;
      tree.add(static_cast<std::int32_t>(so_far.nodes.size()) - 1, static_cast<std::int32_t>(v));
      self(self, tree, probability * q_v * keep[v]);
    }
    auto tree = so_far;
    tree.reject_at_end = true;
    tree.verify(rule, handed, chance, probability * dropped, 3, out);
  };
  grow(grow, {}, 1);
  return out;
}

TEST(TokenRejection, OwnTokenPruningKeepsTheTargetLawExactly) {
  // rows of sixteenths and probabilities of eighths: their products are floats, so the sub-probabilities are exact
  const world exact{3, [](const tokens& prefix) { return prefix.empty() ? row{.6, .3, .1} : row{.2, .3, .5}; }, [](const tokens& prefix) { return prefix.empty() ? row{.25, .25, .5} : row{.5, .5, 0}; }};
  for (const row& keep : {row{1, .5, .25}, row{0, .5, 1}, row{1, 1, 1}, row{0, 0, 0}}) EXPECT_LT(distance(pruned_chain_law(exact, keep, false), target_law(exact, 3)), 1e-12);
  EXPECT_GT(distance(pruned_chain_law(exact, {1, .5, .25}, true), target_law(exact, 3)), 1e-2);
}

TEST(TokenRejection, EverySlotIsCountedWhateverHappenedBeforeIt) {
  const world w = constant_world({.6, .3, .1}, {.2, .3, .5});
  every_choice chance;
  double accepted = 0, alone = 0;
  for_each_chain(w, 3, [&](auto& tree, double probability) {
    tree.decide(verify::token{.count_every_slot = true}, w, chance, probability, [&](const auto& v, double of) {
      accepted += of * v.accepted, alone += of * v.extension.slots_accepted;
      EXPECT_GE(v.extension.slots_accepted, v.accepted);
    });
  });
  EXPECT_NEAR(accepted, .6 + .36 + .216, 1e-7);
  EXPECT_NEAR(alone, 3 * .6, 1e-7);
  drafted<draft_law::independent> branching;
  branching.add(0, 1), branching.add(0, 2);
  EXPECT_THROW(branching.decide(verify::token{.count_every_slot = true}, w, chance, 1, [](const auto&, double) {}), error);
  every_choice again;
  drafted<draft_law::independent> chain;
  chain.add(0, 1);
  chain.decide(rule, w, again, 1, [](const auto& v, double) { EXPECT_EQ(v.extension.slots_accepted, -1); });
}

// --- what must fail the same check ---

TEST(TokenRejectionMutants, SamplingTheTargetInsteadOfTheResidual) {
  const world w = make_world(3, "random", 5);
  struct : every_choice {
    row p;
    std::size_t pick(std::int64_t, std::span<const double>, purpose = purpose::residual) { return choose(p); }
  } chance;
  chance.p = w.target({});
  EXPECT_GT(distance(chain_law(rule, w, 1, chance), target_law(w, 2)), 1e-2);
}

TEST(TokenRejectionMutants, DeterministicDraftVerifiedAsIfSampled) {  // known fault 50
  const world w{2, [](const tokens&) { return row{.6, .4}; }, [](const tokens&) { return row{.6, .4}; }};
  std::map<tokens, double> wrong, right;
  every_choice chance;
  drafted<draft_law::independent> as_sampled;
  as_sampled.add(0, 0);
  as_sampled.verify(rule, w, chance, 1, 1, wrong);
  EXPECT_NEAR(wrong[{0}], 1, 1e-7);
  drafted<draft_law::deterministic> as_chosen;
  as_chosen.add(0, 0);
  as_chosen.verify(rule, w, chance, 1, 1, right);
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
    tree.verify(rule, other, chance, probability, 2, out);
  }
  EXPECT_GT(distance(out, target_law(w, 2)), 1e-2);
}

TEST(TokenRejectionMutants, SortingChildrenAfterDrawingThem) {
  const world w{3, [](const tokens&) { return row{.6, .3, .1}; }, [](const tokens&) { return row{.2, .3, .5}; }};
  every_choice chance;
  std::map<tokens, double> first;
  for (const auto& [text, probability] : tree_law<draft_law::without_replacement>(rule, w, 2, chance, true)) first[{text[0]}] += probability;
  EXPECT_NEAR(first[{0}], 47. / 70, 1e-6);
  EXPECT_NEAR(first[{1}], 9. / 56, 1e-6);
  EXPECT_NEAR(first[{2}], 47. / 280, 1e-6);
}

// --- acceptance, strictness, errors ---

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
  const auto tree = draft.tree();
  const sampling::chain policy{};
  const verify::scored_draft<draft_law::independent, tensor_view<const float, 2>, sampling::chain<>> scored{tree, draft.view(), policy, {}, 1, memory};
  const auto v = walk(rule, scored, chance);
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

// Lenient: what its law cannot have drawn is no rejection by rounding, wherever the token lies.
TEST(TokenRejection, ImpossibleDraftsAreNotCountedAsRounding) {
  verify_workspace memory(3);
  const tokens context = {2}, nodes = {2, 1, 0}, parents = {-1, 0, 0}, rows = {0, -1, -1};
  const verify::token lenient{.seed = 4, .mode = verify::strictness::lenient};
  const std::vector<float> logits = {0.f, -std::numeric_limits<float>::infinity(), 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  const tensor_view<const float, 2> view{logits.data(), extents{3, 3}};
  const auto decide = [&]<draft_law Law>(const std::vector<float>& q) {
    const draft_tree<Law> tree{nodes, parents, {.row_of = rows, .dense = {q.data(), extents{1, 3}}}};
    const auto v = lenient(tree, view, sampling::chain{}, context, memory);
    EXPECT_EQ(v.residual_fallback, 0);
    EXPECT_NE(v.tokens[0], 1);
  };
  for (const std::vector<float>& q : {std::vector<float>{.5f, 0.f, .5f} /* the target itself */, {0.f, 1.f, 0.f} /* used up by the first sibling */, {0.f, .5f, .5f}}) {
    decide.operator()<draft_law::independent>(q);
    decide.operator()<draft_law::without_replacement>(q);
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
  for (const std::size_t likely : {8u, 4u, 9u + 5u, 18u + 4u}) logits[likely] += 2.f;
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
