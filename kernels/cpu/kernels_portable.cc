// The micro-kernels in the compiler's own vectors: for processors without SSE4, and a second
// opinion on the others.

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/macros.h"

#define ATTEND_PORTABLE_BLOCKS 1

namespace attend::cpu {
namespace portable {

#include "kernels/cpu/simd/half_scalar.inc"
//
#include "kernels/cpu/simd/portable.inc"
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
    "cpu_portable",
    kLanes,
    kStripRows,
    kPanel,
    kKeyBlock,
    /*flushes_subnormal_pairs=*/false,
    {SingleKernels<float>(), SingleKernels<Half>(), SingleKernels<Brain>()}};

}  // namespace portable

const KernelTable* PortableTable() { return &portable::kTable; }

}  // namespace attend::cpu
