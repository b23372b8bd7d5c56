// CUDA errors as statuses, and the health of one device.
//
// Host code of kernels/cuda only.

#ifndef ATTEND_KERNELS_CUDA_CUDA_STATUS_H_
#define ATTEND_KERNELS_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <mutex>
#include <string_view>

#include "absl/status/status.h"

namespace attend::cuda {

// OK for cudaSuccess. Out of memory is RESOURCE_EXHAUSTED, a device or driver that does not answer
// is UNAVAILABLE, anything else INTERNAL. The message is "`what`: NAME: description".
absl::Status ToStatus(cudaError_t error, std::string_view what);

// Whether the process can never use the device again after `error`: every later call returns it.
bool IsSticky(cudaError_t error);

// What is known of one device. Thread-safe.
class DeviceHealth {
 public:
  // ToStatus(), and remembers the first sticky error. Clears errors that are not sticky, so that
  // they are not reported again by an unrelated call.
  absl::Status Check(cudaError_t error, std::string_view what);

  // UNAVAILABLE after a sticky error, else OK.
  absl::Status Get() const;

 private:
  mutable std::mutex mutex_;
  absl::Status first_sticky_;  // guarded by mutex_
};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_CUDA_STATUS_H_
