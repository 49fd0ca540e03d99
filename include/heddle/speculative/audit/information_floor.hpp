// The rejection that no drafter can avoid: what it would have to know lies in tokens that it does not see.
//
// A block drafter of order m proposes slot i from an observable O: the context and the last m tokens of the block. The target's law p_h there depends on
// the whole history h of the block. Whatever the drafter proposes given O, it is rejected with probability at least
//
//   floor_i(m) = E_O min_q E_{h|O} TV(p_h, q)        gap_i = E TV(p_h, q_h) - floor_i(m), the part that training could still remove
//
// floor_1(0) = 0, floor_i(i - 1) = 0, floors do not grow with m, and none exceeds the rejection of the mean law.
//
// information_floor     one observable: laws [H, V], a row per history, weights w_h >= 0 (empty: equal; rows of weight 0 are not read).
//                       sum_v sum_h w_h min(p_h(v), q(v)) is concave and separable in q: column by column it is a chain of segments of falling slope
//                       sum {w_h : p_h(v) above the level}, and the steepest segments of all columns fill a mass of one. Exact; a best q is written too
// rejection             sum_h w_h TV(p_h, q) / sum_h w_h of any q
// information_floor_of_order   histories [H, i - 1] grouped by their last m tokens, each group weighed by its mass
// estimate_floor        H histories sampled from the target: the plug-in value, which is too low in expectation, and the cross-fitted one (q fitted on
//                       one half, judged on the other, both ways), which is too high; truth lies between
// bootstrap_interval    quantiles of the mean over contexts, drawn again with replacement
//
// Laws have sum 1; they may be float or double, any strides. Errors: shapes, weights that are negative, not finite or all 0; a law that holds a negative
// number or NaN. Accumulator: double, in a fixed order. Cost O(V H log(V H)) time and O(V H) memory; allocates.
// Source: the information floor of block drafting, its definition after the abstract; the inner minimum is ours.
//
//     const double laws[] = {.8, .1, .1, .1, .8, .1, .1, .1, .8}, weights[] = {.5, .3, .2};
//     const double floor = audit::information_floor(tensor_view{laws, extents{3, 3}}, weights);      // 7/20
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/tensor.hpp>
#include <heddle/speculative/audit/interval.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace heddle::audit {

struct floor_estimate {
  double plug_in = 0;       ///< optimistic
  double cross_fitted = 0;  ///< pessimistic
};

namespace detail::inline HEDDLE_ISA {

struct segment {
  double slope, length;
  std::int32_t column;
};
struct weighted_level {
  double level, weight;
};

template <class Laws>
double entry(const char* function, const Laws& laws, std::int64_t h, std::int64_t v) {
  const auto p = static_cast<double>(laws(h, v));
  require(p >= 0. && p < math::infinity, function, ": argument 'laws': row ", h, ", column ", v, " is ", p, "; expected a probability");
  return p;
}

/// Sum of the weights; 1 each where there are none.
inline double total_weight(const char* function, std::span<const double> weights, std::int64_t rows) {
  require(weights.empty() || static_cast<std::int64_t>(weights.size()) == rows, function, ": argument 'weights' has ", weights.size(), " entries; expected ", rows, " or none");
  double total = weights.empty() ? static_cast<double>(rows) : 0.;
  for (std::size_t h = 0; h < weights.size(); ++h) {
    require(weights[h] >= 0. && weights[h] < math::infinity, function, ": argument 'weights': entry ", h, " is ", weights[h], "; expected a finite number, 0 or more");
    total += weights[h];
  }
  require(total > 0., function, ": argument 'weights' has sum 0; expected a history with mass");
  return total;
}
inline double weight_of(std::span<const double> weights, std::int64_t h) { return weights.empty() ? 1. : weights[static_cast<std::size_t>(h)]; }

/// Segments of one column, by rising level.
template <class Laws>
void add_segments(const Laws& laws, std::span<const double> weights, double total, std::int64_t column, aligned_vector<weighted_level>& levels, aligned_vector<segment>& segments) {
  levels.clear();
  double above = 0;
  for (std::int64_t h = 0; h < laws.extent(0); ++h) {
    const double w = weight_of(weights, h) / total;
    if (w == 0.) continue;
    const double p = entry("audit::information_floor", laws, h, column);
    if (p > 0.) levels.push_back({p, w}), above += w;
  }
  std::sort(levels.begin(), levels.end(), [](const weighted_level& a, const weighted_level& b) { return a.level < b.level; });
  double level = 0;
  for (const auto& [p, w] : levels) {
    if (p > level) segments.push_back({above, p - level, static_cast<std::int32_t>(column)}), level = p;
    above -= w;
  }
}

}  // namespace detail::inline HEDDLE_ISA

