// Losses of one row in double, straight from their definitions: whole probability vectors, one sum after the other, the gradient by the chain rule
// dL/dz_v = s_v (a_v - sum_u s_u a_u) / temperature with a_v = dL/ds_v.
#pragma once
#include "support/reference/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace reference {

using row = std::vector<double>;
inline constexpr double infinite = std::numeric_limits<double>::infinity();

struct row_loss {
  double value = 0;
  row gradient;   // by the student's logits
};

inline double xlog(double p, double ratio) { return p == 0 ? 0 : p * std::log(ratio); }

/// From value and a_v to value and gradient.
inline row_loss chained(double value, const row& s, const row& a, double temperature) {
  double mean = 0;
  for (std::size_t v = 0; v < s.size(); ++v) mean += s[v] == 0 ? 0 : s[v] * a[v];
  row_loss out{value, row(s.size())};
  for (std::size_t v = 0; v < s.size(); ++v) out.gradient[v] = s[v] == 0 ? 0 : s[v] * (a[v] - mean) / temperature;
  return out;
}

inline row_loss forward_kl(const row& s, const row& t, double temperature) {
  double value = 0;
  row out(s.size());
  for (std::size_t v = 0; v < s.size(); ++v) value += xlog(t[v], t[v] / s[v]), out[v] = (s[v] - t[v]) / temperature;
  return {value, out};
}
inline row_loss reverse_kl(const row& s, const row& t, double temperature) {
  double value = 0;
  row a(s.size());
  for (std::size_t v = 0; v < s.size(); ++v) value += xlog(s[v], s[v] / t[v]), a[v] = s[v] == 0 ? 0 : std::log(s[v] / t[v]);
  return chained(value, s, a, temperature);
}
inline row_loss generalized_jsd(const row& s, const row& t, double beta, double temperature) {
  if (beta == 0) return forward_kl(s, t, temperature);
  if (beta == 1) return reverse_kl(s, t, temperature);
  double value = 0;
  row a(s.size());
  for (std::size_t v = 0; v < s.size(); ++v) {
    const double m = beta * t[v] + (1 - beta) * s[v];
    value += beta * xlog(t[v], t[v] / m) + (1 - beta) * xlog(s[v], s[v] / m);
    a[v] = s[v] == 0 ? 0 : (1 - beta) * std::log(s[v] / m);
  }
  return chained(value, s, a, temperature);
}
inline row_loss total_variation(const row& s, const row& t, double temperature) {
  double value = 0;
  row a(s.size());
  for (std::size_t v = 0; v < s.size(); ++v) value += std::abs(s[v] - t[v]) / 2, a[v] = s[v] > t[v] ? 0.5 : s[v] < t[v] ? -0.5 : 0;
  return chained(value, s, a, temperature);
}

/// Columns of the k largest logits, ascending; ties to the lower column.
inline std::vector<std::size_t> top_k(const row& z, std::size_t k) {
  std::vector<std::size_t> order(z.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return z[a] > z[b]; });
  order.resize(std::min(k, z.size()));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace reference
