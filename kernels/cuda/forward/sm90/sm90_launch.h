// The compiled Hopper kernels, as the host sees them. Host and device code.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_LAUNCH_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_params.h"

namespace attend::cuda::sm90 {

// One compiled kernel and the numbers that the host plans with.
struct Sm90Kernel {
  const void* function;
  int rows;           // of a tile
  int keys;           // of a block
  int q_panel_bytes;  // of a full tile
  int threads;
  int blocks_per_multiprocessor;
  size_t shared_bytes;
  size_t poison_words;  // of one block of threads
  bool direct;          // rows may be packed heads and keys may be cut into chunks
};

// Raises the kernel's shared-memory limit; once for each device before its first launch.
cudaError_t PrepareKernel(const Sm90Kernel& kernel);

// Enqueues one launch of `blocks` persistent blocks.
cudaError_t LaunchKernel(const Sm90Kernel& kernel, int blocks, const Sm90Launch& launch,
                         cudaStream_t stream);

// Enqueues the merge of chunks. rows: merge.first_row[merge.count].
cudaError_t LaunchMerge(const Sm90Merge& merge, int64_t rows, bool bf16, cudaStream_t stream);

// Instances, each a file of instances/, named by head sizes and query rows of a tile.
const Sm90Kernel& KernelD64Rows128(bool bf16);
const Sm90Kernel& KernelD64Rows192(bool bf16);
const Sm90Kernel& KernelD64Modified(bool bf16);
const Sm90Kernel& KernelD64Decode(bool bf16);
const Sm90Kernel& KernelD96Rows128(bool bf16);
const Sm90Kernel& KernelD128Rows128(bool bf16);
const Sm90Kernel& KernelD128Rows192(bool bf16);
const Sm90Kernel& KernelD128Modified(bool bf16);
const Sm90Kernel& KernelD128Decode(bool bf16);
const Sm90Kernel& KernelD192V128Rows128(bool bf16);
const Sm90Kernel& KernelD192Rows128(bool bf16);
const Sm90Kernel& KernelD256Rows128(bool bf16);
const Sm90Kernel& KernelD256Decode(bool bf16);

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_LAUNCH_H_
