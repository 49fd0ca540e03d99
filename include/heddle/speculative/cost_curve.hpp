// What a pass of the target costs as a function of its rows, learnt while decoding.
//
//   ln seconds(r) = level + shape(r)
//
// shape is kept per row count that has been seen and interpolated between them (in seconds); beyond the largest it goes on with the mean slope so far,
// at first with prior_slope of a one-row pass per row. level is shared: a machine that gets slower, or a context that gets longer, moves all counts at
// once, so that a count seen long ago stays comparable.
// An observation moves shape, and for a count seen often level as well, by shares of its surprise, which is held to a factor of 1.5 (that of a new count
// too): one interrupted pass does not change a decision. Passes are disturbed in one direction only, so surprises downwards count three times as much, no
// pass counts as dearer than one of more rows, and a count that has not been seen for a while, nor one within half of it, is thought to be cheaper
// than it was, by a quarter after 128 passes: that it looks bad must not be the reason why it never gets another look.
// Before the first observation a one-row pass costs 1.
//
//     heddle::cost_curve cost;
//     cost.observe(1, 0.010), cost.observe(9, 0.018);
//     cost.seconds(5);                                   // 0.014
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle {

struct cost_curve_options {
  double prior_slope = 0.15;   ///< cost of a further row, in one-row passes, where nothing else is known
};

inline namespace HEDDLE_ISA {

class cost_curve {
 public:
  explicit cost_curve(const cost_curve_options& options = {}) : options_(options) {
    require(options.prior_slope >= 0 && options.prior_slope < 1e6, "cost_curve: option 'prior_slope' is ", options.prior_slope, "; expected 0 or more");
  }

  bool knows_any() const { return !seen_.empty(); }
  bool knows(std::int64_t rows) const { return find(rows) < seen_.size() && seen_[find(rows)].rows == rows; }

  /// Rows of 1 or more. Durations that are not positive say nothing and are left out.
  void observe(std::int64_t rows, double seconds) {
    require(rows >= 1, "cost_curve::observe: argument 'rows' is ", rows, "; expected 1 or more");
    if (!(seconds > 0) || seconds > 1e12) return;
    const double log_seconds = math::log(seconds);
    if (seen_.empty()) level_ = log_seconds;
    if (!knows(rows)) {
      const double expected = seen_.empty() ? log_seconds : math::log(this->seconds(rows));
      seen_.insert(seen_.begin() + static_cast<std::ptrdiff_t>(find(rows)), {rows, expected + held(log_seconds - expected) - level_, 1, 0});
    } else {
      known& k = seen_[find(rows)];
      const double surprise = held(log_seconds - level_ - k.shape), weight = surprise < 0 ? 3 : 1;
      k.times = k.times < 12 ? k.times + 1 : 12;
      k.shape += surprise * weight / (k.times + weight - 1);
      if (k.times > 4) level_ += 0.08 * surprise;
    }
    for (known& k : seen_) k.age = 2 * k.rows <= 3 * rows && 2 * rows <= 3 * k.rows ? 0 : k.age < full_age ? k.age + 1 : full_age;
  }

  double seconds(std::int64_t rows) const {
    if (seen_.empty()) return 1 + options_.prior_slope * static_cast<double>(rows - 1);
    const std::size_t i = find(rows);
    if (i < seen_.size() && (i == 0 || seen_[i].rows == rows)) return seen_[i].rows == rows ? at(i) : at(0) * below(rows, seen_[0].rows);
    if (i == seen_.size()) return at(i - 1) + slope() * static_cast<double>(rows - seen_[i - 1].rows);
    const double share = static_cast<double>(rows - seen_[i - 1].rows) / static_cast<double>(seen_[i].rows - seen_[i - 1].rows);
    return at(i - 1) + share * (at(i) - at(i - 1));
  }

 private:
  struct known {
    std::int64_t rows;
    double shape;
    int times, age;
  };
  static constexpr int full_age = 128;
  static double held(double surprise) {
    constexpr double most = 0.4054651081081644;   // ln 1.5
    return surprise > most ? most : surprise < -most ? -most : surprise;
  }

  /// The first entry of at least so many rows.
  std::size_t find(std::int64_t rows) const {
    std::size_t i = 0;
    while (i < seen_.size() && seen_[i].rows < rows) ++i;
    return i;
  }
  /// The least of this count and those above.
  double at(std::size_t i) const {
    double least = now(seen_[i]);
    for (std::size_t j = i + 1; j < seen_.size(); ++j) least = now(seen_[j]) < least ? now(seen_[j]) : least;
    return least;
  }
  double now(const known& k) const { return math::exp(level_ + k.shape) * (1 - 0.25 * k.age / full_age); }
  double below(std::int64_t rows, std::int64_t known_rows) const {
    return (1 + options_.prior_slope * static_cast<double>(rows - 1)) / (1 + options_.prior_slope * static_cast<double>(known_rows - 1));
  }
  /// Seconds of a further row behind the largest count.
  double slope() const {
    const std::size_t last = seen_.size() - 1;
    if (last == 0) return at(0) * options_.prior_slope / (1 + options_.prior_slope * static_cast<double>(seen_[0].rows - 1));
    const double mean = (at(last) - at(0)) / static_cast<double>(seen_[last].rows - seen_[0].rows);
    return mean > 0 ? mean : 0;
  }

  cost_curve_options options_;
  double level_ = 0;
  aligned_vector<known> seen_;   // ascending rows
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
