#pragma once
// Attention of one row in double, straight from the formula: O = sum_j e^{z_j - L} v_j, L = ln sum_j e^{z_j}.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace reference {

inline constexpr double hidden = -std::numeric_limits<double>::infinity();

struct softmax_state {
  std::vector<double> out;
  double lse = hidden;
};

// logit(j): z_j, or `hidden`; value(j, c): channel c of v_j. sink: a logit without a value.
template <class Logit, class Value>
softmax_state attention(std::int64_t keys, std::int64_t head_dim_v, Logit logit, Value value, double sink = hidden) {
  std::vector<double> z(static_cast<std::size_t>(keys));
  double top = sink;
  for (std::int64_t j = 0; j < keys; ++j) {
    z[static_cast<std::size_t>(j)] = logit(j);
    if (z[static_cast<std::size_t>(j)] > top) top = z[static_cast<std::size_t>(j)];
  }
  softmax_state s{std::vector<double>(static_cast<std::size_t>(head_dim_v)), hidden};
  if (top == hidden) return s;
  double sum = sink == hidden ? 0 : std::exp(sink - top);
  for (std::int64_t j = 0; j < keys; ++j) sum += std::exp(z[static_cast<std::size_t>(j)] - top);
  s.lse = top + std::log(sum);
  for (std::int64_t j = 0; j < keys; ++j) {
    if (z[static_cast<std::size_t>(j)] == hidden) continue;
    for (std::int64_t c = 0; c < head_dim_v; ++c) s.out[static_cast<std::size_t>(c)] += std::exp(z[static_cast<std::size_t>(j)] - s.lse) * value(j, c);
  }
  return s;
}

inline softmax_state merge(const softmax_state& a, const softmax_state& b) {
  if (a.lse == hidden) return b;
  if (b.lse == hidden) return a;
  const double top = a.lse > b.lse ? a.lse : b.lse, lse = top + std::log(std::exp(a.lse - top) + std::exp(b.lse - top));
  softmax_state s{a.out, lse};
  for (std::size_t c = 0; c < s.out.size(); ++c) s.out[c] = std::exp(a.lse - lse) * a.out[c] + std::exp(b.lse - lse) * b.out[c];
  return s;
}

}  // namespace reference
