// Page-locked host memory: staging slabs, and who knows where they lie.

#ifndef ATTEND_KERNELS_CUDA_PINNED_MEMORY_H_
#define ATTEND_KERNELS_CUDA_PINNED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend::cuda {

// One page-locked allocation, [begin, end).
struct HostRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

using HostRanges = std::vector<HostRange>;  // sorted, disjoint

// The slabs that exist now. A copy may run over several tensors only within one of them, since a
// device copy must not cross from one allocation into another. Thread-safe.
class PinnedRanges {
 public:
  void Add(HostRange range);
  void Remove(const std::byte* begin);

  // Never null; unchanged by later Add and Remove.
  std::shared_ptr<const HostRanges> Snapshot() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const HostRanges> ranges_ = std::make_shared<HostRanges>();  // guarded by mutex_
};

// `bytes` of page-locked memory that every device may copy from; RESOURCE_EXHAUSTED when the host
// has no more. The staging may outlive the backend that made it.
absl::StatusOr<std::unique_ptr<Staging>> MakePinnedStaging(int device, size_t bytes,
                                                           std::shared_ptr<PinnedRanges> ranges);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_PINNED_MEMORY_H_
