// K-SEQ: k independent drafts at a node, tried with one common threshold (SpecTr, Sun et al., NeurIPS 2023).
//
//   beta(rho) = sum_v min(p(v) / rho, q(v)),   A(rho) = 1 - (1 - beta)^k                    probability that some trial accepts
//   trial j: accept x^j iff u_j rho q(x^j) < p(x^j)
//   none accepted: emit y with weights p - min(q, p / rho) A / beta                        (p itself if beta = 0)
// valid wherever A <= rho beta; A falls with rho, so the best rho is where they are equal, in [1, k]: bisection, the valid side returned (1 for k = 1 or
// beta(1) = 1). A >= (1 - (1 - 1/k)^k) of the optimum (optimal_transport.hpp). k = 1 is token rejection. Lossless for independent drafts, on trees too: k is
// the number of children, which must be known before they are drawn.
//
// plan_k_seq              rho, beta and A for laws on the same tokens; tokens that either excludes may be left out
// k_seq_accept_probability, k_seq_residual
// mode and keys as in token_rejection.hpp. Cost per node: one law, 60 sums over the tokens that p and q share.
//
//     const auto v = heddle::verify::k_seq{.seed = 7}(tree, logits, policy, context, memory);
#pragma once
#include <heddle/speculative/detail/tree_walk.hpp>
#include <heddle/speculative/verify/acceptance.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::verify {

struct k_seq {
  static constexpr const char* name = "verify::k_seq";
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  strictness mode = strictness::strict;

  template <draft_law Law>
  static constexpr bool verifies = Law == draft_law::independent;
  template <draft_law Law>
  static constexpr bool lossless = verifies<Law>;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires(host_tensor<Logits> && verifies<Law>)
  [[gnu::always_inline]] inline auto operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    return detail::decide(*this, tree, view_of(logits), policy, committed, memory, position);
  }
};

struct k_seq_plan {
  double rho = 1, beta = 0, accept = 0;
};

inline namespace HEDDLE_ISA {

inline k_seq_plan k_seq_at(double rho, std::span<const double> p, std::span<const double> q, std::int32_t k) {
  double beta = 0, none = 1;
  for (std::size_t v = 0; v < p.size(); ++v) beta += p[v] < rho * q[v] ? p[v] / rho : q[v];
  if (beta > 1.) beta = 1.;
  for (std::int32_t j = 0; j < k; ++j) none *= 1. - beta;
  return {rho, beta, 1. - none};
}

inline k_seq_plan plan_k_seq(std::span<const double> p, std::span<const double> q, std::int32_t k) {
  require_same_size("verify::plan_k_seq", p, q);
  require(k >= 1, "verify::plan_k_seq: argument 'k' is ", k, "; expected 1 or more drafts");
  const auto valid = [](const k_seq_plan& plan) { return plan.accept <= plan.rho * plan.beta + 1e-15; };
  k_seq_plan best = k_seq_at(1., p, q, k);
  if (valid(best) || k == 1) return best;
  double low = 1., high = k;
  best = k_seq_at(high, p, q, k);
  for (int i = 0; i < 60; ++i) {
    const k_seq_plan middle = k_seq_at((low + high) / 2, p, q, k);
    if (valid(middle))
      best = middle, high = middle.rho;
    else
      low = middle.rho;
  }
  return best;
}

inline double k_seq_accept_probability(double p, double q, const k_seq_plan& plan) { return accept_probability(p, plan.rho * q); }

/// The weight of one token after k failures.
inline double k_seq_residual(double p, double q, const k_seq_plan& plan) {
  if (plan.beta <= 0.) return p;
  const double taken = (p < plan.rho * q ? p / plan.rho : q) * (plan.accept / plan.beta);
  return p > taken ? p - taken : 0.;
}

template <class Draft, class Chance>
verdict<> walk(const k_seq&, const Draft& draft, Chance& chance) {
  std::int32_t fallbacks = 0;
  verify_workspace& memory = draft.memory;
  memory.reserve_laws();
  const proposal_laws& laws = draft.tree.laws;
  verdict<> result = detail::walk_tree(draft, [&](std::int32_t node, const sampling::history& before, std::int64_t at) -> detail::decision {
    const std::int32_t first = memory.first_child(node);
    if (first < 0) return detail::plain_token(draft, node, before, at, chance);
    const sampling::law target = detail::target_law(draft, node, before, at, chance);
    if (target.status != heddle::status::ok) return {.status = target.status};
    const std::size_t n = target.tokens.size();
    const std::int64_t row = laws.row_of[static_cast<std::size_t>(node)];
    const double sum = sum_of(laws, row);
    std::int32_t children = 0;
    for (std::int32_t child = first; child >= 0; child = memory.next_sibling(child)) ++children;

    const std::span<double> p(memory.remaining(), n), q(memory.proposal(), n);
    detail::project(target.tokens, laws, row, q);
    std::size_t shared = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (q[i] > 0.) p[shared] = target.probability(i), q[shared++] = q[i] / sum;
    const k_seq_plan plan = plan_k_seq(p.first(shared), q.first(shared), children);

    std::uint32_t number = 0;
    for (std::int32_t child = first; child >= 0; child = memory.next_sibling(child), ++number) {
      const std::int32_t x = detail::token_of(draft, child);
      const double q_x = entry_of(laws, row, x) / sum;
      const std::size_t i = detail::index_of(target.tokens, x);
      if (q_x > 0. && chance.accept(at, number, i < n ? target.probability(i) : 0., plan.rho * q_x)) return {.child = child};
    }
    detail::project(target.tokens, laws, row, q);
    double rest = 0;
    for (std::size_t i = 0; i < n; ++i) rest += p[i] = k_seq_residual(target.probability(i), q[i] / sum, plan);
    if (rest <= 0.) ++fallbacks, detail::fill(target, p);
    return {.token = target.tokens[chance.pick(at, p)]};
  });
  result.residual_fallback = fallbacks;
  return result;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::verify
