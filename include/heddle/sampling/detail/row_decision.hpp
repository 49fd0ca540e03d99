// The decisions about one contiguous row of float logits: which tokens the truncations keep, and which one is drawn.
//
// The candidates are a superset of the kept tokens, made small by cheap bounds (the k-th largest block maximum, the min-p threshold, an
// estimate of where the mass of top-p ends) and then cut down exactly.
#pragma once
#include <heddle/core/random.hpp>
#include <heddle/core/workspace.hpp>
#include <heddle/sampling/detail/race.hpp>
#include <heddle/sampling/detail/scan.hpp>
#include <heddle/sampling/detail/selection.hpp>
#include <heddle/sampling/detail/weights.hpp>
#include <heddle/sampling/parameters.hpp>

#include <cstdint>
#include <limits>

namespace heddle::sampling::detail::inline HEDDLE_ISA {

struct row_scratch {
  float* row = nullptr;             // the edited or widened row
  float* block_max = nullptr;       // of every block of the row
  float* sample = nullptr;          // selections among few logits
  float* logits = nullptr;          // of the kept tokens
  std::uint64_t* masses = nullptr;  // of the kept tokens
  std::int32_t* ids = nullptr;      // the kept tokens
  double* keys = nullptr;           // typical sampling
  std::int32_t* counts = nullptr;   // a zero per token between calls

  static constexpr std::int64_t sample_size = 4096;
  void place(scratch_layout& layout, std::int64_t vocabulary) {
    const auto n = static_cast<std::size_t>(vocabulary), blocks = static_cast<std::size_t>(blocks_of(vocabulary));
    row = layout.take<float>(n), block_max = layout.take<float>(blocks);
    sample = layout.take<float>(blocks > sample_size ? blocks : static_cast<std::size_t>(sample_size));
    logits = layout.take<float>(n), masses = layout.take<std::uint64_t>(n), ids = layout.take<std::int32_t>(n);
    keys = layout.take<double>(n), counts = layout.take<std::int32_t>(n);
  }
};

class row_decision {
 public:
  row_decision(const float* z, std::int64_t n, const parameters& p, const random_key& key, row_scratch& scratch) : z_(z), n_(n), p_(p), key_(key), at_(scratch) {
    const scanned row = scan(z, n, at_.block_max);
    soft_.max = row.max;
    if (row.has_nan)
      status_ = heddle::status::nan_logit;
    else if (row.max == std::numeric_limits<float>::infinity())
      status_ = heddle::status::inf_logit;
    else if (row.max == impossible)
      status_ = heddle::status::empty_support;
    else if (!greedy())
      soft_.inverse_temperature = 1. / static_cast<double>(p.temperature);
  }

  heddle::status status() const { return status_; }
  std::int64_t count() const { return count_; }
  std::uint64_t total() const { return total_; }

  /// Leaves the kept tokens in the scratch, in order of ids, with masses.
  void keep() {
    if (status_ != heddle::status::ok) return;
    if (greedy()) {
      keep_only_argmax();
    } else {
      find_candidates();
      truncate();
    }
    total_ = masses(at_.logits, count_, soft_, at_.masses);
  }

  drawn draw_token(draw how) {
    if (status_ != heddle::status::ok) return {-1, status_};
    if (greedy()) return {first_at(z_, n_, at_.block_max, soft_.max)};
    find_candidates();
    if (how == draw::gumbel) {
      if (bounded() && nucleus() && !typical() && !removes_top()) {  // top-p only matters if it would remove the winner
        const leader best = winner();
        total_ = masses(at_.logits, count_, soft_, at_.masses);
        if (is_below(mass_above(best.logit), total_)) return {best.token};
      }
      truncate();
      return {winner().token};
    }
    truncate();
    total_ = masses(at_.logits, count_, soft_, at_.masses);
    return {by_inverse_cdf()};
  }

 private:
  bool greedy() const { return p_.temperature == 0.f || p_.top_p <= 0.f; }
  bool has_top_k() const { return p_.top_k > 0 && p_.top_k < n_; }
  bool bounded() const { return has_top_k() || p_.min_p > 0.f; }
  bool nucleus() const { return p_.top_p < 1.f; }
  bool typical() const { return p_.typical_p < 1.f; }
  bool removes_top() const { return p_.xtc_probability > 0.f && p_.xtc_threshold <= 0.5f; }
  bool is_below(std::uint64_t mass, std::uint64_t whole) const { return static_cast<double>(mass) < limit(static_cast<double>(whole)); }
  double limit(double whole) const { return static_cast<double>(p_.top_p) * whole; }

