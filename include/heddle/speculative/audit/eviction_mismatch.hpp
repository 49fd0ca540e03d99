// How far generation with an evicted cache drifts from generation with the full one.
//
// Full kernel P(. | x_<t) and evicted kernel Q(. | y_<t); step t draws (X_t, Y_t) from the maximal coupling of the two laws at the present histories:
// equal with probability alpha_t = sum min(P, Q), from min(P, Q); else X from (P - Q)_+ and Y from (Q - P)_+, independently. X alone follows P, Y alone Q.
// D = first mismatch (n + 1: none), M = share of the n steps with X_t != Y_t. Exactly
//
//   E[M] = P(D <= n) / n + F rho        F = E[(n - D)_+] / n, exposure        rho = E[mismatches after D] / E[(n - D)_+], rate
//   E[M] in [A, A + E[(n - D - w)_+] / n]    if only w steps after D are watched, A = their part of E[M]; both ends can be attained
//
// coupled_run        one run of the coupling: what it counts is the naive estimate
// estimate_mismatch  one replicate of the residual-branch estimator: an agreeing path U_t ~ min(P, Q) / alpha_t with weight W_t = prod alpha, and at every
//                    step one branch that starts with a mismatch and goes on under the coupling, S_t mismatches. sum W_{t-1} TV_t S_t has the expectation
//                    of n M, and never more variance than a run. Branches may be taken with a probability, then weighted by its inverse
// Means of either over replicates are estimates as well; F, rho and the interval are functions of them.
//
// Kernels: kernel(history, law) writes the law of the next token, V numbers >= 0 with sum 1. They must be functions of the history.
// Key: request counts replicates; purposes from purpose::user + 0x100. Errors: parameters, laws that are no laws.
// Cost: a run 2 n laws; a replicate 2 n laws and n per branch, so O(n^2), or O(n) with branch_probability of the order of 1 / n. Allocates.
// Source: KV-cache eviction under stepwise maximal coupling, its definitions after the abstract; the estimator is ours.
//
//     const audit::mismatch m = audit::estimate_mismatch(full, evicted, prompt, {.steps = 64, .vocabulary = 8}, {.seed = 7});
//     const double expected = m.mean(64);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/random.hpp>
#include <heddle/sampling/detail/pick.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace heddle::audit {

struct mismatch_options {
  std::int64_t steps = 0;         ///< n
  std::int64_t vocabulary = 0;
  std::int64_t window = 0;        ///< w: steps watched after the first mismatch
  double branch_probability = 1;  ///< of estimate_mismatch
};

/// Sums over the steps of one run, or estimates of their expectations.
struct mismatch {
  double occurrence = 0;         ///< 1 if anything differs
  double mismatches = 0;         ///< steps that differ
  double occupation = 0;         ///< (n - D)_+
  double window_mismatches = 0;  ///< steps that differ, of steps D .. D + w
  double tail_occupation = 0;    ///< (n - D - w)_+

  [[gnu::always_inline]] constexpr double mean(std::int64_t steps) const { return mismatches / static_cast<double>(steps); }
  [[gnu::always_inline]] constexpr double exposure(std::int64_t steps) const { return occupation / static_cast<double>(steps); }
  [[gnu::always_inline]] constexpr double rate() const { return occupation > 0. ? (mismatches - occurrence) / occupation : 0.; }
  [[gnu::always_inline]] constexpr double least_mean(std::int64_t steps) const { return window_mismatches / static_cast<double>(steps); }
  [[gnu::always_inline]] constexpr double most_mean(std::int64_t steps) const { return (window_mismatches + tail_occupation) / static_cast<double>(steps); }
};

