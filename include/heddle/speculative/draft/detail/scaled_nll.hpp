// Cross-entropy with labels, times a constant: the terms of losses that add several.
#pragma once
#include <heddle/distillation/sampled_token.hpp>

#include <cstdint>
#include <span>

namespace heddle::losses {

struct scaled_nll {
  std::span<const std::int32_t> labels;
  double factor = 1;
  void check(const distillation::call_shape& shape) const { distillation::check_tokens("scaled_nll", "labels", labels, shape); }
  template <class Row, class S>
  auto operator()(Row& row, S s) const {
    return factor * distillation::nll{labels}(row, s);
  }
};

}  // namespace heddle::losses
