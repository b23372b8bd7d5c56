// The compiled kernels, as the host sees them. Each function below has one definition, in
// instances/.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_KERNELS_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_KERNELS_H_

#include "kernels/cuda/forward/device_task.h"

namespace attend::cuda::sm80 {

struct KernelFunction {
  const void* function = nullptr;
  int threads = 0;
  int shared_bytes = 0;
};

// Kernels over items (their argument is an ItemLaunch). `options`: with softcap, bias, ALiBi and
// any scale; without, only masks and sinks.
template <Element kElement, int kColumns>
KernelFunction TileKernelFunction(bool options);
template <Element kElement, int kColumns>
KernelFunction DecodeKernelFunction(bool options);
template <int kColumns>
KernelFunction Fp32KernelFunction(bool options);

// Kernels over vectors, kVectorWarps a block.
KernelFunction RepackKernelFunction();  // RepackLaunch
KernelFunction MergeKernelFunction();   // RowLaunch
KernelFunction PadKernelFunction();     // RowLaunch

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_KERNELS_H_
