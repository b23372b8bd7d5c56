// The steps between the two products of unfused attention, as launches.

#ifndef ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_KERNELS_H_
#define ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_KERNELS_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/forward/device_task.h"

namespace attend::cuda::unfused {

// What one task's steps work on. `task.v` is as given; the product uses `values`.
struct StepParams {
  DeviceTask task;
  const float* scores;  // [heads_q, seqlen_q, seqlen_k], bare products
  void* probabilities;  // the same shape, inputs' element
  void* values;         // [seqlen_k, heads_k, head_dim_v]: v with NaN and infinity replaced by 0
  int* found;           // set to 1 when one was replaced
};

// values and found, from task.v.
cudaError_t LaunchCleanValues(const StepParams& params, cudaStream_t stream);

// probabilities and lse, from scores: options, mask, softmax.
cudaError_t LaunchSoftmax(const StepParams& params, cudaStream_t stream);

// After the second product: NaN where a row sees a replaced value, 0 and -infinity in padded rows.
// With no keys at all it writes every row.
cudaError_t LaunchFinish(const StepParams& params, cudaStream_t stream);

}  // namespace attend::cuda::unfused

#endif  // ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_KERNELS_H_
