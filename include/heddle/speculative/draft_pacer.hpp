// How many tokens to draft: as many as the next pass pays for.
//
//   l* = argmax_l  (1 + sum_{i <= l} S_i) / (C(1 + l) + c l)
//
// S_i, the outlook: the probability that draft i is accepted (with all before it, in a chain); C: seconds of a target pass by rows (cost_curve.hpp);
// c: seconds of drafting a token. C and c are measured while decoding, with the pacer's clock. l* = 0: drafting does not pay. The first pass has no drafts,
// as the measure of the others. Where drafts were possible but did not pay for `patience` rounds, one round tries the best l > 0, to look whether cost or
// acceptance have changed; each trial doubles the wait, up to 16 times, until drafting pays again. (Lengths that looked bad otherwise, none among them,
// are tried again because the cost curve trusts old measurements less.)
//
// Several requests that share a pass: drafts are admitted by falling S over all requests, and the best stage of that sequence is taken; the argmax of the
// total, since every request's S falls. (Where it does not, as may happen between nodes of a tree, a draft waits for those before it.)
//
// Output. Lengths change how fast tokens come, never which, for rules whose output does not depend on drafts (match, greedy). For sampled drafts under a
// sampling rule the law of the output is unchanged because a length is decided before the round's drafts are drawn, from earlier rounds and clocks only
// (draft_tree.hpp, C3): that is also why the maximum may be taken over all lengths. An outlook that looked at the drawn tokens would need the early
// stop of the prefix scheduler instead.
// Sources: the throughput argmax of CaDDTree (a cost-aware DDTree) and the prefix scheduler of DSpark.
//
//     heddle::draft_pacer pacer;
//     loop.pace_by(pacer);                             // a decode_loop or decode_batch; one pacer per model, kept from one text to the next
#pragma once
#include <heddle/core/aligned_vector.hpp>
#include <heddle/core/error.hpp>
#include <heddle/speculative/cost_curve.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

#include <time.h>

namespace heddle {

struct draft_pacer_options {
  double (*clock)(void*) = nullptr;   ///< seconds; none: the system's monotonic clock
  void* clock_state = nullptr;        ///< handed to it
  std::int32_t patience = 32;         ///< rounds without drafts before one tries
  cost_curve_options cost{};
};

inline namespace HEDDLE_ISA {

class draft_pacer {
 public:
  explicit draft_pacer(const draft_pacer_options& options = {}) : options_(options), pass_(options.cost), wait_(options.patience) {
    require(options.patience >= 1, "draft_pacer: option 'patience' is ", options.patience, "; expected 1 or more");
  }

  /// The best number of drafts for one request.
  std::int32_t length(std::span<const double> outlook) {
    std::int32_t one = 0;
    lengths({&outlook, 1}, {&one, 1});
    return one;
  }

  /// The best numbers for requests that share a pass.
  void lengths(std::span<const std::span<const double>> outlooks, std::span<std::int32_t> out) {
    require(out.size() == outlooks.size(), "draft_pacer::lengths: argument 'out' has ", out.size(), " entries; expected one per request, ", outlooks.size());
    for (std::int32_t& n : out) n = 0;
    const auto requests = static_cast<std::int64_t>(outlooks.size());
    if (requests == 0 || !pass_.knows_any()) return;
    const double plain = static_cast<double>(requests) / pass_.seconds(requests);
    admit(outlooks);
    double tokens = static_cast<double>(requests), best = 0;
    std::size_t stage = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      tokens += order_[i].probability;
      const auto drafts = static_cast<std::int64_t>(i + 1);
      const double rate = tokens / (pass_.seconds(requests + drafts) + draft_seconds_ * static_cast<double>(drafts));
      if (rate > best) best = rate, stage = i + 1;
    }
    const bool pays = best > plain;
    if (pays) wait_ = options_.patience, idle_ = 0;
    else if (stage == 0 || ++idle_ < wait_) return;
    else idle_ = 0, wait_ = wait_ < 16 * options_.patience ? 2 * wait_ : wait_;
    for (std::size_t i = 0; i < stage; ++i) ++out[order_[i].request];
  }

  double now() const {
    if (options_.clock) return options_.clock(options_.clock_state);
    ::timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  /// What a pass took, from the end of drafting until its rows are kept.
  void passed(std::int64_t rows, double seconds) { pass_.observe(rows, seconds); }
  void drafted(std::int64_t drafts, double seconds) {
    if (drafts <= 0 || !(seconds >= 0)) return;
    const double each = seconds / static_cast<double>(drafts);
    draft_seconds_ += (drafting_seen_ ? 0.2 : 1.) * (each - draft_seconds_);
    drafting_seen_ = true;
  }
  const cost_curve& pass_cost() const { return pass_; }
  double seconds_per_draft() const { return draft_seconds_; }

 private:
  struct admission {
    std::size_t request;
    double probability;
  };
  /// order_: all drafts by falling probability, each behind those before it.
  void admit(std::span<const std::span<const double>> outlooks) {
    order_.clear();
    next_.assign(outlooks.size(), 0);
    for (;;) {
      std::size_t best = outlooks.size();
      for (std::size_t r = 0; r < outlooks.size(); ++r)
        if (next_[r] < outlooks[r].size() && (best == outlooks.size() || outlooks[r][next_[r]] > outlooks[best][next_[best]])) best = r;
      if (best == outlooks.size()) return;
      order_.push_back({best, outlooks[best][next_[best]]});
      ++next_[best];
    }
  }

  draft_pacer_options options_;
  cost_curve pass_;
  double draft_seconds_ = 0;
  bool drafting_seen_ = false;
  std::int32_t idle_ = 0, wait_;
  aligned_vector<admission> order_;
  aligned_vector<std::size_t> next_;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle
