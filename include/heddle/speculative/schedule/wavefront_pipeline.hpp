// The pipeline of wavefront decoding and what it costs: schedule, expected calls, a simulator, and the comparison with drafting first and verifying then.
//
//   T loops, exit depth d: position t + 1 enters when cell (t, d) is done, so cell (t, r) is made in call  s = s_0 + d (t - t_0) + r
//   In flight: ceil(T / d) positions, one batched call per diagonal. When (t, T) is done the draft for t + 1 is right, and the wave goes on, or it is
//   wrong: everything behind t goes, and t + 1 enters anew.
//   A right draft costs d calls, a wrong one T:   calls per token = alpha d + (1 - alpha) T,   speedup = T / (alpha d + (1 - alpha) T) if all calls cost the same
// Phase-separated self-speculation drafts K tokens with d loops each, then takes them through the other T - d together:
//   K d + T - d calls per min(L + 1, K) tokens, mean (1 - alpha^K) / (1 - alpha): at least alpha^K (T - d) (1 - alpha) / (1 - alpha^K) calls per token more
//
// wavefront_schedule      the formulas, T = `loops`, d = `exit_depth`; d = T or T = 1 is plain decoding
// wavefront_pipeline      which positions are in flight and how far each is: two integers, as depths of neighbours differ by d. The decoder (wavefront.hpp) and the
//                         simulator step the same one
// simulate_wavefront      tokens one by one; agree(i): whether the draft for token i is right. Drafts that are dropped are not asked about
// simulate_phase_separated   the same for the other scheme
// Time of a call: weights + keys_values * (recurrences read) + cell * (cells). Cells of one call that read the same recurrence read it once, as they
// share the text; sharing recurrences (looped_model.hpp) therefore keeps a wide call as cheap as a narrow one.
// Figures of the paper this goes back to: 2.42 x (T = 4, d = 1: alpha = .782, 1.654 calls per token), 3.54 x, and 4.81 x with shared keys and values.
// All in double. Cost of a simulation: O(calls * cells). Source: Wavefront Decoding.
//
//     const heddle::wavefront_schedule schedule{.loops = 4, .exit_depth = 1};
//     const double alpha = schedule.agreement_for(2.42);                              // .782
//     const auto run = heddle::simulate_wavefront(schedule, 10000, agree, {.weights = 1, .keys_values = 0.1});
//     const double speedup = heddle::plain_decoding(schedule, 10000, {.weights = 1, .keys_values = 0.1}).time / run.time;
#pragma once
#include <heddle/core/error.hpp>
#include <heddle/speculative/schedule/looped_model.hpp>

#include <cstdint>
#include <span>

