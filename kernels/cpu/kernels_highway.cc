// The micro-kernels for SSE4, AVX2 and AVX-512, compiled once for each by Highway.

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/macros.h"

// The baseline of a plain x86-64 build is a scalar target; kernels_portable.cc does that better.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kernels_highway.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace attend::cpu {
namespace HWY_NAMESPACE {

#include "kernels/cpu/simd/half_scalar.inc"
//
#include "kernels/cpu/simd/highway.inc"
//
#include "kernels/cpu/simd/power.inc"
//
#include "kernels/cpu/simd/exp2_shift.inc"
//
#include "kernels/cpu/micro/layout.inc"
//
#include "kernels/cpu/micro/pack.inc"
//
#include "kernels/cpu/micro/product.inc"
//
#include "kernels/cpu/micro/softmax.inc"
//
#include "kernels/cpu/micro/careful.inc"
//
#include "kernels/cpu/micro/strip.inc"
//
#include "kernels/cpu/micro/stream.inc"
//
#include "kernels/cpu/micro/finish.inc"
//
#include "kernels/cpu/micro/table.inc"

constexpr KernelTable kTable = {
    HWY_TARGET == HWY_AVX3   ? "cpu_avx512"
    : HWY_TARGET == HWY_AVX2 ? "cpu_avx2"
                             : "cpu_sse4",
    kLanes,
    kStripRows,
    kPanel,
    kKeyBlock,
    /*flushes_subnormal_pairs=*/false,
    {SingleKernels<float>(), SingleKernels<Half>(), SingleKernels<Brain>()}};

}  // namespace HWY_NAMESPACE
}  // namespace attend::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace attend::cpu {

const KernelTable* HighwayTable(Isa isa) {
  switch (isa) {
#if (HWY_TARGETS & HWY_SSE4)
    case Isa::kSse4:
      return &N_SSE4::kTable;
#endif
#if (HWY_TARGETS & HWY_AVX2)
    case Isa::kAvx2:
      return &N_AVX2::kTable;
#endif
#if (HWY_TARGETS & HWY_AVX3)
    case Isa::kAvx512:
      return &N_AVX3::kTable;
#endif
    default:
      return nullptr;
  }
}

}  // namespace attend::cpu
#endif
