// The short-tile kernel for 16-bit inputs: at most 16 rows (decode), so the cost is reading K and
// V.
//
// The keys of a chunk are dealt out to the warps of a block in steps of 16. Each warp runs its own
// ring of copies and its own softmax, without barriers; at the end the warps' results are joined in
// a fixed order.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_DECODE_KERNEL_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_DECODE_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/cuda/forward/sm80/sm80_epilogue.cuh"
#include "kernels/cuda/forward/sm80/sm80_item.cuh"
#include "kernels/cuda/forward/sm80/sm80_softmax.cuh"
#include "kernels/cuda/forward/sm80/sm80_tile.cuh"

namespace attend::cuda::sm80 {

// The item's rows of q as operands A, straight from global memory: [step][register]. Rows and
// columns that do not exist are 0.
template <int kColumns>
__device__ __forceinline__ void LoadQueryFragments(const Item& item,
                                                   uint32_t (&a)[kColumns / 16][4]) {
  const DeviceTask& task = item.params->task;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + half * 8;
    const QueryOfRow row = FindQuery(item.first_row + min(r, item.rows - 1), item.params->group);
    const uint16_t* const from = static_cast<const uint16_t*>(task.q) +
                                 row.query * task.q_row_stride +
                                 (item.head_q + row.head) * task.q_head_stride;
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int column = step * 16 + right * 8 + lane % 4 * 2;
        a[step][half + 2 * right] = r < item.rows && column < task.head_dim
                                        ? *reinterpret_cast<const uint32_t*>(from + column)
                                        : 0u;
      }
    }
  }
}

// Joins the results of the block's warps, given in shared memory, and stores them. Each warp does
// every kWarps-th row; its lanes do neighbouring columns.
template <typename T, typename Config>
__device__ __forceinline__ void JoinWarps(const Item& item, const float* o, const float* reference,
                                          const float* sum) {
  constexpr int kPitch = Config::kColumns + 8;
  const TaskParams& params = *item.params;
  const DeviceTask& task = params.task;
  const int lane = threadIdx.x % 32;
  for (int r = threadIdx.x / 32; r < item.rows; r += Config::kWarps) {
    float top = NegativeInfinity();
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) top = fmaxf(top, reference[w * Config::kRows + r]);
    const float subtrahend = top == NegativeInfinity() ? 0.0f : top;
    float weight[Config::kWarps];
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) {
      weight[w] = Exp2(reference[w * Config::kRows + r] - subtrahend);
      total += weight[w] * sum[w * Config::kRows + r];
    }
    const bool partial = params.chunks > 1;
    const QueryOfRow row = FindQuery(item.first_row + r, params.group);
    const RowResult result =
        FinishRow(top, total, partial ? NegativeInfinity() : SinkOf(item, row.head));
    const int64_t index = PartialIndex(item, row.query, row.head);
    if (lane == 0) {
      if (partial) {
        params.partial_lse[index] = result.lse2;
      } else {
        StoreLse(item, row, result.lse);
      }
    }
    const int64_t at =
        row.query * task.o_row_stride + (item.head_q + row.head) * task.o_head_stride;
    for (int column = lane; column < task.head_dim_v; column += 32) {
      float x = 0.0f;
#pragma unroll
      for (int w = 0; w < Config::kWarps; ++w) {
        x += weight[w] * o[(w * Config::kRows + r) * kPitch + column];
      }
      x *= result.factor;
      if (partial) {
        params.partial_o[index * task.head_dim_v + column] = x;
      } else {
        static_cast<T*>(task.o)[at + column] = static_cast<T>(x);
      }
    }
  }
}

