// Which drafter to run, given the workload and how many requests run at once: the throughput factor of DScout.
//
//   throughput = tokens per round / time of a round,   time = context + draft + verify + misc
// A longer accepted draft may lose: 5.0 tokens in 9 ms beat 5.2 in 10 ms.
//
// The table [configurations, workloads, concurrencies] is measured. best(w, b) is the argmax of throughput; ties: the shorter round, the smaller block, the lower
// index. choose(w, b) stays with the choice it made last until another configuration gains more than `hysteresis` (relative). What is drafted never changes what
// is generated, only its speed.
// Errors: an empty table; a cell that was not measured (tokens_per_round 0 or NaN) or that takes no time; indices out of range.
// Cost: O(configurations) per call; nothing is allocated.
//
//     losses::throughput_policy policy{blocks, table, 0.05};            // blocks: draft tokens of each configuration
//     const std::int64_t configuration = policy.choose(workload, concurrency);
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/core/math.hpp>
#include <heddle/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::losses {

/// Means over the rounds of a workload; times in one unit.
struct round_profile {
  double tokens_per_round = 0;   ///< accepted drafts and the token of the target
  double context = 0, draft = 0, verify = 0, misc = 0;
  [[gnu::always_inline]] constexpr double time() const { return context + draft + verify + misc; }
};

inline namespace HEDDLE_ISA {

class throughput_policy {
 public:
  /// The table must live as long as the policy.
  throughput_policy(std::span<const std::int32_t> blocks, const tensor_view<const round_profile, 3>& table, double hysteresis = 0) : blocks_(blocks), table_(table), hysteresis_(hysteresis) {
    require(!blocks.empty(), "losses::throughput_policy: argument 'blocks' is empty; expected the block size of every configuration");
    require_shape("losses::throughput_policy", "table", table, extents<3>{static_cast<std::int64_t>(blocks.size()), -1, -1});
    require(hysteresis >= 0. && hysteresis < math::infinity, "losses::throughput_policy: argument 'hysteresis' is ", hysteresis, "; expected 0 or more");
    for (std::int64_t c = 0; c < table.extent(0); ++c)
      for (std::int64_t w = 0; w < table.extent(1); ++w)
        for (std::int64_t b = 0; b < table.extent(2); ++b) {
          const round_profile& p = table(c, w, b);
          require(p.tokens_per_round > 0. && p.tokens_per_round < math::infinity, "losses::throughput_policy: argument 'table': configuration ", c, ", workload ", w, ", concurrency ", b, ": tokens_per_round is ", p.tokens_per_round, "; expected a measured positive number");
          require(p.context >= 0. && p.draft >= 0. && p.verify >= 0. && p.misc >= 0. && p.time() > 0. && p.time() < math::infinity, "losses::throughput_policy: argument 'table': configuration ", c, ", workload ", w, ", concurrency ", b, ": a round takes ", p.time(), "; expected a positive time of parts that are 0 or more");
        }
  }

  double throughput(std::int64_t configuration, std::int64_t workload, std::int64_t concurrency) const {
    const round_profile& p = table_(configuration, workload, concurrency);
    return p.tokens_per_round / p.time();
  }
  std::int64_t best(std::int64_t workload, std::int64_t concurrency) const {
    require(workload >= 0 && workload < table_.extent(1), "losses::throughput_policy: argument 'workload' is ", workload, "; expected 0 to ", table_.extent(1) - 1);
    require(concurrency >= 0 && concurrency < table_.extent(2), "losses::throughput_policy: argument 'concurrency' is ", concurrency, "; expected 0 to ", table_.extent(2) - 1);
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < table_.extent(0); ++c)
      if (is_better(c, best, workload, concurrency)) best = c;
    return best;
  }
  std::int64_t choose(std::int64_t workload, std::int64_t concurrency) {
    const std::int64_t found = best(workload, concurrency);
    if (current_ < 0 || throughput(found, workload, concurrency) > (1. + hysteresis_) * throughput(current_, workload, concurrency)) current_ = found;
    return current_;
  }

 private:
  bool is_better(std::int64_t a, std::int64_t b, std::int64_t workload, std::int64_t concurrency) const {
    const double of_a = throughput(a, workload, concurrency), of_b = throughput(b, workload, concurrency);
    if (of_a != of_b) return of_a > of_b;
    const double time_a = table_(a, workload, concurrency).time(), time_b = table_(b, workload, concurrency).time();
    if (time_a != time_b) return time_a < time_b;
    return blocks_[static_cast<std::size_t>(a)] < blocks_[static_cast<std::size_t>(b)];
  }

  std::span<const std::int32_t> blocks_;
  tensor_view<const round_profile, 3> table_;
  double hysteresis_;
  std::int64_t current_ = -1;
};

}  // namespace HEDDLE_ISA
}  // namespace heddle::losses
