// From accumulators to O and log-sum-exp.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_EPILOGUE_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_EPILOGUE_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_inspect.cuh"
#include "kernels/cuda/forward/sm90/sm90_mask.cuh"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"
#include "kernels/cuda/forward/sm90/sm90_softmax.cuh"
#include "kernels/cuda/forward/sm90/sm90_wgmma.cuh"

namespace attend::cuda::sm90 {

// How one row leaves: its factor and its log-sum-exp.
struct RowResult {
  float factor;
  float lse;
};

// `maximum` in natural-log units, `sum` of exp(score - maximum); has_sink: `sink` joins the
// denominator. A row that saw nothing gives factor 0 and -infinity, or its sink.
ATTEND_DEVICE RowResult FinishRow(float maximum, float sum, bool has_sink, float sink) {
  float weight = 1.0f;
  if (has_sink) {
    const float top = fmaxf(maximum, sink);
    // sum == 0: the row saw nothing, whatever its maximum.
    weight = sum == 0.0f ? 0.0f : Exp2((maximum - top) * kLog2E);
    sum = sum * weight + Exp2((sink - top) * kLog2E);
    maximum = top;
  }
  if (sum == 0.0f) return {0.0f, NegativeInfinity()};
  return {Reciprocal(sum) * weight, maximum + Log2(sum) * kLn2};
}

// Through shared memory, one bulk store for each warp and panel of 64 columns; needs no barrier
// between warps. The store clips what lies beyond padded_q and head_dim_v.
template <class C>
ATTEND_DEVICE void StoreStaged(const float (&o)[C::kDimV / 2], float factor_a, float factor_b,
                               const Item& item, const Sm90Task& task, uint32_t o_address,
                               int32_t warp_row, int32_t lane) {
  using T = typename C::Element;
  if (lane == 0) StoreWaitRead();
  __syncwarp();
  const uint32_t row = ((lane >> 3) & 1) * 8 + (lane & 7);
  const uint32_t row_address = o_address + (warp_row + row) * C::kRowBytes;
#pragma unroll
  for (int i = 0; i < C::kDimV / 16; ++i) {
    const uint32_t chunk = (i % 4) * 2 + (lane >> 4);
    StoreMatrix4(row_address + (i / 4) * C::kQPanelBytes + ((chunk ^ (row & 7)) << 4),
                 Pack<T>(o[8 * i] * factor_a, o[8 * i + 1] * factor_a),
                 Pack<T>(o[8 * i + 2] * factor_b, o[8 * i + 3] * factor_b),
                 Pack<T>(o[8 * i + 4] * factor_a, o[8 * i + 5] * factor_a),
                 Pack<T>(o[8 * i + 6] * factor_b, o[8 * i + 7] * factor_b));
  }
  ProxyFence();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int panel = 0; panel < C::kPanelsV; ++panel) {
      TensorStore3(&task.o, o_address + panel * C::kQPanelBytes + warp_row * C::kRowBytes,
                   64 * panel, item.row + warp_row, item.head);
    }
    StoreCommit();
  }
}

// Four words of each lane of a quad, transposed: lane q ends with word q of lanes 0 to 3.
ATTEND_DEVICE void TransposeQuad(uint32_t (&w)[4], int32_t lane) {
  const bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? w[i] : w[i + 1], 1);
    w[i] = odd ? other : w[i];
    w[i + 1] = odd ? w[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, high ? w[i] : w[i + 2], 2);
    w[i] = high ? other : w[i];
    w[i + 2] = high ? w[i + 2] : other;
  }
}

// Straight from registers, 16 bytes a lane.
template <class C>
ATTEND_DEVICE void StoreDirect(const float (&o)[C::kDimV / 2], float factor_a, float factor_b,
                               const Sm90Task& task, int64_t offset_a, int64_t offset_b,
                               bool live_a, bool live_b, int32_t lane) {
  using T = typename C::Element;
  T* out = static_cast<T*>(task.o_pointer);
#pragma unroll
  for (int group = 0; group < C::kDimV / 32; ++group) {
    uint32_t a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (4 * group + i);
      a[i] = Pack<T>(o[at] * factor_a, o[at + 1] * factor_a);
      b[i] = Pack<T>(o[at + 2] * factor_b, o[at + 3] * factor_b);
    }
    TransposeQuad(a, lane);
    TransposeQuad(b, lane);
    const int32_t column = 32 * group + 8 * (lane & 3);
    if (column >= task.head_dim_v) continue;
    if (live_a) *reinterpret_cast<uint4*>(out + offset_a + column) = make_uint4(a[0], a[1], a[2], a[3]);
    if (live_b) *reinterpret_cast<uint4*>(out + offset_b + column) = make_uint4(b[0], b[1], b[2], b[3]);
  }
}

// One chunk's share, normalised, fp32, for the merge.
template <class C>
ATTEND_DEVICE void StorePartial(const float (&o)[C::kDimV / 2], float factor_a, float factor_b,
                                const Sm90Task& task, int64_t row_a, int64_t row_b, bool live_a,
                                bool live_b, int32_t lane) {
  float* out_a = task.partial_o + row_a * task.head_dim_v;
  float* out_b = task.partial_o + row_b * task.head_dim_v;
#pragma unroll
  for (int i = 0; i < C::kDimV / 8; ++i) {
    const int32_t column = 8 * i + 2 * (lane & 3);
    if (column >= task.head_dim_v) break;
    if (live_a) {
      *reinterpret_cast<float2*>(out_a + column) =
          make_float2(o[4 * i] * factor_a, o[4 * i + 1] * factor_a);
    }
    if (live_b) {
      *reinterpret_cast<float2*>(out_b + column) =
          make_float2(o[4 * i + 2] * factor_b, o[4 * i + 3] * factor_b);
    }
  }
}

