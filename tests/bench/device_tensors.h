// Memory where a backend's kernels read it fastest, for benchmarks of kernels without copies.

#ifndef ATTEND_TESTS_BENCH_DEVICE_TENSORS_H_
#define ATTEND_TESTS_BENCH_DEVICE_TENSORS_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"

namespace attend::bench {

// Bytes on one device, freed with the object.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual void* data() const = 0;
  virtual MemoryKind memory() const = 0;
  virtual absl::Status CopyIn(const void* host, size_t bytes) = 0;
};

// On device `ordinal` for backends with "cuda" in their name, else on the host.
// RESOURCE_EXHAUSTED when there is too little memory.
absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateFor(std::string_view backend, int ordinal,
                                                          size_t bytes);

// The CUDA part of AllocateFor, in builds that have it.
absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateOnCuda(int ordinal, size_t bytes);

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_DEVICE_TENSORS_H_
