// Compiler hints of the micro-kernels.

#ifndef ATTEND_KERNELS_CPU_SIMD_MACROS_H_
#define ATTEND_KERNELS_CPU_SIMD_MACROS_H_

// Never emitted on its own, so that no other file can link to it. Lambdas need it too: inside a
// function for a wider instruction set they do not inherit it everywhere.
#define ATTEND_INLINE static inline __attribute__((always_inline))

// Worth one call: keeps what does not depend on the number of rows out of every instantiation.
#define ATTEND_NOINLINE static __attribute__((noinline))

// Loops over registers must be unrolled completely, loops over memory not at all, but for those of
// the products: their 20 instructions a step leave no room for three more that count.
#if defined(__clang__)
#define ATTEND_UNROLL _Pragma("unroll")
#define ATTEND_UNROLL_PRODUCT _Pragma("unroll 8")
#define ATTEND_NO_UNROLL _Pragma("nounroll")
#else
#define ATTEND_UNROLL _Pragma("GCC unroll 16")
#define ATTEND_UNROLL_PRODUCT _Pragma("GCC unroll 8")
#define ATTEND_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#if defined(ATTEND_SMALL_KERNELS)  // sanitizers multiply every instruction
#undef ATTEND_UNROLL_PRODUCT
#define ATTEND_UNROLL_PRODUCT ATTEND_NO_UNROLL
#endif

#endif  // ATTEND_KERNELS_CPU_SIMD_MACROS_H_
