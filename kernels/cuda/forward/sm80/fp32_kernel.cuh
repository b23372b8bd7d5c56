// The kernel for fp32 inputs: tensor cores at nearly fp32's precision.
//
// Each factor is split into two tf32 numbers, big + small, and a product is big * big + big * small
// + small * big; what is left out is below 2^-22 of it. Tensor cores add with truncation, so long
// sums would drift: the three parts of a score have two accumulators, and P V is summed inside one
// block of keys only and then added to O by ordinary fp32 arithmetic.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_FP32_KERNEL_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_FP32_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/cuda/forward/sm80/sm80_epilogue.cuh"
#include "kernels/cuda/forward/sm80/sm80_item.cuh"
#include "kernels/cuda/forward/sm80/sm80_softmax.cuh"

namespace attend::cuda::sm80 {

// x = big + small, big rounded to tf32. NaN and infinity survive in `small` at the latest.
struct Tf32Pair {
  uint32_t big, small;
};
__device__ __forceinline__ Tf32Pair SplitTf32(uint32_t bits) {
  const uint32_t big = (bits + 0x1000u) & 0xffffe000u;
  return {big, __float_as_uint(__uint_as_float(bits) - __uint_as_float(big))};
}
__device__ __forceinline__ Tf32Pair SplitTf32(float x) { return SplitTf32(__float_as_uint(x)); }

struct Tf32Operand {
  uint32_t big[4], small[4];
  __device__ __forceinline__ void Set(int i, Tf32Pair pair) {
    big[i] = pair.big;
    small[i] = pair.small;
  }
};

// big += the main product, small += the two corrections.
__device__ __forceinline__ void MmaSplit(float (&big)[4], float (&small)[4], const Tf32Operand& a,
                                         Tf32Pair b0, Tf32Pair b1) {
  MmaTf32(small, a.small, b0.big, b1.big);
  MmaTf32(small, a.big, b0.small, b1.small);
  MmaTf32(big, a.big, b0.big, b1.big);
}

// The 16-byte pieces of a tile [kTileRows][kPitch] of floats that one thread copies; see TileCopy.
template <int kColumns, int kPitch, int kTileRows, int kThreads>
class FloatTileCopy {
 public:
  static constexpr int kPieces = kColumns / 4;
  static constexpr int kRowStep = kThreads / kPieces;
  static constexpr int kCount = kTileRows / kRowStep;
  static_assert(kThreads % kPieces == 0 && kTileRows % kRowStep == 0);

  __device__ __forceinline__ FloatTileCopy(int thread, int columns)
      : row_(thread / kPieces),
        column_(thread % kPieces * 4),
        inside_(thread % kPieces * 4 < columns) {}
  __device__ __forceinline__ int row() const { return row_; }
  __device__ __forceinline__ int column() const { return column_; }
  __device__ __forceinline__ bool inside() const { return inside_; }

  __device__ __forceinline__ void Start(uint32_t tile, const char* from, int64_t row_bytes,
                                        int rows) const {
    const int limit = inside_ ? rows - row_ : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      CopyAsync16(tile + Offset(i), from, i * kRowStep < limit);
      from += row_bytes * kRowStep;
    }
  }
  __device__ __forceinline__ uint32_t Offset(int i) const {
    return ((row_ + i * kRowStep) * kPitch + column_) * 4;
  }
  __device__ __forceinline__ bool ClearNonFinite(char* tile) const {
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      float* const at = reinterpret_cast<float*>(tile + Offset(i));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (fabsf(at[j]) <= kLargest) continue;
        at[j] = 0.0f;
        found = true;
      }
    }
    return found;
  }

 private:
  int row_;
  int column_;
  bool inside_;
};

// S = Q K^T of one warp: 16 rows by kKeys keys.
template <typename Config>
__device__ __forceinline__ void MultiplyQKFp32(float (&s)[Config::kKeys / 8][4], uint32_t q_lane,
                                               uint32_t k_lane) {
  constexpr int kRowBytes = Config::kPitch * 4;
  float corrections[Config::kKeys / 8][4];
#pragma unroll
  for (int n = 0; n < Config::kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] = corrections[n][e] = 0.0f;
  }
#pragma unroll 4
  for (int step = 0; step < Config::kColumns / 8; ++step) {
    uint32_t x[4];
    LoadMatrix4(x, q_lane + step * 32);
    Tf32Operand a;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.Set(i, SplitTf32(x[i]));
#pragma unroll
    for (int n = 0; n < Config::kKeys / 16; ++n) {
      LoadMatrix4(x, k_lane + n * 16 * kRowBytes + step * 32);
      MmaSplit(s[2 * n], corrections[2 * n], a, SplitTf32(x[0]), SplitTf32(x[1]));
      MmaSplit(s[2 * n + 1], corrections[2 * n + 1], a, SplitTf32(x[2]), SplitTf32(x[3]));
    }
  }
