#include <heddle/speculative/audit/eviction_mismatch.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "speculative/enumerate.hpp"
#include "support/errors.hpp"

namespace {

using namespace heddle;
using audit::mismatch;
using tokens = std::vector<std::int32_t>;
using numbers = std::vector<double>;

// Laws that depend on the whole history; `retention` of the full law, the rest forgets all but the last token.
struct toy_kernel {
  std::uint64_t seed = 1;
  std::size_t vocabulary = 2;
  double retention = 1;

  numbers law(std::span<const std::int32_t> history) const {
    std::uint32_t all = 17, last = 3;
    for (const std::int32_t v : history) all = all * 31 + static_cast<std::uint32_t>(v), last = static_cast<std::uint32_t>(v);
    numbers p(vocabulary);
    double sums[2] = {0, 0};
    const auto weight = [&](std::uint32_t state, std::size_t v) { return std::pow(uniform({.seed = seed, .position = state, .index = static_cast<std::uint32_t>(v)}), 3); };
    for (std::size_t v = 0; v < vocabulary; ++v) sums[0] += weight(all, v), sums[1] += weight(last + 7, v);
    for (std::size_t v = 0; v < vocabulary; ++v) p[v] = retention * weight(all, v) / sums[0] + (1 - retention) * weight(last + 7, v) / sums[1];
    return p;
  }
  void operator()(std::span<const std::int32_t> history, std::span<double> out) const {
    const numbers p = law(history);
    for (std::size_t v = 0; v < vocabulary; ++v) out[v] = p[v];
  }
};

// All ways the coupling can go, by its definition: every pair of texts with its probability.
void every_pair(const toy_kernel& full, const toy_kernel& evicted, tokens x, tokens y, double probability, std::size_t length, const std::function<void(const tokens&, const tokens&, double)>& visit) {
  if (probability <= 0) return;
  if (x.size() == length) return visit(x, y, probability);
  const numbers p = full.law(x), q = evicted.law(y);
  double tv = 0;
  for (std::size_t v = 0; v < p.size(); ++v) tv += std::max(0., p[v] - q[v]);
  for (std::size_t a = 0; a < p.size(); ++a)
    for (std::size_t b = 0; b < q.size(); ++b) {
      tokens xx = x, yy = y;
      xx.push_back(static_cast<std::int32_t>(a)), yy.push_back(static_cast<std::int32_t>(b));
      const double joint = (a == b ? std::min(p[a], q[a]) : 0) + (tv > 0 ? std::max(0., p[a] - q[a]) * std::max(0., q[b] - p[b]) / tv : 0);
      every_pair(full, evicted, xx, yy, probability * joint, length, visit);
    }
}
struct truth {
  mismatch expected;
  double second_moment = 0;   // of the number of mismatches
  std::map<tokens, double> x, y;
};
truth enumerate(const toy_kernel& full, const toy_kernel& evicted, std::int64_t n, std::int64_t w) {
  truth t;
  every_pair(full, evicted, {}, {}, 1, static_cast<std::size_t>(n), [&](const tokens& x, const tokens& y, double pr) {
    std::int64_t first = n + 1, all = 0, watched = 0;
    for (std::int64_t i = 1; i <= n; ++i) {
      if (x[static_cast<std::size_t>(i - 1)] == y[static_cast<std::size_t>(i - 1)]) continue;
      first = std::min(first, i), ++all, watched += i <= first + w;
    }
    t.expected.occurrence += pr * (first <= n), t.expected.mismatches += pr * static_cast<double>(all), t.expected.window_mismatches += pr * static_cast<double>(watched);
    t.expected.occupation += pr * static_cast<double>(std::max<std::int64_t>(0, n - first)), t.expected.tail_occupation += pr * static_cast<double>(std::max<std::int64_t>(0, n - first - w));
    t.second_moment += pr * static_cast<double>(all * all);
    t.x[x] += pr, t.y[y] += pr;
  });
  return t;
}

// The chances of the library's own code, all of them in turn.
struct every_coupling {
  enumeration::every_choice choices;
  bool chance(std::int64_t, std::int64_t, std::uint32_t, double p) { return choices.choose({p, 1 - p}) == 0; }
  std::size_t pick(std::int64_t, std::int64_t, std::uint32_t, std::span<const double> w) { return choices.choose({w.begin(), w.end()}); }
};
template <class Run>
truth expectation(const Run& run) {
  truth t;
  every_coupling all;
  all.choices.run([&] {
    const mismatch m = run(all);
    const double pr = all.choices.probability();
    t.expected.occurrence += pr * m.occurrence, t.expected.mismatches += pr * m.mismatches, t.expected.occupation += pr * m.occupation;
    t.expected.window_mismatches += pr * m.window_mismatches, t.expected.tail_occupation += pr * m.tail_occupation;
    t.second_moment += pr * m.mismatches * m.mismatches;
  });
  return t;
}
void expect_equal(const mismatch& a, const mismatch& b, double error) {
  EXPECT_NEAR(a.occurrence, b.occurrence, error);
  EXPECT_NEAR(a.mismatches, b.mismatches, error);
  EXPECT_NEAR(a.occupation, b.occupation, error);
  EXPECT_NEAR(a.window_mismatches, b.window_mismatches, error);
  EXPECT_NEAR(a.tail_occupation, b.tail_occupation, error);
}

constexpr std::int64_t n = 4;

TEST(EvictionMismatch, EachSideKeepsItsOwnLaw) {
  const toy_kernel full{.seed = 5}, evicted{.seed = 5, .retention = 0.4};
  const truth t = enumerate(full, evicted, n, 1);
  std::map<tokens, double> p, q;
  enumeration::extend({}, 1, n, [&](const tokens& h) { return full.law(h); }, p);
  enumeration::extend({}, 1, n, [&](const tokens& h) { return evicted.law(h); }, q);
  EXPECT_LT(enumeration::distance(t.x, p), 1e-12);
  EXPECT_LT(enumeration::distance(t.y, q), 1e-12);
}

TEST(EvictionMismatch, RunsAndBranchesHaveTheExactExpectation) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const toy_kernel full{.seed = seed}, evicted{.seed = seed, .retention = 0.5};
    const audit::mismatch_options options{.steps = n, .vocabulary = 2, .window = 1};
    const truth exact = enumerate(full, evicted, n, 1);
    const truth naive = expectation([&](auto& chance) { return audit::detail::run_coupling(full, evicted, {}, options, chance); });
    const truth branches = expectation([&](auto& chance) { return audit::detail::run_branches(full, evicted, {}, options, chance); });
    expect_equal(naive.expected, exact.expected, 1e-12);
    expect_equal(branches.expected, exact.expected, 1e-12);
    EXPECT_NEAR(naive.second_moment, exact.second_moment, 1e-12);
    EXPECT_LE(branches.second_moment, naive.second_moment);   // equal means: less variance

