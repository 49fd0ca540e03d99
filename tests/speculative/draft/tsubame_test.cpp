#include <heddle/speculative/draft/tsubame.hpp>
#include <heddle/speculative/verify/k_seq.hpp>
#include <heddle/speculative/verify/token_rejection.hpp>

#include "speculative/draft/toy_block.hpp"
#include "speculative/verify/worlds.hpp"

#include <set>

namespace {

using namespace heddle;
using namespace enumeration;
constexpr draft_law with = draft_law::independent, without = draft_law::without_replacement;

struct plan_shape {
  tokens parents;
  std::vector<double> scores;
};
frozen_plan frozen(const plan_shape& shape) {
  frozen_plan plan;
  plan.freeze(shape.parents, shape.scores);
  return plan;
}
plan_shape shape_of(tokens parents) {
  plan_shape shape{std::move(parents), {}};
  for (std::size_t u = 0; u < shape.parents.size(); ++u) shape.scores.push_back(-static_cast<double>(u));
  return shape;
}

template <draft_law Law>
std::vector<tokens> prefixes_of(const draft_tree<Law>& tree) {
  std::vector<tokens> prefixes(1);
  for (std::size_t u = 1; u < tree.tokens.size(); ++u) {
    prefixes.push_back(prefixes[static_cast<std::size_t>(tree.parents[u])]);
    prefixes.back().push_back(tree.tokens[u]);
  }
  return prefixes;
}

// The law of a proposal world at every node of the frontier, given the tokens drawn on the way.
auto laws_of(const world& w) {
  return [&w](const draft_nodes& nodes, std::span<const std::int32_t> frontier, law_rows& rows, std::span<std::int32_t> row_of) {
    const auto prefixes = prefixes_of(nodes.tree<draft_law::unpredictable>());
    tokens all(w.vocabulary);
    for (std::size_t v = 0; v < all.size(); ++v) all[v] = static_cast<std::int32_t>(v);
    for (std::size_t i = 0; i < frontier.size(); ++i) row_of[i] = rows.add(all, w.proposal(prefixes[static_cast<std::size_t>(frontier[i])]));
  };
}

struct nothing_done {
  template <draft_law Law>
  void operator()(tokens&, tokens&, std::vector<std::int32_t>&, const draft_tree<Law>&) const {}
};

// The law of the emitted text: everything the drafter may draw times everything the rule may decide. `tamper` may change the drawn tree: tokens,
// parents, rows.
template <draft_law Law, class Rule, class Tamper = nothing_done>
std::map<tokens, double> emitted_law(const plan_shape& shape, const world& w, const Rule& rule, std::size_t length, double* accepted = nullptr, const Tamper& tamper = {}) {
  const frozen_plan plan = frozen(shape);
  populated_tree<Law> populated;
  every_choice draws, chances;
  std::map<tokens, double> out;
  draws.run([&] {
    draft_tree<Law> tree = populated.populate(0, plan, 1, laws_of(w), [&](std::int64_t, std::uint32_t, std::span<const double> weights) { return draws.choose({weights.begin(), weights.end()}); });
    tokens nodes(tree.tokens.begin(), tree.tokens.end()), parents(tree.parents.begin(), tree.parents.end());
    std::vector<std::int32_t> row_of(tree.laws.row_of.begin(), tree.laws.row_of.end());
    tamper(nodes, parents, row_of, tree);
    tree.tokens = nodes, tree.parents = parents, tree.laws.row_of = row_of;
    std::vector<float> logits;
    for (const tokens& prefix : prefixes_of(tree))
      for (double x : w.raw_target(prefix)) logits.push_back(logit(x));
    const extents size{static_cast<std::int64_t>(nodes.size()), static_cast<std::int64_t>(w.vocabulary)};
    verify_workspace memory(size[1]);
    const sampling::chain policy{};
    const verify::scored_draft<Law, tensor_view<const float, 2>, sampling::chain<>> draft{tree, {logits.data(), size}, policy, {}, 1, memory};
    verify::detail::check_draft(rule, draft);
    const double drawn = draws.probability();
    chances.run([&] {
      const auto v = walk(rule, draft, chances);
      ASSERT_EQ(v.status, status::ok);
      if (accepted) *accepted += drawn * chances.probability() * (v.accepted > 0);
      extend({v.tokens.begin(), v.tokens.end()}, drawn * chances.probability(), length, target_of(w), out);
    });
  });
  return out;
}

const plan_shape shapes[] = {shape_of({-1}), shape_of({-1, 0, 1}), shape_of({-1, 0, 0}), shape_of({-1, 0, 0, 1, 1}), shape_of({-1, 0, 0, 1, 2}), {{-1, 0, 0, 2, 1, 2}, {0, -2, -1, -3, -4, -2.5}}};

TEST(Tsubame, KeepsTheTargetsLawForBothSchemesAndKSeq) {
  for (const char* kind : kinds)
    for (std::size_t s = 0; s < std::size(shapes); ++s) {
      const world w = make_world(3, kind, 5 + static_cast<unsigned>(s));
      const auto expected = target_law(w, 3);
      ASSERT_LT(distance(emitted_law<with>(shapes[s], w, verify::token{}, 3), expected), 1e-12) << kind << " " << s;
      ASSERT_LT(distance(emitted_law<without>(shapes[s], w, verify::token{}, 3), expected), 1e-12) << kind << " " << s;
      ASSERT_LT(distance(emitted_law<with>(shapes[s], w, verify::k_seq{}, 3), expected), 1e-12) << kind << " " << s;
    }
}

// Wrong: siblings put in order of q after they were drawn.
struct reorder_after_drawing {
  template <draft_law Law>
  void operator()(tokens& nodes, tokens& parents, std::vector<std::int32_t>&, const draft_tree<Law>& tree) const {
    const auto q = [&](std::int32_t token) { return entry_of(tree.laws, 0, token); };
    if (nodes.size() == 3 && parents[2] == 0 && q(nodes[2]) > q(nodes[1])) std::swap(nodes[1], nodes[2]);
  }
};
// Wrong: of the drawn siblings only the one with the largest q stays.
struct plan_again_from_drawn {
  template <draft_law Law>
  void operator()(tokens& nodes, tokens& parents, std::vector<std::int32_t>& row_of, const draft_tree<Law>& tree) const {
    reorder_after_drawing{}(nodes, parents, row_of, tree);
    if (nodes.size() == 3 && parents[2] == 0) nodes.pop_back(), parents.pop_back(), row_of.pop_back();
  }
};

TEST(Tsubame, ReorderingOrPlanningAfterDrawingChangesTheLaw) {
  const world w = constant_world({.6, .3, .1}, {.2, .3, .5});
  const auto expected = target_law(w, 1);
  EXPECT_LT(distance(emitted_law<without>(shapes[2], w, verify::token{}, 1), expected), 1e-12);
  const auto reordered = emitted_law<without>(shapes[2], w, verify::token{}, 1, nullptr, reorder_after_drawing{});
  EXPECT_GT(distance(reordered, expected), 1e-2);
  EXPECT_NEAR(reordered.at({0}), 47. / 70, 1e-6);
  EXPECT_NEAR(reordered.at({1}), 9. / 56, 1e-6);
  EXPECT_GT(distance(emitted_law<without>(shapes[2], w, verify::token{}, 1, nullptr, plan_again_from_drawn{}), expected), 1e-2);
  EXPECT_GT(distance(emitted_law<with>(shapes[2], w, verify::token{}, 1, nullptr, plan_again_from_drawn{}), expected), 1e-2);
}

TEST(Tsubame, SampledTreesAcceptMoreThanDeterministicOnes) {
  const row p = {.6, .3, .1}, q = {.2, .3, .5};
  const world w = constant_world(p, q);
  double chain = 0, two_with = 0, two_without = 0;
  emitted_law<with>(shape_of({-1, 0}), w, verify::token{}, 1, &chain);
  emitted_law<with>(shapes[2], w, verify::token{}, 1, &two_with);
  emitted_law<without>(shapes[2], w, verify::token{}, 1, &two_without);
  EXPECT_NEAR(chain, .6, 1e-7);
  EXPECT_NEAR(two_with, .68, 1e-7);
  EXPECT_NEAR(two_without, .76, 1e-7);
  toy::fixed_block block{toy::matrix_of(toy::logits_of({q}))};
  tsubame_block<draft_law::deterministic, toy::fixed_block> top{block, {.num_slots = 1}};
  const tokens context = {7};
  for (const std::int32_t n : {1, 2}) {
    double accepted = 0;
    const auto tree = top.propose(context, n);
    for (std::size_t u = 1; u < tree.tokens.size(); ++u) accepted += p[static_cast<std::size_t>(tree.tokens[u])];
    EXPECT_NEAR(accepted, n == 1 ? .1 : .4, 1e-12);
  }
}

TEST(Tsubame, AChainPlanIsTheUsualSampledDraft) {
  for (const char* kind : kinds) {
    const world w = make_world(3, kind, 3);
    std::map<tokens, double> usual;
    for_each_chain(w, 2, [&](auto& tree, double probability) {
      every_choice chance;
      tree.verify(verify::token{}, w, chance, probability, 3, usual);
    });
    EXPECT_LT(distance(emitted_law<with>(shape_of({-1, 0, 1}), w, verify::token{}, 3), usual), 1e-12);
  }
}

TEST(Tsubame, TheShapeIsThePlansButForSubtreesWithoutATokenLeft) {
  // root with three children (in score order 3, 1, 2), each with one child; the law has two tokens
  const plan_shape shape{{-1, 0, 0, 0, 1, 2, 3}, {0, -2, -3, -1, -5, -5, -5}};
  const frozen_plan plan = frozen(shape);
  EXPECT_EQ(tokens(plan.children(0).begin(), plan.children(0).end()), (tokens{3, 1, 2}));
  const auto two_tokens = [](const draft_nodes&, std::span<const std::int32_t> frontier, law_rows& rows, std::span<std::int32_t> row_of) {
    for (std::size_t i = 0; i < frontier.size(); ++i) row_of[i] = rows.add(tokens{4, 5, 6}, row{.5, 0., .5});
  };
  populated_tree<without> a;
  populated_tree<with> b;
  const auto cut = a.populate(9, plan, 1, two_tokens, keyed_draws{1});
  EXPECT_EQ(tokens(cut.parents.begin(), cut.parents.end()), (tokens{-1, 0, 0, 1, 2}));
  EXPECT_NE(cut.tokens[1], cut.tokens[2]);
  const auto whole = b.populate(9, plan, 1, two_tokens, keyed_draws{1});
  EXPECT_EQ(tokens(whole.parents.begin(), whole.parents.end()), (tokens{-1, 0, 0, 0, 1, 2, 3}));
  check("test", cut, 10), check_laws("test", cut, 10, strictness::strict);
  check("test", whole, 10), check_laws("test", whole, 10, strictness::strict);
}

TEST(Tsubame, BlocksDrawFromTheirMarginalsAndTheShapeIsDDTrees) {
  const row first = {.5, .3, .15, .05}, second = {.1, .2, .3, .4};
  toy::fixed_block block{toy::matrix_of(toy::logits_of({first, second}))};
  slot_ranker ranker;
  ddtree plain;
  std::map<std::int32_t, int> drawn;
  std::set<tokens> shapes_seen;
  const int rounds = 20000;
  for (int seed = 0; seed < rounds; ++seed) {
    tsubame_block<without, toy::fixed_block> drafter{block, {.num_slots = 2, .seed = static_cast<std::uint64_t>(seed)}};
    const tokens context = {9, 8};
    const auto tree = drafter.propose(context, 6);
    ++drawn[tree.tokens[1]];
    shapes_seen.insert(tokens(tree.parents.begin(), tree.parents.end()));
    const auto again = drafter.propose(context, 6);
    if (seed < 10) {
      EXPECT_TRUE(std::equal(again.tokens.begin(), again.tokens.end(), tree.tokens.begin()));
      check_laws("test", again, 10, strictness::strict);
    }
  }
  EXPECT_EQ(shapes_seen.size(), 1u);   // whatever is drawn
  double chi2 = 0;
  for (std::int32_t v = 0; v < 4; ++v) chi2 += std::pow(drawn[v] - rounds * first[static_cast<std::size_t>(v)], 2) / (rounds * first[static_cast<std::size_t>(v)]);
  EXPECT_LT(chi2, 30.7);   // p > 1e-6 with 3 degrees of freedom
  // as many children per node as DDTree's tree has
  const auto planned = plain.build(8, ranker.rank(block.logits.view(), 4), 6);
  std::multiset<std::int64_t> a, b;
  for (std::int32_t u = 0; u < 7; ++u) a.insert(std::count(planned.parents.begin(), planned.parents.end(), u)), b.insert(std::count(shapes_seen.begin()->begin(), shapes_seen.begin()->end(), u));
  EXPECT_EQ(a, b);
}

TEST(Tsubame, PlansByTaps) {
  toy::fixed_block block{toy::matrix_of(toy::logits_of({{.6, .4}, {.5, .5}}))};
  std::vector<double> theta(2 * acceptance_features, 0.);
  theta[1] = 1, theta[acceptance_features] = 5, theta[acceptance_features + 5] = -20;   // second slot: anything but a repetition
  const acceptance_weights weights(2, theta);
  using plan = plan_by_taps<path_acceptance<>>;
  tsubame_block<with, toy::fixed_block, plan> drafter{block, {.num_slots = 2}, plan{path_acceptance<>(weights)}};
  const tokens context = {9};
  const auto tree = drafter.propose(context, 2);
  EXPECT_EQ(tokens(tree.parents.begin(), tree.parents.end()), (tokens{-1, 0, 1}));
}

// A head whose law depends on the path; its trees are exact too.
struct path_head {
  const world* w;
  std::vector<float> logits{};
  tensor_view<const float, 2> expand(const token_tree& tree, std::span<const std::int32_t> frontier) {
    logits.clear();
    for (std::int32_t u : frontier) {
      tokens path;
      for (; u > 0; u = tree.parents[static_cast<std::size_t>(u)]) path.insert(path.begin(), tree.tokens[static_cast<std::size_t>(u)]);
      for (const double x : w->raw_proposal(path)) logits.push_back(logit(x));
    }
    return {logits.data(), extents{static_cast<std::int64_t>(frontier.size()), static_cast<std::int64_t>(w->vocabulary)}};
  }
};

TEST(Tsubame, HeadsHandOverTheLawsOfTheDrawnPaths) {
  const world w = make_world(4, "random", 8);
  path_head head{&w};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    tsubame_head<without, path_head> drafter{head, {.width = 2, .depth = 3}, {.width = 4, .seed = seed}};
    const tokens context = {0};
    const auto tree = drafter.propose(context, 7);
    ASSERT_EQ(tree.tokens.size(), 8u);
    check_laws("test", tree, 4, strictness::strict);
    const auto prefixes = prefixes_of(tree);
    for (std::size_t u = 1; u < tree.tokens.size(); ++u) {
      const std::int64_t r = tree.laws.row_of[static_cast<std::size_t>(tree.parents[u])];
      for (std::int32_t v = 0; v < 4; ++v) ASSERT_NEAR(entry_of(tree.laws, r, v) / sum_of(tree.laws, r), w.proposal(prefixes[static_cast<std::size_t>(tree.parents[u])])[static_cast<std::size_t>(v)], 1e-6);
    }
  }
}

