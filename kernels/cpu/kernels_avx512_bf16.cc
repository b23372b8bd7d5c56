// The micro-kernels in AVX-512 and AVX512-BF16 intrinsics. Compiled with flags for instructions
// that the host may lack, so nothing here may be linked from elsewhere: no inline function of a
// shared header, no template of the standard library, and data instead of a function at the end.

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/macros.h"

namespace attend::cpu {
namespace {

#include "kernels/cpu/simd/half_scalar.inc"
//
#include "kernels/cpu/simd/avx512.inc"
//
#include "kernels/cpu/simd/power.inc"
//
#include "kernels/cpu/micro/layout.inc"
//
#include "kernels/cpu/simd/avx512_pairs.inc"
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
//
#include "kernels/cpu/micro/table_pairs.inc"

}  // namespace

extern constinit const KernelTable kAvx512Bf16Table = {
    "cpu_avx512_bf16",
    kLanes,
    kStripRows,
    kPanel,
    kKeyBlock,
    /*flushes_subnormal_pairs=*/true,
    {SingleKernels<float>(), SingleKernels<Half>(), PairKernels()}};

}  // namespace attend::cpu
