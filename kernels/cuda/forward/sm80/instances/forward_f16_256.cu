#include "kernels/cuda/forward/sm80/sm80_launch.cuh"

namespace attend::cuda::sm80 {

template KernelFunction TileKernelFunction<Element::kF16, 256>(bool options);
template KernelFunction DecodeKernelFunction<Element::kF16, 256>(bool options);

}  // namespace attend::cuda::sm80
