#include "kernels/cuda/unfused/unfused_cuda_backend.h"

#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_backend.h"
#include "kernels/cuda/unfused/cublas.h"
#include "kernels/cuda/unfused/unfused_family.h"

namespace attend {

int UnfusedCudaDeviceCount() { return cuda::LoadCublas() == nullptr ? 0 : CudaDeviceCount(); }

absl::StatusOr<std::unique_ptr<Backend>> MakeUnfusedCudaBackend(const BackendOptions& options) {
  if (cuda::LoadCublas() == nullptr) {
    return absl::UnavailableError("unfused-cuda: the library cuBLAS is not on this host");
  }
  cuda::DeviceBackendKind kind;
  kind.name = "unfused-cuda";
  kind.kernel_names = cuda::kUnfusedKernelNames;
  kind.make_families = [](const cuda::Capability&) {
    cuda::ForwardFamilies families;
    families.push_back(cuda::MakeUnfusedFamily());
    return families;
  };
  return cuda::MakeDeviceBackend(options, kind);
}

}  // namespace attend
