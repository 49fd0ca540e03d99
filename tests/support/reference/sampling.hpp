#pragma once
// The samplers as their definitions read, in double with std::exp and std::sort: O(V log V) and slow.
#include "support/reference/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace reference {

struct sampling_parameters {
  double temperature = 1, top_p = 1, min_p = 0, typical_p = 1;
  int top_k = 0;
};

struct sampling_law {
  std::vector<std::int32_t> tokens;      // kept, ascending
  std::vector<double> probabilities;     // renormalised on the kept set
  double margin = 1;                     // how far the nearest decision about mass was from the boundary, as a share of the whole
};

// keep v iff sum over { u : key_u < key_v } of p_u < limit
inline std::vector<char> keep_by_mass(const std::vector<double>& key, const std::vector<double>& p, double limit, double& margin) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key[a] < key[b]; });
  std::vector<char> keep(p.size(), 0);
  double before = 0;
  for (std::size_t i = 0; i < order.size();) {
    margin = std::min(margin, std::abs(before - limit));
    double group = 0;
    std::size_t j = i;
    for (; j < order.size() && key[order[j]] == key[order[i]]; ++j) keep[order[j]] = before < limit, group += p[order[j]];
    before += group, i = j;
  }
  return keep;
}

inline sampling_law law_of(const std::vector<float>& z, const sampling_parameters& s) {
  const auto n = static_cast<std::int32_t>(z.size());
  sampling_law law;
  const auto best = static_cast<std::int32_t>(std::max_element(z.begin(), z.end()) - z.begin());
  if (s.temperature == 0 || s.top_p <= 0) return {{best}, {1.}, 1.};
  const std::vector<double> p = softmax(z, s.temperature);
  std::vector<char> keep(z.size(), 1);
  const auto both = [&](const std::vector<char>& other) {
    for (std::size_t v = 0; v < keep.size(); ++v) keep[v] = keep[v] && other[v];
  };
  for (std::size_t v = 0; v < z.size(); ++v) keep[v] = z[v] > -std::numeric_limits<float>::infinity();
  if (s.top_k > 0) {
    std::vector<std::int32_t> order(z.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return z[static_cast<std::size_t>(a)] > z[static_cast<std::size_t>(b)]; });
    for (std::int32_t rank = s.top_k; rank < n; ++rank) keep[static_cast<std::size_t>(order[static_cast<std::size_t>(rank)])] = 0;
  }
  if (s.top_p < 1) {
    std::vector<double> key;
    for (float x : z) key.push_back(-double{x});
    both(keep_by_mass(key, p, s.top_p, law.margin));
  }
  if (s.min_p > 0)
    for (std::size_t v = 0; v < z.size(); ++v)
      keep[v] = keep[v] && std::exp((double{z[v]} - double{z[static_cast<std::size_t>(best)]}) / s.temperature) >= s.min_p;
  if (s.typical_p < 1) {
    double entropy = 0;
    for (double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    std::vector<double> key;
    for (std::size_t v = 0; v < z.size(); ++v) key.push_back(p[v] > 0 ? std::abs(-std::log(p[v]) - entropy) : 1e300);
    both(keep_by_mass(key, p, s.typical_p, law.margin));
  }
  double sum = 0;
  for (std::int32_t v = 0; v < n; ++v)
    if (keep[static_cast<std::size_t>(v)]) law.tokens.push_back(v), law.probabilities.push_back(p[static_cast<std::size_t>(v)]), sum += law.probabilities.back();
  if (law.tokens.empty()) return {{best}, {1.}, law.margin};
  for (double& x : law.probabilities) x /= sum;
  return law;
}

}  // namespace reference
