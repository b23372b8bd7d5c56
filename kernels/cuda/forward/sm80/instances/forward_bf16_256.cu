#include "kernels/cuda/forward/sm80/sm80_launch.cuh"

namespace attend::cuda::sm80 {

template KernelFunction TileKernelFunction<Element::kBF16, 256>(bool options);
template KernelFunction DecodeKernelFunction<Element::kBF16, 256>(bool options);

}  // namespace attend::cuda::sm80