  // --- candidates ---

  void find_candidates() {
    float floor = std::numeric_limits<float>::lowest();
    bool listed = false;
    if (has_top_k()) {
      count_ = collect(z_, n_, at_.block_max, top_k_floor(), at_.ids, at_.logits);
      listed = count_ >= p_.top_k;
    } else if (p_.min_p > 0.f) {
      floor = min_p_floor();
    }
    if (!bounded() && nucleus() && !typical() && !removes_top()) {
      floor = nucleus_floor();
      for (double nats = 1; !holds_nucleus(floor); nats *= 2) floor = lower(floor, nats);
      return;
    }
    if (!listed) count_ = collect(z_, n_, at_.block_max, floor, at_.ids, at_.logits);
    if (has_top_k()) cut_top_k();
    if (p_.min_p > 0.f) cut_min_p();
  }

  /// A logit that at least k tokens reach, or nearly so.
  float top_k_floor() const {
    const std::int64_t blocks = blocks_of(n_), group = blocks >= 8 * std::int64_t{p_.top_k} ? blocks / (4 * std::int64_t{p_.top_k}) : 1;
    std::int64_t m = 0;
    for (std::int64_t b = 0; b < blocks; b += group) {
      float top = at_.block_max[b];
      for (std::int64_t i = b + 1; i < b + group && i < blocks; ++i) top = at_.block_max[i] > top ? at_.block_max[i] : top;
      if (top > impossible) at_.sample[m++] = top;
    }
    if (p_.top_k <= m) return weighted_threshold(at_.sample, unit_weights{}, m, static_cast<double>(p_.top_k));
    const std::int64_t stride = n_ / row_scratch::sample_size + 1;
    m = 0;
    for (std::int64_t i = 0; i < n_; i += stride)
      if (z_[i] > impossible) at_.sample[m++] = z_[i];
    const std::int64_t rank = p_.top_k / stride * 5 / 4 + 16;
    return m > rank ? weighted_threshold(at_.sample, unit_weights{}, m, static_cast<double>(rank)) : std::numeric_limits<float>::lowest();
  }

  /// Exactly the k first by (logit descending, id ascending).
  void cut_top_k() {
    if (count_ <= p_.top_k) return;
    const float threshold = weighted_threshold(at_.logits, unit_weights{}, count_, static_cast<double>(p_.top_k));
    std::int64_t larger = 0;
    for (std::int64_t i = 0; i < count_; ++i) larger += at_.logits[i] > threshold;
    std::int64_t ties = p_.top_k - larger;
    filter([&](std::int64_t i) { return at_.logits[i] > threshold || (at_.logits[i] == threshold && ties-- > 0); });
  }

  float min_p_floor() const {
    const double reach = math::log(static_cast<double>(p_.min_p)) / soft_.inverse_temperature, value = static_cast<double>(soft_.max) + reach;
    const double safe = value - 1e-6 * ((value < 0 ? -value : value) - reach);
    return safe > static_cast<double>(std::numeric_limits<float>::lowest()) ? static_cast<float>(safe) : std::numeric_limits<float>::lowest();
  }
  void cut_min_p() {
    filter([&](std::int64_t i) { return math::exp(soft_(at_.logits[i])) >= static_cast<double>(p_.min_p); });
  }

