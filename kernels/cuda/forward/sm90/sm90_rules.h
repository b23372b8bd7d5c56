// Numbers of the host's planning, with their reasons. Figures: kernels/cuda/notes/sm90.md.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_RULES_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_RULES_H_

#include <cstdint>

namespace attend::cuda::sm90 {

// See Modified() in sm90_plan.cc.
inline constexpr float kSmallestFoldedScale = 1e-30f;
inline constexpr float kLargestFoldedScale = 1e30f;

// Query rows of the ordinary tiles and of the decode tile.
inline constexpr int64_t kShortRows = 128;
inline constexpr int64_t kDecodeRows = 64;

// Up to this many query rows, one head would leave most of an ordinary tile empty.
inline constexpr int64_t kDecodeQueries = 32;

// A task that fills less than half of the 132 multiprocessors with ordinary tiles is cut smaller
// and along its keys, if there are enough keys to share.
inline constexpr int64_t kFewTiles = 66;
inline constexpr int64_t kFewTilesKeys = 1024;

// Keys are cut until a task has one item for each of 132 multiprocessors, into chunks of no less
// than 256 keys: below that, starting and merging cost more than they bring. Where one tile takes
// all query rows, reading K and V is the work, and half as many items read nearly as fast when the
// task is alone (8192 keys, 8 heads: 20.6 us against 18.1) and faster in company, where starts and
// merges cost bandwidth (64 such tasks: +2 %, 4 of 16384 keys: +9 %). Long ones are cut further,
// into chunks of no less than 4096 keys, until there are four items for each multiprocessor: the
// last round is short then.
inline constexpr int64_t kEnoughItems = 132;
inline constexpr int64_t kEnoughOneTileItems = 64;
inline constexpr int64_t kMinChunkKeys = 256;
inline constexpr int64_t kPlentyItems = 4 * 132;
inline constexpr int64_t kLongChunkKeys = 4096;

// From these lengths on the tiles of 192 query rows are faster than those of 128.
inline constexpr int64_t kLongFromD64 = 0;
inline constexpr int64_t kLongFromD64Masked = 1024;
inline constexpr int64_t kLongFromD128Masked = 7168;  // 4096: -4 %, 8192: +2 %, 16384: +2 %
// For unmasked tasks at D = 128 the two tiles' costs are compared: rows and keys as they round up
// to whole tiles and blocks, and what starting and ending a tile costs, in keys. At S = 315, 192 x
// 80 is 14 % faster than 128 x 128, which has to round 315 keys to 384; at S = 512 it is 14 %
// slower.
inline constexpr int64_t kTileCostKeys = 90;
inline constexpr double kLongTileRate = 1.06;  // of long sequences

// K and V of the heads that are worked on together: a part of the 50 MB of L2 that leaves room for
// Q, O and the next section. Sections much larger lose up to 17 % (S = 512, causal).
inline constexpr int64_t kSectionBytes = int64_t{16} << 20;

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_RULES_H_
