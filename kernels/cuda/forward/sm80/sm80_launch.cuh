// Definitions of the functions of sm80_kernels.h; instances/ picks which to compile.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_LAUNCH_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_LAUNCH_CUH_

#include <type_traits>

#include "kernels/cuda/forward/sm80/decode_kernel.cuh"
#include "kernels/cuda/forward/sm80/forward_kernel.cuh"
#include "kernels/cuda/forward/sm80/fp32_kernel.cuh"
#include "kernels/cuda/forward/sm80/sm80_kernels.h"

namespace attend::cuda::sm80 {

template <Element kElement>
using Type16 = std::conditional_t<kElement == Element::kF16, __half, __nv_bfloat16>;

template <typename Config>
KernelFunction Describe(const void* function) {
  return {function, Config::kThreads, Config::kSharedBytes};
}

template <Element kElement, int kColumns>
KernelFunction TileKernelFunction(bool options) {
  using T = Type16<kElement>;
  using Config = TileConfig<kColumns>;
  return Describe<Config>(options
                              ? reinterpret_cast<const void*>(&ForwardKernel<T, Config, true>)
                              : reinterpret_cast<const void*>(&ForwardKernel<T, Config, false>));
}

template <Element kElement, int kColumns>
KernelFunction DecodeKernelFunction(bool options) {
  using T = Type16<kElement>;
  using Config = DecodeConfig<kColumns>;
  return Describe<Config>(options ? reinterpret_cast<const void*>(&DecodeKernel<T, Config, true>)
                                  : reinterpret_cast<const void*>(&DecodeKernel<T, Config, false>));
}

template <int kColumns>
KernelFunction Fp32KernelFunction(bool options) {
  using Config = Fp32Config<kColumns>;
  return Describe<Config>(options ? reinterpret_cast<const void*>(&Fp32Kernel<Config, true>)
                                  : reinterpret_cast<const void*>(&Fp32Kernel<Config, false>));
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_LAUNCH_CUH_
