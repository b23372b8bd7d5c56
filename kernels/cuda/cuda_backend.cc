#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_backend.h"
#include "kernels/cuda/forward/family.h"
#include "kernels/cuda/forward/kernel_names.h"
#include "kernels/cuda/forward/sm80/sm80_family.h"

namespace attend {

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  int usable = 0;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
        major >= cuda::kOldestMajor) {
      ++usable;
    }
  }
  return usable;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options) {
  cuda::DeviceBackendKind kind;
  kind.name = "cuda";
  kind.kernel_names = cuda::kForwardKernelNames;
  kind.make_families = [](const cuda::Capability& capability) {
    return cuda::MakeForwardFamilies(capability.major, capability.minor, capability.sm_count);
  };
  return cuda::MakeDeviceBackend(options, kind);
}

absl::StatusOr<std::unique_ptr<Backend>> MakePortableCudaBackend(const BackendOptions& options) {
  cuda::DeviceBackendKind kind;
  kind.name = "cuda-portable";
  kind.kernel_names = cuda::kForwardKernelNames;
  kind.make_families = [](const cuda::Capability&) {
    cuda::ForwardFamilies families;
    families.push_back(cuda::MakeSm80Family());
    return families;
  };
  return cuda::MakeDeviceBackend(options, kind);
}

}  // namespace attend
