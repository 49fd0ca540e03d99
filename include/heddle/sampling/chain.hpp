// A chain: from a row of logits and the tokens before it to the law of the next token.
//
// Stages, in their order (parameters.hpp says what each does):
//   repetition_penalty(theta)  presence_penalty(a)  frequency_penalty(a)  penalty_window(n)
//   transform(f)      f(std::span<float> logits, const history&) changes the logits of a row as it likes: guidance, bias, contrast
//   constraint(f)     f(const history&) -> std::span<const std::uint32_t>: token v is allowed iff bit v % 32 of word v / 32 is set;
//                     exactly ceil(vocabulary / 32) words. It comes after transform, so nothing forbidden returns
//   temperature(T)  top_k(k)  top_p(P)  min_p(m)  typical_p(tau)
// or all numbers at once, first: `parameters`. Stages out of order do not compile. A chain holds its stages by value and is const in use:
// one chain may serve many threads if the functions in it may.
//
//     sampling::chain policy{sampling::temperature(0.8f), sampling::top_p(0.95f)};
//     sampling::chain other{parameters_of_a_request, sampling::constraint(grammar)};
#pragma once
#include <heddle/sampling/dry.hpp>
#include <heddle/sampling/parameters.hpp>
#include <heddle/sampling/penalties.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace heddle::sampling {

namespace detail {
template <int position, auto member>
struct parameter_stage;
template <int position, class Value, Value parameters::* member>
struct parameter_stage<position, member> {
  static constexpr int order = position;
  Value value;
  [[gnu::always_inline]] explicit constexpr parameter_stage(Value v) : value(v) {}
  [[gnu::always_inline]] constexpr void set(parameters& p) const { p.*member = value; }
};
}  // namespace detail

using repetition_penalty = detail::parameter_stage<10, &parameters::repetition_penalty>;
using presence_penalty = detail::parameter_stage<10, &parameters::presence_penalty>;
using frequency_penalty = detail::parameter_stage<10, &parameters::frequency_penalty>;
using penalty_window = detail::parameter_stage<10, &parameters::penalty_window>;
using temperature = detail::parameter_stage<40, &parameters::temperature>;
using top_k = detail::parameter_stage<50, &parameters::top_k>;
using top_p = detail::parameter_stage<50, &parameters::top_p>;
using min_p = detail::parameter_stage<50, &parameters::min_p>;
using typical_p = detail::parameter_stage<50, &parameters::typical_p>;

template <class Function>
struct transform {
  static constexpr int order = 20;
  Function function;
  [[gnu::always_inline]] explicit constexpr transform(Function f) : function(f) {}
};

template <class Function>
struct constraint {
  static constexpr int order = 30;
  Function function;
  [[gnu::always_inline]] explicit constexpr constraint(Function f) : function(f) {}
};

namespace detail {
template <class Stage>
inline constexpr int order_of = Stage::order;
template <>
inline constexpr int order_of<parameters> = 0;

template <class... Stage>
constexpr bool in_order() {
  const int orders[] = {0, order_of<Stage>...};
  for (std::size_t i = 0; i < sizeof...(Stage); ++i)
    if (orders[i] > orders[i + 1]) return false;
  return true;
}

template <class... Stage>
struct stage_list {
  [[gnu::always_inline]] constexpr void for_each(auto&&) const {}
};
template <class First, class... Rest>
struct stage_list<First, Rest...> : stage_list<Rest...> {
  First first;
  [[gnu::always_inline]] constexpr stage_list(First f, Rest... rest) : stage_list<Rest...>(rest...), first(f) {}
  [[gnu::always_inline]] constexpr void for_each(auto&& visit) const {
    visit(first);
    stage_list<Rest...>::for_each(visit);
  }
};
}  // namespace detail

inline namespace HEDDLE_ISA {

/// Sets the logits of tokens without a bit to -infinity.
inline void apply_mask(std::span<float> logits, std::span<const std::uint32_t> allowed) {
  const auto n = static_cast<std::int64_t>(logits.size());
  require(static_cast<std::int64_t>(allowed.size()) == (n + 31) / 32, "sampling::constraint: the mask has ", allowed.size(), " words of 32 tokens; expected ", (n + 31) / 32, " for ", n, " logits");
  constexpr float forbidden = -std::numeric_limits<float>::infinity();
  for (std::int64_t word = 0; word < (n + 31) / 32; ++word) {
    const std::uint32_t bits = allowed[static_cast<std::size_t>(word)];
    if (bits == 0xffffffffu) continue;
    for (std::int64_t v = 32 * word; v < n && v < 32 * word + 32; ++v)
      if (!(bits >> (v % 32) & 1u)) logits[static_cast<std::size_t>(v)] = forbidden;
  }
}

template <class... Stage>
class chain {
  static_assert(detail::in_order<Stage...>(), "stages act in the order penalties, transform, constraint, temperature, truncations: write them so");

 public:
  explicit chain(Stage... stages) : stages_(stages...) {
    stages_.for_each([&](const auto& stage) { take(stage); });
    check("sampling::chain", parameters_);
  }

  const sampling::parameters& parameters() const { return parameters_; }

  /// Whether logits are changed before the temperature: then a row is copied first.
  bool edits() const { return has_hooks || has_penalties(parameters_) || has_dry(parameters_); }

  /// Penalties, transform, constraint. `counts`: one zero per token, zero again afterwards; `lengths`: history.size() integers if DRY is on.
  void edit(std::span<float> logits, const history& before, std::int32_t* counts, std::int32_t* lengths) const {
    if (has_penalties(parameters_)) apply_penalties(logits, before, parameters_, counts);
    if (has_dry(parameters_)) apply_dry(logits, before, parameters_, counts, lengths);
    stages_.for_each([&](const auto& stage) { apply(stage, logits, before); });
  }

 private:
  template <class T>
  static constexpr bool is_hook = detail::order_of<T> == 20 || detail::order_of<T> == 30;
  static constexpr bool has_hooks = (is_hook<Stage> || ...);

  void take(const sampling::parameters& all) { parameters_ = all; }
  template <class T>
  void take(const T& stage) {
    if constexpr (!is_hook<T>) stage.set(parameters_);
  }
  template <class T>
  static void apply(const T&, std::span<float>, const history&) {}
  template <class F>
  static void apply(const transform<F>& stage, std::span<float> logits, const history& before) {
    stage.function(logits, before);
  }
  template <class F>
  static void apply(const constraint<F>& stage, std::span<float> logits, const history& before) {
    apply_mask(logits, stage.function(before));
  }

  [[no_unique_address]] detail::stage_list<Stage...> stages_;
  sampling::parameters parameters_{};
};
template <class... Stage>
chain(Stage...) -> chain<Stage...>;

}  // namespace HEDDLE_ISA
}  // namespace heddle::sampling
