#pragma once
// Targets and drafters over a small vocabulary, as tables over prefixes, and drafts drawn from them in every possible way: what the exact tests of the
// rules have in common. The laws are what float logits and float proposal rows hold.
#include "speculative/enumerate.hpp"

#include <heddle/speculative/detail/tree_walk.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace enumeration {

using heddle::draft_law;

inline float logit(double p) { return p > 0 ? static_cast<float>(std::log(p)) : -std::numeric_limits<float>::infinity(); }

inline row normalised(row p) {
  double sum = 0;
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

struct world {
  std::size_t vocabulary;
  law_of_prefix raw_target, raw_proposal;
  row target(const tokens& prefix) const {
    row p;
    for (double x : raw_target(prefix)) p.push_back(std::exp(static_cast<double>(logit(x))));
    return normalised(p);
  }
  row proposal(const tokens& prefix) const {
    row q;
    for (double x : raw_proposal(prefix)) q.push_back(static_cast<double>(static_cast<float>(x)));
    return normalised(q);
  }
};
inline law_of_prefix target_of(const world& w) {
  return [&w](const tokens& prefix) { return w.target(prefix); };
}

// The same two laws at every slot.
inline world constant_world(const row& p, const row& q) {
  return {p.size(), [p](const tokens&) { return p; }, [q](const tokens&) { return q; }};
}

// What a verifier has to stand.
inline const char* const kinds[] = {"random", "equal", "disjoint", "one-hot", "zero in q", "zero in p", "nearly equal"};

inline world make_world(std::size_t vocabulary, const std::string& kind, unsigned seed) {
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
  double scale = 1;                    // of the rows handed over (pruned: the probability of being kept)
  bool reject_at_end = false;          // pruned: the last node's draft was dropped

  void add(std::int32_t parent, std::int32_t token) {
    nodes.push_back(token), parents.push_back(parent);
    tokens prefix = prefixes[static_cast<std::size_t>(parent)];
    prefix.push_back(token);
    prefixes.push_back(prefix);
  }
  /// f(verdict, probability) for everything the rule may do.
  template <class Rule, class Chance, class F>
  void decide(const Rule& rule, const world& w, Chance& chance, double probability, const F& f) {
    logits.clear(), laws.clear(), row_of.clear();
    for (std::size_t u = 0; u < nodes.size(); ++u) {
      const bool leaf = std::find(parents.begin(), parents.end(), static_cast<std::int32_t>(u)) == parents.end();
      const std::size_t owner = Law == draft_law::several ? static_cast<std::size_t>(std::max(parents[u], 0)) : u;
      for (double x : w.raw_target(prefixes[u])) logits.push_back(logit(x));
      for (double x : w.raw_proposal(prefixes[owner])) laws.push_back(static_cast<float>(x * scale));
      row_of.push_back(Law == draft_law::pruned && leaf && !reject_at_end ? -1 : static_cast<std::int32_t>(u));
    }
    const heddle::extents shape{static_cast<std::int64_t>(nodes.size()), static_cast<std::int64_t>(w.vocabulary)};
    heddle::draft_tree<Law> tree{nodes, parents};
    if constexpr (heddle::is_sampled(Law)) tree.laws = {.row_of = row_of, .dense = {laws.data(), shape}};
    heddle::verify_workspace memory(shape[1]);
    const heddle::sampling::chain policy{};
    const heddle::verify::scored_draft<Law, heddle::tensor_view<const float, 2>, heddle::sampling::chain<>> draft{tree, {logits.data(), shape}, policy, {}, 1, memory};
    heddle::verify::detail::check_draft(rule, draft);
    chance.run([&] {
      const auto v = walk(rule, draft, chance);
      ASSERT_EQ(v.status, heddle::status::ok);
      if (chance.probability() > 1e-14) {
        ASSERT_EQ(v.residual_fallback, 0);
      }
      f(v, probability * chance.probability());
    });
  }
  /// The law of the emitted text of `length` tokens: the rule's decisions, then the target.
  template <class Rule, class Chance>
  void verify(const Rule& rule, const world& w, Chance& chance, double probability, std::size_t length, std::map<tokens, double>& out) {
    decide(rule, w, chance, probability, [&](const auto& v, double chance_of) { extend({v.tokens.begin(), v.tokens.end()}, chance_of, length, target_of(w), out); });
  }
};

inline std::map<tokens, double> target_law(const world& w, std::size_t length) {
  std::map<tokens, double> out;
  extend({}, 1, length, target_of(w), out);
  return out;
}

// f(tree, probability) for every chain of `length` drafts.
template <draft_law Law = draft_law::independent, class F>
void for_each_chain(const world& w, std::size_t length, const F& f) {
  std::map<tokens, double> drafts;
  extend({}, 1, length, [&](const tokens& prefix) { return w.proposal(prefix); }, drafts);
  for (const auto& [text, probability] : drafts) {
    drafted<Law> tree;
    for (std::size_t i = 0; i < text.size(); ++i) tree.add(static_cast<std::int32_t>(i), text[i]);
    f(tree, probability);
  }
}

template <draft_law Law = draft_law::independent, class Rule, class Chance>
std::map<tokens, double> chain_law(const Rule& rule, const world& w, std::size_t length, Chance& chance) {
  std::map<tokens, double> out;
  for_each_chain<Law>(w, length, [&](auto& tree, double probability) { tree.verify(rule, w, chance, probability, length + 1, out); });
  return out;
}

// E[L]
template <class Rule>
double mean_accepted(const Rule& rule, const world& w, std::size_t length) {
  every_choice chance;
  double sum = 0;
  for_each_chain(w, length, [&](auto& tree, double probability) {
    tree.decide(rule, w, chance, probability, [&](const auto& v, double of) { sum += of * v.accepted; });
  });
  return sum;
}

// f(children, probability) for every way to draw `count` siblings from a law.
template <draft_law Law, class F>
void for_each_siblings(const row& law, std::size_t count, const F& f, const tokens& drawn = {}, double probability = 1) {
  if (drawn.size() == count) return f(drawn, probability);
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
      for_each_siblings<Law>(law, count, f, more, probability * rest[v] / sum);
    }
  if (!any) f(drawn, probability);  // fewer children than asked for: the support is exhausted
}

