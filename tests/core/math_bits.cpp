#include <heddle/core/math.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/softmax_state.hpp>
#include "support/bits.hpp"

#include <cmath>
#include <limits>

HEDDLE_BITS(core_math, report) {
  heddle_bits::inputs in{1};
  heddle_bits::vector<double> exps, logs;
  for (int i = 0; i < 20000; ++i) {
    const double x = static_cast<double>(in.value()) * 760.;
    exps.push_back(heddle::math::exp(x));
    logs.push_back(heddle::math::log(heddle::math::exp(x)));
  }
  report.add("core/exp", exps);
  report.add("core/log", logs);
}

HEDDLE_BITS(core_random, report) {
  heddle_bits::vector<double> noise;
  for (std::uint32_t position = 0; position < 4000; ++position)
    noise.push_back(heddle::gumbel({.seed = 7, .position = position, .index = position % 5}));
  report.add("core/gumbel", noise);
}

HEDDLE_BITS(core_softmax_state, report) {
  heddle_bits::inputs in{2};
  constexpr std::size_t dim = 67;
  heddle_bits::vector<float> out(dim), lses;
  for (int round = 0; round < 500; ++round) {
    const auto other = in.uniform(dim);
    const float lse = lses.empty() ? -std::numeric_limits<float>::infinity() : lses.back();
    lses.push_back(heddle::merge_state(out.data(), lse, other.data(), in.value() * 20.f, out.data(), std::int64_t{dim}));
  }
  report.add("core/merge/out", out);
  report.add("core/merge/lse", lses);
}
