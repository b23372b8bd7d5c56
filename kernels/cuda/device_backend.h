// A Backend on one CUDA device, whatever its kernels: "cuda" and "unfused-cuda" are two kinds of
// it.

#ifndef ATTEND_KERNELS_CUDA_DEVICE_BACKEND_H_
#define ATTEND_KERNELS_CUDA_DEVICE_BACKEND_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_executor.h"

namespace attend::cuda {

// The oldest compute capability that kernels are built for is kOldestMajor.0.
inline constexpr int kOldestMajor = 8;

// What the device is.
struct Capability {
  int major = 0;
  int minor = 0;
  int sm_count = 0;
  size_t total_memory = 0;
  std::string name;
};

struct DeviceBackendKind {
  std::string_view name;
  absl::Span<const std::string_view> kernel_names;
  ForwardFamilies (*make_families)(const Capability& capability) = nullptr;
};

// UNAVAILABLE when the device does not answer or is too old. The strings and the span of `kind`
// must live for ever.
absl::StatusOr<std::unique_ptr<Backend>> MakeDeviceBackend(const BackendOptions& options,
                                                           const DeviceBackendKind& kind);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_DEVICE_BACKEND_H_