    // the decomposition, and the interval of a watched window
    const mismatch& m = exact.expected;
    EXPECT_NEAR(m.mean(n), m.occurrence / n + m.exposure(n) * m.rate(), 1e-12);
    EXPECT_LE(m.least_mean(n), m.mean(n) + 1e-15);
    EXPECT_GE(m.most_mean(n), m.mean(n) - 1e-15);
    const truth other = enumerate(full, {.seed = seed, .retention = 0.9}, n, 1);
    const audit::mismatch_gap gap = audit::gap_of(m, other.expected, n);
    EXPECT_NEAR(gap.occurrence + gap.exposure + gap.rate, m.mean(n) - other.expected.mean(n), 1e-12);
  }
}

TEST(EvictionMismatch, FewerBranchesKeepTheExpectation) {
  const toy_kernel full{.seed = 2}, evicted{.seed = 2, .retention = 0.3};
  const audit::mismatch_options options{.steps = 3, .vocabulary = 2, .window = 1, .branch_probability = 0.25};
  const truth some = expectation([&](auto& chance) { return audit::detail::run_branches(full, evicted, {}, options, chance); });
  expect_equal(some.expected, enumerate(full, evicted, 3, 1).expected, 1e-12);
}

// Both ends of the interval: after the first mismatch all steps agree, or none does.
TEST(EvictionMismatch, EndsOfTheWindowIntervalAreAttained) {
  struct forked {
    double first;   // probability of token 0 at step 1
    bool agree;     // whether later laws do
    void operator()(std::span<const std::int32_t> history, std::span<double> law) const {
      law[0] = history.empty() ? first : agree || history[0] == 0 ? 1 : 0;
      law[1] = 1 - law[0];
    }
  };
  const audit::mismatch_options options{.steps = n, .vocabulary = 2, .window = 1};
  for (const bool agree : {true, false}) {
    const mismatch m = audit::estimate_mismatch(forked{1, agree}, forked{0, agree}, {}, options, {});
    EXPECT_EQ(m.occurrence, 1);
    EXPECT_DOUBLE_EQ(m.mean(n), agree ? m.least_mean(n) : m.most_mean(n));
    EXPECT_DOUBLE_EQ(m.mean(n), agree ? 0.25 : 1);
  }
}

