// Launches, and the merge of chunks.

#include "kernels/cuda/forward/sm90/sm90_launch.h"
#include "kernels/cuda/forward/sm90/sm90_merge.cuh"

namespace attend::cuda::sm90 {

cudaError_t PrepareKernel(const Sm90Kernel& kernel) {
  return cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kernel.shared_bytes));
}

cudaError_t LaunchKernel(const Sm90Kernel& kernel, int blocks, const Sm90Launch& launch,
                         cudaStream_t stream) {
  Sm90Launch argument = launch;
  void* arguments[] = {&argument};
  return cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(kernel.threads)), arguments,
                          kernel.shared_bytes, stream);
}

cudaError_t LaunchMerge(const Sm90Merge& merge, int64_t rows, bool bf16, cudaStream_t stream) {
  if (rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  // Its start overlaps the end of the kernel before, for which it waits itself.
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows));
  config.blockDim = dim3(32 * kMergeWarps);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return bf16 ? cudaLaunchKernelEx(&config, MergeKernel<__nv_bfloat16>, merge)
              : cudaLaunchKernelEx(&config, MergeKernel<__half>, merge);
}

}  // namespace attend::cuda::sm90
