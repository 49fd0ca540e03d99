// std::span, std::vector and std::array as tensors of rank 1. The memory stays theirs: a view lives as long as the container does.
//
//     std::vector<float> lse(rows);
//     auto view = heddle::view_of(lse);                          // tensor_view<float, 1>
//
// std::vector<bool> has no elements in memory and is no tensor.
#pragma once
#include <heddle/core/tensor.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle {
namespace detail {

template <class T>
[[gnu::always_inline]] constexpr tensor_view<T, 1> rank_one(T* data, std::size_t size) {
  return {data, extents{static_cast<std::int64_t>(size)}};
}

}  // namespace detail

template <class T, std::size_t N>
struct tensor_traits<std::span<T, N>> {
  [[gnu::always_inline]] static constexpr tensor_view<T, 1> view(const std::span<T, N>& s) { return detail::rank_one(s.data(), s.size()); }
};

template <class T, class Allocator>
  requires(!std::is_same_v<T, bool>)
struct tensor_traits<std::vector<T, Allocator>> {
  [[gnu::always_inline]] static constexpr tensor_view<T, 1> view(std::vector<T, Allocator>& v) { return detail::rank_one(v.data(), v.size()); }
  [[gnu::always_inline]] static constexpr tensor_view<const T, 1> view(const std::vector<T, Allocator>& v) { return detail::rank_one(v.data(), v.size()); }
};

template <class T, std::size_t N>
struct tensor_traits<std::array<T, N>> {
  [[gnu::always_inline]] static constexpr tensor_view<T, 1> view(std::array<T, N>& a) { return detail::rank_one(a.data(), N); }
  [[gnu::always_inline]] static constexpr tensor_view<const T, 1> view(const std::array<T, N>& a) { return detail::rank_one(a.data(), N); }
};

}  // namespace heddle