// `width` children of the root and of its first child. sort_children: siblings are put in order of their law after drawing them (a mistake).
template <draft_law Law, class Rule, class Chance>
std::map<tokens, double> tree_law(const Rule& rule, const world& w, std::size_t width, Chance& chance, bool sort_children = false) {
  std::map<tokens, double> out;
  const row root = w.proposal({});
  for_each_siblings<Law>(root, width, [&](const tokens& drawn, double p1) {
    tokens first = drawn;
    if (sort_children) std::stable_sort(first.begin(), first.end(), [&](std::int32_t a, std::int32_t b) { return root[static_cast<std::size_t>(a)] > root[static_cast<std::size_t>(b)]; });
    for_each_siblings<Law>(w.proposal({first[0]}), width, [&](const tokens& second, double p2) {
      drafted<Law> tree;
      for (std::int32_t v : first) tree.add(0, v);
      for (std::int32_t v : second) tree.add(1, v);
      tree.verify(rule, w, chance, p1 * p2, 3, out);
    });
  });
  return out;
}

// The probability that some of `width` children of the root is accepted.
template <draft_law Law, class Rule>
double sibling_acceptance(const Rule& rule, const row& p, const row& q, std::size_t width) {
  const world w = constant_world(p, q);
  every_choice chance;
  double sum = 0;
  for_each_siblings<Law>(w.proposal({}), width, [&](const tokens& drawn, double probability) {
    drafted<Law> tree;
    for (std::int32_t v : drawn) tree.add(0, v);
    tree.decide(rule, w, chance, probability, [&](const auto& v, double of) { sum += of * (v.accepted > 0); });
  });
  return sum;
}

}  // namespace enumeration
