// Weights for tokens that spell coordinates: how much a teacher's prediction is worth after the student's own digits.
//
//   V      digits v such that some number of `width` digits that begins with the emitted ones and v lies in [low, high]
//   gate   c = kappa + (1 - kappa) sum_{v in V} t_v            or, on the argmax: 1 where the teacher's first choice is in V, else kappa
//   w = c max_v t_v; rows that are no coordinate digits: w = 1. Either factor can be switched off.
//
// A prefix that can no longer reach the box has V empty and c = kappa. Numbers have exactly `width` digits, leading zeros included.
// valid_digits        bit v of the result: digit v is in V. Errors: low > high, width outside 1..18, more digits than width - 1, digits outside 0..9
// quality_weights     teacher [N, V] -> weights [N] through row functionals of the engine; `valid` holds valid_digits of each row, or not_a_coordinate.
//                     Masked rows and rows with NaN, +infinity or no support get weight 0 and the status. Errors: kappa outside [0, 1], token ids, sizes.
// Cost: O(10) per digit; weights two or three passes over the teacher's row.
// Source: quality-aware self-distillation for GUI grounding.
//
//     const std::int32_t emitted[] = {4};
//     const std::uint16_t digits = valid_digits(emitted, 3, 412, 460);          // after 4: 1 to 6
#pragma once
#include <heddle/distillation/per_row.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

inline constexpr std::uint16_t not_a_coordinate = 0x8000;

enum class quality_gate : std::uint8_t { soft, argmax, off };

struct quality_options {
  double kappa = 0.1;
  quality_gate gate = quality_gate::soft;
  bool scale_by_confidence = true;
};

inline namespace HEDDLE_ISA {

inline std::uint16_t valid_digits(std::span<const std::int32_t> emitted, std::int32_t width, std::int64_t low, std::int64_t high) {
  require(width >= 1 && width <= 18, "valid_digits: argument 'width' is ", width, "; expected 1 to 18");
  require(emitted.size() < static_cast<std::size_t>(width), "valid_digits: argument 'emitted' has ", emitted.size(), " digits; expected fewer than the width, ", width);
  require(low <= high, "valid_digits: arguments 'low' and 'high' are ", low, " and ", high, "; expected low <= high");
  std::int64_t prefix = 0, numbers = 1;   // completions of one more digit
  for (std::size_t i = 0; i < emitted.size(); ++i) {
    require(emitted[i] >= 0 && emitted[i] <= 9, "valid_digits: argument 'emitted': entry ", i, " is ", emitted[i], "; expected 0 to 9");
    prefix = 10 * prefix + emitted[i];
  }
  for (std::size_t i = emitted.size() + 1; i < static_cast<std::size_t>(width); ++i) numbers *= 10;
  std::uint16_t valid = 0;
  for (std::int64_t v = 0; v < 10; ++v) {
    const std::int64_t first = (10 * prefix + v) * numbers, last = first + numbers - 1;
    if (first <= high && last >= low) valid = static_cast<std::uint16_t>(valid | 1u << v);
  }
  return valid;
}

}  // namespace HEDDLE_ISA

/// Row functional of the teacher for `measure`: one term, the weight.
struct coordinate_quality {
  std::span<const std::int32_t> digit_tokens;   ///< the ten ids of "0" to "9"
  std::span<const std::uint16_t> valid;         ///< one per row
  quality_options options{};

  void check(const call_shape& shape) const {
    require(digit_tokens.size() == 10, "quality_weights: argument 'digit_tokens' has ", digit_tokens.size(), " entries; expected 10");
    for (std::size_t d = 0; d < 10; ++d) require(digit_tokens[d] >= 0 && digit_tokens[d] < shape.vocabulary, "quality_weights: argument 'digit_tokens': entry ", d, " is ", digit_tokens[d], "; expected 0 to ", shape.vocabulary - 1);
    require(static_cast<std::int64_t>(valid.size()) == shape.rows, "quality_weights: argument 'valid' has ", valid.size(), " entries; expected one per row, ", shape.rows);
    require(options.kappa >= 0 && options.kappa <= 1, "quality_weights: option 'kappa' is ", options.kappa, "; expected 0 to 1");
  }
  template <class Row, class T>
  auto operator()(Row& row, T t) const {
    const std::uint16_t digits = valid[static_cast<std::size_t>(row.index())];
    if (digits == not_a_coordinate) return terms(1.);
    double inside = 0;
    const std::int64_t favourite = options.gate == quality_gate::argmax ? row.argmax(t) : -1;
    for (std::size_t d = 0; d < 10; ++d)
      if (digits >> d & 1u) inside += options.gate == quality_gate::argmax ? favourite == digit_tokens[d] : math::exp(t.log_prob(digit_tokens[d]));
    const double gate = options.gate == quality_gate::off ? 1 : options.kappa + (1 - options.kappa) * (inside < 1 ? inside : 1);
    return terms(gate * (options.scale_by_confidence ? math::exp(row.maximum([=](auto v) { return t(v).log; })) : 1));
  }
};

inline namespace HEDDLE_ISA {

template <matrix Teacher>
aligned_vector<heddle::status> quality_weights(const Teacher& teacher, std::span<const std::int32_t> digit_tokens, std::span<const std::uint16_t> valid, std::span<double> weights, const quality_options& options = {}, const row_options& rows = {}) {
  const auto n = static_cast<std::int64_t>(weights.size());
  return measure(coordinate_quality{digit_tokens, valid, options}, rows, tensor_view{weights.data(), extents{n, std::int64_t{1}}}, teacher);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
