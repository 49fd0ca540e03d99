// Trust-region rollout with accept and correct events: the student drafts, a policy between student and teacher verifies (SAKI).
//
//   q_l ~ p^{1-l} pi^l  (or (1 - l) p + l pi)       p: the student's law, the draft's row; pi: the teacher's, the chain's law of the logits
//   lambda = the largest l in [0, 1] with KL(q_l || p) <= radius
//   each slot: accept x ~ p iff u p(x) < q(x); otherwise emit y ~ (q - p)_+ / sum and stop: the student drafts again from there
//   all accepted: one more x ~ p through the same coupling, so every token has an event; the rows of laws therefore include the last node's
//
// Emitted tokens have exactly the law q (not the teacher's: lossless is false). P(correct) = TV(p, q) <= sqrt(radius / 2), sqrt(1 - e^{-radius}); radius 0
// or p = pi: never. The events choose the loss: an accepted token x gets the sampled reverse KL, advantage ln p(x) - ln pi(x) on the gradient of
// ln p_theta(x); a corrected one -ln p_theta(argmax pi).
// The solver of the geometric path is distillation/interpolation.hpp, on the kept tokens of the teacher and one more that stands for all others of the
// student: q has the common support for lambda > 0, and lambda = 0 (q = p) where even that lies outside the ball, or is empty. The arithmetic path is
// bisected here; it leaves the student's support unless the teacher's lies within, and then lambda = 0.
// Chains of independent drafts. mode as in token_rejection.hpp. Keys: purpose::accept, purpose::residual, and purpose::sample for the extra draft.
// Cost per slot: one law of the teacher and about eight passes with an exponential over its kept tokens, O(row of p).
//
//     const auto v = heddle::verify::saki{.seed = 7, .radius = 0.05}(drafts, teacher_logits, policy, context, memory);
//     for (const auto& event : v.extension.events) route(event);
#pragma once
#include <heddle/core/math.hpp>
#include <heddle/distillation/interpolation.hpp>
#include <heddle/speculative/detail/tree_walk.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

enum class interpolation_path : std::uint8_t { geometric, arithmetic };

struct saki_event {
  std::int32_t token = -1;      ///< emitted
  bool corrected = false;       ///< it came from the residual: the student's draft was not accepted
  std::int32_t supervised = -1; ///< the token whose log-probability the loss works on: the accepted one, or the teacher's most probable
  double value = 0;             ///< accepted: ln p - ln pi of the token (+infinity where the teacher excludes it); corrected: -ln p(supervised)
  double lambda = 0;
  double correction = 0;        ///< TV(p, q): how probable a correction was
};

struct saki_events {
  std::span<const saki_event> events{};  ///< one per emitted token
};

struct saki {
  static constexpr const char* name = "verify::saki";
  static constexpr bool chains_only = true, laws_of_leaves = true;
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  double radius = 0.02;
  interpolation_path path = interpolation_path::geometric;
  strictness mode = strictness::strict;

  template <draft_law>
  static constexpr bool lossless = false;
  template <draft_law Law>
  static constexpr bool verifies = Law == draft_law::independent;

