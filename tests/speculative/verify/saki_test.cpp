#include <heddle/speculative/verify/saki.hpp>

#include "speculative/verify/worlds.hpp"

namespace {

using namespace heddle;
using namespace enumeration;

double kl(const row& a, const row& b) {
  double sum = 0;
  for (std::size_t v = 0; v < a.size(); ++v)
    if (a[v] > 0) sum += a[v] * std::log(a[v] / b[v]);
  return sum;
}

// q from lambda by its formula; the support for 0 < lambda <= 1 is common to both.
row between(const row& p, const row& pi, double lambda, verify::interpolation_path path) {
  if (lambda == 0) return p;
  row out;
  for (std::size_t v = 0; v < p.size(); ++v)
    out.push_back(path == verify::interpolation_path::arithmetic ? (1 - lambda) * p[v] + lambda * pi[v] : p[v] > 0 && pi[v] > 0 ? std::pow(p[v], 1 - lambda) * std::pow(pi[v], lambda) : 0);
  return normalised(out);
}

// The largest lambda in the ball by bisection on KL(q || p), which is monotone.
double reference_lambda(const row& p, const row& pi, double radius, verify::interpolation_path path) {
  bool common = false, within = true;
  for (std::size_t v = 0; v < p.size(); ++v) common |= p[v] > 0 && pi[v] > 0, within &= p[v] > 0 || pi[v] <= 0;
  const auto inside = [&](double lambda) { return kl(between(p, pi, lambda, path), p) <= radius; };
  if (radius <= 0 || !common || (path == verify::interpolation_path::arithmetic && !within)) return 0;
  if (inside(1)) return 1;
  double low = 0, high = 1;
  for (int i = 0; i < 80; ++i) (inside((low + high) / 2) ? low : high) = (low + high) / 2;
  return low > 1e-12 ? low : 0;
}

TEST(Saki, LambdaAndCorrectionRate) {
  const row p = {.5, .3, .2}, pi = {.1, .2, .7};
  const world w = constant_world(pi, p);
  struct golden {
    double radius, lambda, rate;
  };
  for (const golden& g : {golden{.02, .174719, .083335}, golden{.1, .378792, .180461}}) {
    const double radius = g.radius, lambda = g.lambda, rate = g.rate;
    every_choice chance;
    double corrected = 0;
    for_each_chain(w, 1, [&](auto& tree, double probability) {
      tree.decide(verify::saki{.radius = radius}, w, chance, probability, [&](const auto& v, double of) {
        EXPECT_NEAR(v.extension.events[0].lambda, lambda, 5e-7);
        EXPECT_NEAR(v.extension.events[0].correction, rate, 5e-7);
        corrected += of * v.extension.events[0].corrected;
      });
    });
    EXPECT_NEAR(corrected, rate, 5e-7);
    EXPECT_LE(corrected, std::sqrt(radius / 2));
    EXPECT_LE(corrected, std::sqrt(1 - std::exp(-radius)));
  }
}

// Every kind of student and teacher, both paths, small and large balls: the emitted text has the law q, and events say how it came about.
TEST(Saki, TextsHaveTheInterpolatedLawExactly) {
  for (const auto path : {verify::interpolation_path::geometric, verify::interpolation_path::arithmetic})
    for (const char* kind : kinds)
      for (const double radius : {0., .03, .4, 50.}) {
        const world w = make_world(3, kind, 17);
        const verify::saki rule{.radius = radius, .path = path};
        const auto q_of = [&](const tokens& prefix) {
          const row p = w.proposal(prefix), pi = w.target(prefix);
          return between(p, pi, reference_lambda(p, pi, radius, path), path);
        };
        every_choice chance;
        std::map<tokens, double> out, expected;
        extend({}, 1, 3, q_of, expected);
        for_each_chain(w, 2, [&](auto& tree, double probability) {
          tree.decide(rule, w, chance, probability, [&](const auto& v, double of) {
            const tokens text(v.tokens.begin(), v.tokens.end());
            extend(text, of, 3, q_of, out);
            ASSERT_EQ(v.extension.events.size(), v.tokens.size());
            tokens prefix;
            for (const verify::saki_event& event : v.extension.events) {
              const row p = w.proposal(prefix), pi = w.target(prefix), q = q_of(prefix);
              double distance = 0;
              for (std::size_t v2 = 0; v2 < p.size(); ++v2) distance += std::abs(p[v2] - q[v2]) / 2;
              ASSERT_NEAR(event.correction, distance, 1e-7) << kind << ' ' << radius;
              ASSERT_LE(event.correction, std::sqrt(radius / 2) + 1e-7);
              const auto likely = static_cast<std::size_t>(std::max_element(pi.begin(), pi.end()) - pi.begin());
              const auto at = static_cast<std::size_t>(event.token);
              ASSERT_EQ(event.token, text[prefix.size()]);
              ASSERT_EQ(event.supervised, event.corrected ? static_cast<std::int32_t>(likely) : event.token);
              const double value = event.corrected ? -std::log(p[likely]) : std::log(p[at]) - std::log(pi[at]);
              ASSERT_TRUE(event.value == value || std::abs(event.value - value) < 1e-9) << event.value << ' ' << value;
              prefix.push_back(event.token);
            }
            for (std::size_t i = 0; i + 1 < v.extension.events.size(); ++i) ASSERT_FALSE(v.extension.events[i].corrected);
          });
        });
        // lambda is found to 1e-10 of the radius in KL; its effect on q is of that order, divided by how fast KL rises
        EXPECT_LT(distance(out, expected), 1e-8) << kind << " radius " << radius;
      }
}

// The same with lambda taken from the rule: exact.
TEST(Saki, TheCouplingItselfIsExact) {
  for (const auto path : {verify::interpolation_path::geometric, verify::interpolation_path::arithmetic})
    for (const char* kind : kinds) {
      const world w = make_world(4, kind, 23);
      every_choice chance;
      std::map<tokens, double> out;
      double lambda = -1;
      for_each_chain(w, 1, [&](auto& tree, double probability) {
        tree.decide(verify::saki{.radius = .05, .path = path}, w, chance, probability, [&](const auto& v, double of) { out[{v.tokens[0]}] += of, lambda = v.extension.events[0].lambda; });
      });
      const row q = between(w.proposal({}), w.target({}), lambda, path);
      for (std::int32_t v = 0; v < 4; ++v) EXPECT_NEAR((out[{v}]), q[static_cast<std::size_t>(v)], 1e-12) << kind;
      if (lambda > 0 && lambda < 1) {
        EXPECT_NEAR(kl(q, w.proposal({})), .05, 1e-9) << kind;
      }
    }
}

TEST(SakiMutants, CorrectingByTheLawInsteadOfTheResidual) {
  const world w = constant_world({.1, .2, .7}, {.5, .3, .2});
  const row q = between(w.proposal({}), w.target({}), reference_lambda(w.proposal({}), w.target({}), .1, {}), {});
  struct : every_choice {
    row q;
    std::size_t pick(std::int64_t, std::span<const double> weights, purpose what = purpose::residual) { return choose(what == purpose::residual ? q : row(weights.begin(), weights.end())); }
  } chance;
  chance.q = q;
  double first = 0;
  for_each_chain(w, 1, [&](auto& tree, double probability) {
    tree.decide(verify::saki{.radius = .1}, w, chance, probability, [&](const auto& v, double of) { first += v.tokens[0] == 2 ? of : 0; });
  });
  EXPECT_GT(std::abs(first - q[2]), 1e-2);
}

TEST(Saki, EqualLawsAndAnEmptyBallAreNeverCorrected) {
  for (const double radius : {0., .1}) {
    const world w = radius > 0 ? make_world(3, "equal", 1) : make_world(3, "random", 1);
    every_choice chance;
    for_each_chain(w, 2, [&](auto& tree, double probability) {
      tree.decide(verify::saki{.radius = radius}, w, chance, probability, [&](const auto& v, double of) {
        if (of > 1e-14) {
          EXPECT_EQ(v.accepted, 2);
        }
      });
    });
  }
}

TEST(Saki, WhatIsMissingIsNamed) {
  const world w = make_world(3, "random", 1);
  every_choice chance;
  drafted<draft_law::independent> chain, branching;
  chain.add(0, 1), branching.add(0, 1), branching.add(0, 2);
  EXPECT_THROW(chain.decide(verify::saki{.radius = -1}, w, chance, 1, [](const auto&, double) {}), error);
  EXPECT_THROW(branching.decide(verify::saki{}, w, chance, 1, [](const auto&, double) {}), error);
  const float logits[6] = {}, law[3] = {.2f, .3f, .5f};
  const tokens nodes = {0, 1}, parents = {-1, 0}, rows = {0, -1};   // no row for the extra draft
  verify_workspace memory(3);
  EXPECT_THROW(verify::saki{}(draft_tree<draft_law::independent>{nodes, parents, {.row_of = rows, .dense = {law, extents{1, 3}}}}, tensor_view<const float, 2>{logits, extents{2, 3}}, sampling::chain{}, {}, memory, 1), error);
}

}  // namespace