#pragma unroll
  for (int n = 0; n < Config::kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] += corrections[n][e];
  }
}

// O += P V. A sum does not mind the order of its terms, so k-slot t of an operand stands for key 2
// t and slot t + 4 for key 2 t + 1: then the accumulators of S are the operand as they lie.
template <typename Config>
__device__ __forceinline__ void MultiplyPVFp32(float (&o)[Config::kColumns / 8][4],
                                               const float (&p)[Config::kKeys / 8][4],
                                               const char* v_tile) {
  constexpr int kSteps = Config::kKeys / 8;
  const int lane = threadIdx.x % 32;
  Tf32Operand a[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    a[step].Set(0, SplitTf32(p[step][0]));
    a[step].Set(1, SplitTf32(p[step][2]));
    a[step].Set(2, SplitTf32(p[step][1]));
    a[step].Set(3, SplitTf32(p[step][3]));
  }
  const float* const v =
      reinterpret_cast<const float*>(v_tile) + lane % 4 * 2 * Config::kPitch + lane / 4;
#pragma unroll
  for (int n = 0; n < Config::kColumns / 8; ++n) {
    float big[4] = {};
    float small[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const float* const at = v + step * 8 * Config::kPitch + n * 8;
      MmaSplit(big, small, a[step], SplitTf32(at[0]), SplitTf32(at[Config::kPitch]));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) o[n][e] += big[e] + small[e];
  }
}

template <typename Config>
__device__ __forceinline__ void StoreRowsFp32(const Item& item, int warp_row,
                                              const SoftmaxRows& rows,
                                              const float (&o)[Config::kColumns / 8][4]) {
  const TaskParams& params = *item.params;
  const DeviceTask& task = params.task;
  const int lane = threadIdx.x % 32;
  const bool partial = params.chunks > 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = warp_row + half * 8 + lane / 4;
    const QueryOfRow row = FindQuery(item.first_row + min(r, item.rows - 1), params.group);
    const float sum = QuadSum(rows.row[half].sum);
    const RowResult result = FinishRow(rows.row[half].reference, sum,
                                       partial ? NegativeInfinity() : SinkOf(item, row.head));
    if (r >= item.rows) continue;
    const int64_t index = PartialIndex(item, row.query, row.head);
    if (lane % 4 == 0) {
      if (partial) {
        params.partial_lse[index] = result.lse2;
      } else {
        StoreLse(item, row, result.lse);
      }
    }
    float* const to = partial ? params.partial_o + index * task.head_dim_v
                              : static_cast<float*>(task.o) + row.query * task.o_row_stride +
                                    (item.head_q + row.head) * task.o_head_stride;
#pragma unroll
    for (int n = 0; n < Config::kColumns / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column < task.head_dim_v) to[column] = o[n][2 * half] * result.factor;
      if (column + 1 < task.head_dim_v) to[column + 1] = o[n][2 * half + 1] * result.factor;
    }
  }
}

