// wgmma, the matrix product of a warpgroup: m64 x N x k16, fp32 accumulators in registers.
//
//   Score:  D = A * B^T, A and B in shared memory, rows of 64 elements, 128-byte swizzle (Q, K)
//   Value:  D += A * B,  A in registers, B in shared memory read across its rows (P, V)
//
// Operands in shared memory are named by the low word of their matrix descriptor; the high word is
// the same for all (stride 1024 bytes between groups of eight rows, 128-byte swizzle), because
// every tile starts at a multiple of 1024 bytes. Steps along k are plain additions to the low word.
// Encodings follow the PTX ISA, "Asynchronous warpgroup level matrix instructions".

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_WGMMA_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"

namespace attend::cuda::sm90 {

// Low word: address and "leading byte offset", the distance between panels of 64 columns for an
// operand read across its rows; not used (any value) for one read along them.
ATTEND_DEVICE uint32_t DescriptorLow(uint32_t address, uint32_t leading_bytes) {
  return ((address & 0x3ffff) >> 4) | ((leading_bytes >> 4) << 16);
}
inline constexpr uint32_t kStepAlongRow = 32 >> 4;          // 16 columns
inline constexpr uint32_t kStepAcrossRows = 16 * 128 >> 4;  // 16 rows

ATTEND_DEVICE void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATTEND_DEVICE void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
ATTEND_DEVICE void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells the compiler that the registers change here: accumulators are written behind its back.
template <int kCount>
ATTEND_DEVICE void Pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Two floats rounded to nearest and packed, `low` in the low half.
template <class T>
ATTEND_DEVICE uint32_t Pack(float low, float high);
template <>
ATTEND_DEVICE uint32_t Pack<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
ATTEND_DEVICE uint32_t Pack<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <class T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<__nv_bfloat16> = true;

// clang-format off
// Operand lists, eight registers at a time: the template text and its constraints.
#define ATTEND_T0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ATTEND_T1 ATTEND_T0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define ATTEND_T2 ATTEND_T1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define ATTEND_T3 ATTEND_T2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define ATTEND_T4 ATTEND_T3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define ATTEND_T5 ATTEND_T4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define ATTEND_T6 ATTEND_T5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define ATTEND_T7 ATTEND_T6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define ATTEND_T8 ATTEND_T7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define ATTEND_T9 ATTEND_T8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define ATTEND_T10 ATTEND_T9 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define ATTEND_T11 ATTEND_T10 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define ATTEND_T12 ATTEND_T11 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define ATTEND_T13 ATTEND_T12 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define ATTEND_T14 ATTEND_T13 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define ATTEND_T15 ATTEND_T14 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define ATTEND_D8(i) "+f"(d[i]),"+f"(d[i+1]),"+f"(d[i+2]),"+f"(d[i+3]),"+f"(d[i+4]),"+f"(d[i+5]),"+f"(d[i+6]),"+f"(d[i+7])
#define ATTEND_D0 ATTEND_D8(0)
#define ATTEND_D1 ATTEND_D0,ATTEND_D8(8)
#define ATTEND_D2 ATTEND_D1,ATTEND_D8(16)
#define ATTEND_D3 ATTEND_D2,ATTEND_D8(24)
#define ATTEND_D4 ATTEND_D3,ATTEND_D8(32)
#define ATTEND_D5 ATTEND_D4,ATTEND_D8(40)
#define ATTEND_D6 ATTEND_D5,ATTEND_D8(48)
#define ATTEND_D7 ATTEND_D6,ATTEND_D8(56)
#define ATTEND_D8_ ATTEND_D7,ATTEND_D8(64)
#define ATTEND_D9 ATTEND_D8_,ATTEND_D8(72)
#define ATTEND_D10 ATTEND_D9,ATTEND_D8(80)
#define ATTEND_D11 ATTEND_D10,ATTEND_D8(88)
#define ATTEND_D12 ATTEND_D11,ATTEND_D8(96)
#define ATTEND_D13 ATTEND_D12,ATTEND_D8(104)
#define ATTEND_D14 ATTEND_D13,ATTEND_D8(112)
#define ATTEND_D15 ATTEND_D14,ATTEND_D8(120)

template <class T, int kColumns>
struct Wgmma;

// n: columns; t, c: register text and constraints; r: registers = n / 2; r0..r5: r, r + 1, ... as text.
#define ATTEND_WGMMA_SCORE(n, type, t, c, r0, r1, r2)                                            \
  asm volatile("{\n.reg .pred p;\n.reg .b64 da, db;\nmov.b64 da, {%" r0 ", 0x40000040};\n"       \
               "mov.b64 db, {%" r1 ", 0x40000040};\nsetp.ne.b32 p, %" r2 ", 0;\n"                \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                    \
               " {" t "}, da, db, p, 1, 1, 0, 0;\n}"                                             \
               : c : "r"(a), "r"(b), "r"(accumulate))
#define ATTEND_WGMMA_VALUE(n, type, t, c, r0, r1, r2, r3, r4, r5)                                 \
  asm volatile("{\n.reg .pred p;\n.reg .b64 db;\nmov.b64 db, {%" r4 ", 0x40000040};\nsetp.ne.b32 p, %" r5 ", 0;\n"                          \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type                    \
               " {" t "}, {%" r0 ", %" r1 ", %" r2 ", %" r3 "}, db, p, 1, 1, 1;\n}"              \
               : c : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "r"(accumulate))
#define ATTEND_WGMMA(n, t, c, r0, r1, r2, r3, r4, r5)                                             \
  template <class T>                                                                             \
  struct Wgmma<T, n> {                                                                           \
    static ATTEND_DEVICE void Score(float (&d)[n / 2], uint32_t a, uint32_t b, int accumulate) { \
      if constexpr (kIsBf16<T>) ATTEND_WGMMA_SCORE(#n, "bf16", t, ATTEND_PASS(c), r0, r1, r2);   \
      else ATTEND_WGMMA_SCORE(#n, "f16", t, ATTEND_PASS(c), r0, r1, r2);                         \
    }                                                                                            \
    static ATTEND_DEVICE void Value(float (&d)[n / 2], uint32_t a0, uint32_t a1, uint32_t a2,    \
                                    uint32_t a3, uint32_t b, int accumulate) {                                   \
      if constexpr (kIsBf16<T>) ATTEND_WGMMA_VALUE(#n, "bf16", t, ATTEND_PASS(c), r0, r1, r2, r3, r4, r5); \
      else ATTEND_WGMMA_VALUE(#n, "f16", t, ATTEND_PASS(c), r0, r1, r2, r3, r4, r5);                 \
    }                                                                                            \
  };
#define ATTEND_PASS(...) __VA_ARGS__
#define ATTEND_LIST(...) __VA_ARGS__

ATTEND_WGMMA(64, ATTEND_T3, ATTEND_LIST(ATTEND_D3), "32", "33", "34", "35", "36", "37")
ATTEND_WGMMA(80, ATTEND_T4, ATTEND_LIST(ATTEND_D4), "40", "41", "42", "43", "44", "45")
ATTEND_WGMMA(96, ATTEND_T5, ATTEND_LIST(ATTEND_D5), "48", "49", "50", "51", "52", "53")
ATTEND_WGMMA(112, ATTEND_T6, ATTEND_LIST(ATTEND_D6), "56", "57", "58", "59", "60", "61")
ATTEND_WGMMA(128, ATTEND_T7, ATTEND_LIST(ATTEND_D7), "64", "65", "66", "67", "68", "69")
ATTEND_WGMMA(192, ATTEND_T11, ATTEND_LIST(ATTEND_D11), "96", "97", "98", "99", "100", "101")
ATTEND_WGMMA(256, ATTEND_T15, ATTEND_LIST(ATTEND_D15), "128", "129", "130", "131", "132", "133")
// clang-format on

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_WGMMA_CUH_
