// Unfused attention as a kernel family: any task, task after task.

#ifndef ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_FAMILY_H_
#define ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_FAMILY_H_

#include <memory>
#include <string_view>

#include "kernels/cuda/forward/family.h"

namespace attend::cuda {

inline constexpr std::string_view kUnfusedKernelNames[] = {"gemm", "softmax", "values"};

// REQUIRES: LoadCublas() is not null.
std::unique_ptr<ForwardFamily> MakeUnfusedFamily();

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_UNFUSED_UNFUSED_FAMILY_H_
