// The two ends of a 16-bit tile: loading its queries and storing its results.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_EPILOGUE_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_EPILOGUE_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_item.cuh"
#include "kernels/cuda/forward/sm80/sm80_softmax.cuh"
#include "kernels/cuda/forward/sm80/sm80_tile.cuh"

namespace attend::cuda::sm80 {

// Starts the copies of the item's rows of q; rows past item.rows become 0.
template <typename T, typename Config>
__device__ __forceinline__ void LoadQueries(
    const Item& item, const TileCopy<T, Config::kColumns, Config::kRows, Config::kThreads>& copy,
    uint32_t tile) {
  const DeviceTask& task = item.params->task;
  const char* const base =
      static_cast<const char*>(task.q) + (item.head_q * task.q_head_stride + copy.column()) * 2;
  const int group = item.params->group;
  if (group == 1) {
    const int64_t row_bytes = task.q_row_stride * 2;
    copy.Start(tile, base + (item.first_row + copy.row()) * row_bytes, row_bytes, item.rows);
    return;
  }
  using Copy = TileCopy<T, Config::kColumns, Config::kRows, Config::kThreads>;
  const int piece = copy.column() / kPieceElements;
#pragma unroll 4
  for (int i = 0; i < Copy::kCount; ++i) {
    const int r = copy.row() + i * Copy::kRowStep;
    const QueryOfRow row = FindQuery(item.first_row + min(r, item.rows - 1), group);
    CopyAsync16(tile + SwizzledOffset<Config::kColumns>(r, piece),
                base + (row.query * task.q_row_stride + row.head * task.q_head_stride) * 2,
                r < item.rows && copy.column() < task.head_dim);
  }
}

// Where the partial results of a query start, counted in chunks.
__device__ __forceinline__ int64_t PartialIndex(const Item& item, int64_t query, int head) {
  return ((item.head_q + head) * item.params->task.seqlen_q + query) * item.params->chunks +
         item.chunk;
}

__device__ __forceinline__ float SinkOf(const Item& item, int head) {
  const float* const sinks = item.params->task.sinks;
  return sinks == nullptr ? NegativeInfinity() : sinks[item.head_q + head];
}

__device__ __forceinline__ void StoreLse(const Item& item, const QueryOfRow& row, float lse) {
  const DeviceTask& task = item.params->task;
  if (task.lse == nullptr) return;
  task.lse[(item.head_q + row.head) * task.lse_head_stride + row.query] = lse;
}

// Whether o can be written in pieces of 16 bytes.
__device__ __forceinline__ bool AlignedOutput(const DeviceTask& task, int element_bytes) {
  const uint64_t bits = reinterpret_cast<uint64_t>(task.o) |
                        static_cast<uint64_t>(task.o_row_stride * element_bytes) |
                        static_cast<uint64_t>(task.o_head_stride * element_bytes) |
                        static_cast<uint64_t>(task.head_dim_v * element_bytes);
  return (bits & 15) == 0;
}

// Writes one warp's accumulators: final results when the task has one chunk, else partial ones.
// `staging`: 16-bit, this warp's own rows of a tile [.][kColumns], free to be overwritten.
template <typename T, int kRowBlocks, int kColumns>
__device__ __forceinline__ void StoreRows(const Item& item, int warp_row,
                                          const SoftmaxRows (&rows)[kRowBlocks],
                                          float (&o)[kRowBlocks][kColumns / 8][4], char* staging) {
  const TaskParams& params = *item.params;
  const DeviceTask& task = params.task;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const bool partial = params.chunks > 1;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + m * 16 + half * 8 + lane / 4;
      const bool valid = r < item.rows;
      const QueryOfRow row = FindQuery(item.first_row + min(r, item.rows - 1), params.group);
      const float sum = QuadSum(rows[m].row[half].sum);
      const RowResult result = FinishRow(rows[m].row[half].reference, sum,
                                         partial ? NegativeInfinity() : SinkOf(item, row.head));
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        o[m][n][2 * half] *= result.factor;
        o[m][n][2 * half + 1] *= result.factor;
      }
      if (partial) {
        if (valid) {
          const int64_t index = PartialIndex(item, row.query, row.head);
          if (quad == 0) params.partial_lse[index] = result.lse2;
          float* const to = params.partial_o + index * task.head_dim_v;
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n) {
            const int column = n * 8 + quad * 2;
            if (column < task.head_dim_v) to[column] = o[m][n][2 * half];
            if (column + 1 < task.head_dim_v) to[column + 1] = o[m][n][2 * half + 1];
          }
        }
      } else {
        if (valid && quad == 0) StoreLse(item, row, result.lse);
        char* const line = staging + (m * 16 + half * 8) * kColumns * 2;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          *reinterpret_cast<uint32_t*>(line + SwizzledOffset<kColumns>(lane / 4, n) + quad * 4) =
              Pack<T>(o[m][n][2 * half], o[m][n][2 * half + 1]);
        }
      }
    }
  }
  if (partial) return;
  __syncwarp();
  constexpr int kPieces = kColumns / kPieceElements;
  constexpr int kRowsAtOnce = 32 / kPieces;  // 1 to 4 rows of whole lines
  const int piece = lane % kPieces;
  const bool aligned = AlignedOutput(task, sizeof(T));
  char* const out = static_cast<char*>(task.o);