template <typename T, typename Config, bool kOptions>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    DecodeKernel(ItemLaunch launch) {
  constexpr int kColumns = Config::kColumns;
  constexpr int kKeys = Config::kKeys;
  constexpr int kStages = Config::kStages;
  constexpr int kWarps = Config::kWarps;
  constexpr uint32_t kTileBytes = kKeys * kColumns * 2;
  extern __shared__ __align__(1024) char shared[];

  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  Item& item = *reinterpret_cast<Item*>(shared + Config::kTileBytes);
  ShareItem<Config::kRows>(launch, &item);
  const DeviceTask& task = item.params->task;

  const int64_t origin = item.key_begin / kKeys * kKeys;
  const int steps =
      item.key_end > item.key_begin ? (Relative(item.key_end, origin) + kKeys - 1) / kKeys : 0;
  const int keys_left = Relative(task.seqlen_k, origin);
  const int full_begin = Relative(item.full_begin, origin);
  const int full_end = Relative(item.full_end, origin);
  const bool bias_masks = kOptions && task.bias != nullptr;
  const float scale = kOptions ? 1.0f : task.softmax_scale * kLog2E;

  const TileCopy<T, kColumns, kKeys, 32> k_copy(lane, task.head_dim);
  const TileCopy<T, kColumns, kKeys, 32> v_copy(lane, task.head_dim_v);
  const int64_t k_row_bytes = task.k_row_stride * 2;
  const int64_t v_row_bytes = task.v_row_stride * 2;
  const char* k_from = static_cast<const char*>(task.k) +
                       (item.head_kv * task.k_head_stride + k_copy.column()) * 2 +
                       (origin + warp * kKeys + k_copy.row()) * k_row_bytes;
  const char* v_from = static_cast<const char*>(task.v) +
                       (item.head_kv * task.v_head_stride + v_copy.column()) * 2 +
                       (origin + warp * kKeys + v_copy.row()) * v_row_bytes;
  const uint32_t ring = SharedAddress(shared) + warp * kStages * Config::kStageBytes;
  int next_step = warp;  // to load
  int next_slot = 0;
  const auto load_next = [&] {
    if (next_step < steps) {
      const uint32_t tile = ring + next_slot * Config::kStageBytes;
      k_copy.Start(tile, k_from, k_row_bytes, keys_left - next_step * kKeys);
      v_copy.Start(tile + kTileBytes, v_from, v_row_bytes, keys_left - next_step * kKeys);
    }
    CommitCopies();
    next_step += kWarps;
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    k_from += kWarps * kKeys * k_row_bytes;
    v_from += kWarps * kKeys * v_row_bytes;
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load_next();

  uint32_t q[kColumns / 16][4];
  LoadQueryFragments<kColumns>(item, q);

  const LaneAddress b_lane = LaneOfB(lane);
  const LaneAddress t_lane = LaneOfTransposedB(lane);
  const uint32_t k_lane = SwizzledOffset<kColumns>(b_lane.row, b_lane.piece);
  const uint32_t v_lane = kTileBytes + SwizzledOffset<kColumns>(t_lane.row, t_lane.piece);

  float o[kColumns / 8][4];
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[n][e] = 0.0f;
  }
  SoftmaxRows rows;
  bool cleared = false;
  int slot = 0;
#pragma unroll 1
  for (int step = warp; step < steps; step += kWarps) {
    const int key = step * kKeys;
    const uint32_t tile = ring + slot * Config::kStageBytes;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    WaitForCopies<kStages - 2>();
    if (bias_masks || key < full_begin || min(key + kKeys, keys_left) > full_end) {
      cleared |= v_copy.ClearNonFinite(tile + kTileBytes);
    }
    __syncwarp();
    load_next();

    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      uint32_t b[4];
      LoadMatrix4(b, StepColumns(tile + k_lane, i));
      Mma16<T>(s[0], q[i], b[0], b[1]);
      Mma16<T>(s[1], q[i], b[2], b[3]);
    }
    if (kOptions || key < full_begin || key + kKeys > full_end) {
      MaskScores<T, kOptions>(item, lane / 4, origin + key, s);
    }
    SoftmaxStep(scale, rows, s, o);
    const uint32_t p[4] = {Pack<T>(s[0][0], s[0][1]), Pack<T>(s[0][2], s[0][3]),
                           Pack<T>(s[1][0], s[1][1]), Pack<T>(s[1][2], s[1][3])};
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, StepColumns(tile + v_lane, n));
      Mma16<T>(o[2 * n], p, b[0], b[1]);
      Mma16<T>(o[2 * n + 1], p, b[2], b[3]);
    }
  }

  // All rings are idle now: they make room for the results.
  WaitForCopies<0>();
  __syncthreads();
  constexpr int kPitch = kColumns + 8;  // spreads the rows of a fragment over the banks
  float* const all_o = reinterpret_cast<float*>(shared);
  float* const all_references = all_o + kWarps * Config::kRows * kPitch;
  float* const all_sums = all_references + kWarps * Config::kRows;
  static_assert(kWarps * Config::kRows * (kPitch + 2) * 4 <= Config::kTileBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = warp * Config::kRows + half * 8 + lane / 4;
    const float sum = QuadSum(rows.row[half].sum);
    if (lane % 4 == 0) {
      all_references[r] = rows.row[half].reference;
      all_sums[r] = sum;
    }
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      *reinterpret_cast<float2*>(all_o + r * kPitch + n * 8 + lane % 4 * 2) =
          make_float2(o[n][2 * half], o[n][2 * half + 1]);
    }
  }
  __syncthreads();
  JoinWarps<T, Config>(item, all_o, all_references, all_sums);
  if (__syncthreads_or(cleared)) SpreadNonFinite<T, Config::kRows, Config::kThreads>(launch);
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_DECODE_KERNEL_CUH_
