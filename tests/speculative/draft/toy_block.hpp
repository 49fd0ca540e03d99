#pragma once
// Small block drafters, and what tests of trees share.
#include <heddle/speculative/draft/block_model.hpp>

#include <cmath>
#include <limits>
#include <vector>

namespace toy {

using rows = std::vector<std::vector<float>>;

struct matrix_of {
  std::vector<float> data;
  std::int64_t columns = 0;
  matrix_of() = default;
  explicit matrix_of(const rows& r) : columns(static_cast<std::int64_t>(r[0].size())) {
    for (const auto& row : r) data.insert(data.end(), row.begin(), row.end());
  }
  heddle::tensor_view<const float, 2> view() const { return {data.data(), heddle::extents{columns ? static_cast<std::int64_t>(data.size()) / columns : 0, columns}}; }
};

inline rows logits_of(const std::vector<std::vector<double>>& laws) {
  rows u;
  for (const auto& law : laws) {
    u.emplace_back();
    for (const double p : law) u.back().push_back(p > 0 ? static_cast<float>(std::log(p)) : -std::numeric_limits<float>::infinity());
  }
  return u;
}

// Predicts the same slots whatever the context.
struct fixed_block {
  matrix_of logits;
  int calls = 0;
  heddle::block_prediction predict(std::span<const std::int32_t>, std::int32_t slots) {
    ++calls;
    return {logits.view().slice(0, std::min<std::int64_t>(slots, logits.view().extent(0))), {}};
  }
};

}  // namespace toy
