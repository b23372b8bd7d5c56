// The fused CUDA backend: one device, its executors, its pinned memory.
//
// Works on every device of compute capability 8.0 and up. The binary carries its own CUDA run time
// and starts on hosts without a driver, where CudaDeviceCount() is 0.

#ifndef ATTEND_KERNELS_CUDA_CUDA_BACKEND_H_
#define ATTEND_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend {

// Devices of this host that the backend can drive; 0 when no driver or device answers.
int CudaDeviceCount();

// UNAVAILABLE when the device does not answer or is older than compute capability 8.0.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options);

// The same with only the portable kernels, whatever the device: what runs on devices that have none
// of their own, testable and measurable on those that do.
absl::StatusOr<std::unique_ptr<Backend>> MakePortableCudaBackend(const BackendOptions& options);

}  // namespace attend

#endif  // ATTEND_KERNELS_CUDA_CUDA_BACKEND_H_
