// The Hopper family: 16-bit tasks on devices of compute capability 9.0.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_FAMILY_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_FAMILY_H_

#include <memory>

#include "kernels/cuda/forward/family.h"

namespace attend::cuda {

// Null when the driver cannot encode tensor maps. sm_count: blocks of the persistent launches.
std::unique_ptr<ForwardFamily> MakeSm90Family(int sm_count);

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_FAMILY_H_
