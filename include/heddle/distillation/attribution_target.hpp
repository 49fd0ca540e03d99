// A target that keeps the part of a teacher's correction which revealing the evidence explains.
//
//   u = c(ln t_with) - c(ln t_without)           what revealing the evidence does to one and the same teacher
//   delta = c(ln t) - c(ln s)                     the correction that the privileged teacher asks for (t may be t_with)
//   c(l) = l - <l, 1>,  <a, b> = sum pi a b       pi uniform on the common support, or s renormalised on the union of the top k of s and t
//   alpha = <delta, u> / (<u, u> + epsilon), clipped to [0, max_alpha] if max_alpha > 0
//   q ~ s exp(eta clip(alpha u, -bound, bound))   on the common support; q = s elsewhere, with the mass of the support unchanged
//   loss = KL(q || s) + mu KL(t || s)             gradient ((s - q) + mu (s - t)) / temperature, q constant
//
// Named rows: student, privileged teacher, teacher with the evidence, teacher without. Common support: tokens with mass in all four; none: q = s.
// epsilon = 0: alpha u and delta - alpha u are orthogonal; delta parallel to u, eta = 1, no clips: q = t. u = 0: q = s and only the mu term is left.
// attribution_share (with measure): per row alpha, <alpha u, alpha u> / <delta, delta> and the number of tokens of the common support.
// Errors: eta, mu, epsilon, max_alpha < 0, bound <= 0, top_k < 0. Statuses: per_row.hpp; KL(t || s) is infinite where t has mass and s none, if mu > 0.
// Cost: five passes over four rows; with top_k two selections instead of one pass.
// Source: VAD (visual attribution distillation).
//
//     const auto rows = per_row(attribution_target{.mu = 0.1}, student, privileged, with_image, without_image);
#pragma once
#include <heddle/distillation/divergence.hpp>

#include <cstdint>

namespace heddle::distillation {

struct attribution_target {
  double eta = 1;
  double bound = 10;
  double mu = 0.1;
  double epsilon = 1e-6;
  double max_alpha = 0;     ///< 0: alpha is not clipped
  std::int64_t top_k = 0;   ///< 0: pi is uniform

  void check(const call_shape&) const {
    const auto amount = [](const char* option, double x) { require(x >= 0 && x < math::infinity, "attribution_target: option '", option, "' is ", x, "; expected a finite number, 0 or more"); };
    amount("eta", eta), amount("mu", mu), amount("epsilon", epsilon), amount("max_alpha", max_alpha);
    require(bound > 0, "attribution_target: option 'bound' is ", bound, "; expected a positive number");
    require(top_k >= 0, "attribution_target: option 'top_k' is ", top_k, "; expected 0 (uniform weights) or more");
  }
  std::int64_t selected_columns() const { return detail::four_times(top_k); }

  struct moments {
    double mean_u = 0, mean_delta = 0, uu = 0, u_delta = 0, delta_delta = 0, alpha = 0, support = 0;
  };

  template <class Row, class S, class T, class W, class O>
  auto operator()(Row& row, S s, T t, W with, O without) const {
    const moments m = moments_of(row, s, t, with, without);
    const auto common = support(s, t, with, without);
    const auto shift = [=, eta = eta, bound = bound](auto v) {   // eta clip(alpha u)
      return select(common(v), eta * clamp(m.alpha * (log_ratio(with(v), without(v)) - m.mean_u), -bound, bound), 0);
    };
    double log_mass = 0, log_sum = 0, kl = 0;
    if (m.support > 0) {
      log_mass = row.log_sum_exp([=](auto v) { return select(common(v), s(v).log, -math::infinity); });
      log_sum = row.log_sum_exp([=](auto v) { return select(common(v), s(v).log + shift(v), -math::infinity); });
    }
    const auto q = [=](auto v) {
      const auto log_q = select(common(v), s(v).log + shift(v) + (log_mass - log_sum), s(v).log);
      return entry{log_q, exp(log_q)};
    };
    if (m.support > 0) kl = row.sum([=](auto v) { return select(common(v), q(v).p * (shift(v) + (log_mass - log_sum)), 0); });
    return outcome{kl < 0 ? 0 : kl, gradient{[=](auto v) { return s(v).p - q(v).p; }}} + mu * forward_kl{}(row, s, t);
  }

  template <class Row, class S, class T, class W, class O>
  moments moments_of(Row& row, S s, T t, W with, O without) const {
    const auto common = support(s, t, with, without);
    const auto u = [=](auto v) { return log_ratio(with(v), without(v)); };
    const auto delta = [=](auto v) { return log_ratio(t(v), s(v)); };
    moments m;
    if (top_k == 0) {
      const auto [count, sum_u, sum_delta] = row.sum([=](auto v) { return terms(select(common(v), one(v), 0), select(common(v), u(v), 0), select(common(v), delta(v), 0)); });
      m.support = count;
      if (count == 0) return m;
      m.mean_u = sum_u / count, m.mean_delta = sum_delta / count;
      const auto [uu, u_delta, delta_delta] = row.sum([=](auto v) {
        const auto a = u(v) - m.mean_u, b = delta(v) - m.mean_delta;
        return terms(select(common(v), a * a, 0), select(common(v), a * b, 0), select(common(v), b * b, 0));
      });
      m.uu = uu / count, m.u_delta = u_delta / count, m.delta_delta = delta_delta / count;
    } else {
      m.support = row.sum([=](auto v) { return select(common(v), one(v), 0); });
      const auto columns = row.unite(row.top_k(s, top_k), row.top_k(t, top_k));
      const auto weighted = [&](auto f) {   // sum of s f over the union and the common support
        double sum = 0;
        for (const std::int32_t column : columns) {
          const auto v = row.at(column);
          sum += static_cast<double>(select(common(v), s(v).p * f(v), 0));
        }
        return sum;
      };
      const double mass = weighted([](auto v) { return one(v); });
      if (!(mass > 0)) return m.support = 0, m;
      m.mean_u = weighted(u) / mass, m.mean_delta = weighted(delta) / mass;
      m.uu = weighted([=](auto v) { return (u(v) - m.mean_u) * (u(v) - m.mean_u); }) / mass;
      m.u_delta = weighted([=](auto v) { return (u(v) - m.mean_u) * (delta(v) - m.mean_delta); }) / mass;
      m.delta_delta = weighted([=](auto v) { return (delta(v) - m.mean_delta) * (delta(v) - m.mean_delta); }) / mass;
    }
    m.alpha = m.uu > 0 ? m.u_delta / (m.uu + epsilon) : 0;
    if (max_alpha > 0) m.alpha = m.alpha < 0 ? 0 : m.alpha > max_alpha ? max_alpha : m.alpha;
    return m;
  }

 private:
  template <class V>
  static auto one(const V&) {
    return typename V::number(1);
  }
  template <class S, class T, class W, class O>
  static auto support(S s, T t, W with, O without) {
    return [=](auto v) { return (s(v).log > -math::infinity) & (t(v).log > -math::infinity) & (with(v).log > -math::infinity) & (without(v).log > -math::infinity); };
  }
};

struct attribution_share {
  attribution_target target{};
  void check(const call_shape& shape) const { target.check(shape); }
  std::int64_t selected_columns() const { return target.selected_columns(); }
  template <class Row, class S, class T, class W, class O>
  auto operator()(Row& row, S s, T t, W with, O without) const {
    const auto m = target.moments_of(row, s, t, with, without);
    return terms(m.alpha, m.delta_delta > 0 ? m.alpha * m.alpha * m.uu / m.delta_delta : 0., m.support);
  }
};

}  // namespace heddle::distillation
