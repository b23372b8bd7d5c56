// Every number of the portable forward kernels, with its reason.
//
// Limits that they share: 99 KiB of shared memory a block, the least that compute capability 8.x
// and 12.x offer; 255 registers a thread; four warps a block, since two blocks of four hide each
// other's barriers and softmax better than one of eight.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_CONFIG_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_CONFIG_H_

#include <cstdint>

namespace attend::cuda::sm80 {

inline constexpr int kMaxSharedBytes = 99 * 1024;

// Columns of q, k, v are padded in shared memory to one of these.
inline constexpr int kTileColumns[] = {64, 128, 256};

// Room for a block's item behind its tiles.
inline constexpr int kItemBytes = 128;

// 16-bit inputs, many rows. `kRowBlocks`: 16-row blocks of one warp. Two of them use each K and V
// fragment twice, which halves the shared-memory traffic (the first limit otherwise); at 256
// columns the accumulators of two would not fit in the registers.
template <int columns>
struct TileConfig {
  static constexpr int kColumns = columns;
  static constexpr int kWarps = 4;
  static constexpr int kRowBlocks = columns == 256 ? 1 : 2;
  static constexpr int kRows = kWarps * kRowBlocks * 16;
  // Two stages let the next K and V arrive during the whole of a step. With 32 keys at 128 columns
  // they take 64 KiB, so that two blocks fit an SM of compute capability 8.0 too; 64 keys are no
  // faster (H200: within 1 %).
  static constexpr int kKeys = columns == 128 ? 32 : 64;
  static constexpr int kStages = columns == 256 ? 1 : 2;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kTileBytes = (kRows + kStages * 2 * kKeys) * columns * 2;
  static constexpr int kSharedBytes = kTileBytes + kItemBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

// 16-bit inputs, at most 16 rows (decode, query heads of one kv head packed): the keys of a block
// are dealt out to its warps, each with a ring of its own, so nothing but the end needs a barrier.
template <int columns>
struct DecodeConfig {
  static constexpr int kColumns = columns;
  static constexpr int kWarps = columns == 256 ? 2 : 4;
  static constexpr int kRows = 16;
  static constexpr int kKeys = 16;  // of one warp's step
  // 16 KiB to 24 KiB in flight a warp; an H200 needs about 40 KiB an SM.
  static constexpr int kStages = columns == 64 ? 4 : 3;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStageBytes = 2 * kKeys * columns * 2;
  static constexpr int kTileBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSharedBytes = kTileBytes + kItemBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

// fp32 inputs, by three tf32 products. Rows are padded by four floats, which spreads both the K
// fragments (rows of 16 bytes) and the V fragments (columns of single floats) over all banks.
template <int columns>
struct Fp32Config {
  static constexpr int kColumns = columns;
  static constexpr int kWarps = 4;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kKeys = columns == 256 ? 16 : 32;
  static constexpr int kPitch = columns + 4;  // floats
  static constexpr int kBlocksPerSm = columns == 64 ? 3 : 2;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kTileBytes = (kRows + 2 * kKeys) * kPitch * 4;
  static constexpr int kSharedBytes = kTileBytes + kItemBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

// Rows up to here go to the decode kernel.
inline constexpr int64_t kDecodeRows = 16;

// Vectors are copied, merged or padded by one warp each.
inline constexpr int kVectorWarps = 8;

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_CONFIG_H_
