// The measuring stick on CUDA: attention in three steps, scores and probabilities stored.
//
// Products by cuBLAS, which is loaded when the backend is made: a host without it gets a clear
// status and everything else still works.

#ifndef ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_CUDA_BACKEND_H_
#define ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend {

// UNAVAILABLE when the device or cuBLAS does not answer.
absl::StatusOr<std::unique_ptr<Backend>> MakeUnfusedCudaBackend(const BackendOptions& options);

}  // namespace attend

#endif  // ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_CUDA_BACKEND_H_