namespace heddle {

/// Of one call, in any one unit of time.
struct loop_call_cost {
  double weights = 1;       ///< of the block's weights
  double keys_values = 0;   ///< of one recurrence of the text's keys and values
  double cell = 0;          ///< of one cell's arithmetic
};

struct simulated_run {
  std::int64_t calls = 0;
  std::int64_t cells = 0;
  std::int64_t tokens = 0;
  double time = 0;
  [[gnu::always_inline]] constexpr double calls_per_token() const { return static_cast<double>(calls) / static_cast<double>(tokens); }
};

inline namespace HEDDLE_ISA {

struct wavefront_schedule {
  std::int32_t loops = 1;        ///< T
  std::int32_t exit_depth = 1;   ///< d

  void check(const char* function) const {
    require(loops >= 1, function, ": the model makes ", loops, " loops; expected 1 or more");
    require(exit_depth >= 1 && exit_depth <= loops, function, ": 'exit_depth' is ", exit_depth, "; expected 1 to the number of loops, ", loops);
  }
  /// Of cell (t, r) while the drafts are right, counted from the call before (t_0, 1); offset = t - t_0.
  std::int64_t call_of(std::int64_t offset, std::int32_t depth) const { return exit_depth * offset + depth; }
  std::int32_t positions_in_flight() const { return (loops + exit_depth - 1) / exit_depth; }

  double calls_per_token(double alpha) const { return alpha * exit_depth + (1 - alpha) * loops; }
  double speedup(double alpha) const { return loops / calls_per_token(alpha); }
  /// The alpha at which that speedup is reached.
  double agreement_for(double speedup) const {
    require(loops > exit_depth, "wavefront_schedule::agreement_for: 'exit_depth' is ", exit_depth, "; expected less than the number of loops, ", loops);
    return (loops - loops / speedup) / (loops - exit_depth);
  }
  /// Of drafting `drafts` tokens first.
  double phase_separated_calls_per_token(double alpha, std::int32_t drafts) const {
    double tokens = 0, power = 1;
    for (std::int32_t i = 0; i < drafts; ++i) tokens += power, power *= alpha;
    return (drafts * exit_depth + loops - exit_depth) / tokens;
  }
};

class wavefront_pipeline {
 public:
  explicit wavefront_pipeline(const wavefront_schedule& schedule) : schedule_(schedule) { schedule.check("wavefront_pipeline"); }

  /// Positions in flight, and the loops that the i-th has made.
  std::int32_t size() const { return size_; }
  std::int32_t depth(std::int32_t i) const { return first_ - i * schedule_.exit_depth; }

  void advance() { ++first_; }
  /// The newest position is ready to draft the next.
  bool exits() const { return depth(size_ - 1) == schedule_.exit_depth && schedule_.exit_depth < schedule_.loops; }
  void enter() { ++size_; }
  /// The first position has made all loops: then either the wave goes on with the second, or another position starts over.
  bool finishes() const { return first_ == schedule_.loops; }
  void go_on() { first_ -= schedule_.exit_depth, --size_; }
  void start_over() { first_ = 0, size_ = 1; }

 private:
  wavefront_schedule schedule_;
  std::int32_t first_ = 0, size_ = 1;
};

inline void check_simulation(const char* function, const wavefront_schedule& schedule, std::int64_t tokens, std::span<const std::int32_t> kv_map) {
  schedule.check(function);
  check_kv_map(function, kv_map, schedule.loops);
  require(tokens >= 1, function, ": argument 'tokens' is ", tokens, "; expected 1 or more");
}

template <class Agree>
simulated_run simulate_wavefront(const wavefront_schedule& schedule, std::int64_t tokens, Agree&& agree, const loop_call_cost& cost = {}, std::span<const std::int32_t> kv_map = {}) {
  check_simulation("simulate_wavefront", schedule, tokens, kv_map);
  simulated_run run;
  wavefront_pipeline pipeline(schedule);
  while (run.tokens < tokens) {
    pipeline.advance();
    ++run.calls, run.cells += pipeline.size();
    std::int32_t recurrences = 0;   // depths in flight descend, so equal sources are neighbours
    for (std::int32_t i = 0; i < pipeline.size(); ++i) recurrences += i == 0 || kv_source(kv_map, pipeline.depth(i)) != kv_source(kv_map, pipeline.depth(i - 1));
    run.time += cost.weights + cost.keys_values * recurrences + cost.cell * pipeline.size();
    if (pipeline.exits() && run.tokens + pipeline.size() < tokens) pipeline.enter();
    if (!pipeline.finishes()) continue;
    ++run.tokens;
    if (pipeline.size() > 1 && agree(run.tokens)) pipeline.go_on();
    else pipeline.start_over();
  }
  return run;
}

inline simulated_run plain_decoding(const wavefront_schedule& schedule, std::int64_t tokens, const loop_call_cost& cost = {}) {
  const std::int64_t calls = schedule.loops * tokens;
  return {.calls = calls, .cells = calls, .tokens = tokens, .time = static_cast<double>(calls) * (cost.weights + cost.keys_values + cost.cell)};
}

/// `drafts` per round; the tokens of the last round are all counted.
template <class Agree>
simulated_run simulate_phase_separated(const wavefront_schedule& schedule, std::int32_t drafts, std::int64_t tokens, Agree&& agree, const loop_call_cost& cost = {}) {
  check_simulation("simulate_phase_separated", schedule, tokens, {});
  require(drafts >= 1, "simulate_phase_separated: argument 'drafts' is ", drafts, "; expected 1 or more");
  simulated_run run;
  const std::int64_t drafting = std::int64_t{drafts} * schedule.exit_depth, verifying = schedule.loops - schedule.exit_depth;
  while (run.tokens < tokens) {
    run.calls += drafting + verifying, run.cells += drafting + drafts * verifying;
    run.time += static_cast<double>(drafting) * (cost.weights + cost.keys_values + cost.cell) + static_cast<double>(verifying) * (cost.weights + cost.keys_values + cost.cell * drafts);
    for (std::int32_t i = 1; ++run.tokens, i < drafts && agree(run.tokens); ++i) {}
  }
  return run;
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
