// Losses routed by what happened to a token of an interpolated rollout (interpolation.hpp).
//
//   accepted   accepted_weight  * (-sg(r) ln s_x),   r = ln t_x - ln s_x           gradient r (s - e_x) / temperature: sampled reverse KL
//   corrected  corrected_weight * (-ln s_y),          y = argmax t                  gradient (s - e_y) / temperature
//
// Named rows: student, teacher. x: the token at the row, in both cases the one that was emitted; corrected[i] != 0: it came from the residual. Equal largest
// teacher logits: the lowest id. An accepted token without mass in the teacher, or a token without mass in the student where it counts: status
// infinite_divergence. Errors: ids, sizes, a negative weight.
// Cost: one scan of the rows, one pass for the gradient; corrected rows read the teacher twice.
// Source: SAKI (supervision allocation with KL-constrained interpolation).
//
//     const auto result = loss(student, teacher, routed_supervision{.tokens = emitted, .corrected = corrected}, gradient);
#pragma once
#include <heddle/distillation/sampled_token.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

struct routed_supervision {
  std::span<const std::int32_t> tokens;
  std::span<const std::uint8_t> corrected;
  double accepted_weight = 1;
  double corrected_weight = 1;

  void check(const call_shape& shape) const {
    check_tokens("routed_supervision", "tokens", tokens, shape);
    require(static_cast<std::int64_t>(corrected.size()) == shape.rows, "routed_supervision: argument 'corrected' has ", corrected.size(), " entries; expected one per row, ", shape.rows);
    require(accepted_weight >= 0 && accepted_weight < math::infinity, "routed_supervision: option 'accepted_weight' is ", accepted_weight, "; expected a finite number, 0 or more");
    require(corrected_weight >= 0 && corrected_weight < math::infinity, "routed_supervision: option 'corrected_weight' is ", corrected_weight, "; expected a finite number, 0 or more");
  }
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const bool routed = corrected.data()[row.index()] != 0;
    const std::int64_t x = routed ? row.argmax(t) : tokens.data()[row.index()];
    const double weight = routed ? corrected_weight : accepted_weight, advantage = weight == 0 ? 0 : weight * (routed ? 1 : t.log_prob(x) - s.log_prob(x));
    return outcome{advantage == 0 ? 0 : -advantage * s.log_prob(x), detail::towards(s, x, advantage)};
  }
};

}  // namespace heddle::distillation
