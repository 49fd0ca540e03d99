// Clipped divergences.
//
//   token_clip<D>    min(L, limit) of a whole row, after the sum over the vocabulary; gradient 0 where it is clipped
//   entry_clip       sum_v min(d_v, limit) with d_v = t_v ln(t_v / s_v) - t_v + s_v: the non-negative form of forward KL (the d_v sum to it, each is >= 0)
//                    gradient u_v (s_v - t_v) - s_v sum_w u_w (s_w - t_w), u_v = 1 where d_v < limit, else 0
// Entries of t ln(t / s) alone are not clipped: that can make the loss negative. A row whose divergence is +infinity has token_clip = limit and gradient 0.
// Errors: limit <= 0 or not finite.
//
//     loss(student, teacher, token_clip{reverse_kl{}, 5.}, grad);
#pragma once
#include <heddle/distillation/divergence.hpp>

namespace heddle::distillation {

template <class Divergence>
struct token_clip {
  Divergence divergence{};
  double limit = 1;
  static constexpr moments pair_moments = detail::pair_moments_of<Divergence>();

  std::int64_t selected_columns() const {
    if constexpr (requires { divergence.selected_columns(); }) return divergence.selected_columns();
    else return 0;
  }
  void check(const call_shape& shape) const {
    require(limit > 0 && limit < math::infinity, "token_clip: option 'limit' is ", limit, "; expected a positive number");
    if constexpr (requires { divergence.check(shape); }) divergence.check(shape);
  }
  template <class Row, class... Distributions>
  auto operator()(Row& row, Distributions... d) const {
    const auto whole = divergence(row, d...);
    const bool below = whole.value < limit;
    return with_value(below ? whole.value : limit, below, whole);
  }
};
template <class D>
token_clip(D, double) -> token_clip<D>;

struct entry_clip {
  double limit = 1;
  void check(const call_shape&) const { require(limit > 0 && limit < math::infinity, "entry_clip: option 'limit' is ", limit, "; expected a positive number"); }

  template <class Row, class S, class T>
  auto operator()(Row& row, S s, T t) const {
    const auto d = [=](auto v) { return max(weigh(t(v), log_ratio(t(v), s(v))) - t(v).p + s(v).p, 0); };
    const auto slope = [=, c = limit](auto v) { return select(d(v) < c, s(v).p - t(v).p, 0); };
    const auto [value, mean] = row.sum([=, c = limit](auto v) { return terms(min(d(v), c), slope(v)); });
    return outcome{value, gradient{[=, mean = mean](auto v) { return slope(v) - s(v).p * mean; }}};
  }
};

}  // namespace heddle::distillation
