// Instruction sets that the kernels are built for, and which of them to use.

#ifndef ATTEND_KERNELS_CPU_ISA_H_
#define ATTEND_KERNELS_CPU_ISA_H_

namespace attend::cpu {

struct KernelTable;

// Worst first.
enum class Isa { kPortable, kSse4, kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr int kIsaCount = 5;

// "portable", "sse4", "avx2", "avx512", "avx512_bf16": also the values of ATTEND_CPU_ISA.
const char* Name(Isa isa);

// Can this processor and operating system run it, and is it part of this build?
bool Supported(Isa isa);

// The best supported one, but for kAvx512Bf16: its kernels have not been run through the
// conformance suite on a processor that has the instructions, so they must be asked for by name.
Isa BestIsa();

// Kernels of `isa`; null when not part of this build.
const KernelTable* Kernels(Isa isa);

// Tables by the file that holds them; null for others.
const KernelTable* HighwayTable(Isa isa);
const KernelTable* PortableTable();

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_ISA_H_