inline namespace HEDDLE_ISA {

template <tensor_of<2> Laws>
  requires host_tensor<Laws>
double rejection(const Laws& laws_in, std::span<const double> weights, std::span<const double> q) {
  const auto laws = view_of(laws_in);
  require(static_cast<std::int64_t>(q.size()) == laws.extent(1), "audit::rejection: argument 'q' has ", q.size(), " entries; expected ", laws.extent(1));
  const double total = detail::total_weight("audit::rejection", weights, laws.extent(0));
  double accepted = 0;
  for (std::int64_t h = 0; h < laws.extent(0); ++h) {
    const double w = detail::weight_of(weights, h);
    if (w == 0.) continue;
    double overlap = 0;
    for (std::int64_t v = 0; v < laws.extent(1); ++v) overlap += std::min(detail::entry("audit::rejection", laws, h, v), q[static_cast<std::size_t>(v)]);
    accepted = math::fma(w, overlap, accepted);
  }
  return 1. - accepted / total;
}

/// `best_proposal` [V]: a law that attains the floor; empty: not wanted.
template <tensor_of<2> Laws>
  requires host_tensor<Laws>
double information_floor(const Laws& laws_in, std::span<const double> weights = {}, std::span<double> best_proposal = {}) {
  const auto laws = view_of(laws_in);
  const std::int64_t vocabulary = laws.extent(1);
  const double total = detail::total_weight("audit::information_floor", weights, laws.extent(0));
  require(best_proposal.empty() || static_cast<std::int64_t>(best_proposal.size()) == vocabulary, "audit::information_floor: argument 'best_proposal' has ", best_proposal.size(), " entries; expected ", vocabulary, " or none");

  aligned_vector<detail::segment> segments;
  aligned_vector<detail::weighted_level> levels;
  for (std::int64_t v = 0; v < vocabulary; ++v) detail::add_segments(laws, weights, total, v, levels, segments);
  std::sort(segments.begin(), segments.end(), [](const detail::segment& a, const detail::segment& b) { return a.slope != b.slope ? a.slope > b.slope : a.column < b.column; });

  for (double& q : best_proposal) q = 0.;
  double mass = 1, accepted = 0;
  for (const detail::segment& s : segments) {
    const double taken = std::min(s.length, mass);
    accepted = math::fma(s.slope, taken, accepted);
    if (!best_proposal.empty()) best_proposal[static_cast<std::size_t>(s.column)] += taken;
    if ((mass -= taken) <= 0.) break;
  }
  return std::max(0., 1. - accepted);
}

/// histories [H, i - 1]: the tokens of the block before this slot; a drafter sees the last `order` of them.
template <tensor_of<2> Laws, tensor_of<2> Histories>
  requires host_tensor<Laws> && host_tensor<Histories>
double information_floor_of_order(const Laws& laws_in, const Histories& histories_in, std::span<const double> weights, std::int64_t order) {
  const auto laws = view_of(laws_in);
  const auto histories = view_of(histories_in);
  const std::int64_t count = laws.extent(0), length = histories.extent(1);
  require(histories.extent(0) == count, "audit::information_floor_of_order: argument 'histories' has ", histories.extent(0), " rows; expected ", count);
  require(order >= 0 && order <= length, "audit::information_floor_of_order: argument 'order' is ", order, "; expected 0 to ", length);
  const double total = detail::total_weight("audit::information_floor_of_order", weights, count);

  aligned_vector<std::int64_t> by_suffix(static_cast<std::size_t>(count));
  for (std::int64_t h = 0; h < count; ++h) by_suffix[static_cast<std::size_t>(h)] = h;
  const auto difference = [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t j = length - order; j < length; ++j)
      if (histories(a, j) != histories(b, j)) return histories(a, j) < histories(b, j) ? -1 : 1;
    return 0;
  };
  std::sort(by_suffix.begin(), by_suffix.end(), [&](std::int64_t a, std::int64_t b) { const int d = difference(a, b); return d != 0 ? d < 0 : a < b; });

  aligned_vector<double> of_group(static_cast<std::size_t>(count));
  double floor = 0;
  for (std::size_t first = 0, end; first < by_suffix.size(); first = end) {
    for (double& w : of_group) w = 0.;
    double mass = 0;
    for (end = first; end < by_suffix.size() && difference(by_suffix[first], by_suffix[end]) == 0; ++end) {
      const double w = detail::weight_of(weights, by_suffix[end]);
      of_group[static_cast<std::size_t>(by_suffix[end])] = w, mass += w;
    }
    if (mass > 0.) floor = math::fma(mass / total, information_floor(laws, of_group), floor);
  }
  return floor;
}

