// Thin names for the instructions that C++ has none for. Compute capability 8.0 and up.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_PTX_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_PTX_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attend::cuda::sm80 {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global to shared memory without waiting; writes zeros when !valid.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
               "r"(bytes));
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::); }
// Waits until at most `kPending` of this thread's newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// d += a * b: 16 x 16 times 16 x 8, fp32 accumulators.
template <typename T>
__device__ __forceinline__ void Mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1);
template <>
__device__ __forceinline__ void Mma16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void Mma16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d += a * b: 16 x 8 times 8 x 8, tf32 operands (the low 13 bits are ignored).
__device__ __forceinline__ void MmaTf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x; -infinity gives 0. Relative error 2^-22, results below 2^-126 become 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as one packed pair, `low` in the low half.
template <typename T>
__device__ __forceinline__ uint32_t Pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t Pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t Pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Whether one of the two 16-bit values of a pair is NaN or infinite: its exponent is all ones.
template <typename T>
inline constexpr uint32_t kExponent16 = 0x7c00u;
template <>
inline constexpr uint32_t kExponent16<__nv_bfloat16> = 0x7f80u;

template <typename T>
__device__ __forceinline__ bool HasNonFinite(uint32_t pair) {
  constexpr uint32_t kLow = kExponent16<T>;
  constexpr uint32_t kHigh = kLow << 16;
  return (pair & kLow) == kLow || (pair & kHigh) == kHigh;
}
// The pair with NaN and infinity replaced by 0.
template <typename T>
__device__ __forceinline__ uint32_t FiniteOrZero(uint32_t pair) {
  constexpr uint32_t kLow = kExponent16<T>;
  constexpr uint32_t kHigh = kLow << 16;
  if ((pair & kLow) == kLow) pair &= 0xffff0000u;
  if ((pair & kHigh) == kHigh) pair &= 0x0000ffffu;
  return pair;
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_PTX_CUH_
