// The CPU backend: fused attention on every x86-64 processor, with the widest instruction set that
// the host has.
//
// The environment variable ATTEND_CPU_ISA (portable, sse4, avx2, avx512, avx512_bf16) asks for a
// lesser one, for tests and comparisons. Kernels and numbers are in kernels/cpu/.

#ifndef ATTEND_KERNELS_CPU_CPU_BACKEND_H_
#define ATTEND_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/isa.h"

namespace attend {

// Takes `threads`. INVALID_ARGUMENT when ATTEND_CPU_ISA names nothing known, UNAVAILABLE when it
// names something that this host cannot run.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options);
int CpuDeviceCount();

namespace cpu {

// The same with a given instruction set. UNAVAILABLE when the host cannot run it.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackendFor(Isa isa, const BackendOptions& options);

}  // namespace cpu
}  // namespace attend

#endif  // ATTEND_KERNELS_CPU_CPU_BACKEND_H_
