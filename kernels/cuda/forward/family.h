// A family of forward kernels for one architecture: what it accepts and how it is launched.
//
// The executor asks families in order of preference and sends each task to the first that accepts
// it; the choice depends on the task and the device alone, never on batch-mates. It then calls, for
// the tasks of one family and one variant:
//
//   LaunchSize size = family.Measure(tasks);            // how much to reserve
//   family.Fill(tasks, upload_host, upload_device, workspace_device);
//   ... copies upload_host to upload_device on the stream ...
//   cudaError_t error = family.Launch(stream);
//
// A ForwardFamily object belongs to one executor and keeps its plan between these calls, reusing
// memory. Host code only; single-threaded.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_FAMILY_H_
#define ATTEND_KERNELS_CUDA_FORWARD_FAMILY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/cuda/forward/device_task.h"

namespace attend::cuda {

struct LaunchSize {
  size_t upload_bytes = 0;     // descriptors and plan, host to device in one copy
  size_t workspace_bytes = 0;  // partial results, repacked tensors
};

class ForwardFamily {
 public:
  virtual ~ForwardFamily() = default;

  // Whether this family runs `task` on this device. `device_task` need not be placed: only shapes,
  // strides and options count; pointers will be aligned to 16 bytes or follow the rows' alignment.
  virtual bool Accepts(const AttentionTask& task) const = 0;

  // Which of its compiled instances a task needs; tasks of one variant share one launch. Part of
  // the KernelClass, so at most 2^24 values.
  virtual uint32_t Variant(const AttentionTask& task) const = 0;

  // `tasks` (all of one variant) stay valid and in place until Launch has returned; the pointers in
  // `placed` may still be null in Measure and are final in Fill. placed[i] belongs to tasks[i].
  virtual LaunchSize Measure(absl::Span<const AttentionTask> tasks) = 0;
  virtual void Fill(absl::Span<const AttentionTask> tasks, absl::Span<const DeviceTask> placed,
                    std::byte* upload_host, std::byte* upload_device,
                    std::byte* workspace_device) = 0;
  // Enqueues every kernel of the batch; adds the launches to `launches`.
  virtual cudaError_t Launch(cudaStream_t stream, std::vector<KernelLaunches>* launches) = 0;
};

// Families for a device of this compute capability, preferred first. `sm_count` sizes persistent
// grids, not results. The device's context must be current: families ask the driver.
std::vector<std::unique_ptr<ForwardFamily>> MakeForwardFamilies(int major, int minor, int sm_count);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_FORWARD_FAMILY_H_