/// The parts of E[M] of one policy less that of another: they add up exactly.
struct mismatch_gap {
  double occurrence = 0, exposure = 0, rate = 0;
};
[[gnu::always_inline]] constexpr mismatch_gap gap_of(const mismatch& a, const mismatch& b, std::int64_t steps) {
  return {(a.occurrence - b.occurrence) / static_cast<double>(steps), (a.exposure(steps) - b.exposure(steps)) * (a.rate() + b.rate()) / 2, (a.rate() - b.rate()) * (a.exposure(steps) + b.exposure(steps)) / 2};
}

namespace detail::inline HEDDLE_ISA {

/// Numbers of stream s (0: the path or run, t: the branch of step t) at step t.
struct keyed_coupling {
  random_key key{};
  double number(std::int64_t t, std::int64_t stream, std::uint32_t role) const {
    random_key k = key;
    k.position = static_cast<std::uint32_t>(t), k.index = static_cast<std::uint32_t>(stream);
    k.purpose = static_cast<purpose>(static_cast<std::uint32_t>(purpose::user) + 0x100u + role);
    return uniform(k);
  }
  bool chance(std::int64_t t, std::int64_t stream, std::uint32_t role, double probability) const { return number(t, stream, role) < probability; }
  std::size_t pick(std::int64_t t, std::int64_t stream, std::uint32_t role, std::span<const double> weights) const { return sampling::detail::pick(number(t, stream, role), weights); }
};
enum role : std::uint32_t { role_agree, role_common, role_full, role_evicted, role_branch };

/// Both histories and the laws at their ends.
template <class P, class Q>
class coupled_pair {
 public:
  coupled_pair(const P& full, const Q& evicted, std::span<const std::int32_t> prompt, const mismatch_options& options) : full_(full), evicted_(evicted) {
    x_.assign(prompt.begin(), prompt.end());
    y_ = x_;
    for (auto* law : {&p_, &q_, &common_}) law->resize(static_cast<std::size_t>(options.vocabulary));
  }
  /// alpha_t and TV_t, each summed by itself; p_ and q_ become the residuals.
  void look() {
    full_(std::span<const std::int32_t>(x_), std::span<double>(p_));
    evicted_(std::span<const std::int32_t>(y_), std::span<double>(q_));
    check(p_, "full"), check(q_, "evicted");
    agreement_ = difference_ = 0;
    double reverse = 0;
    for (std::size_t v = 0; v < p_.size(); ++v) {
      common_[v] = std::min(p_[v], q_[v]);
      p_[v] -= common_[v], q_[v] -= common_[v];
      agreement_ += common_[v], difference_ += p_[v], reverse += q_[v];
    }
    if (reverse <= 0.) difference_ = 0;   // by rounding: nothing left to disagree on
  }
  double agreement() const { return agreement_; }
  double difference() const { return difference_; }

  template <class Chance>
  void agree(Chance& chance, std::int64_t t, std::int64_t stream) {
    const auto v = static_cast<std::int32_t>(chance.pick(t, stream, role_common, common_));
    x_.push_back(v), y_.push_back(v);
  }
  template <class Chance>
  void differ(Chance& chance, std::int64_t t, std::int64_t stream) {
    x_.push_back(static_cast<std::int32_t>(chance.pick(t, stream, role_full, p_)));
    y_.push_back(static_cast<std::int32_t>(chance.pick(t, stream, role_evicted, q_)));
  }
  /// One step of the coupling; whether the tokens differ.
  template <class Chance>
  bool step(Chance& chance, std::int64_t t, std::int64_t stream) {
    look();
    const bool same = difference_ <= 0. || (agreement_ > 0. && chance.chance(t, stream, role_agree, agreement_));
    same ? agree(chance, t, stream) : differ(chance, t, stream);
    return !same;
  }

