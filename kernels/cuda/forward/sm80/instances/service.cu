#include "kernels/cuda/forward/sm80/service_kernels.cuh"
#include "kernels/cuda/forward/sm80/sm80_kernels.h"

namespace attend::cuda::sm80 {

KernelFunction RepackKernelFunction() {
  return {reinterpret_cast<const void*>(&RepackKernel), kVectorWarps * 32, 0};
}
KernelFunction MergeKernelFunction() {
  return {reinterpret_cast<const void*>(&MergeKernel), kVectorWarps * 32, 0};
}
KernelFunction PadKernelFunction() {
  return {reinterpret_cast<const void*>(&PadKernel), kVectorWarps * 32, 0};
}

}  // namespace attend::cuda::sm80
