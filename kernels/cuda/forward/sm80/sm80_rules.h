// How the portable forward kernels want their work cut. Host side only: device code sees no more
// than sm80_config.h.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_RULES_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_RULES_H_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/plan.h"

namespace attend::cuda::sm80 {

// Key chunks. A chunk of a tall tile costs a write and a read of fp32 results, 7 % of 1,024 keys'
// work; one of a decode tile costs 2 % of 512 keys' bytes. `enough_items` gives nearly every SM
// of an H200 one item; two or three each measured slower, 3 to 20 % in decode. It is the same on
// every device, so that a device's size does not change answers.
constexpr PlanRule TileRule(int64_t tile_rows) {
  PlanRule rule;
  rule.tile_rows = tile_rows;
  rule.key_block = 64;
  // Below a whole tile, packing fills rows that would stand empty.
  rule.pack_rows = tile_rows - 1;
  rule.enough_items = 128;
  rule.min_chunk_keys = 1024;
  return rule;
}
constexpr PlanRule DecodeRule() {
  PlanRule rule;
  rule.tile_rows = kDecodeRows;
  rule.key_block = 64;
  rule.pack_rows = kDecodeRows;
  rule.enough_items = 128;
  rule.min_chunk_keys = 512;
  return rule;
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_RULES_H_
