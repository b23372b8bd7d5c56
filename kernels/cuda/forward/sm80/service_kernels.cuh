// Small kernels around the main one: repack odd tensors before it, merge key chunks and write
// padded rows after it. One warp a (row, head) vector.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SERVICE_KERNELS_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SERVICE_KERNELS_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/cuda/forward/sm80/sm80_item.cuh"
#include "kernels/cuda/forward/sm80/sm80_softmax.cuh"

namespace attend::cuda::sm80 {

// The warp's vector: which table row, and which vector of it. `row` < 0: none.
struct VectorOfWarp {
  int row;
  int64_t vector;
};
__device__ __forceinline__ VectorOfWarp FindVector(const int64_t* first, int count) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kVectorWarps + threadIdx.x / 32;
  if (n >= first[count]) return {-1, 0};
  const int row = FindInPrefixSums(first, count, n);
  return {row, n - first[row]};
}

__device__ __forceinline__ void StoreElement(void* to, int64_t at, Element element, float x) {
  switch (element) {
    case Element::kF32:
      static_cast<float*>(to)[at] = x;
      break;
    case Element::kF16:
      static_cast<__half*>(to)[at] = __float2half_rn(x);
      break;
    case Element::kBF16:
      static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16_rn(x);
      break;
  }
}

__global__ void __launch_bounds__(kVectorWarps * 32) RepackKernel(RepackLaunch launch) {
  const VectorOfWarp warp = FindVector(launch.first, launch.count);
  if (warp.row < 0) return;
  const RepackParams& p = launch.tensors[warp.row];
  const int64_t row = warp.vector / p.heads;
  const int64_t from = row * p.row_stride + warp.vector % p.heads * p.head_stride;
  const int64_t to = warp.vector * p.padded;
  for (int column = threadIdx.x % 32; column < p.padded; column += 32) {
    if (p.element_bytes == 4) {
      static_cast<uint32_t*>(p.to)[to + column] =
          column < p.columns ? static_cast<const uint32_t*>(p.from)[from + column] : 0;
    } else {
      static_cast<uint16_t*>(p.to)[to + column] =
          column < p.columns ? static_cast<const uint16_t*>(p.from)[from + column] : uint16_t{0};
    }
  }
}

// Joins the partial results of a row in key order: weights 2^(lse2 - largest lse2).
__global__ void __launch_bounds__(kVectorWarps * 32) MergeKernel(RowLaunch launch) {
  const VectorOfWarp warp = FindVector(launch.first, launch.count);
  if (warp.row < 0) return;
  const TaskParams& p = launch.tasks[launch.index[warp.row]];
  const DeviceTask& task = p.task;
  const int lane = threadIdx.x % 32;
  const int64_t head = warp.vector / task.seqlen_q;
  const int64_t query = warp.vector % task.seqlen_q;
  const float* const lse2 = p.partial_lse + warp.vector * p.chunks;
  const float* const partial = p.partial_o + warp.vector * p.chunks * task.head_dim_v;

  float top = NegativeInfinity();
  for (int chunk = lane; chunk < p.chunks; chunk += 32) top = fmaxf(top, lse2[chunk]);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
  const float subtrahend = top == NegativeInfinity() ? 0.0f : top;

  constexpr int kColumnsPerLane = 8;  // 256 columns
  float sums[kColumnsPerLane] = {};
  float total = 0.0f;
#pragma unroll 4
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    const float weight = Exp2(lse2[chunk] - subtrahend);
    total += weight;
#pragma unroll
    for (int i = 0; i < kColumnsPerLane; ++i) {
      const int column = lane + i * 32;
      if (column < task.head_dim_v) {
        sums[i] =
            fmaf(weight, partial[chunk * static_cast<int64_t>(task.head_dim_v) + column], sums[i]);
      }
    }
  }
  const float sink = task.sinks == nullptr ? NegativeInfinity() : task.sinks[head];
  const RowResult result = FinishRow(top, total, sink);
  if (lane == 0 && task.lse != nullptr) {
    task.lse[head * task.lse_head_stride + query] = result.lse;
  }
  const int64_t at = query * task.o_row_stride + head * task.o_head_stride;
#pragma unroll
  for (int i = 0; i < kColumnsPerLane; ++i) {
    const int column = lane + i * 32;
    if (column < task.head_dim_v) {
      StoreElement(task.o, at + column, task.element, sums[i] * result.factor);
    }
  }
}

__global__ void __launch_bounds__(kVectorWarps * 32) PadKernel(RowLaunch launch) {
  const VectorOfWarp warp = FindVector(launch.first, launch.count);
  if (warp.row < 0) return;
  const DeviceTask& task = launch.tasks[launch.index[warp.row]].task;
  const int64_t pad = task.padded_q - task.seqlen_q;
  const int64_t head = warp.vector / pad;
  const int64_t query = task.seqlen_q + warp.vector % pad;
  const int lane = threadIdx.x % 32;
  if (lane == 0 && task.lse != nullptr) {
    task.lse[head * task.lse_head_stride + query] = NegativeInfinity();
  }
  const int64_t at = query * task.o_row_stride + head * task.o_head_stride;
  for (int column = lane; column < task.head_dim_v; column += 32) {
    StoreElement(task.o, at + column, task.element, 0.0f);
  }
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SERVICE_KERNELS_CUH_
