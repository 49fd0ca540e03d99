// Views of memory that somebody else owns.
//
// tensor_view<Element, Rank, Space>   pointer, extents and strides (64 bits, in elements), and the memory space as a type: host or device.
//                                     Trivially copyable; copying a view copies no element. Strides may be anything, zero and negative included.
// tensor_traits<T>                    how a foreign type becomes a view: specialise it with
//                                         static auto view(T& or const T&) -> tensor_view<...>
//                                     Eigen, spans and vectors, DLPack and mdspan-shaped types come with interop/.
// Concepts are structural: tensor, tensor_of<T, Rank>, matrix, host_tensor, device_tensor. A call that mixes memory spaces does not compile.
//
//     float data[6] = {};
//     heddle::tensor_view rows{data, heddle::extents{2, 3}};      // [2][3], contiguous
//     rows(1, 2) = 4.f;
#pragma once
#include <heddle/core/element.hpp>
#include <heddle/core/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle {

struct host {};
struct device {};
template <class S>
concept memory_space = std::same_as<S, host> || std::same_as<S, device>;

template <std::size_t Rank>
struct extents {
  std::int64_t values[Rank]{};
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr extents() {}
  template <std::convertible_to<std::int64_t>... I>
    requires(sizeof...(I) == Rank)
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr extents(I... i) : values{static_cast<std::int64_t>(i)...} {}
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr std::int64_t operator[](std::size_t i) const { return values[i]; }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr std::int64_t& operator[](std::size_t i) { return values[i]; }
  friend bool operator==(const extents&, const extents&) = default;
};
template <class... I>
extents(I...) -> extents<sizeof...(I)>;

template <class Element, std::size_t Rank, memory_space Space = host>
class tensor_view {
 public:
  using element = Element;
  using space = Space;
  static constexpr std::size_t rank = Rank;

  constexpr tensor_view() = default;
  /// Contiguous, last index fastest.
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr tensor_view(Element* data, extents<Rank> shape) : data_(data), shape_(shape) {
    std::int64_t stride = 1;
    for (std::size_t i = Rank; i-- > 0;) strides_[i] = stride, stride *= shape[i];
  }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr tensor_view(Element* data, extents<Rank> shape, extents<Rank> strides) : data_(data), shape_(shape), strides_(strides) {}
  /// A view of mutable elements is a view of const ones.
  template <class Other>
    requires(!std::same_as<Other, Element> && std::same_as<const Other, Element>)
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr tensor_view(const tensor_view<Other, Rank, Space>& other) : data_(other.data()), shape_(other.shape()), strides_(other.strides()) {}

  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr Element* data() const { return data_; }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr std::int64_t extent(std::size_t i) const { return shape_[i]; }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr std::int64_t stride(std::size_t i) const { return strides_[i]; }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr extents<Rank> shape() const { return shape_; }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr extents<Rank> strides() const { return strides_; }
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < Rank; ++i) n *= shape_[i];
    return n;
  }

  /// Pointer to an element; fewer indices than the rank address the beginning of a sub-tensor.
  template <std::convertible_to<std::int64_t>... I>
    requires(sizeof...(I) <= Rank)
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr Element* at(I... index) const {
    std::int64_t offset = 0;
    std::size_t axis = 0;
    ((offset += static_cast<std::int64_t>(index) * strides_[axis++]), ...);
    return data_ + offset;
  }
  template <std::convertible_to<std::int64_t>... I>
    requires(sizeof...(I) == Rank && std::same_as<Space, host>)
  [[gnu::always_inline]] constexpr Element& operator()(I... index) const {
    return *at(index...);
  }

  /// The sub-tensor at index i of the first axis.
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr tensor_view<Element, Rank - 1, Space> operator[](std::int64_t i) const
    requires(Rank > 1)
  {
    extents<Rank - 1> shape, strides;
    for (std::size_t k = 1; k < Rank; ++k) shape[k - 1] = shape_[k], strides[k - 1] = strides_[k];
    return {at(i), shape, strides};
  }
  /// Indices first .. first + count - 1 of the first axis.
  [[gnu::always_inline]] HEDDLE_HOST_DEVICE constexpr tensor_view slice(std::int64_t first, std::int64_t count) const {
    extents<Rank> shape = shape_;
    shape[0] = count;
    return {at(first), shape, strides_};
  }

 private:
  Element* data_ = nullptr;
  extents<Rank> shape_{};
  extents<Rank> strides_{};
};
template <class Element, std::size_t Rank>
tensor_view(Element*, extents<Rank>) -> tensor_view<Element, Rank, host>;
template <class Element, std::size_t Rank>
tensor_view(Element*, extents<Rank>, extents<Rank>) -> tensor_view<Element, Rank, host>;

template <class T>
struct tensor_traits {};   // specialise for foreign types

template <class Element, std::size_t Rank, class Space>
struct tensor_traits<tensor_view<Element, Rank, Space>> {
  [[gnu::always_inline]] static constexpr tensor_view<Element, Rank, Space> view(const tensor_view<Element, Rank, Space>& t) { return t; }
};

namespace detail {
template <class T>
inline constexpr bool is_view = false;
template <class Element, std::size_t Rank, class Space>
inline constexpr bool is_view<tensor_view<Element, Rank, Space>> = true;
}  // namespace detail

/// Any type that tensor_traits turns into a tensor_view.
template <class T>
concept tensor = requires(T& t) { requires detail::is_view<decltype(tensor_traits<std::remove_cvref_t<T>>::view(t))>; };

/// The view of any tensor.
template <tensor T>
[[gnu::always_inline]] constexpr auto view_of(T&& t) {
  return tensor_traits<std::remove_cvref_t<T>>::view(t);
}
template <tensor T>
using view_type = decltype(tensor_traits<std::remove_cvref_t<T>>::view(std::declval<T&>()));
template <tensor T>
using element_type = std::remove_cv_t<typename view_type<T>::element>;
template <tensor T>
using space_type = typename view_type<T>::space;

template <class T, std::size_t Rank>
concept tensor_of = tensor<T> && (view_type<T>::rank == Rank);
template <class T>
concept matrix = tensor_of<T, 2>;
template <class T>
concept host_tensor = tensor<T> && std::same_as<space_type<T>, host>;
template <class T>
concept device_tensor = tensor<T> && std::same_as<space_type<T>, device>;
template <class T>
concept writable_tensor = tensor<T> && !std::is_const_v<typename view_type<T>::element>;
/// All tensors of a call lie in one memory space.
template <class First, class... Rest>
concept same_space = tensor<First> && (tensor<Rest> && ...) && (std::same_as<space_type<First>, space_type<Rest>> && ...);

inline namespace HEDDLE_ISA {

/// Throws unless the view has the expected shape; an extent of -1 is not checked.
template <class View>
void require_shape(const char* function, const char* argument, const View& view, const extents<View::rank>& expected) {
  for (std::size_t i = 0; i < View::rank; ++i)
    if (expected[i] >= 0 && view.extent(i) != expected[i])
      fail(function, ": argument '", argument, "': extent ", i, " is ", view.extent(i), "; expected ", expected[i]);
}

}  // namespace HEDDLE_ISA
}  // namespace heddle
