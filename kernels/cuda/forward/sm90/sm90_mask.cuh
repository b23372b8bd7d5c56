// Masks and score modifications of one block, for the steps that need them.
//
// A thread of a math warpgroup holds two rows of its warp's sixteen, A = lane / 4 and B = A + 8,
// and of those the columns 8 i + 2 (lane % 4) + {0, 1}: scores[4 i + {0, 1}] of row A, {2, 3} of
// row B.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MASK_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MASK_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_control.cuh"
#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"

namespace attend::cuda::sm90 {

// A tile's row as a query row and the head within its packed group.
struct TileRow {
  int32_t query, head_in_pack;
};

// kPacked: whether rows of this kernel's tiles can be packed heads.
template <bool kPacked>
ATTEND_DEVICE TileRow SplitRow(const Item& item, int32_t tile_row) {
  if (!kPacked || item.pack == 1) return {item.row + tile_row, 0};
  const int32_t offset = tile_row / item.pack;
  return {item.row + offset, tile_row - offset * item.pack};
}

// Scores outside the rows' ranges become -infinity. tile_row: of row A.
template <int kKeys, bool kPacked>
ATTEND_DEVICE void MaskScores(float (&scores)[kKeys / 2], const Item& item, int32_t tile_row,
                              int32_t block, int32_t lane) {
  const int32_t from_key = block * kKeys + 2 * (lane & 3);
  const float masked = NegativeInfinity();
  const int32_t query_a = SplitRow<kPacked>(item, tile_row).query - from_key;
  const int32_t query_b = SplitRow<kPacked>(item, tile_row + 8).query - from_key;
  const int32_t end_a = min(item.seqlen_k - from_key, query_a + item.end_offset);
  const int32_t end_b = min(item.seqlen_k - from_key, query_b + item.end_offset);
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
    if (8 * i >= end_a) scores[4 * i] = masked;
    if (8 * i + 1 >= end_a) scores[4 * i + 1] = masked;
    if (8 * i >= end_b) scores[4 * i + 2] = masked;
    if (8 * i + 1 >= end_b) scores[4 * i + 3] = masked;
  }
  // Only windows have a left edge; whole warps of causal tiles skip this.
  const int32_t first_a = query_a + item.first_offset, first_b = query_b + item.first_offset;
  if (__any_sync(kAllLanes, max(first_a, first_b) > 0) == 0) return;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
    if (8 * i < first_a) scores[4 * i] = masked;
    if (8 * i + 1 < first_a) scores[4 * i + 1] = masked;
    if (8 * i < first_b) scores[4 * i + 2] = masked;
    if (8 * i + 1 < first_b) scores[4 * i + 3] = masked;
  }
}

// cap * tanh(score / cap), with two special functions: tanh.approx is good to 11 bits only, which
// softcap turns into errors of the score itself.
// factor: 2 log2(e) / cap, times what scales the score.
ATTEND_DEVICE float SoftCap(float score, float cap, float factor) {
  const float e = Exp2(score * factor);  // e^(2x); infinity gives 1, 0 gives -1
  return cap - 2.0f * cap * Reciprocal(e + 1.0f);
}

// Raw products become scores in natural-log units: scale, softcap, ALiBi. zero: Sm90Launch::zero.
template <int kKeys, bool kPacked>
ATTEND_DEVICE void ModifyScores(float (&scores)[kKeys / 2], const Item& item, const Sm90Task& task,
                                int32_t tile_row, int32_t block, int32_t lane, uint32_t zero) {
  const float scale = item.softmax_scale;
  const float cap = item.softcap;
  if (cap > 0.0f) {
    const float factor = 2.0f * kLog2E * scale * Reciprocal(cap);
    // Eight at a time, with a vote between that they depend on: ptxas would start all of them
    // together and spill.
    float again = factor;
#pragma unroll
    for (int from = 0; from < kKeys / 2; from += 8) {
#pragma unroll
      for (int i = from; i < from + 8; ++i) scores[i] = SoftCap(scores[i], cap, again);
      const uint32_t vote = __ballot_sync(kAllLanes, scores[from] > 0.0f);
      again = __uint_as_float(__float_as_uint(factor) ^ (vote & zero));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) scores[i] *= scale;
  }
  if (task.alibi_slopes == nullptr) return;
  const TileRow a = SplitRow<kPacked>(item, tile_row), b = SplitRow<kPacked>(item, tile_row + 8);
  // Rows beyond the tile's heads are never stored; they must not read beyond the slopes either.
  const int32_t head = item.head * item.pack;
  const float slope_a = task.alibi_slopes[min(head + a.head_in_pack, task.heads_q - 1)];
  const float slope_b = task.alibi_slopes[min(head + b.head_in_pack, task.heads_q - 1)];
  const int32_t from_key = block * kKeys + 2 * (lane & 3) - (item.seqlen_k - item.seqlen_q);
  const int32_t distance_a = from_key - a.query, distance_b = from_key - b.query;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
    scores[4 * i] -= slope_a * static_cast<float>(abs(distance_a + 8 * i));
    scores[4 * i + 1] -= slope_a * static_cast<float>(abs(distance_a + 8 * i + 1));
    scores[4 * i + 2] -= slope_b * static_cast<float>(abs(distance_b + 8 * i));
    scores[4 * i + 3] -= slope_b * static_cast<float>(abs(distance_b + 8 * i + 1));
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_MASK_CUH_
