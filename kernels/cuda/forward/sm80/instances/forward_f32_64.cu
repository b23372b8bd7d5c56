#include "kernels/cuda/forward/sm80/sm80_launch.cuh"

namespace attend::cuda::sm80 {

template KernelFunction Fp32KernelFunction<64>(bool options);

}  // namespace attend::cuda::sm80
