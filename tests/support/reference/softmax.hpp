// softmax(z / temperature) in double, as its definition reads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace reference {

template <class T>
std::vector<double> softmax(const std::vector<T>& z, double temperature = 1) {
  const auto max = static_cast<double>(*std::max_element(z.begin(), z.end()));
  std::vector<double> p(z.size());
  double sum = 0;
  for (std::size_t v = 0; v < z.size(); ++v) sum += p[v] = std::exp((static_cast<double>(z[v]) - max) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace reference
