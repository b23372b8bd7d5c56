// One worker of the CUDA backend: a stream, an arena, events, and its own kernel families.

#ifndef ATTEND_KERNELS_CUDA_CUDA_EXECUTOR_H_
#define ATTEND_KERNELS_CUDA_CUDA_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_clock.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/forward/device_task.h"
#include "kernels/cuda/forward/family.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/cuda/placement.h"

namespace attend::cuda {

using ForwardFamilies = std::vector<std::unique_ptr<ForwardFamily>>;

// Index of the family that runs `task`, or -1.
int FamilyOf(const ForwardFamilies& families, const AttentionTask& task);

// What the executors of a device share. Outlives them.
struct DeviceContext {
  int ordinal = 0;
  DeviceHealth health;
  std::unique_ptr<DeviceClock> clock;
  std::unique_ptr<DeviceMemory> memory;
  std::shared_ptr<PinnedRanges> pinned = std::make_shared<PinnedRanges>();
};

// Waits for `event` (recorded, made for blocking waits): spins as long as a sleeping wait would
// cost, then sleeps.
cudaError_t WaitForEvent(cudaEvent_t event);

class CudaExecutor final : public Executor {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Make(DeviceContext* context,
                                                        ForwardFamilies families);
  ~CudaExecutor() override;

  absl::Status Run(const AttentionBatch& batch, BatchReport* report) override;

 private:
  // Tasks of one family and variant, in the order of the batch.
  struct Group {
    int family = 0;
    uint32_t variant = 0;
    std::vector<AttentionTask> tasks;
    std::vector<DeviceTask> placed;
    LaunchSize size;
    size_t upload_offset = 0;
  };
  enum Mark { kStart, kCopiedIn, kComputed, kCopiedOut, kMarks };

  CudaExecutor(DeviceContext* context, ForwardFamilies families);
  absl::Status Split(absl::Span<const AttentionTask> tasks);
  absl::Status GrowUpload(size_t bytes);
  absl::Status Enqueue(absl::Span<const AttentionTask> tasks, std::byte* base, size_t upload_bytes,
                       BatchReport* report);
  absl::Status Copies(const std::vector<Copy>& copies, std::byte* base, cudaMemcpyKind kind);
  absl::Status Record(Mark mark);
  absl::Status FillReport(const DeviceClock::Anchor& anchor, BatchReport* report);

  DeviceContext* const context_;
  const ForwardFamilies families_;
  std::unique_ptr<DeviceArena> arena_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kMarks> events_ = {};

  // Reused from batch to batch.
  Placement placement_;
  std::vector<DeviceTask> placed_;
  std::vector<size_t> group_of_;  // by task
  std::vector<Group> groups_;     // the first group_count_ are those of this batch
  size_t group_count_ = 0;
  std::byte* upload_ = nullptr;  // page-locked
  size_t upload_capacity_ = 0;
};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_CUDA_EXECUTOR_H_