TEST(EvictionMismatch, EqualKernelsNeverDifferAndDisjointOnesAlwaysDo) {
  const toy_kernel full{.seed = 3, .vocabulary = 5};
  const audit::mismatch_options options{.steps = 50, .vocabulary = 5, .window = 3};
  for (std::uint32_t request = 0; request < 20; ++request) {
    expect_equal(audit::coupled_run(full, full, {}, options, {.seed = 1, .request = request}), {}, 0);
    expect_equal(audit::estimate_mismatch(full, full, {}, options, {.seed = 1, .request = request}), {}, 0);
  }
  const auto one_hot = [](std::size_t at) { return [at](std::span<const std::int32_t>, std::span<double> law) { for (std::size_t v = 0; v < law.size(); ++v) law[v] = v == at; }; };
  EXPECT_EQ(audit::estimate_mismatch(one_hot(0), one_hot(1), {}, options, {}).mean(50), 1);
  EXPECT_EQ(audit::coupled_run(one_hot(0), one_hot(1), {}, options, {}).mean(50), 1);
}

// Many replicates of both, with keyed numbers: the same mean, and a small part of the variance.
TEST(EvictionMismatch, ReplicatesAgree) {
  const toy_kernel full{.seed = 9, .vocabulary = 4}, evicted{.seed = 9, .vocabulary = 4, .retention = 0.95};
  const audit::mismatch_options options{.steps = 12, .vocabulary = 4};
  const int replicates = 3000;
  double sum[2] = {0, 0}, squares[2] = {0, 0};
  for (std::uint32_t r = 0; r < replicates; ++r) {
    const double x[2] = {audit::coupled_run(full, evicted, {}, options, {.seed = 4, .request = r}).mean(12), audit::estimate_mismatch(full, evicted, {}, options, {.seed = 4, .request = r}).mean(12)};
    for (const int k : {0, 1}) sum[k] += x[k], squares[k] += x[k] * x[k];
  }
  double mean[2], variance[2];
  for (const int k : {0, 1}) mean[k] = sum[k] / replicates, variance[k] = squares[k] / replicates - mean[k] * mean[k];
  EXPECT_NEAR(mean[0], mean[1], 6 * std::sqrt((variance[0] + variance[1]) / replicates));
  EXPECT_LT(variance[1], variance[0] / 2);
}

TEST(EvictionMismatch, Errors) {
  const toy_kernel full;
  EXPECT_EQ(message_of([&] { audit::coupled_run(full, full, {}, {.steps = 0, .vocabulary = 2}, {}); }), "audit::coupled_run: option 'steps' is 0; expected at least 1");
  EXPECT_EQ(message_of([&] { audit::estimate_mismatch(full, full, {}, {.steps = 1, .vocabulary = 2, .branch_probability = 0}, {}); }), "audit::estimate_mismatch: option 'branch_probability' is 0; expected a number above 0, at most 1");
  const auto half = [](std::span<const std::int32_t>, std::span<double> law) { for (double& p : law) p = 0.25; };
  EXPECT_EQ(message_of([&] { audit::coupled_run(full, half, {}, {.steps = 1, .vocabulary = 2}, {}); }), "audit: the evicted kernel's law has sum 0.5; expected 1");
  const auto bad = [](std::span<const std::int32_t>, std::span<double> law) { for (double& p : law) p = NAN; };
  EXPECT_EQ(message_of([&] { audit::coupled_run(bad, full, {}, {.steps = 1, .vocabulary = 2}, {}); }), "audit: the full kernel gives token 0 probability NaN");
}

}  // namespace
