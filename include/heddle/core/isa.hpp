// The names under which code for one instruction set lives.
//
// Two translation units of one program may be compiled with different -m flags. Every function of heddle that does arithmetic lives in
// `namespace heddle::...::inline HEDDLE_ISA`, whose name spells the instruction sets the code relies on, so that the linker never takes a
// function of one unit for that of another. Plain data (views, errors, keys, verdicts) lives outside and passes between all units.
//
// HEDDLE_ISA         name of the inline namespace
// HEDDLE_HOST_DEVICE functions that CUDA kernels call too
#pragma once

#if defined(_MSC_VER) && !defined(__clang__)
#error "heddle: MSVC is not supported; use g++ 12 or newer, clang 14 or newer, or clang-cl"
#endif
#if __cplusplus < 202002L
#error "heddle: C++20 is required; compile with -std=c++20 or newer"
#endif
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "heddle: -ffast-math, -fassociative-math, -freciprocal-math and -ffinite-math-only break masking and bitwise reproducibility; compile the units that include heddle with -fno-fast-math"
#endif

#define HEDDLE_JOIN_TOKENS(a, b, c, d, e) a##b##c##d##e
#define HEDDLE_JOIN(a, b, c, d, e) HEDDLE_JOIN_TOKENS(a, b, c, d, e)

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define HEDDLE_ISA_VECTOR isa_avx512
#elif defined(__AVX2__)
#define HEDDLE_ISA_VECTOR isa_avx2
#elif defined(__AVX__)
#define HEDDLE_ISA_VECTOR isa_avx
#elif defined(__SSE4_2__)
#define HEDDLE_ISA_VECTOR isa_sse42
#elif defined(__SSSE3__)
#define HEDDLE_ISA_VECTOR isa_ssse3
#elif defined(__SSE2__)
#define HEDDLE_ISA_VECTOR isa_sse2
#elif defined(__ARM_NEON)
#define HEDDLE_ISA_VECTOR isa_neon
#else
#define HEDDLE_ISA_VECTOR isa_scalar
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define HEDDLE_ISA_FMA _fma
#else
#define HEDDLE_ISA_FMA
#endif
#if defined(__F16C__)
#define HEDDLE_ISA_F16C _f16c
#else
#define HEDDLE_ISA_F16C
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define HEDDLE_ISA_BYTES _vnni_vbmi
#elif defined(__AVX512VNNI__)
#define HEDDLE_ISA_BYTES _vnni
#elif defined(__AVXVNNI__)
#define HEDDLE_ISA_BYTES _avxvnni
#else
#define HEDDLE_ISA_BYTES
#endif
#if defined(__BMI2__) && defined(__LZCNT__)
#define HEDDLE_ISA_SCALAR _bmi2
#else
#define HEDDLE_ISA_SCALAR
#endif
#define HEDDLE_ISA HEDDLE_JOIN(HEDDLE_ISA_VECTOR, HEDDLE_ISA_FMA, HEDDLE_ISA_F16C, HEDDLE_ISA_BYTES, HEDDLE_ISA_SCALAR)

#if defined(__CUDACC__)
#define HEDDLE_HOST_DEVICE __host__ __device__
#pragma nv_diag_suppress 1675   // pragmas of the host compiler are not news
#else
#define HEDDLE_HOST_DEVICE
#endif