#pragma unroll 2
  for (int i = lane / kPieces; i < kRowBlocks * 16; i += kRowsAtOnce) {
    const int r = warp_row + i;
    if (r >= item.rows) break;
    const QueryOfRow row = FindQuery(item.first_row + r, params.group);
    const int64_t at = row.query * task.o_row_stride +
                       (item.head_q + row.head) * task.o_head_stride + piece * kPieceElements;
    const char* const from = staging + SwizzledOffset<kColumns>(i, piece);
    const int left = task.head_dim_v - piece * kPieceElements;
    if (aligned) {
      if (left > 0) *reinterpret_cast<int4*>(out + at * 2) = *reinterpret_cast<const int4*>(from);
    } else {
      for (int c = 0; c < min(left, kPieceElements); ++c) {
        reinterpret_cast<uint16_t*>(out)[at + c] = reinterpret_cast<const uint16_t*>(from)[c];
      }
    }
  }
}

// Whether a block of keys holds an existing key that some row of the item does not see.
__device__ __forceinline__ bool HidesKeys(const Item& item, int64_t key, int keys) {
  return key < item.full_begin || Min64(key + keys, item.params->task.seqlen_k) > item.full_end;
}

// A product with a probability of 0 does not hide a NaN, so non-finite elements of V were taken out
// of the blocks that some rows do not fully see. This gives them back to the rows that do see them:
// such a row's element of o becomes NaN. Rare, so short rather than fast.
template <typename T, int kRows, int kThreads>
__device__ __noinline__ void SpreadNonFinite(ItemLaunch launch) {
  const Item item = FindItem<kRows>(launch);
  const TaskParams& params = *item.params;
  const DeviceTask& task = params.task;
  constexpr int kKeys = 64;
  const T* const v = static_cast<const T*>(task.v) + item.head_kv * task.v_head_stride;
  for (int64_t key = item.key_begin / kKeys * kKeys; key < item.key_end; key += kKeys) {
    if (task.bias == nullptr && !HidesKeys(item, key, kKeys)) continue;
    const int keys = static_cast<int>(Min64(kKeys, task.seqlen_k - key));
    for (int column = threadIdx.x; column < task.head_dim_v; column += kThreads) {
      uint64_t bad = 0;
      for (int j = 0; j < keys; ++j) {
        const float x = static_cast<float>(v[(key + j) * task.v_row_stride + column]);
        if (!(fabsf(x) <= kLargest)) bad |= uint64_t{1} << j;
      }
      for (int r = 0; bad != 0 && r < item.rows; ++r) {
        const QueryOfRow row = FindQuery(item.first_row + r, params.group);
        const RowKeys seen = KeysOfQuery(item, row.query, key);
        const int begin = max(seen.begin, 0);
        const int end = min(seen.end, kKeys);
        bool poisoned = false;
        for (int j = begin; j < end && !poisoned; ++j) {
          if ((bad >> j & 1) == 0) continue;
          poisoned = task.bias == nullptr ||
                     ScoreOptions<T>(item, row).Bias(key + j) != NegativeInfinity();
        }
        if (!poisoned) continue;
        const float nan = __int_as_float(0x7fffffff);
        if (params.chunks > 1) {
          params.partial_o[PartialIndex(item, row.query, row.head) * task.head_dim_v + column] =
              nan;
        } else {
          static_cast<T*>(task.o)[row.query * task.o_row_stride +
                                  (item.head_q + row.head) * task.o_head_stride + column] =
              static_cast<T>(nan);
        }
      }
    }
  }
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_EPILOGUE_CUH_