/// Rows 0 .. H - 1 are histories sampled from the target for one observable; H >= 2. Halves: even and odd rows.
template <tensor_of<2> Laws>
  requires host_tensor<Laws>
floor_estimate estimate_floor(const Laws& laws_in) {
  const auto laws = view_of(laws_in);
  const std::int64_t count = laws.extent(0);
  require(count >= 2, "audit::estimate_floor: argument 'laws' has ", count, " rows; expected at least 2 sampled histories");
  aligned_vector<double> half[2];
  for (std::int64_t h = 0; h < count; ++h)
    for (const int which : {0, 1}) half[which].push_back(h % 2 == which ? 1. : 0.);
  aligned_vector<double> q(static_cast<std::size_t>(laws.extent(1)));
  double judged = 0;
  for (const int fitted : {0, 1}) {
    information_floor(laws, half[fitted], q);
    judged += rejection(laws, half[1 - fitted], q);
  }
  return {information_floor(laws), 0.5 * judged};
}

/// The central `level` of the means of `replicates` samples of as many contexts. Key: position counts replicates, index the draws.
inline interval bootstrap_interval(std::span<const double> values, random_key key, std::int32_t replicates = 1000, double level = 0.95) {
  require(!values.empty(), "audit::bootstrap_interval: argument 'values' is empty; expected one value per context");
  require(replicates >= 1, "audit::bootstrap_interval: argument 'replicates' is ", replicates, "; expected at least 1");
  require(level > 0. && level < 1., "audit::bootstrap_interval: argument 'level' is ", level, "; expected a number between 0 and 1");
  aligned_vector<double> means(static_cast<std::size_t>(replicates));
  for (std::size_t r = 0; r < means.size(); ++r) {
    key.position = static_cast<std::uint32_t>(r);
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      key.index = static_cast<std::uint32_t>(i);
      sum += values[static_cast<std::size_t>(uniform(key) * static_cast<double>(values.size()))];
    }
    means[r] = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end(), [](double a, double b) { return a < b; });
  const auto at = [&](double share) { return means[std::min(means.size() - 1, static_cast<std::size_t>(share * static_cast<double>(means.size())))]; };
  return {at(0.5 * (1. - level)), at(0.5 * (1. + level))};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::audit
