// How sources, adaptors and state maps join.
//
//   source | adaptor | adaptor          adaptors belong to one source, in the order written
//   merge(a, b, ...)                    sources (with their adaptors) and state sources become one state, joined in the order written
//   ... | with_sink(logits)             state maps come last
//
// Rows stand at the end of each source, causal or not: row i of n over T keys has index i + T - n there, and a negative index sees nothing of that
// source. A prefix shorter than the call's rows is therefore hidden from the first of them; give it to calls of no more rows than it has keys, or
// fold it once and merge it as a state.
//
// Any other order does not compile. A source alone, an adapted source, a merge and a mapped merge are all what attend() takes.
//
// with_sink(logits[num_qo_heads])       a key without a value: e^{logit} joins the denominator of every row. L := ln(e^L + e^logit), also for rows
//                                       that see no key (O = 0, L = logit). A logit of -infinity changes nothing.
//
//     const auto near = pool[id].layer(0) | heddle::causal() | heddle::window(4096);
//     heddle::attend(q, heddle::merge(prefix, near) | heddle::with_sink(sink_logits), out, lse);
#pragma once
#include <heddle/attention/adaptors.hpp>
#include <heddle/attention/detail/chunk_states.hpp>

#include <span>
#include <tuple>
#include <utility>

namespace heddle {
inline namespace HEDDLE_ISA {

template <key_source Source, key_adaptor... Adaptors>
struct adapted {
  static_assert((0 + ... + tree_adaptor<Adaptors>) <= 1, "a source has at most one tree");
  Source source;
  std::tuple<Adaptors...> adaptors;
};

template <class... Parts>
struct parts_of {
  std::tuple<Parts...> list;
};

/// What attend() works on: parts joined in order, then maps of the joined state.
template <class Parts, class... Maps>
struct attention_expression;
template <class... Parts, class... Maps>
struct attention_expression<parts_of<Parts...>, Maps...> {
  std::tuple<Parts...> parts;   // adapted<...> and state_source
  std::tuple<Maps...> maps;
};

/// m(row, query head, state): m and l = sum e^{z - m} of one row, and the factor of its O. An empty state has l == 0.
struct row_state {
  float maximum, sum, factor;
};
template <class M>
concept state_map = requires(const M& m, std::int64_t row, int query_head, row_state& s) { m.map(row, query_head, s); };

class with_sink {
 public:
  explicit with_sink(std::span<const float> logits) : logits_(logits) {}
  void check(const call_shape& call) const {
    require(logits_.size() == static_cast<std::size_t>(call.num_qo_heads), "with_sink: argument 'logits' has ", logits_.size(), " entries; expected one for each of ", call.num_qo_heads, " query heads");
  }
  void map(std::int64_t, int query_head, row_state& s) const {
    const float z = logits_[static_cast<std::size_t>(query_head)];
    if (z == -simd::infinity) return;
    if (s.sum == 0.f) {
      s = {z, 1.f, 0.f};
      return;
    }
    const float top = s.maximum > z ? s.maximum : z, shrink = simd::exp(s.maximum - top);
    s.sum = simd::fma(s.sum, shrink, simd::exp(z - top));
    s.maximum = top;
    s.factor *= shrink;
  }

 private:
  std::span<const float> logits_;
};

}  // namespace HEDDLE_ISA
namespace detail::inline HEDDLE_ISA {

template <class T>
inline constexpr bool is_adapted = false;
template <class S, class... A>
inline constexpr bool is_adapted<adapted<S, A...>> = true;
template <class T>
inline constexpr bool is_expression = false;
template <class P, class... M>
inline constexpr bool is_expression<attention_expression<P, M...>> = true;
template <class T>
inline constexpr bool is_merge = false;
template <class P>
inline constexpr bool is_merge<attention_expression<P>> = true;

}  // namespace detail::inline HEDDLE_ISA
inline namespace HEDDLE_ISA {

/// One part of a merge.
template <class T>
concept attention_part = key_source<T> || detail::is_adapted<T> || std::same_as<T, state_source>;
/// What attend() takes.
template <class T>
concept attention_input = attention_part<T> || detail::is_expression<T>;

template <key_source S, key_adaptor A>
adapted<S, A> operator|(const S& source, const A& adaptor) {
  return {source, {adaptor}};
}
template <key_source S, class... A, key_adaptor B>
adapted<S, A..., B> operator|(const adapted<S, A...>& a, const B& adaptor) {
  return {a.source, std::tuple_cat(a.adaptors, std::tuple<B>(adaptor))};
}

}  // namespace HEDDLE_ISA
namespace detail::inline HEDDLE_ISA {

template <key_source S>
std::tuple<adapted<S>> parts(const S& source) {
  return {adapted<S>{source, {}}};
}
template <class S, class... A>
std::tuple<adapted<S, A...>> parts(const adapted<S, A...>& a) {
  return {a};
}
inline std::tuple<state_source> parts(const state_source& s) { return {s}; }
template <class... P>
std::tuple<P...> parts(const attention_expression<parts_of<P...>>& merged) {
  return merged.parts;
}
template <class... P>
attention_expression<parts_of<P...>> expression(std::tuple<P...> list) {
  return {std::move(list), {}};
}
template <class T>
auto as_expression(const T& input) {
  if constexpr (is_expression<T>) return input;
  else return expression(parts(input));
}

}  // namespace detail::inline HEDDLE_ISA
inline namespace HEDDLE_ISA {

template <class... T>
  requires(sizeof...(T) > 0 && ((attention_part<T> || detail::is_merge<T>) && ...))
auto merge(const T&... inputs) {
  return detail::expression(std::tuple_cat(detail::parts(inputs)...));
}

template <attention_part T, state_map M>
auto operator|(const T& input, const M& map) {
  return detail::as_expression(input) | map;
}
template <class P, class... M, state_map N>
attention_expression<P, M..., N> operator|(const attention_expression<P, M...>& e, const N& map) {
  return {e.parts, std::tuple_cat(e.maps, std::tuple<N>(map))};
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
