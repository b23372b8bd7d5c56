// Merges the partial results of a task's key chunks, in a fixed order: one block a row.
//
// o = sum_c w_c o_c / sum_c w_c with w_c = exp(lse_c - max lse); the sink joins the denominator
// here, once. A chunk in which the row saw nothing has lse -infinity and weight 0. Each warp adds a
// run of neighbouring chunks in key order, and the runs are added in key order.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MERGE_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MERGE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"
#include "kernels/cuda/forward/sm90/sm90_wgmma.cuh"

namespace attend::cuda::sm90 {

inline constexpr int kMergeWarps = 4;  // rows are few: what counts is loads in flight for each

template <class T>
__global__ void __launch_bounds__(32 * kMergeWarps)
    MergeKernel(const __grid_constant__ Sm90Merge merge) {
  WaitForPreceding();
  const int64_t place = blockIdx.x;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
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
  const int32_t chunks = task.chunks, columns = task.head_dim_v;

  float top = NegativeInfinity();
  for (int32_t chunk = lane; chunk < chunks; chunk += 32) {
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
  const int32_t run = (chunks + kMergeWarps - 1) / kMergeWarps;
#pragma unroll 4
  for (int32_t chunk = warp * run; chunk < min((warp + 1) * run, chunks); ++chunk) {
    const int64_t at = chunk * chunk_stride + row;
    const float weight = Exp2((task.partial_lse[at] - base) * kLog2E);
    denominator += weight;
    const float* o = task.partial_o + at * columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t column = 64 * i + 2 * lane;
      if (column >= columns) continue;
      const float2 part = *reinterpret_cast<const float2*>(o + column);
      sum[i].x = fmaf(weight, part.x, sum[i].x);
      sum[i].y = fmaf(weight, part.y, sum[i].y);
    }
  }
  __shared__ float2 sums[kMergeWarps][4][32];
  __shared__ float denominators[kMergeWarps];
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[warp][i][lane] = sum[i];
  if (lane == 0) denominators[warp] = denominator;
  __syncthreads();
  denominator = has_sink ? Exp2((sink - base) * kLog2E) : 0.0f;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) denominator += denominators[w];
  const float factor = denominator == 0.0f ? 0.0f : 1.0f / denominator;

  // Warp w writes columns 64 w and on.
  float2 total = {};
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) {
    total.x += sums[w][warp][lane].x;
    total.y += sums[w][warp][lane].y;
  }
  const int32_t column = 64 * warp + 2 * lane;
  if (column < columns) {
    T* out = static_cast<T*>(task.o_pointer) + query * task.o_row_stride +
             head * task.o_head_stride + column;
    *reinterpret_cast<uint32_t*>(out) = padding ? 0u : Pack<T>(total.x * factor, total.y * factor);
  }
  if (task.lse != nullptr && threadIdx.x == 0) {
    task.lse[head * task.lse_head_stride + query] =
        padding || denominator == 0.0f ? NegativeInfinity() : base + logf(denominator);
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MERGE_CUH_
