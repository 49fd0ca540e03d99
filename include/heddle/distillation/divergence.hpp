// Divergences of the student s from a target t: row functionals of two distributions. Gradients are with respect to the student's logits.
//
//   forward_kl       KL(t || s) = sum t (ln t - ln s)                                    gradient s - t
//   reverse_kl       R = KL(s || t) = sum s (ln s - ln t)                                gradient s (ln s - ln t - R)
//                    teacher_floor = e replaces t by (t + e / V) / (1 + e)
//   generalized_jsd  m = beta t + (1 - beta) s;  beta KL(t || m) + (1 - beta) KL(s || m)   gradient (1 - beta) s (ln s - ln m - KL(s || m))
//                    beta = 0 is forward_kl and beta = 1 reverse_kl by convention; these are not limits of the formula
//   total_variation  sum |s - t| / 2                                                     gradient s (g - sum s g), g = sign(s - t) / 2, sign(0) = 0
// (all times 1 / temperature). Invariants: KL >= 0, and 0 only for s = t; JSD <= -beta ln beta - (1 - beta) ln(1 - beta); TV^2 <= KL / 2; TV = 1 only for disjoint supports.
// Zero mass: a logit of -infinity is probability 0, and 0 ln 0 = 0. Forward KL is +infinity where t has mass and s none, reverse KL where s has and t none (not with a
// floor); JSD and TV are always finite. The target may be any distribution of the row and is a constant.
// Passes over the vocabulary (value + gradient): KL 2; JSD and TV 3; KL from a transformed target 1 more.
// Sources: the divergences are classical; generalised JSD with this beta: Agarwal et al., On-Policy Distillation of Language Models (2024).
//
//     const auto result = loss(student, teacher, generalized_jsd{.beta = 0.1}, gradient_of_student, {.temperature = 2});
#pragma once
#include <heddle/distillation/per_row.hpp>

namespace heddle::distillation {

struct forward_kl {
  static constexpr moments pair_moments = moments::forward;
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    return outcome{row.kl(t, s), gradient{[=](auto v) { return s(v).p - t(v).p; }}};
  }
};

struct reverse_kl {
  double teacher_floor = 0;
  static constexpr moments pair_moments = moments::reverse;
  void check(const call_shape&) const { require(teacher_floor >= 0 && teacher_floor < math::infinity, "reverse_kl: option 'teacher_floor' is ", teacher_floor, "; expected 0 or more"); }

  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const auto target = floored(row, t);
    const auto ratio = row.log_ratio(s, t);
    const double kl = teacher_floor == 0 ? row.kl(s, t) : row.kl(s, target);
    return outcome{kl, gradient{choose(teacher_floor == 0,                                                       //
                                       [=](auto v) { return weigh(s(v), ratio(v) - kl); },
                                       [=](auto v) { return weigh(s(v), log_ratio(s(v), target(v)) - kl); })}};
  }
  template <class Row, class T>
  auto floored(const Row& row, T t) const {
    return [t, floor = teacher_floor, share = teacher_floor / static_cast<double>(row.vocabulary())](auto v) {
      const auto q = t(v);
      if (floor == 0) return entry{q.log, q.p};
      const auto p = (q.p + share) / (1 + floor);
      return entry{log(p), p};
    };
  }
};

struct total_variation {
  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const auto g = [=](auto v) { return 0.5 * sign(s(v).p - t(v).p); };
    const auto [distance, mean] = row.sum([=](auto v) { return terms(g(v) * (s(v).p - t(v).p), s(v).p * g(v)); });
    return outcome{distance, gradient{[=, mean = mean](auto v) { return s(v).p * (g(v) - mean); }}};
  }
};

struct generalized_jsd {
  double beta = 0.5;
  static constexpr bool keeps_term = true;
  void check(const call_shape&) const { require(beta >= 0 && beta <= 1, "generalized_jsd: option 'beta' is ", beta, "; expected 0 to 1"); }

  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const double b = beta;
    const auto log_mixture = [=](auto v) {   // where both round to 0 the terms are 0, whatever stands here
      const auto m = b * t(v).p + (1 - b) * s(v).p;
      if constexpr (decltype(v)::finite) return detail::log_of_mass<true>(m);
      else return select(m > 0, log(m), 0);
    };
    const auto parts = [=](auto v) {   // of KL(t || m) and of KL(s || m), and ln s - ln m
      const auto log_m = log_mixture(v), log_ratio_to_m = s(v).log - log_m;
      return terms(weigh(t(v), t(v).log - log_m), weigh(s(v), log_ratio_to_m), log_ratio_to_m);
    };
    const auto log_ratio_to_m = row.kept(parts);
    double value, inner = 0;
    if (b == 0) value = row.kl(t, s);
    else if (b == 1) value = inner = row.kl(s, t);
    else {
      const auto [to_teacher, to_student] = row.sum_keeping(parts);
      value = math::fma(b, to_teacher, (1 - b) * to_student), inner = to_student;
      if (value < 0) value = 0;
    }
    return outcome{value, gradient{choose(b == 0,                                     //
                                          [=](auto v) { return s(v).p - t(v).p; },
                                          choose(b == 1,                              //
                                                 [=](auto v) { return weigh(s(v), log_ratio(s(v), t(v)) - inner); },
                                                 [=](auto v) { return (1 - b) * weigh(s(v), log_ratio_to_m(v) - inner); }))}};
  }
};

}  // namespace heddle::distillation
