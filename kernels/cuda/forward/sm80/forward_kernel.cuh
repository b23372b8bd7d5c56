// The tall-tile kernel for 16-bit inputs: a block does kRows query rows of one head (or of a packed
// group of heads) over one chunk of the keys, online softmax, everything but K and V in registers.
//
// Blocks of keys are visited from the last to the first, so that under a causal mask the masked
// ones come first. The algorithm is FlashAttention-2's (Dao, 2023) with a lagging row maximum.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_FORWARD_KERNEL_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_FORWARD_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/cuda/forward/sm80/sm80_epilogue.cuh"
#include "kernels/cuda/forward/sm80/sm80_item.cuh"
#include "kernels/cuda/forward/sm80/sm80_softmax.cuh"
#include "kernels/cuda/forward/sm80/sm80_tile.cuh"

namespace attend::cuda::sm80 {

// One warp's S = Q K^T: kRowBlocks * 16 rows by kKeys keys. Fragments come from shared memory.
template <typename T, typename Config>
__device__ __forceinline__ void MultiplyQK(float (&s)[Config::kRowBlocks][Config::kKeys / 8][4],
                                           uint32_t q_lane, uint32_t k_lane) {
  constexpr int kColumns = Config::kColumns;
#pragma unroll
  for (int m = 0; m < Config::kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < Config::kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {
    const uint32_t q_at = StepColumns(q_lane, step);
    const uint32_t k_at = StepColumns(k_lane, step);
    uint32_t a[Config::kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < Config::kRowBlocks; ++m) LoadMatrix4(a[m], q_at + m * 16 * kColumns * 2);
#pragma unroll
    for (int n = 0; n < Config::kKeys / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4(b, k_at + n * 16 * kColumns * 2);
#pragma unroll
      for (int m = 0; m < Config::kRowBlocks; ++m) {
        Mma16<T>(s[m][2 * n], a[m], b[0], b[1]);
        Mma16<T>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// O += P V, with P in the registers of S (probabilities, fp32).
template <typename T, typename Config>
__device__ __forceinline__ void MultiplyPV(
    float (&o)[Config::kRowBlocks][Config::kColumns / 8][4],
    const float (&p)[Config::kRowBlocks][Config::kKeys / 8][4], uint32_t v_lane) {
  constexpr int kColumns = Config::kColumns;
#pragma unroll
  for (int step = 0; step < Config::kKeys / 16; ++step) {
    uint32_t a[Config::kRowBlocks][4];
#pragma unroll
    for (int m = 0; m < Config::kRowBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&x)[4] = p[m][2 * step + half];
        a[m][2 * half] = Pack<T>(x[0], x[1]);
        a[m][2 * half + 1] = Pack<T>(x[2], x[3]);
      }
    }
    const uint32_t v_row = v_lane + step * 16 * kColumns * 2;
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, StepColumns(v_row, n));
#pragma unroll
      for (int m = 0; m < Config::kRowBlocks; ++m) {
        Mma16<T>(o[m][2 * n], a[m], b[0], b[1]);
        Mma16<T>(o[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <typename T, typename Config, bool kOptions>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    ForwardKernel(ItemLaunch launch) {
  constexpr int kColumns = Config::kColumns;
  constexpr int kRows = Config::kRows;
  constexpr int kKeys = Config::kKeys;
  constexpr int kRowBlocks = Config::kRowBlocks;
  constexpr uint32_t kTileBytes = kKeys * kColumns * 2;
  extern __shared__ __align__(1024) char shared[];

  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  // In shared memory: the loop needs every register, and looks at the item in masked blocks alone.
  Item& item = *reinterpret_cast<Item*>(shared + Config::kTileBytes);
  ShareItem<kRows>(launch, &item);
  const TaskParams& params = *item.params;
  const DeviceTask& task = params.task;

  const uint32_t q_tile = SharedAddress(shared);
  const uint32_t kv_tiles = q_tile + kRows * kColumns * 2;  // K, V of each stage

  // The blocks of keys that hold what some row sees; positions in the loop count from `origin`.
  const int64_t origin = item.key_begin / kKeys * kKeys;
  const int blocks =
      item.key_end > item.key_begin ? (Relative(item.key_end, origin) + kKeys - 1) / kKeys : 0;
  const bool bias_masks = kOptions && task.bias != nullptr;

  float o[kRowBlocks][kColumns / 8][4];
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[m][n][e] = 0.0f;
    }
  }
  SoftmaxRows rows[kRowBlocks];
  bool cleared = false;  // this thread has hidden a non-finite element of V in a masked block

  if (blocks > 0) {
    const TileCopy<T, kColumns, kRows, Config::kThreads> q_copy(thread, task.head_dim);
    const TileCopy<T, kColumns, kKeys, Config::kThreads> k_copy(thread, task.head_dim);
    const TileCopy<T, kColumns, kKeys, Config::kThreads> v_copy(thread, task.head_dim_v);
    const int64_t k_row_bytes = task.k_row_stride * 2;
    const int64_t v_row_bytes = task.v_row_stride * 2;
    const int keys_left = Relative(task.seqlen_k, origin);
    // This thread's piece of the next block to load; the loads run one block ahead.
    const int64_t last_key = origin + (blocks - 1) * kKeys;
    const char* k_from = static_cast<const char*>(task.k) +
                         (item.head_kv * task.k_head_stride + k_copy.column()) * 2 +
                         (last_key + k_copy.row()) * k_row_bytes;
    const char* v_from = static_cast<const char*>(task.v) +
                         (item.head_kv * task.v_head_stride + v_copy.column()) * 2 +
                         (last_key + v_copy.row()) * v_row_bytes;
    const auto start_k = [&](int key, uint32_t tile) {
      k_copy.Start(tile, k_from, k_row_bytes, keys_left - key);
      k_from -= kKeys * k_row_bytes;
    };
    const auto start_v = [&](int key, uint32_t tile) {
      v_copy.Start(tile, v_from, v_row_bytes, keys_left - key);
      v_from -= kKeys * v_row_bytes;
    };

    LoadQueries<T, Config>(item, q_copy, q_tile);
    start_k((blocks - 1) * kKeys, kv_tiles);
    if constexpr (Config::kStages == 2) start_v((blocks - 1) * kKeys, kv_tiles + kTileBytes);
    CommitCopies();

    // Rows of this warp: r and r + 8 of each 16-row block, r = lane / 4.
    const int warp_row = warp * kRowBlocks * 16;
    int warp_begin, warp_end;  // keys that some row of the warp sees
    {
      const int last = min(warp_row + kRowBlocks * 16, item.rows) - 1;
      const int first = min(warp_row, item.rows - 1);
      const int group = params.group;
      warp_begin = KeysOfQuery(item, FindQuery(item.first_row + first, group).query, origin).begin;
      warp_end = KeysOfQuery(item, FindQuery(item.first_row + last, group).query, origin).end;
      if (warp_row >= item.rows) warp_end = warp_begin;
    }
    const int full_begin = Relative(item.full_begin, origin);
    const int full_end = Relative(item.full_end, origin);
    const float scale = kOptions ? 1.0f : task.softmax_scale * kLog2E;

    const LaneAddress a_lane = LaneOfA(lane);
    const LaneAddress b_lane = LaneOfB(lane);
    const LaneAddress t_lane = LaneOfTransposedB(lane);
    const uint32_t q_lane =
        q_tile + warp_row * kColumns * 2 + SwizzledOffset<kColumns>(a_lane.row, a_lane.piece);
    const uint32_t k_lane = SwizzledOffset<kColumns>(b_lane.row, b_lane.piece);
    const uint32_t v_lane = SwizzledOffset<kColumns>(t_lane.row, t_lane.piece);

    uint32_t k_tile = kv_tiles;
    uint32_t v_tile = kv_tiles + kTileBytes;
#pragma unroll 1
    for (int key = (blocks - 1) * kKeys; key >= 0; key -= kKeys) {
      const bool masked = key < full_begin || key + kKeys > full_end;
      // Rows of V beyond the last key are zeros already.
      const bool hides_v = bias_masks || key < full_begin || min(key + kKeys, keys_left) > full_end;
      WaitForCopies<0>();
      if constexpr (Config::kStages == 2) {
        if (hides_v) cleared |= v_copy.ClearNonFinite(v_tile);
      }
      __syncthreads();
      if constexpr (Config::kStages == 2) {
        if (key > 0) {
          const uint32_t other = k_tile == kv_tiles ? kv_tiles + 2 * kTileBytes : kv_tiles;
          start_k(key - kKeys, other);
          start_v(key - kKeys, other + kTileBytes);
        }
        CommitCopies();
      } else {
        start_v(key, v_tile);
        CommitCopies();
      }

      const bool active = key < warp_end && key + kKeys > warp_begin;
      float s[kRowBlocks][kKeys / 8][4];
      if (active) MultiplyQK<T, Config>(s, q_lane, k_tile + k_lane);

      if constexpr (Config::kStages == 1) {
        WaitForCopies<0>();
        if (hides_v) cleared |= v_copy.ClearNonFinite(v_tile);
        __syncthreads();
        if (key > 0) start_k(key - kKeys, k_tile);
        CommitCopies();
      }

      if (active) {
        if (kOptions || masked) {
#pragma unroll
          for (int m = 0; m < kRowBlocks; ++m) {
            MaskScores<T, kOptions>(item, warp_row + m * 16 + lane / 4, origin + key, s[m]);
          }
        }
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) SoftmaxStep(scale, rows[m], s[m], o[m]);
        MultiplyPV<T, Config>(o, s, v_tile + v_lane);
      }
      if constexpr (Config::kStages == 2) {
        k_tile = k_tile == kv_tiles ? kv_tiles + 2 * kTileBytes : kv_tiles;
        v_tile = k_tile + kTileBytes;
      }
    }
  }

  const int first_row = warp * kRowBlocks * 16;
  StoreRows<T, kRowBlocks, kColumns>(item, first_row, rows, o, shared + first_row * kColumns * 2);
  if (__syncthreads_or(cleared)) {
    SpreadNonFinite<T, kRows, Config::kThreads>(launch);
  }
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_FORWARD_KERNEL_CUH_
