// Token rejection sampling: accept what the proposal law got right, resample the rest.
//
// Chain (Leviathan et al. 2023, Chen et al. 2023), draft x ~ q, target p:
//   accept x iff u q(x) < p(x);  otherwise emit y ~ res(p, q) = (p - q)_+ / sum (p - q)_+ and stop.    P(accept) = 1 - TV(p, q)
// Siblings, in draw order, with p~ = p at first (SpecInfer, recursive rejection):
//   accept x^j iff u_j q^j(x^j) < p~(x^j);  otherwise p~ <- res(p~, q^j);  none accepted: emit y ~ p~
//   q^j = q for independent siblings; q without x^1 .. x^{j-1}, renormalised, for siblings drawn without replacement; a point mass for
//   deterministic ones (accept with probability p~(x), the residual is p~ without x). No children: y ~ p by the plain sampler.
// p is the chain's law at the node, q the row of proposal_laws, normalised by its sum; both in double. Lossless for every law but `unpredictable`, which
// does not compile. The comparison is strict: p(x) = 0 never accepts, p >= q > 0 always does.
//
// strictness  a draft to which its own law gives probability 0 is an error before anything is decided (strict), or is rejected (lenient)
// Keys: {seed, request, position of the decided token}; purpose::accept with the sibling's number as index, purpose::residual for y.
// sum (p - q)_+ = 0 at a rejection can only be rounding: y comes from p~ and residual_fallback counts it.
// The pieces are functions of their own: accept_probability, subtract_proposal.
// Cost: one law per visited node, O(kept + row of q) per rejection.
//
//     const auto v = heddle::verify::token{.seed = 7}(tree, logits, policy, context, memory);
#pragma once
#include <heddle/speculative/detail/tree_walk.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle::verify {

enum class strictness : std::uint8_t { strict, lenient };

inline namespace HEDDLE_ISA {

/// min(1, p / q); 0 where p is 0 or q is.
inline double accept_probability(double p, double q) { return p <= 0. || q <= 0. ? 0. : p >= q ? 1. : p / q; }

/// p <- (p - q)_+ / sum (p - q)_+. Returns the sum; if that is 0, p is left alone.
inline double subtract_proposal(std::span<double> p, std::span<const double> q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] > q[i] ? p[i] - q[i] : 0.;
  if (sum > 0.)
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = (p[i] > q[i] ? p[i] - q[i] : 0.) / sum;
  return sum;
}

}  // namespace HEDDLE_ISA

namespace detail::inline HEDDLE_ISA {

/// The verifier's chances, by keyed uniform numbers. (A test may take other ones: walk_by_rejection enumerates with them.)
struct keyed_chance {
  random_key key{};

  bool accept(std::int64_t position, std::uint32_t sibling, double p, double q) const { return number(position, purpose::accept, sibling) * q < p; }
  /// The first index at which the cumulative weight exceeds u * sum; the last one with a weight if rounding leaves none.
  std::size_t pick(std::int64_t position, std::span<const double> weights) const {
    double sum = 0, cumulative = 0;
    for (const double w : weights) sum += w;
    const double target = number(position, purpose::residual, 0) * sum;
    std::size_t last = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] > 0.) last = i;
      if ((cumulative += weights[i]) > target) return i;
    }
    return last;
  }
  template <class Row, class Chain>
  sampling::drawn plain(std::int64_t position, const Row& row, const Chain& policy, const sampling::history& before, sampling::row_workspace& memory) const {
    return sampling::sample_row(row, policy, before, at(position, purpose::sample, 0), memory);
  }
  random_key at(std::int64_t position, heddle::purpose purpose, std::uint32_t index) const {
    random_key k = key;
    k.position = static_cast<std::uint32_t>(position), k.purpose = purpose, k.index = index;
    return k;
  }

 private:
  double number(std::int64_t position, heddle::purpose purpose, std::uint32_t index) const { return uniform(at(position, purpose, index)); }
};

/// One row of proposal_laws: f(token, probability) for its entries, not normalised.
template <class F>
void for_each_entry(const proposal_laws& laws, std::int64_t row, const F& f) {
  if (laws.dense.data()) {
    for (std::int64_t v = 0; v < laws.dense.extent(1); ++v) f(static_cast<std::int32_t>(v), *laws.dense.at(row, v));
  } else {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t i = laws.indptr[r]; i < laws.indptr[r + 1]; ++i) f(laws.tokens[static_cast<std::size_t>(i)], laws.probabilities[static_cast<std::size_t>(i)]);
  }
}

