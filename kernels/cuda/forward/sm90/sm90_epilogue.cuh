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
  if (has_sink && sink != NegativeInfinity()) {
    const float top = fmaxf(maximum, sink);
    // sum == 0: the row saw nothing, whatever its maximum.
    weight = sum == 0.0f ? 0.0f : Exp2((maximum - top) * kLog2E);
    sum = sum * weight + Exp2((sink - top) * kLog2E);
    maximum = top;
  }
  // Selects, not branches. (The reciprocal of 0 is infinity, its logarithm -infinity.)
  const float factor = Reciprocal(sum) * weight;
  return {sum == 0.0f ? 0.0f : factor,
          sum == 0.0f ? NegativeInfinity() : maximum + Log2(sum) * kLn2};
}

// Through shared memory, one bulk store for each warp and panel of 64 columns; needs no barrier
// between warps. The store clips what lies beyond padded_q and head_dim_v.
template <class C>
ATTEND_DEVICE void StoreStaged(const float (&o)[C::kDimV / 2], float factor_a, float factor_b,
                               const Item& item, uint32_t o_address, int32_t warp_row,
                               int32_t lane) {
  using T = typename C::Element;
  // Uniform operands: otherwise ptxas issues each copy in a loop over lanes. First, so that they
  // are there when the copies are.
  const uint64_t map_address = reinterpret_cast<uint64_t>(&item.task->o);
  const uint64_t low = Uniform(static_cast<uint32_t>(map_address));
  const uint64_t high = Uniform(static_cast<uint32_t>(map_address >> 32));
  const CUtensorMap* map = reinterpret_cast<const CUtensorMap*>(high << 32 | low);
  const int32_t first_row = Uniform(item.row + warp_row), head = Uniform(item.head);
  const uint32_t source = Uniform(o_address + warp_row * C::kRowBytes);
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
      TensorStore3(map, source + panel * C::kQPanelBytes, 64 * panel, first_row, head);
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
    if (live_a)
      *reinterpret_cast<uint4*>(out + offset_a + column) = make_uint4(a[0], a[1], a[2], a[3]);
    if (live_b)
      *reinterpret_cast<uint4*>(out + offset_b + column) = make_uint4(b[0], b[1], b[2], b[3]);
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

// Row of a chunk's partial results.
ATTEND_DEVICE int64_t PartialRow(const Item& item, const Sm90Task& task, TileRow row) {
  const int64_t head =
      int64_t{item.chunk} * task.heads_q + item.head * item.pack + row.head_in_pack;
  return head * task.padded_q + row.query;
}

// First half of the epilogue: writes log-sum-exps. Before the tile's last product has ended, so
// that only two numbers stay in registers over the softmax that comes between. What it needs stands
// in the item: reading the task here would stall every tile on device memory.
template <class C>
ATTEND_DEVICE Factors FinishRows(const RowState& state, const Item& item, int32_t warp_row,
                                 int32_t lane) {
  const int32_t tile_row = Opaque(warp_row + (lane >> 2));
  // All reads first and both rows together: a chain of latencies is what this costs.
  const int32_t whole = item.whole;
  float* const head_lse = item.head_lse;
  const float logit_scale = item.logit_scale;
  const int32_t first_row = item.row;
  const float sum_a = QuadSum(state.sum_a), sum_b = QuadSum(state.sum_b);
  if (!C::kDecode && whole != 0) {
    // A row that saw nothing: maximum and logarithm are -infinity, and so is their sum.
    const float lse_a = state.max_a * logit_scale + Log2(sum_a) * kLn2;
    const float lse_b = state.max_b * logit_scale + Log2(sum_b) * kLn2;
    const Factors factors{sum_a == 0.0f ? 0.0f : Reciprocal(sum_a),
                          sum_b == 0.0f ? 0.0f : Reciprocal(sum_b)};
    if (head_lse != nullptr && (lane & 3) == 0) {
      float* const lse = head_lse + first_row + tile_row;
      lse[0] = lse_a;
      lse[8] = lse_b;
    }
    return factors;
  }
  RowResult result[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const TileRow row = SplitRow<C::kDecode>(item, tile_row + 8 * i);
    const bool split = C::kDecode && item.chunks > 1;
    const bool has_sink = (item.flags & kSinks) != 0 && !split;
    float sink = 0.0f;
    if (has_sink) {
      // Rows beyond the tile's heads are never stored; they must not read beyond the sinks either.
      sink =
          item.task->sinks[min(item.head * item.pack + row.head_in_pack, item.task->heads_q - 1)];
    }
    result[i] = FinishRow((i == 0 ? state.max_a : state.max_b) * logit_scale,
                          i == 0 ? sum_a : sum_b, has_sink, sink);
    if (row.query >= item.seqlen_q) result[i] = {0.0f, NegativeInfinity()};
    if ((lane & 3) != 0 || row.query >= item.end_row) continue;
    if constexpr (C::kDecode) {
      if (split) {
        item.task->partial_lse[PartialRow(item, *item.task, row)] = result[i].lse;
      } else if (item.lse != nullptr) {
        item.lse[(item.head * item.pack + row.head_in_pack) * item.lse_head_stride + row.query] =
            result[i].lse;
      }
    } else if (item.head_lse != nullptr) {
      item.head_lse[row.query] = result[i].lse;
    }
  }
  return {result[0].factor, result[1].factor};
}

// Second half: writes a finished tile's O. `o` is of no use afterwards.
template <class C>
ATTEND_DEVICE void Epilogue(float (&o)[C::kDimV / 2], const Factors& factors, const Item& item,
                            const Sm90Launch& launch, uint32_t o_address, int32_t warp_row,
                            int32_t lane) {
  if (item.poisoned != 0) ApplyPoison<C>(o, launch, warp_row + (lane >> 2), lane);
  if (item.whole == 0 && item.row + C::kRows > item.seqlen_q) {
    // Padded rows: exactly 0 whatever V holds.
    const int32_t tile_row = warp_row + (lane >> 2);
    if (SplitRow<C::kDecode>(item, tile_row).query >= item.seqlen_q) {
#pragma unroll
      for (int i = 0; i < C::kDimV / 8; ++i) o[4 * i] = o[4 * i + 1] = 0.0f;
    }
    if (SplitRow<C::kDecode>(item, tile_row + 8).query >= item.seqlen_q) {
#pragma unroll
      for (int i = 0; i < C::kDimV / 8; ++i) o[4 * i + 2] = o[4 * i + 3] = 0.0f;
    }
  }
  if constexpr (C::kDirect) {
    const Sm90Task& task = *item.task;
    const int32_t tile_row = Opaque(warp_row + (lane >> 2));
    const TileRow a = SplitRow<C::kDecode>(item, tile_row);
    const TileRow b = SplitRow<C::kDecode>(item, tile_row + 8);
    const bool live_a = a.query < item.end_row, live_b = b.query < item.end_row;
    const int32_t head = item.head * item.pack;
    if (C::kDecode && task.chunks > 1) {
      StorePartial<C>(o, factors.a, factors.b, task, PartialRow(item, task, a),
                      PartialRow(item, task, b), live_a, live_b, lane);
    } else {
      StoreDirect<C>(o, factors.a, factors.b, task,
                     a.query * task.o_row_stride + (head + a.head_in_pack) * task.o_head_stride,
                     b.query * task.o_row_stride + (head + b.head_in_pack) * task.o_head_stride,
                     live_a, live_b, lane);
    }
  } else {
    StoreStaged<C>(o, factors.a, factors.b, item, o_address, warp_row, lane);
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_EPILOGUE_CUH_