template <typename Config, bool kOptions>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    Fp32Kernel(ItemLaunch launch) {
  constexpr int kColumns = Config::kColumns;
  constexpr int kRows = Config::kRows;
  constexpr int kKeys = Config::kKeys;
  constexpr int kRowBytes = Config::kPitch * 4;
  extern __shared__ __align__(1024) char shared[];

  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp_row = thread / 32 * 16;
  Item& item = *reinterpret_cast<Item*>(shared + Config::kTileBytes);
  ShareItem<kRows>(launch, &item);
  const TaskParams& params = *item.params;
  const DeviceTask& task = params.task;
  char* const q_tile = shared;
  char* const k_tile = q_tile + kRows * kRowBytes;
  char* const v_tile = k_tile + kKeys * kRowBytes;

  const int64_t origin = item.key_begin / kKeys * kKeys;
  const int blocks =
      item.key_end > item.key_begin ? (Relative(item.key_end, origin) + kKeys - 1) / kKeys : 0;
  const int keys_left = Relative(task.seqlen_k, origin);
  const bool bias_masks = kOptions && task.bias != nullptr;
  const float scale = kOptions ? 1.0f : task.softmax_scale * kLog2E;

  float o[kColumns / 8][4];
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[n][e] = 0.0f;
  }
  SoftmaxRows rows;
  bool cleared = false;

  if (blocks > 0) {
    const FloatTileCopy<kColumns, Config::kPitch, kRows, Config::kThreads> q_copy(thread,
                                                                                  task.head_dim);
    const FloatTileCopy<kColumns, Config::kPitch, kKeys, Config::kThreads> k_copy(thread,
                                                                                  task.head_dim);
    const FloatTileCopy<kColumns, Config::kPitch, kKeys, Config::kThreads> v_copy(thread,
                                                                                  task.head_dim_v);
    const int64_t k_row_bytes = task.k_row_stride * 4;
    const int64_t v_row_bytes = task.v_row_stride * 4;
    const int64_t last_key = origin + (blocks - 1) * kKeys;
    const char* k_from = static_cast<const char*>(task.k) +
                         (item.head_kv * task.k_head_stride + k_copy.column()) * 4 +
                         (last_key + k_copy.row()) * k_row_bytes;
    const char* v_from = static_cast<const char*>(task.v) +
                         (item.head_kv * task.v_head_stride + v_copy.column()) * 4 +
                         (last_key + v_copy.row()) * v_row_bytes;
    const char* const q_from =
        static_cast<const char*>(task.q) + (item.head_q * task.q_head_stride + q_copy.column()) * 4;
#pragma unroll 4
    for (int i = 0; i < q_copy.kCount; ++i) {
      const int r = q_copy.row() + i * q_copy.kRowStep;
      const QueryOfRow row = FindQuery(item.first_row + min(r, item.rows - 1), params.group);
      CopyAsync16(SharedAddress(q_tile) + q_copy.Offset(i),
                  q_from + (row.query * task.q_row_stride + row.head * task.q_head_stride) * 4,
                  r < item.rows && q_copy.inside());
    }
    k_copy.Start(SharedAddress(k_tile), k_from, k_row_bytes, keys_left - (blocks - 1) * kKeys);
    CommitCopies();

    int warp_begin, warp_end;  // keys that some row of the warp sees
    {
      const int64_t first = item.first_row + min(warp_row, item.rows - 1);
      const int64_t last = item.first_row + min(warp_row + 16, item.rows) - 1;
      warp_begin = KeysOfQuery(item, FindQuery(first, params.group).query, origin).begin;
      warp_end = KeysOfQuery(item, FindQuery(last, params.group).query, origin).end;
      if (warp_row >= item.rows) warp_end = warp_begin;
    }
    const int full_begin = Relative(item.full_begin, origin);
    const int full_end = Relative(item.full_end, origin);
    const LaneAddress a_lane = LaneOfA(lane);
    const LaneAddress b_lane = LaneOfB(lane);
    const uint32_t q_lane =
        SharedAddress(q_tile) + (warp_row + a_lane.row) * kRowBytes + a_lane.piece * 16;
    const uint32_t k_lane = SharedAddress(k_tile) + b_lane.row * kRowBytes + b_lane.piece * 16;

#pragma unroll 1
    for (int key = (blocks - 1) * kKeys; key >= 0; key -= kKeys) {
      const bool masked = key < full_begin || key + kKeys > full_end;
      WaitForCopies<0>();
      __syncthreads();
      v_copy.Start(SharedAddress(v_tile), v_from, v_row_bytes, keys_left - key);
      v_from -= kKeys * v_row_bytes;
      CommitCopies();
      const bool active = key < warp_end && key + kKeys > warp_begin;
      float s[kKeys / 8][4];
      if (active) MultiplyQKFp32<Config>(s, q_lane, k_lane);
      WaitForCopies<0>();
      if (bias_masks || key < full_begin || min(key + kKeys, keys_left) > full_end) {
        cleared |= v_copy.ClearNonFinite(v_tile);
      }
      __syncthreads();
      if (key > 0) {
        k_from -= kKeys * k_row_bytes;
        k_copy.Start(SharedAddress(k_tile), k_from, k_row_bytes, keys_left - (key - kKeys));
      }
      CommitCopies();
      if (!active) continue;
      if (kOptions || masked) {
        MaskScores<float, kOptions>(item, warp_row + lane / 4, origin + key, s);
      }
      SoftmaxStep(scale, rows, s, o);
      MultiplyPVFp32<Config>(o, s, v_tile);
    }
  }

  StoreRowsFp32<Config>(item, warp_row, rows, o);
  if (__syncthreads_or(cleared)) SpreadNonFinite<float, kRows, Config::kThreads>(launch);
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_FP32_KERNEL_CUH_