inline double sum_of(const proposal_laws& laws, std::int64_t row) {
  double sum = 0;
  for_each_entry(laws, row, [&](std::int32_t, float q) { sum += static_cast<double>(q); });
  return sum;
}

inline double entry_of(const proposal_laws& laws, std::int64_t row, std::int32_t token) {
  if (laws.dense.data()) return static_cast<double>(*laws.dense.at(row, token));
  double q = 0;
  for_each_entry(laws, row, [&](std::int32_t v, float x) { q += v == token ? static_cast<double>(x) : 0.; });
  return q;
}

/// Throws unless every parent has a row, every row is a law, and (strict) every draft has a chance under its own.
template <draft_law Law>
void check_laws(const char* function, const draft_tree<Law>& tree, std::int64_t vocabulary, strictness mode) {
  const proposal_laws& laws = tree.laws;
  const std::int64_t rows = laws.num_rows();
  if (tree.tokens.size() > 1) require(laws.row_of.size() == tree.tokens.size(), function, ": argument 'draft laws': 'row_of' has ", laws.row_of.size(), " entries; expected one per node, ", tree.tokens.size());
  if (laws.dense.data()) require_shape(function, "draft laws", laws.dense, extents{-1, vocabulary});
  if (!laws.dense.data() && rows > 0) {
    require(laws.tokens.size() == laws.probabilities.size(), function, ": argument 'draft laws' has ", laws.tokens.size(), " tokens and ", laws.probabilities.size(), " probabilities");
    for (std::size_t r = 0; r + 1 < laws.indptr.size(); ++r)
      require(laws.indptr[r] >= 0 && laws.indptr[r] <= laws.indptr[r + 1] && laws.indptr[r + 1] <= static_cast<std::int64_t>(laws.tokens.size()), function, ": argument 'draft laws': 'indptr' entry ", r + 1, " is ", laws.indptr[r + 1], "; expected a non-decreasing list that ends within ", laws.tokens.size(), " entries");
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for_each_entry(laws, r, [&](std::int32_t v, float q) {
      require(v >= 0 && v < vocabulary, function, ": argument 'draft laws': row ", r, " has the token ", v, "; expected 0 to ", vocabulary - 1);
      require(q >= 0.f && q <= std::numeric_limits<float>::max(), function, ": argument 'draft laws': row ", r, " gives the token ", v, " probability ", double{q}, "; expected a finite number, 0 or more");
      sum += static_cast<double>(q);
    });
    require(sum > 0., function, ": argument 'draft laws': row ", r, " has no positive probability");
  }
  for (std::size_t u = 1; u < tree.tokens.size(); ++u) {
    const std::int32_t row = laws.row_of[static_cast<std::size_t>(tree.parents[u])];
    require(row >= 0 && row < rows, function, ": argument 'draft laws': node ", tree.parents[u], " has children and row ", row, "; expected 0 to ", rows - 1);
    if (mode == strictness::strict) require(entry_of(laws, row, tree.tokens[u]) > 0., function, ": argument 'draft laws': row ", row, " gives the drafted token ", tree.tokens[u], " probability 0");
  }
}

