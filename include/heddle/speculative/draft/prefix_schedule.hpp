// How many drafts of each request to verify, given the hardware: the prefix scheduler of DSpark.
//
//   survival of the i-th draft of request r: a_{r,i} = prod_{j <= i} c_{r,j},   c: calibrated chances of acceptance
//   start: l = 0, B = R rows, tau* = R expected tokens, Theta = R SPS(R);  SPS(B): target passes per second with B rows
//   admit pairs (r, i) by a descending: B += 1, tau* += a;  stop at the first tau* SPS(B) <= Theta, the best so far
//
// Stopping at the first pair that does not pay is what keeps verification lossless: whether slot i is verified then depends on chances up to c_i, which look
// at tokens before x_i only (C3 of draft_tree.hpp). The best prefix over the whole list would look at later chances, hence at x_i itself.
// Equal survivals: the lower slot first, then the lower request.
//
// confidence_calibration   a temperature per slot, c' = sigma(logit(c) / T_i), fitted left to right: T_i minimises the expected calibration error (bins of
//                          equal width) of the cumulative product against "the first i drafts were accepted"
// Source: DSpark.
//
//     heddle::prefix_schedule schedule;
//     for (const std::int32_t drafts : schedule.lengths(chances, passes_per_second)) keep_first(drafts);
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline HEDDLE_ISA {

class prefix_schedule {
 public:
  /// chances [R, K]: c_{r,j}, 0 ends a request's drafts. passes_per_second[B - 1] = SPS(B), B = 1 .. R + R K (fewer entries: no more rows than that).
  /// Valid until the next call.
  std::span<const std::int32_t> lengths(const tensor_view<const double, 2>& chances, std::span<const double> passes_per_second) {
    const std::int64_t requests = chances.extent(0), slots = chances.extent(1);
    require(static_cast<std::int64_t>(passes_per_second.size()) >= requests, "prefix_schedule: argument 'passes_per_second' has ", passes_per_second.size(), " entries; expected at least one per request, ", requests);
    for (const double x : passes_per_second) require(x > 0. && x < math::infinity, "prefix_schedule: argument 'passes_per_second' holds ", x, "; expected positive finite numbers");
    pairs_.clear(), lengths_.assign(static_cast<std::size_t>(requests), 0);
    for (std::int64_t r = 0; r < requests; ++r) {
      double survival = 1.;
      for (std::int64_t i = 0; i < slots; ++i) {
        const double c = chances(r, i);
        require(c >= 0. && c <= 1., "prefix_schedule: argument 'chances': request ", r, ", slot ", i, ": ", c, "; expected 0 to 1");
        survival *= c;
        if (survival > 0.) pairs_.push_back({survival, static_cast<std::int32_t>(i), static_cast<std::int32_t>(r)});
      }
    }
    std::sort(pairs_.begin(), pairs_.end(), [](const pair& a, const pair& b) {
      if (a.survival != b.survival) return a.survival > b.survival;
      return a.slot != b.slot ? a.slot < b.slot : a.request < b.request;
    });
    auto rows = static_cast<std::size_t>(requests);
    if (requests == 0) return lengths_;
    double expected = static_cast<double>(requests), best = expected * passes_per_second[rows - 1];
    for (const pair& p : pairs_) {
      if (rows == passes_per_second.size()) break;
      expected += p.survival;
      const double rate = expected * passes_per_second[rows++];
      if (!(rate > best)) break;
      best = rate, lengths_[static_cast<std::size_t>(p.request)] = p.slot + 1;
    }
    tokens_per_second_ = best;
    return lengths_;
  }
  /// Expected, for the latest lengths.
  double tokens_per_second() const { return tokens_per_second_; }

 private:
  struct pair {
    double survival;
    std::int32_t slot, request;
  };
  aligned_vector<pair> pairs_;
  aligned_vector<std::int32_t> lengths_;
  double tokens_per_second_ = 0;
};

class confidence_calibration {
 public:
  confidence_calibration() = default;
  /// chances [rounds, K] as estimated, accepted[round]: how many drafts were. Bins of the calibration error: `bins`.
  confidence_calibration(const tensor_view<const double, 2>& chances, std::span<const std::int32_t> accepted, std::int32_t bins = 10) : bins_(bins) {
    const std::int64_t rounds = chances.extent(0), slots = chances.extent(1);
    require(static_cast<std::int64_t>(accepted.size()) == rounds, "confidence_calibration: argument 'accepted' has ", accepted.size(), " entries; expected one per round, ", rounds);
    require(bins >= 1, "confidence_calibration: argument 'bins' is ", bins, "; expected 1 or more");
    for (std::int64_t n = 0; n < rounds; ++n)
      for (std::int64_t i = 0; i < slots; ++i) require(chances(n, i) >= 0. && chances(n, i) <= 1., "confidence_calibration: argument 'chances': round ", n, ", slot ", i, ": ", chances(n, i), "; expected 0 to 1");
    aligned_vector<double> survival(static_cast<std::size_t>(rounds), 1.), trial(survival);
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      double best = 1., least = math::infinity;
      for (int step = 0; step <= 120; ++step) {   // from 1 outward, so that ties leave the estimate alone
        const int exponent = step % 2 ? -(step + 1) / 2 : step / 2;
        const double temperature = math::exp(exponent * 0.05);
        for (std::int64_t n = 0; n < rounds; ++n) trial[static_cast<std::size_t>(n)] = survival[static_cast<std::size_t>(n)] * softened(chances(n, slot), temperature);
        if (const double error = calibration_error(trial, accepted, static_cast<std::int32_t>(slot) + 1); error < least) least = error, best = temperature;
      }
      temperatures_.push_back(best), errors_.push_back(rounds ? least : 0.);
      for (std::int64_t n = 0; n < rounds; ++n) survival[static_cast<std::size_t>(n)] *= softened(chances(n, slot), best);
    }
  }

  double operator()(std::int32_t slot, double chance) const { return softened(chance, temperatures_[static_cast<std::size_t>(slot)]); }
  std::span<const double> temperatures() const { return temperatures_; }
  /// Of the cumulative products, after calibration, on the rounds it was fitted to.
  std::span<const double> calibration_errors() const { return errors_; }

 private:
  /// sigma(logit(c) / T)
  static double softened(double c, double temperature) {
    if (c <= 0. || c >= 1.) return c;
    return 1. / (1. + math::exp((math::log(1. - c) - math::log(c)) / temperature));
  }
  double calibration_error(std::span<const double> predicted, std::span<const std::int32_t> accepted, std::int32_t count) {
    sums_.assign(static_cast<std::size_t>(bins_), 0.);
    for (std::size_t n = 0; n < predicted.size(); ++n) {
      const auto bin = std::min<std::size_t>(static_cast<std::size_t>(predicted[n] * bins_), static_cast<std::size_t>(bins_) - 1);
      sums_[bin] += predicted[n] - (accepted[n] >= count ? 1. : 0.);
    }
    double error = 0;
    for (const double s : sums_) error += s > 0 ? s : -s;
    return predicted.empty() ? 0. : error / static_cast<double>(predicted.size());
  }

  std::int32_t bins_ = 10;
  aligned_vector<double> temperatures_, errors_, sums_;
};

}  // namespace heddle::inline HEDDLE_ISA
