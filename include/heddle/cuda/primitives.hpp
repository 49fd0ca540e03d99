// The instructions that kernels are written in: one wrapper, one instruction. The only file of the library with PTX.
//
// Two bodies: nvcc's (sm_80 and newer), and one over a SIMT emulator for tests that define HEDDLE_SIMT and include an emulator which provides
// namespace simt and the CUDA spellings. Kernels use nothing else of CUDA but threadIdx, blockIdx, __syncthreads and the shuffles.
//
// Rules that the kernels rely on: a shared address is a 32-bit byte offset from shared_memory(); 16-byte accesses go through load16 and
// store16; products that feed sums are fused.
#pragma once
#include <heddle/core/element.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define HEDDLE_DEVICE __device__ __forceinline__
#define HEDDLE_UNROLL _Pragma("unroll")
#define HEDDLE_NO_UNROLL _Pragma("unroll 1")
#elif defined(HEDDLE_SIMT)
#define HEDDLE_DEVICE inline
#define HEDDLE_UNROLL
#define HEDDLE_NO_UNROLL
#else
#error "heddle: device code is compiled by a CUDA compiler"
#endif

struct CUstream_st;

namespace heddle::cuda {
/// The same type as cudaStream_t.
using stream = ::CUstream_st*;
}  // namespace heddle::cuda

namespace heddle::cuda::inline HEDDLE_ISA {

inline constexpr unsigned all_lanes = 0xFFFFFFFFu;
inline constexpr float minus_infinity = -__builtin_huge_valf();

HEDDLE_DEVICE std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
HEDDLE_DEVICE float float_of(std::uint32_t x) { return __builtin_bit_cast(float, x); }

template <class T>
concept tensor_core_element = std::same_as<T, float16> || std::same_as<T, bfloat16>;

#if defined(__CUDACC__)

HEDDLE_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char heddle_shared_memory[];
  return heddle_shared_memory;
}
HEDDLE_DEVICE unsigned shared_address(int offset) { return static_cast<unsigned>(__cvta_generic_to_shared(shared_memory())) + static_cast<unsigned>(offset); }

/// 16 bytes to shared memory, asynchronously; zeros, and nothing is read, when not valid.
HEDDLE_DEVICE void copy_async_16(int to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
HEDDLE_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int keep>
HEDDLE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(keep) : "memory");
}
HEDDLE_DEVICE void load_matrix_x4(std::uint32_t (&r)[4], int row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
HEDDLE_DEVICE void load_matrix_x4_transposed(std::uint32_t (&r)[4], int row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
/// d += a b: 16 x 16 times 16 x 8, float accumulators.
template <tensor_core_element T>
HEDDLE_DEVICE void multiply_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, bfloat16>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// Two floats, rounded to nearest even; `low` in the lower half.
template <tensor_core_element T>
HEDDLE_DEVICE std::uint32_t pack(float low, float high) {
  std::uint32_t r;
  if constexpr (std::is_same_v<T, bfloat16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <tensor_core_element T>
HEDDLE_DEVICE void unpack(std::uint32_t x, float& low, float& high) {
  if constexpr (std::is_same_v<T, bfloat16>) low = float_of(x << 16), high = float_of(x & 0xFFFF0000u);
  else asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}\n" : "=f"(low), "=f"(high) : "r"(x));
}
/// 2^x; subnormal results are flushed to 0.
HEDDLE_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
HEDDLE_DEVICE float log2(float x) { return ::log2f(x); }
HEDDLE_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
HEDDLE_DEVICE float max(float a, float b) { return ::fmaxf(a, b); }
HEDDLE_DEVICE uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }
HEDDLE_DEVICE uint2 load8(const void* p) { return *static_cast<const uint2*>(p); }
HEDDLE_DEVICE void store16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
HEDDLE_DEVICE void store8(void* p, uint2 v) { *static_cast<uint2*>(p) = v; }

#else

inline unsigned char* shared_memory() { return simt::current_block()->shared; }
inline void copy_async_16(int to, const void* from, bool valid, int line = __builtin_LINE()) { simt::copy_async(shared_memory() + to, from, 16, valid ? 16 : 0, line); }
inline void copy_async_commit() { simt::copy_commit(); }
template <int keep>
void copy_async_wait() {
  simt::copy_wait(keep);
}
inline void load_matrix_x4(std::uint32_t (&r)[4], int row, int line = __builtin_LINE()) { simt::load_matrix_x4<false>(r, shared_memory() + row, line); }
inline void load_matrix_x4_transposed(std::uint32_t (&r)[4], int row, int line = __builtin_LINE()) { simt::load_matrix_x4<true>(r, shared_memory() + row, line); }
template <tensor_core_element T>
void multiply_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], int line = __builtin_LINE()) {
  simt::multiply_m16n8k16(d, a, b, [](std::uint16_t x) { return static_cast<float>(T::from_bits(x)); }, line);
}
template <tensor_core_element T>
std::uint32_t pack(float low, float high) {
  return static_cast<std::uint32_t>(T(low).bits) | static_cast<std::uint32_t>(T(high).bits) << 16;
}
template <tensor_core_element T>
void unpack(std::uint32_t x, float& low, float& high) {
  low = T::from_bits(static_cast<std::uint16_t>(x)), high = T::from_bits(static_cast<std::uint16_t>(x >> 16));
}
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float max(float a, float b) { return std::fmax(a, b); }
template <class Word>
Word load_word(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(Word)) simt::fail("a wide load is misaligned", 0);
  Word w;
  std::memcpy(&w, p, sizeof w);
  return w;
}
template <class Word>
void store_word(void* p, Word w) {
  if (reinterpret_cast<std::uintptr_t>(p) % sizeof(Word)) simt::fail("a wide store is misaligned", 0);
  std::memcpy(p, &w, sizeof w);
}
inline uint4 load16(const void* p) { return load_word<uint4>(p); }
inline uint2 load8(const void* p) { return load_word<uint2>(p); }
inline void store16(void* p, uint4 v) { store_word(p, v); }
inline void store8(void* p, uint2 v) { store_word(p, v); }

#endif

/// Launches a kernel on a stream: no allocation, no synchronisation, capturable in a graph. Errors of the launch itself are thrown.
template <class... Parameters, class... Arguments>
void launch(const char* function, dim3 grid, dim3 block, std::size_t shared_bytes, stream on, void (*kernel)(Parameters...), const Arguments&... arguments) {
#if defined(__CUDACC__)
  cudaError_t e = cudaSuccess;
  if (shared_bytes > 48 * 1024) e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (e == cudaSuccess) {
    kernel<<<grid, block, shared_bytes, on>>>(Parameters(arguments)...);
    e = cudaGetLastError();
  }
  require(e == cudaSuccess, function, ": the launch failed: ", cudaGetErrorString(e));
#else
  static_cast<void>(function), static_cast<void>(on);
  simt::launch(grid, block, shared_bytes, kernel, Parameters(arguments)...);
#endif
}

}  // namespace heddle::cuda::inline HEDDLE_ISA
