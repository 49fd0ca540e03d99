// Eigen's dense types as tensors: Matrix, Array, Map, Ref and blocks of them, in either storage order and with any strides.
//
//   vectors at compile time   rank 1
//   everything else           rank 2, [rows, columns]
//   Eigen::Tensor, TensorMap  their rank; include <unsupported/Eigen/CXX11/Tensor> yourself
//
// Expressions that must be computed first (a + b, a * b, a.cast<float>()) are no tensors: evaluate them into a matrix. Eigen::half and
// Eigen::bfloat16 stay foreign element types. The memory stays Eigen's: a view lives as long as the matrix keeps its memory.
//
//     Eigen::MatrixXf q(rows, 128);                              // column-major: strides (1, rows)
//     rope.rotate(q, positions);
#pragma once
#include <heddle/core/tensor.hpp>

#include <Eigen/Core>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace Eigen {
template <typename Scalar, int rank, int options, typename Index>
class Tensor;
template <typename Plain, int options, template <class> class MakePointer>
class TensorMap;
}  // namespace Eigen

namespace heddle {

/// Dense Eigen types whose elements lie in memory.
template <class T>
concept eigen_dense = std::derived_from<T, Eigen::DenseBase<T>> && (static_cast<int>(T::Flags) & static_cast<int>(Eigen::DirectAccessBit)) != 0;

template <eigen_dense T>
struct tensor_traits<T> {
  template <class U>
    requires std::same_as<std::remove_const_t<U>, T>
  static auto view(U& m) {
    using element = std::remove_pointer_t<decltype(m.derived().data())>;
    if constexpr (T::IsVectorAtCompileTime) {
      return tensor_view<element, 1>{m.derived().data(), extents{static_cast<std::int64_t>(m.size())}, extents{static_cast<std::int64_t>(m.derived().innerStride())}};
    } else {
      return tensor_view<element, 2>{m.derived().data(), extents{static_cast<std::int64_t>(m.rows()), static_cast<std::int64_t>(m.cols())},
                                     extents{static_cast<std::int64_t>(m.derived().rowStride()), static_cast<std::int64_t>(m.derived().colStride())}};
    }
  }
};

namespace detail {

template <int rank, bool row_major, class T>
auto eigen_tensor_view(T& t) {
  constexpr auto axes = static_cast<std::size_t>(rank);
  extents<axes> shape, strides;
  for (std::size_t i = 0; i < axes; ++i) shape[i] = static_cast<std::int64_t>(t.dimension(i));
  std::int64_t stride = 1;
  for (std::size_t k = 0; k < axes; ++k) {
    const std::size_t i = row_major ? axes - 1 - k : k;
    strides[i] = stride, stride *= shape[i];
  }
  return tensor_view<std::remove_pointer_t<decltype(t.data())>, axes>{t.data(), shape, strides};
}

}  // namespace detail

template <class Scalar, int rank, int options, class Index>
struct tensor_traits<Eigen::Tensor<Scalar, rank, options, Index>> {
  template <class U>
  static auto view(U& t) { return detail::eigen_tensor_view<rank, (options & Eigen::RowMajor) != 0>(t); }
};
template <class Plain, int options, template <class> class MakePointer>
struct tensor_traits<Eigen::TensorMap<Plain, options, MakePointer>> {
  template <class U>
  static auto view(U& t) { return detail::eigen_tensor_view<static_cast<int>(Plain::NumIndices), (static_cast<int>(Plain::Options) & Eigen::RowMajor) != 0>(t); }
};

}  // namespace heddle