  /// Where the mass of top-p probably ends: the logits from the median of the block maxima up, and a sample of one in 64 of the others, in a histogram
  /// of eighths of a nat.
  float nucleus_floor() {
    constexpr int buckets = 320;
    constexpr float lowest = std::numeric_limits<float>::lowest();
    const std::int64_t blocks = blocks_of(n_);
    if (blocks < 16 || beyond_float(soft_)) return lowest;
    std::int64_t m = 0;
    for (std::int64_t b = 0; b < blocks; ++b)
      if (at_.block_max[b] > impossible) at_.sample[m++] = at_.block_max[b];
    const float head = weighted_threshold(at_.sample, unit_weights{}, m, static_cast<double>(m / 2 + 1));
    const float per_logit = static_cast<float>(8. * soft_.inverse_temperature);
    float count_of[buckets] = {};
    const auto bucket_of = [&](float z) {
      const float b = (soft_.max - z) * per_logit;
      return b < buckets - 1 ? static_cast<int>(b) : buckets - 1;
    };
    const std::int64_t best = collect(z_, n_, at_.block_max, head, at_.ids, at_.logits);
    for (std::int64_t i = 0; i < best; ++i) count_of[bucket_of(at_.logits[i])] += 1.f;
    for (std::int64_t stretch = 0; 1024 * stretch < n_; ++stretch)
      for (std::int64_t first = 1024 * stretch + stretch % 64 * 16, i = first; i < first + 16 && i < n_; ++i)
        if (z_[i] < head) count_of[bucket_of(z_[i])] += 64.f;
    double masses_of[buckets], whole = 0, sum = 0, center = 0.9394130628134758;  // e^{-1/16}
    for (int b = 0; b < buckets; ++b, center *= 0.8824969025845955) whole += masses_of[b] = static_cast<double>(count_of[b]) * center;  // e^{-1/8}
    int last = 0;
    while (last < buckets - 1 && (sum += masses_of[last]) < limit(whole)) ++last;
    const double value = static_cast<double>(soft_.max) - (last + 3) / (8. * soft_.inverse_temperature);
    return last < buckets - 3 && value > static_cast<double>(lowest) ? static_cast<float>(value) : lowest;
  }
  float lower(float floor, double nats) const {
    const double value = static_cast<double>(floor) - nats / soft_.inverse_temperature, least = static_cast<double>(std::numeric_limits<float>::lowest());
    const auto next = static_cast<float>(value > least ? value : least);
    return next < floor ? next : std::numeric_limits<float>::lowest();
  }
  /// Collects the tokens from `floor` up; whether top-p keeps none below them.
  bool holds_nucleus(float floor) {
    count_ = collect(z_, n_, at_.block_max, floor, at_.ids, at_.logits);
    if (floor == std::numeric_limits<float>::lowest()) return true;
    total_ = masses(at_.logits, count_, soft_, at_.masses);
    const auto enough = [&](const mass_bounds& others) { return static_cast<double>(total_) >= limit(static_cast<double>(total_) + others.high); };
    return enough(coarse_others()) || enough(mass_of_others());
  }

  double coarse_whole() {
    if (coarse_whole_ < 0.) coarse_whole_ = coarse_sum(z_, n_, soft_);
    return coarse_whole_;
  }
  double rough_whole() {
    if (rough_whole_ < 0.) rough_whole_ = rough_sum(z_, n_, soft_);
    return rough_whole_;
  }
  /// The mass of the tokens that are not in the list (total_ is that of those in it): within a few percent, and closely. Where many tokens are close
  /// to the boundary, a few percent decide nothing.
  mass_bounds coarse_others() {
    if (!beyond_float(soft_) && count_ <= 64) return difference(coarse_whole(), coarse_sum(at_.logits, count_, soft_), n_, coarse_excess);
    return {0., std::numeric_limits<double>::infinity()};
  }
  mass_bounds mass_of_others() {
    if (!beyond_float(soft_)) return difference(rough_whole(), rough_sum(at_.logits, count_, soft_), n_);
    const auto exact = static_cast<double>(total_mass(z_, n_, soft_) - total_);
    return {exact, exact};
  }

  // --- truncations that need masses of the whole row ---

  void truncate() {
    if (nucleus()) cut_top_p();
    if (typical()) cut_typical();
    if (removes_top()) remove_top_choices();
  }

  /// The candidates are the first tokens in the order of top-k: only the mass of those after them is missing.
  void cut_top_p() {
    total_ = masses(at_.logits, count_, soft_, at_.masses);
    float least = at_.logits[0];
    for (std::int64_t i = 1; i < count_; ++i)
      if (at_.logits[i] < least) least = at_.logits[i];
    if (is_below(mass_above(least), total_)) return;  // all stay, whatever lies below
    float threshold = least;
    const auto threshold_for = [&](double whole) { return weighted_threshold(at_.logits, static_cast<const std::uint64_t*>(at_.masses), count_, limit(whole)); };
    const auto decided_by = [&](const mass_bounds& others) {   // the same tokens whatever the mass of the others within its bounds
      threshold = threshold_for(static_cast<double>(total_) + others.low);
      std::uint64_t kept = 0;
      for (std::int64_t i = 0; i < count_; ++i) kept += at_.logits[i] >= threshold ? at_.masses[i] : 0;
      return !(threshold > least) || static_cast<double>(kept) >= limit(static_cast<double>(total_) + others.high);
    };
    if (!decided_by(coarse_others()) && !decided_by(mass_of_others())) threshold = threshold_for(static_cast<double>(total_mass(z_, n_, soft_)));
    filter([&](std::int64_t i) { return at_.logits[i] >= threshold; });
  }

