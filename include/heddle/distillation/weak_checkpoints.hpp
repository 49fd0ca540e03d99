// A weaker checkpoint of the same model teaches where the strong one is saturated (WMSS).
//
//   checkpoint_sampling   which samples to train on, from their mean entropies H0 under the weak and H1 under the strong checkpoint, D = H1 - H0:
//                             p_i proportional to alpha H0_i / sum H0 + beta (-D_i)+ / sum (-D)+ + gamma (D_i)+ / sum (D)+
//                         a term whose sum is 0 is 0; if all are, p is uniform
//   mixed_logits          row functional of strong and weak logits: z = lambda z_strong + (1 - lambda) z_weak, each divided by its temperature,
//                             L = -ln softmax(z)_y        gradients lambda (p - e_y) to the strong, (1 - lambda) (p - e_y) to the weak logits
//                         (times 1 / temperature). Ask for one gradient if the weak checkpoint is frozen. lambda = 1 is the NLL of the strong
//                         one. Inference uses the strong checkpoint alone
//
// A row whose target has no mass in the mixture has status infinite_divergence, one where no token has any, empty_support.
// Errors: lambda outside [0, 1]; negative or infinite entropies and coefficients; ids outside [0, V). Cost: three passes over both rows. Source: WMSS.
//
//     const auto rows = per_row(mixed_logits{.tokens = targets, .lambda = 0.7}, strong, weak);
//     rows.backward(upstream, grad_strong);                     // or (upstream, grad_strong, grad_weak)
#pragma once
#include <heddle/distillation/detail/sequences.hpp>
#include <heddle/distillation/per_row.hpp>

#include <cstdint>
#include <span>

namespace heddle::distillation {

struct checkpoint_sampling_options {
  double alpha = 1;   ///< samples the weak checkpoint was unsure about
  double beta = 1;    ///< samples that became surer
  double gamma = 1;   ///< samples that became less sure
};

inline namespace HEDDLE_ISA {

inline void checkpoint_sampling(std::span<const double> weak_entropy, std::span<const double> strong_entropy, std::span<double> probabilities, const checkpoint_sampling_options& options = {}) {
  const std::size_t n = weak_entropy.size();
  require(strong_entropy.size() == n, "checkpoint_sampling: argument 'strong_entropy' has ", strong_entropy.size(), " samples; expected ", n);
  require(probabilities.size() == n, "checkpoint_sampling: argument 'probabilities' has ", probabilities.size(), " samples; expected ", n);
  for (const double c : {options.alpha, options.beta, options.gamma}) require(detail::finite(c) && c >= 0., "checkpoint_sampling: a coefficient is ", c, "; expected 0 or more");
  double weak = 0, surer = 0, less_sure = 0;
  const auto positive = [](double x) { return x > 0. ? x : 0.; };
  for (std::size_t i = 0; i < n; ++i) {
    for (const double h : {weak_entropy[i], strong_entropy[i]}) require(detail::finite(h) && h >= 0., "checkpoint_sampling: an entropy of sample ", i, " is ", h, "; expected a finite number, 0 or more");
    const double change = strong_entropy[i] - weak_entropy[i];
    weak += weak_entropy[i], surer += positive(-change), less_sure += positive(change);
  }
  const auto share = [](double coefficient, double x, double sum) { return sum > 0. ? coefficient * (x / sum) : 0.; };
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double change = strong_entropy[i] - weak_entropy[i];
    probabilities[i] = share(options.alpha, weak_entropy[i], weak) + share(options.beta, positive(-change), surer) + share(options.gamma, positive(change), less_sure);
    total += probabilities[i];
  }
  for (std::size_t i = 0; i < n; ++i) probabilities[i] = total > 0. ? probabilities[i] / total : 1. / static_cast<double>(n);
}

struct mixed_logits {
  std::span<const std::int32_t> tokens;
  double lambda = 0.7;

  void check(const call_shape& shape) const {
    detail::check_unit_interval("mixed_logits", "lambda", lambda);
    check_tokens("mixed_logits", "tokens", tokens, shape);
  }
  template <class Row, class Strong, class Weak>
  auto operator()(Row& row, Strong strong, Weak weak) const {
    const double a = lambda, b = 1 - lambda;
    const auto p = row.normalise([=](auto v) {
      if (b == 0) return strong(v).log;
      if (a == 0) return weak(v).log;
      return a * strong(v).log + b * weak(v).log;
    });
    const std::int64_t y = tokens.data()[row.index()];
    const auto towards = [=](double c) { return gradient{[=](auto v) { return c * p(v).p; }, at(y, -c)}; };
    return outcome{-static_cast<double>(p(row.at(y)).log), towards(a), towards(b)};
  }
};

}  // namespace HEDDLE_ISA
}  // namespace heddle::distillation
