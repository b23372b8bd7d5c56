// The portable family: every task of the contract, on every device of compute capability 8.0 and
// up.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_FAMILY_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_FAMILY_H_

#include <memory>

#include "kernels/cuda/forward/family.h"

namespace attend::cuda {

std::unique_ptr<ForwardFamily> MakeSm80Family();

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_FAMILY_H_