  /// c_v = |-ln p_v - entropy| = |x_v - mean x|
  void cut_typical() {
    std::uint64_t total = 0;
    double sums[8] = {};
    for (std::int64_t v = 0; v < n_; ++v)
      if (const std::uint64_t w = mass(z_[v], soft_)) {
        total += w;
        sums[v % 8] = math::fma(static_cast<double>(w), soft_(z_[v]), sums[v % 8]);
      }
    const double mean = (((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))) / static_cast<double>(total);
    const auto closeness = [&](float z) {
      const double distance = soft_.perturbed(z, -mean);
      return distance < 0 ? distance : -distance;
    };
    std::int64_t m = 0;
    for (std::int64_t v = 0; v < n_; ++v)
      if (z_[v] > impossible) at_.masses[m] = mass(z_[v], soft_), at_.keys[m++] = closeness(z_[v]);
    const double threshold = weighted_threshold(at_.keys, static_cast<const std::uint64_t*>(at_.masses), m, static_cast<double>(p_.typical_p) * static_cast<double>(total));
    filter([&](std::int64_t i) { return closeness(at_.logits[i]) >= threshold; });
    if (count_ == 0) keep_only_argmax();
  }

  /// XTC: with the given chance, of all tokens with p >= threshold only the least probable stays (of equal ones the last).
  void remove_top_choices() {
    random_key coin = key_;
    coin.purpose = purpose::transform, coin.index = 0;
    if (!(uniform(coin) < static_cast<double>(p_.xtc_probability))) return;
    const double least_mass = static_cast<double>(p_.xtc_threshold) * static_cast<double>(total_mass(z_, n_, soft_));
    const auto is_top = [&](std::int64_t i) {
      const std::uint64_t w = mass(at_.logits[i], soft_);
      return w > 0 && static_cast<double>(w) >= least_mass;   // a token without mass must not be the one that stays
    };
    std::int64_t stays = -1;
    for (std::int64_t i = 0; i < count_; ++i)
      if (is_top(i) && (stays < 0 || at_.logits[i] <= at_.logits[stays])) stays = i;
    filter([&](std::int64_t i) { return i == stays || !is_top(i); });
  }

  // --- the kept list ---

  template <class Keep>
  void filter(const Keep& keeps) {
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < count_; ++i)
      if (keeps(i)) at_.ids[kept] = at_.ids[i], at_.logits[kept++] = at_.logits[i];
    count_ = kept;
  }
  void keep_only_argmax() { at_.ids[0] = first_at(z_, n_, at_.block_max, soft_.max), at_.logits[0] = soft_.max, count_ = 1; }

  std::uint64_t mass_above(float logit) const {
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < count_; ++i) sum += at_.logits[i] > logit ? at_.masses[i] : 0;
    return sum;
  }
  leader winner() const { return race(at_.ids, at_.logits, count_, soft_, key_); }

  std::int32_t by_inverse_cdf() const {
    __extension__ using wide = unsigned __int128;
    random_key first = key_;
    first.index = 0;
    const auto target = static_cast<std::uint64_t>(static_cast<wide>(total_) * (2 * std::uint64_t{random_bits(first)} + 1) >> 33);  // u * total, rounded down
    std::uint64_t sum = 0;
    std::int64_t i = 0;
    while ((sum += at_.masses[i]) <= target) ++i;
    return at_.ids[i];
  }

  const float* z_;
  std::int64_t n_;
  const parameters& p_;
  random_key key_;
  row_scratch& at_;
  softness soft_{};
  heddle::status status_ = heddle::status::ok;
  std::int64_t count_ = 0;   // of the tokens in the scratch
  std::uint64_t total_ = 0;  // their mass
  double coarse_whole_ = -1., rough_whole_ = -1.;
};

}  // namespace heddle::sampling::detail::inline HEDDLE_ISA
