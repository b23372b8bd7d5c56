// Merges the partial results of a task's key chunks, in key order: one warp a row.
//
// o = sum_c w_c o_c / sum_c w_c with w_c = exp(lse_c - max lse); the sink joins the denominator here,
// once. A chunk in which the row saw nothing has lse -infinity and weight 0.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MERGE_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MERGE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"
#include "kernels/cuda/forward/sm90/sm90_wgmma.cuh"

namespace attend::cuda::sm90 {

inline constexpr int kMergeRows = 4;  // of a block; rows are few, so small blocks spread them

template <class T>
__global__ void __launch_bounds__(32 * kMergeRows)
    MergeKernel(const __grid_constant__ Sm90Merge merge) {
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kMergeRows + threadIdx.x / 32;
  if (place >= merge.first_row[merge.count]) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t begin = 0, end = merge.count;
  while (end - begin > 1) {
    const int32_t middle = (begin + end) / 2;
    if (merge.first_row[middle] <= place) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  const Sm90Task& task = merge.tasks[merge.task_index[begin]];
  const int64_t row = place - merge.first_row[begin];
  const int32_t head = static_cast<int32_t>(row / task.padded_q);
  const int32_t query = static_cast<int32_t>(row - static_cast<int64_t>(head) * task.padded_q);
  const int64_t chunk_stride = static_cast<int64_t>(task.heads_q) * task.padded_q;

  float top = NegativeInfinity();
  for (int32_t chunk = lane; chunk < task.chunks; chunk += 32) {
    top = fmaxf(top, task.partial_lse[chunk * chunk_stride + row]);
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, by));
  const bool padding = query >= task.seqlen_q;
  const bool has_sink = task.sinks != nullptr && !padding;
  const float sink = has_sink ? task.sinks[head] : 0.0f;
  if (has_sink) top = fmaxf(top, sink);
  const float base = top == NegativeInfinity() ? 0.0f : top;

  // Lane l holds columns 64 i + 2 l and the next.
  float2 sum[4] = {};
  float denominator = 0.0f;
  for (int32_t chunk = 0; chunk < task.chunks; ++chunk) {
    const int64_t at = chunk * chunk_stride + row;
    const float weight = Exp2((task.partial_lse[at] - base) * kLog2E);
    denominator += weight;
    const float* o = task.partial_o + at * task.head_dim_v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t column = 64 * i + 2 * lane;
      if (column >= task.head_dim_v) continue;
      const float2 part = *reinterpret_cast<const float2*>(o + column);
      sum[i].x = fmaf(weight, part.x, sum[i].x);
      sum[i].y = fmaf(weight, part.y, sum[i].y);
    }
  }
  if (has_sink) denominator += Exp2((sink - base) * kLog2E);
  const float factor = denominator == 0.0f || padding ? 0.0f : 1.0f / denominator;
  uint32_t* out = reinterpret_cast<uint32_t*>(static_cast<T*>(task.o_pointer) +
                                              query * task.o_row_stride +
                                              head * task.o_head_stride);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t column = 64 * i + 2 * lane;
    if (column < task.head_dim_v) {
      out[column / 2] = padding ? 0u : Pack<T>(sum[i].x * factor, sum[i].y * factor);
    }
  }
  if (task.lse != nullptr && lane == 0) {
    task.lse[head * task.lse_head_stride + query] =
        padding || denominator == 0.0f ? NegativeInfinity() : base + logf(denominator);
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MERGE_CUH_