 private:
  static void check(const aligned_vector<double>& law, const char* kernel) {
    double sum = 0;
    for (std::size_t v = 0; v < law.size(); ++v) {
      require(law[v] >= 0. && law[v] < math::infinity, "audit: the ", kernel, " kernel gives token ", v, " probability ", law[v]);
      sum += law[v];
    }
    require(sum > 1. - 1e-6 && sum < 1. + 1e-6, "audit: the ", kernel, " kernel's law has sum ", sum, "; expected 1");
  }
  const P& full_;
  const Q& evicted_;
  aligned_vector<std::int32_t> x_, y_;
  aligned_vector<double> p_, q_, common_;
  double agreement_ = 0, difference_ = 0;
};

inline void check_options(const char* function, const mismatch_options& o) {
  require(o.steps >= 1, function, ": option 'steps' is ", o.steps, "; expected at least 1");
  require(o.vocabulary >= 1, function, ": option 'vocabulary' is ", o.vocabulary, "; expected at least 1");
  require(o.window >= 0, function, ": option 'window' is ", o.window, "; expected 0 or more");
  require(o.branch_probability > 0. && o.branch_probability <= 1., function, ": option 'branch_probability' is ", o.branch_probability, "; expected a number above 0, at most 1");
}
/// (n - D)_+ and (n - D - w)_+ of a first mismatch at step t <= n.
inline double steps_after(const mismatch_options& o, std::int64_t t, std::int64_t skipped) { return static_cast<double>(std::max<std::int64_t>(0, o.steps - t - skipped)); }

template <class P, class Q, class Chance>
mismatch run_coupling(const P& full, const Q& evicted, std::span<const std::int32_t> prompt, const mismatch_options& options, Chance& chance) {
  coupled_pair pair(full, evicted, prompt, options);
  mismatch m;
  std::int64_t first = options.steps + 1;
  for (std::int64_t t = 1; t <= options.steps; ++t) {
    if (!pair.step(chance, t, 0)) continue;
    if (m.occurrence == 0) first = t, m.occurrence = 1, m.occupation = steps_after(options, t, 0), m.tail_occupation = steps_after(options, t, options.window);
    m.mismatches += 1, m.window_mismatches += t <= first + options.window;
  }
  return m;
}

template <class P, class Q, class Chance>
mismatch run_branches(const P& full, const Q& evicted, std::span<const std::int32_t> prompt, const mismatch_options& options, Chance& chance) {
  coupled_pair path(full, evicted, prompt, options);
  mismatch m;
  double weight = 1;   // W_{t-1}
  for (std::int64_t t = 1; t <= options.steps && weight > 0.; ++t) {
    path.look();
    const double split = weight * path.difference();
    m.occurrence += split;
    m.occupation = math::fma(split, steps_after(options, t, 0), m.occupation);
    m.tail_occupation = math::fma(split, steps_after(options, t, options.window), m.tail_occupation);
    if (split > 0. && (options.branch_probability == 1. || chance.chance(t, t, role_branch, options.branch_probability))) {
      coupled_pair branch = path;
      branch.differ(chance, t, t);
      double all = 1, watched = 1;
      for (std::int64_t later = t + 1; later <= options.steps; ++later) {
        const bool differs = branch.step(chance, later, t);
        all += differs, watched += differs && later <= t + options.window;
      }
      m.mismatches = math::fma(split / options.branch_probability, all, m.mismatches);
      m.window_mismatches = math::fma(split / options.branch_probability, watched, m.window_mismatches);
    }
    weight *= path.agreement();
    if (weight > 0.) path.agree(chance, t, 0);
  }
  return m;
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <class P, class Q>
mismatch coupled_run(const P& full, const Q& evicted, std::span<const std::int32_t> prompt, const mismatch_options& options, const random_key& key) {
  detail::check_options("audit::coupled_run", options);
  detail::keyed_coupling chance{key};
  return detail::run_coupling(full, evicted, prompt, options, chance);
}

template <class P, class Q>
mismatch estimate_mismatch(const P& full, const Q& evicted, std::span<const std::int32_t> prompt, const mismatch_options& options, const random_key& key) {
  detail::check_options("audit::estimate_mismatch", options);
  detail::keyed_coupling chance{key};
  return detail::run_branches(full, evicted, prompt, options, chance);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::audit