/// The walk with any source of chances.
template <draft_law Law, class Logits, class Chain, class Chance>
verdict<> walk_by_rejection(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, std::int64_t position, verify_workspace& memory, Chance& chance) {
  std::int32_t fallbacks = 0;
  verdict<> result = walk_tree(tree, committed, position, memory, [&](std::int32_t node, const sampling::history& before, std::int64_t at) -> decision {
    std::int32_t child = memory.first_child(node);
    if (child < 0) {
      const sampling::drawn y = chance.plain(at, logits[node], policy, before, memory.row());
      return {.token = y.token, .status = y.status};
    }
    const random_key key = chance.at(at, purpose::sample, 0);
    const sampling::law target = sampling::law_of(logits[node], policy, before, key, memory.row());
    if (target.status != heddle::status::ok) return {.status = target.status};
    const std::size_t n = target.tokens.size();
    const std::span<double> p(memory.remaining(), n), q(memory.proposal(), n);
    for (std::size_t i = 0; i < n; ++i) p[i] = target.probability(i);

    double unused = 0;                                      // the mass of q that is still to be drawn from
    float* const q_of = memory.row().scratch().row;         // q by token; the law does not need the row any more
    if constexpr (is_sampled(Law)) {
      const std::int64_t row = tree.laws.row_of[static_cast<std::size_t>(node)];
      unused = sum_of(tree.laws, row);
      for (const std::int32_t v : target.tokens) q_of[v] = 0.f;
      for (std::int32_t c = child; c >= 0; c = memory.next_sibling(c)) q_of[tree.tokens[static_cast<std::size_t>(c)]] = 0.f;
      for_each_entry(tree.laws, row, [&](std::int32_t v, float) { q_of[v] = 0.f; });
      for_each_entry(tree.laws, row, [&](std::int32_t v, float x) { q_of[v] += x; });
    }
    for (std::uint32_t sibling = 0; child >= 0; child = memory.next_sibling(child), ++sibling) {
      const std::int32_t x = tree.tokens[static_cast<std::size_t>(child)];
      std::size_t kept = 0;
      while (kept < n && target.tokens[kept] != x) ++kept;
      const double p_x = kept < n ? p[kept] : 0.;
      if constexpr (is_sampled(Law)) {
        const double mass_x = static_cast<double>(q_of[x]);
        if (mass_x > 0. && chance.accept(at, sibling, p_x, mass_x / unused)) return {.child = child};
        for (std::size_t i = 0; i < n; ++i) q[i] = static_cast<double>(q_of[target.tokens[i]]) / unused;
        fallbacks += subtract_proposal(p, q) <= 0.;
        if constexpr (Law == draft_law::without_replacement) q_of[x] = 0.f, unused -= mass_x;
      } else {
        if (chance.accept(at, sibling, p_x, 1.)) return {.child = child};
        double rest = 0;
        for (std::size_t i = 0; i < n; ++i) rest += i == kept ? 0. : p[i];
        if (rest > 0.) {
          if (kept < n) p[kept] = 0.;
          for (double& y : p) y /= rest;
        } else {
          ++fallbacks;
        }
      }
    }
    return {.token = target.tokens[chance.pick(at, p)]};
  });
  result.residual_fallback = fallbacks;
  return result;
}

}  // namespace detail::inline HEDDLE_ISA

struct token {
  std::uint64_t seed = 0;
  std::uint32_t request = 0;
  strictness mode = strictness::strict;

  template <draft_law Law>
  static constexpr bool lossless = Law != draft_law::unpredictable;

  /// logits [nodes, vocabulary]: row u follows node u. `committed` ends with the root's token; `position` counts it in (its size if negative).
  template <draft_law Law, tensor_of<2> Logits, class Chain>
    requires(host_tensor<Logits> && Law != draft_law::unpredictable)
  [[gnu::always_inline]] inline verdict<> operator()(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position = -1) const {
    check(tree, view_of(logits), policy, committed, memory.vocabulary());
    return walk(tree, view_of(logits), policy, committed, memory, position);
  }

  /// The two halves of operator(), for calls that check a whole batch first.
  template <draft_law Law, class Logits, class Chain>
  [[gnu::always_inline]] inline void check(const draft_tree<Law>& tree, const Logits& logits, const Chain&, std::span<const std::int32_t> committed, std::int64_t vocabulary) const {
    detail::check_call("verify::token", tree, logits, committed, vocabulary);
    if constexpr (is_sampled(Law)) detail::check_laws("verify::token", tree, vocabulary, mode);
  }
  template <draft_law Law, class Logits, class Chain>
    requires(Law != draft_law::unpredictable)
  [[gnu::always_inline]] inline verdict<> walk(const draft_tree<Law>& tree, const Logits& logits, const Chain& policy, std::span<const std::int32_t> committed, verify_workspace& memory, std::int64_t position) const {
    detail::keyed_chance chance{{.seed = seed, .request = request}};
    return detail::walk_by_rejection(tree, logits, policy, committed, position < 0 ? static_cast<std::int64_t>(committed.size()) : position, memory, chance);
  }
};

}  // namespace heddle::verify