  /// logits [nodes, vocabulary]: the teacher's row after node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires(host_tensor<Logits> && verifies<Law>)
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

inline namespace HEDDLE_ISA {

/// The largest l in [0, 1] with KL((1 - l) p + l pi || p) <= radius.
inline double arithmetic_lambda(std::span<const double> p, std::span<const double> pi, double radius) {
  require(p.size() == pi.size(), "verify::arithmetic_lambda: arguments 'p' and 'pi' have ", p.size(), " and ", pi.size(), " entries; expected laws on the same tokens");
  const auto divergence = [&](double l) {
    double sum = 0;
    for (std::size_t v = 0; v < p.size(); ++v) {
      const double q = p[v] + l * (pi[v] - p[v]);
      if (q <= 0.) continue;
      if (p[v] <= 0.) return math::infinity;
      sum += q * math::log(q / p[v]);
    }
    return sum;
  };
  if (divergence(1.) <= radius) return 1.;
  double low = 0, high = 1;
  for (int i = 0; i < 60 && radius > 0.; ++i) {
    const double middle = (low + high) / 2;
    (divergence(middle) <= radius ? low : high) = middle;
  }
  return low;
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// One slot: p, pi and q on the teacher's kept tokens.
template <class Draft>
class interpolated_slot {
 public:
  interpolated_slot(const saki& rule, const Draft& draft, std::int32_t node, const sampling::law& teacher) : draft_(draft), teacher_(teacher), row_(draft.tree.laws.row_of[static_cast<std::size_t>(node)]), sum_(sum_of(draft.tree.laws, row_)) {
    const std::size_t n = teacher.tokens.size();
    const std::span<double> p(draft.memory.remaining(), n), pi(draft.memory.proposal(), n);
    project(teacher.tokens, draft.tree.laws, row_, p);
    for (double& x : p) x /= sum_;
    fill(teacher, pi);
    solve(rule, n + add_others(n));
    for (std::size_t i = 0; i < n; ++i) correction_ += p[i] < q(i) ? q(i) - p[i] : 0.;
  }
  double lambda() const { return lambda_; }
  double correction() const { return correction_; }
  double student(std::int32_t token) const { return entry_of(draft_.tree.laws, row_, token) / sum_; }
  double teacher(std::int32_t token) const {
    const std::size_t i = index_of(teacher_.tokens, token);
    return i < teacher_.tokens.size() ? teacher_.probability(i) : 0.;
  }
  double interpolated(std::int32_t token) const {
    if (lambda_ == 0.) return student(token);
    const std::size_t i = index_of(teacher_.tokens, token);
    return i < teacher_.tokens.size() ? q(i) : arithmetic_ ? (1. - lambda_) * student(token) : 0.;
  }
  /// The weights of the corrected token, in place of p.
  std::span<const double> residual() const {
    const std::span<double> p(draft_.memory.remaining(), teacher_.tokens.size());
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = q(i) > p[i] ? q(i) - p[i] : 0.;
    return p;
  }

 private:
  double q(std::size_t i) const { return draft_.memory.proposal()[i]; }

  /// The student's mass outside the teacher's support, as one more token behind them; how many were added.
  std::size_t add_others(std::size_t n) const {
    double others = 0;
    for_each_entry(draft_.tree.laws, row_, [&](std::int32_t v, float x) { others += index_of(teacher_.tokens, v) < n ? 0. : static_cast<double>(x); });
    if (others <= 0.) return 0;
    draft_.memory.remaining()[n] = others / sum_, draft_.memory.proposal()[n] = 0.;
    return 1;
  }
  /// Leaves q in place of pi.
  void solve(const saki& rule, std::size_t size) {
    const std::span<double> p(draft_.memory.remaining(), size), pi(draft_.memory.proposal(), size);
    arithmetic_ = rule.path == interpolation_path::arithmetic;
    if (arithmetic_) {
      lambda_ = arithmetic_lambda(p, pi, rule.radius);
      for (std::size_t i = 0; i < size; ++i) pi[i] = p[i] + lambda_ * (pi[i] - p[i]);
      return;
    }
    double* const logs = draft_.memory.template records<double>(2 * size);
    const auto log_of = [](double x) { return x > 0. ? math::log(x) : -math::infinity; };
    for (std::size_t i = 0; i < size; ++i) logs[i] = log_of(p[i]), logs[size + i] = log_of(pi[i]);
    const extents shape{static_cast<std::int64_t>(size)};
    const distillation::interpolated_law between{tensor_view<const double, 1>{logs, shape}, tensor_view<const double, 1>{logs + size, shape}, rule.radius};
    lambda_ = between.lambda();
    for (std::size_t i = 0; i < size; ++i) pi[i] = lambda_ > 0. ? between.prob(static_cast<std::int64_t>(i)) : p[i];
  }

  const Draft& draft_;
  const sampling::law& teacher_;
  std::int64_t row_;
  double sum_, lambda_ = 0, correction_ = 0;
  bool arithmetic_ = false;
};

/// A draft of the student beyond the block.
template <class Draft, class Chance>
std::int32_t student_token(const Draft& draft, std::int32_t node, std::int64_t at, Chance& chance) {
  const std::span<double> weights(draft.memory.proposal(), static_cast<std::size_t>(draft.memory.vocabulary()));
  for (double& q : weights) q = 0.;
  for_each_entry(draft.tree.laws, draft.tree.laws.row_of[static_cast<std::size_t>(node)], [&](std::int32_t v, float q) { weights[static_cast<std::size_t>(v)] += static_cast<double>(q); });
  return static_cast<std::int32_t>(chance.pick(at, weights, purpose::sample));
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <class Draft>
void check_rule(const saki& rule, const Draft&) {
  require(rule.radius >= 0. && rule.radius == rule.radius, "verify::saki: parameter 'radius' is ", rule.radius, "; expected 0 or more");
}

template <class Draft, class Chance>
verdict<saki_events> walk(const saki& rule, const Draft& draft, Chance& chance) {
  verify_workspace& memory = draft.memory;
  memory.reserve_laws();
  memory.template records<double>(2 * static_cast<std::size_t>(memory.vocabulary()));
  const std::size_t nodes = draft.tree.tokens.size();
  std::int32_t fallbacks = 0;
  saki_event* const events = memory.template events<saki_event>(nodes);
  const verdict<> walked = detail::walk_tree(draft, [&](std::int32_t node, const sampling::history& before, std::int64_t at) -> detail::decision {
    const sampling::law teacher = detail::target_law(draft, node, before, at, chance);
    if (teacher.status != heddle::status::ok) return {.status = teacher.status};
    const bool drafted = static_cast<std::size_t>(node) + 1 < nodes;
    const std::int32_t x = drafted ? detail::token_of(draft, node + 1) : detail::student_token(draft, node, at, chance);
    const detail::interpolated_slot slot(rule, draft, node, teacher);
    saki_event& event = events[node];
    event = {.token = x, .supervised = x, .lambda = slot.lambda(), .correction = slot.correction()};
    const double p_x = slot.student(x);
    if (p_x > 0. && chance.accept(at, 0, slot.interpolated(x), p_x)) {
      const double pi_x = slot.teacher(x);
      event.value = pi_x > 0. ? math::log(p_x) - math::log(pi_x) : math::infinity;
      return drafted ? detail::decision{.child = node + 1} : detail::decision{.token = x};
    }
    std::size_t top = 0;
    for (std::size_t i = 1; i < teacher.masses.size(); ++i) top = teacher.masses[i] > teacher.masses[top] ? i : top;
    event.corrected = true, event.supervised = teacher.tokens[top];
    const double p_top = slot.student(event.supervised);
    event.value = p_top > 0. ? -math::log(p_top) : math::infinity;
    if (slot.correction() <= 0.) {  // lenient: a draft that the student cannot make, and nothing to correct it with
      ++fallbacks;
      event.token = detail::student_token(draft, node, at, chance);
    } else {
      event.token = teacher.tokens[chance.pick(at, slot.residual())];
    }
    return {.token = event.token};
  });
  verdict<saki_events> result{walked.path, walked.tokens, walked.accepted, fallbacks, walked.status, {}};
  result.extension.events = {events, walked.tokens.size()};
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
