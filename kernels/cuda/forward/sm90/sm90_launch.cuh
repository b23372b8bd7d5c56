// What an instance file needs: compiles one tile for both 16-bit types and describes it to the
// host.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_LAUNCH_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_LAUNCH_CUH_

#include "kernels/cuda/forward/sm90/sm90_config.h"
#include "kernels/cuda/forward/sm90/sm90_kernel.cuh"
#include "kernels/cuda/forward/sm90/sm90_launch.h"

namespace attend::cuda::sm90 {

template <class C>
Sm90Kernel DescribeKernel() {
  return {reinterpret_cast<const void*>(&ForwardKernel<C>),
          C::kRows,
          C::kKeys,
          static_cast<int>(C::kQPanelBytes),
          C::kThreads,
          C::kBlocksPerMultiprocessor,
          C::kSharedBytes,
          C::kPoisonWords,
          C::kDirect};
}

// Config: a tile as a template over the element type.
template <template <class> class Config>
const Sm90Kernel& Instance(bool bf16) {
  static const Sm90Kernel kernels[2] = {DescribeKernel<Config<__half>>(),
                                        DescribeKernel<Config<__nv_bfloat16>>()};
  return kernels[bf16 ? 1 : 0];
}

}  // namespace attend::cuda::sm90

// Defines `Kernel<tile>`.
#define ATTEND_SM90_INSTANCE(tile)                                                    \
  const attend::cuda::sm90::Sm90Kernel& attend::cuda::sm90::Kernel##tile(bool bf16) { \
    return Instance<Config##tile>(bf16);                                              \
  }

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_LAUNCH_CUH_
