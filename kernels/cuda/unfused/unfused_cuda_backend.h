// The measuring stick on CUDA: attention in three steps, scores and probabilities stored.
//
// Products by cuBLAS, which is loaded at run time: a host without it has no device for this
// backend, and everything else still works.

#ifndef ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_CUDA_BACKEND_H_
#define ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend {

// CudaDeviceCount(), or 0 without cuBLAS.
int UnfusedCudaDeviceCount();

// UNAVAILABLE when the device or cuBLAS does not answer.
absl::StatusOr<std::unique_ptr<Backend>> MakeUnfusedCudaBackend(const BackendOptions& options);

}  // namespace attend

#endif  // ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_CUDA_BACKEND_H_
