// The measuring stick on the CPU, as a backend: never chosen by itself.

#ifndef ATTEND_KERNELS_UNFUSED_UNFUSED_BACKEND_H_
#define ATTEND_KERNELS_UNFUSED_UNFUSED_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend {

// Takes `threads` and `device_memory_limit` (here: of the stored scores of one task; 0 means 3/4
// of the host's memory that is free at start).
absl::StatusOr<std::unique_ptr<Backend>> MakeUnfusedCpuBackend(const BackendOptions& options);
int UnfusedCpuDeviceCount();

}  // namespace attend

#endif  // ATTEND_KERNELS_UNFUSED_UNFUSED_BACKEND_H_
