// Any type with the shape of mdspan as a tensor: std::mdspan, cuda::std::mdspan, Kokkos views with strides, a class of one's own.
//
//   t.data() or t.data_handle()   pointer to the element at index 0
//   t.extent(i), t.stride(i)      in elements
//   T::rank()                     the rank, static and constexpr; for a type without it specialise heddle::mdspan_rank<T>
//
// The memory is the host's; for device memory make a tensor_view<Element, Rank, heddle::device> of the pointer. A type whose accessor computes
// its elements (reference is no plain reference) is no tensor. A layout that is not strided (is_strided() == false) is an error at run time.
//
//     cuda::std::mdspan q{data, rows, 32, 128};
//     rope.rotate(q, positions);
#pragma once
#include <heddle/core/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace heddle {

/// The rank of an mdspan-shaped type; -1: not known.
template <class T>
inline constexpr int mdspan_rank = -1;
template <class T>
  requires requires { { std::bool_constant<(T::rank() > 0)>{} } -> std::same_as<std::true_type>; }
inline constexpr int mdspan_rank<T> = static_cast<int>(T::rank());

namespace detail {

template <class T>
[[gnu::always_inline]] constexpr auto data_of(T& t)
  requires requires { t.data_handle(); }
{
  return t.data_handle();
}
template <class T>
[[gnu::always_inline]] constexpr auto data_of(T& t)
  requires(!requires { t.data_handle(); } && requires { t.data(); })
{
  return t.data();
}

template <class T>
concept stores_its_elements = !requires { typename T::reference; } || std::is_lvalue_reference_v<typename T::reference>;

}  // namespace detail

template <class T>
concept mdspan_shaped = !detail::is_view<T> && mdspan_rank<T> > 0 && detail::stores_its_elements<T> && requires(const T& t, T& mutable_t) {
  requires std::is_pointer_v<decltype(detail::data_of(mutable_t))>;
  requires std::is_pointer_v<decltype(detail::data_of(t))>;
  requires !std::is_void_v<std::remove_pointer_t<decltype(detail::data_of(t))>>;
  { t.extent(0) } -> std::convertible_to<std::int64_t>;
  { t.stride(0) } -> std::convertible_to<std::int64_t>;
};

template <mdspan_shaped T>
struct tensor_traits<T> {
  template <class U>
    requires std::same_as<std::remove_const_t<U>, T>
  static constexpr auto view(U& t) {
    constexpr auto rank = static_cast<std::size_t>(mdspan_rank<T>);
    if constexpr (requires { t.is_strided(); }) require(t.is_strided(), "tensor: the layout of the mdspan is not strided");
    extents<rank> shape, strides;
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      ((shape[i] = static_cast<std::int64_t>(t.extent(i)), strides[i] = static_cast<std::int64_t>(t.stride(i))), ...);
    }(std::make_index_sequence<rank>{});
    return tensor_view<std::remove_pointer_t<decltype(detail::data_of(t))>, rank>{detail::data_of(t), shape, strides};
  }
};

}  // namespace heddle