TEST(Tsubame, BadInputAndTemperatureZero) {
  toy::fixed_block block{toy::matrix_of(toy::logits_of({{.6, .4}}))};
  using sampled = tsubame_block<with, toy::fixed_block>;
  EXPECT_THROW((sampled{block, {.temperature = 0}}), error);
  EXPECT_THROW((sampled{block, {.temperature = NAN}}), error);
  EXPECT_THROW((sampled{block, {.width = 0}}), error);
  EXPECT_THROW((sampled{block, {.num_slots = 0}}), error);
  tsubame_block<draft_law::deterministic, toy::fixed_block> fixed{block, {.num_slots = 1, .temperature = 0}};
  const tokens context = {9};
  EXPECT_EQ(fixed.propose(context, 2).tokens.size(), 3u);
  sampled drafter{block, {.num_slots = 1}};
  EXPECT_EQ(drafter.propose(context, 0).tokens.size(), 1u);
  EXPECT_THROW(drafter.propose(context, -1), error);
  EXPECT_THROW(drafter.propose({}, 1), error);
  frozen_plan plan;
  EXPECT_THROW(plan.freeze(tokens{-1, 0}, row{0.}), error);
  EXPECT_THROW(plan.freeze(tokens{-1, 1}, row{0., 0.}), error);
}

}  // namespace
