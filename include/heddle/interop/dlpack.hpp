// Tensors of other frameworks (PyTorch, JAX, NumPy, TVM) through DLPack, without their headers.
//
//   from_dlpack<Element, Rank, Space>(tensor, name) -> tensor_view<Element, Rank, Space>
//
// Checked, and refused with the name of the argument: number of axes, element type, one lane, memory space (CPU and pinned memory are host; CUDA is
// device; managed memory is both), negative extents, missing data, alignment. byte_offset is added; strides == null means contiguous. Nothing is
// copied and nothing is released: the caller keeps the DLManagedTensor alive and calls its deleter when done.
// Elements: float, double, float16, bfloat16, float8_e4m3 and e5m2, integers of 8 to 64 bits, and const ones of each.
//
//     auto q = heddle::from_dlpack<heddle::float16, 3>(*managed, "q");      // throws unless it is float16 of rank 3 in host memory
//     rope.rotate(q, positions);
#pragma once
#include <heddle/core/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <dlpack/dlpack.h>
#include <type_traits>

namespace heddle::inline HEDDLE_ISA {

namespace dlpack {

struct element_code {
  unsigned code, bits;
};
template <class E>
inline constexpr element_code code_of = {~0u, 0};
template <std::integral E>
inline constexpr element_code code_of<E> = {std::is_signed_v<E> ? unsigned{kDLInt} : unsigned{kDLUInt}, 8 * sizeof(E)};
template <std::floating_point E>
inline constexpr element_code code_of<E> = {kDLFloat, 8 * sizeof(E)};
template <>
inline constexpr element_code code_of<float16> = {kDLFloat, 16};
template <>
inline constexpr element_code code_of<bfloat16> = {kDLBfloat, 16};
template <>
inline constexpr element_code code_of<float8_e4m3> = {10, 8};   // kDLFloat8_e4m3fn of DLPack 1.1; older headers lack the name
template <>
inline constexpr element_code code_of<float8_e5m2> = {12, 8};   // kDLFloat8_e5m2

constexpr const char* name_of(unsigned code) {
  switch (code) {
    case kDLInt: return "int";
    case kDLUInt: return "uint";
    case kDLFloat: return "float";
    case kDLBfloat: return "bfloat";
    case 10: return "float8_e4m3fn, ";
    case 12: return "float8_e5m2, ";
  }
  return "code ";
}

template <memory_space Space>
constexpr bool lies_in(int device) {
  constexpr int managed = 13;   // kDLCUDAManaged
  if (device == managed) return true;
  return std::same_as<Space, host> ? device == kDLCPU || device == kDLCUDAHost || device == kDLROCMHost : device == kDLCUDA;
}

}  // namespace dlpack

template <class Element, std::size_t Rank, memory_space Space = host>
  requires(dlpack::code_of<std::remove_const_t<Element>>.bits > 0)
tensor_view<Element, Rank, Space> from_dlpack(const DLTensor& t, const char* name = "tensor") {
  constexpr dlpack::element_code expected = dlpack::code_of<std::remove_const_t<Element>>;
  require(t.ndim == static_cast<int>(Rank), "from_dlpack: argument '", name, "' has ", t.ndim, " axes; expected ", Rank);
  require(t.dtype.code == expected.code && t.dtype.bits == expected.bits, "from_dlpack: argument '", name, "' has elements of type ", dlpack::name_of(t.dtype.code),
          int{t.dtype.bits}, " (DLPack code ", int{t.dtype.code}, "); expected ", dlpack::name_of(expected.code), expected.bits);
  require(t.dtype.lanes == 1, "from_dlpack: argument '", name, "' has ", int{t.dtype.lanes}, " lanes; expected 1");
  require(dlpack::lies_in<Space>(static_cast<int>(t.device.device_type)), "from_dlpack: argument '", name, "' lies on a device of type ",
          static_cast<int>(t.device.device_type), "; expected ", std::same_as<Space, host> ? "host memory" : "CUDA memory");
  require(t.shape != nullptr, "from_dlpack: argument '", name, "' has no shape");

  extents<Rank> shape, strides;
  bool empty = false;
  std::int64_t contiguous = 1;
  for (std::size_t i = Rank; i-- > 0;) {
    require(t.shape[i] >= 0, "from_dlpack: argument '", name, "': extent ", i, " is ", t.shape[i], "; expected 0 or more");
    shape[i] = t.shape[i], strides[i] = t.strides ? t.strides[i] : contiguous;
    require(!__builtin_mul_overflow(contiguous, shape[i], &contiguous), "from_dlpack: argument '", name, "' has more elements than 64 bits count");
    empty |= shape[i] == 0;
  }
  require(t.data != nullptr || empty, "from_dlpack: argument '", name, "' has no data");
  if (!t.data) return {nullptr, shape, strides};
  auto* const data = static_cast<std::byte*>(t.data) + t.byte_offset;
  require(reinterpret_cast<std::uintptr_t>(data) % alignof(Element) == 0, "from_dlpack: argument '", name, "' is not aligned to its elements of ", sizeof(Element), " bytes");
  return {reinterpret_cast<Element*>(data), shape, strides};
}

template <class Element, std::size_t Rank, memory_space Space = host>
  requires(dlpack::code_of<std::remove_const_t<Element>>.bits > 0)
tensor_view<Element, Rank, Space> from_dlpack(const DLManagedTensor& t, const char* name = "tensor") {
  return from_dlpack<Element, Rank, Space>(t.dl_tensor, name);
}

}  // namespace heddle::inline HEDDLE_ISA
