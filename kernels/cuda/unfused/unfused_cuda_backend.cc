#include "kernels/cuda/unfused/unfused_cuda_backend.h"

namespace attend {

absl::StatusOr<std::unique_ptr<Backend>> MakeUnfusedCudaBackend(const BackendOptions& /*options*/) {
  return absl::UnavailableError("unfused-cuda: cuBLAS does not answer");
}

}  // namespace attend