// Factors of rows A and B.
struct Factors {
  float a, b;
};

// A thread's two rows in an item's tensors. warp_row: the warp's first row in the tile.
struct EpilogueRows {
  TileRow a, b;
  int32_t head_a, head_b;
  bool live_a, live_b;  // to be written: within the tile and within padded_q

  ATTEND_DEVICE EpilogueRows(const Item& item, const Sm90Task& task, int32_t warp_row,
                             int32_t lane) {
    const int32_t tile_row = Opaque(warp_row + (lane >> 2));
    a = SplitRow(item, tile_row);
    b = SplitRow(item, tile_row + 8);
    head_a = item.head * item.pack + a.head_in_pack;
    head_b = item.head * item.pack + b.head_in_pack;
    const int32_t end_row = min(item.row + task.rows, task.padded_q);
    live_a = a.query < end_row;
    live_b = b.query < end_row;
  }
  // In partial results of a chunk, and in [heads, rows] of a whole one.
  ATTEND_DEVICE int64_t PartialRow(const Item& item, const Sm90Task& task, bool of_b) const {
    const int64_t chunk = static_cast<int64_t>(item.chunk) * task.heads_q;
    return (chunk + (of_b ? head_b : head_a)) * task.padded_q + (of_b ? b.query : a.query);
  }
};

// First half of the epilogue: writes log-sum-exps. Before the tile's last product has ended, so that
// only two numbers stay in registers over the softmax that comes between.
template <class C>
ATTEND_DEVICE Factors FinishRows(const RowState& state, const Item& item, const Sm90Task& task,
                                 int32_t warp_row, int32_t lane) {
  const EpilogueRows rows(item, task, warp_row, lane);
  const bool split = C::kDirect && task.chunks > 1;
  const bool has_sink = task.sinks != nullptr && !split;
  RowResult result[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Rows beyond the tile's heads are never stored; they must not read beyond the sinks either.
    const int32_t head = min(i == 0 ? rows.head_a : rows.head_b, task.heads_q - 1);
    result[i] = FinishRow((i == 0 ? state.max_a : state.max_b) * item.logit_scale,
                          QuadSum(i == 0 ? state.sum_a : state.sum_b), has_sink,
                          has_sink ? task.sinks[head] : 0.0f);
    const int32_t query = i == 0 ? rows.a.query : rows.b.query;
    if (query >= item.seqlen_q) result[i] = {0.0f, NegativeInfinity()};
    float* lse = split ? task.partial_lse : task.lse;
    if (lse != nullptr && (lane & 3) == 0 && (i == 0 ? rows.live_a : rows.live_b)) {
      lse[split ? rows.PartialRow(item, task, i == 1)
                : (i == 0 ? rows.head_a : rows.head_b) * task.lse_head_stride + query] =
          result[i].lse;
    }
  }
  return {result[0].factor, result[1].factor};
}

// Second half: writes a finished tile's O and leaves `o` zero.
template <class C>
ATTEND_DEVICE void Epilogue(float (&o)[C::kDimV / 2], const Factors& factors, const Item& item,
                            const Sm90Launch& launch, uint32_t o_address, int32_t warp_row,
                            int32_t lane) {
  const Sm90Task& task = launch.tasks[item.task];
  if (item.poisoned != 0) ApplyPoison<C>(o, launch, warp_row + (lane >> 2), lane);
  if (item.row + C::kRows > item.seqlen_q) {
    // Padded rows: exactly 0 whatever V holds.
    const int32_t tile_row = warp_row + (lane >> 2);
    if (SplitRow(item, tile_row).query >= item.seqlen_q) {
#pragma unroll
      for (int i = 0; i < C::kDimV / 8; ++i) o[4 * i] = o[4 * i + 1] = 0.0f;
    }
    if (SplitRow(item, tile_row + 8).query >= item.seqlen_q) {
#pragma unroll
      for (int i = 0; i < C::kDimV / 8; ++i) o[4 * i + 2] = o[4 * i + 3] = 0.0f;
    }
  }
  if constexpr (C::kDirect) {
    const EpilogueRows rows(item, task, warp_row, lane);
    if (task.chunks > 1) {
      StorePartial<C>(o, factors.a, factors.b, task, rows.PartialRow(item, task, false),
                      rows.PartialRow(item, task, true), rows.live_a, rows.live_b, lane);
    } else {
      StoreDirect<C>(o, factors.a, factors.b, task,
                     rows.a.query * task.o_row_stride + rows.head_a * task.o_head_stride,
                     rows.b.query * task.o_row_stride + rows.head_b * task.o_head_stride,
                     rows.live_a, rows.live_b, lane);
    }
  } else {
    StoreStaged<C>(o, factors.a, factors.b, item, task, o_address, warp_row, lane);
  }
#pragma unroll
  for (int i = 0; i < C::kDimV / 2; ++i) o[i] = 0.0f;
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_EPILOGUE_CUH_
