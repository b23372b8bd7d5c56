#include "kernels/cpu/isa.h"

#include "hwy/targets.h"
#include "kernels/cpu/kernel_table.h"

namespace attend::cpu {

#if defined(ATTEND_CPU_AVX512_BF16)
// Data and not a function: its file's code may not run before the host has been asked.
extern const KernelTable kAvx512Bf16Table;
#endif

namespace {

// What the host can run, by Highway's detection: it looks at CPUID and at what the operating system
// saves.
bool HostHas(Isa isa) {
#if defined(__x86_64__)
  const auto targets = hwy::SupportedTargets();
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kSse4:
      return (targets & HWY_SSE4) != 0;
    case Isa::kAvx2:
      return (targets & HWY_AVX2) != 0;
    case Isa::kAvx512:
      return (targets & HWY_AVX3) != 0;
    case Isa::kAvx512Bf16:
      return (targets & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == Isa::kPortable;
#endif
}

}  // namespace

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kSse4:
      return "sse4";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "";
}

const KernelTable* Kernels(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return PortableTable();
    case Isa::kAvx512Bf16:
#if defined(ATTEND_CPU_AVX512_BF16)
      return &kAvx512Bf16Table;
#else
      return nullptr;
#endif
    default:
      return HighwayTable(isa);
  }
}

bool Supported(Isa isa) { return HostHas(isa) && Kernels(isa) != nullptr; }

Isa BestIsa() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kSse4}) {
    if (Supported(isa)) return isa;
  }
  return Isa::kPortable;
}

}  // namespace attend::cpu
