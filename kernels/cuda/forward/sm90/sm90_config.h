// Every number of the Hopper forward kernels, with its reason. Figures: kernels/cuda/notes/sm90.md.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_CONFIG_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_CONFIG_H_

#include <cstdint>

namespace attend::cuda::sm90 {

// When exponentials may start before the block's row maximum is known.
enum class MaxPolicy {
  // They start at once from the maximum so far, into a second copy of P; the block's own maximum is
  // only compared, and a warp that finds a larger one redoes its rows from the intact scores.
  // Costs kKeys / 4 registers; shortens the serial chain most.
  kStale,
  // The block's maximum is compared first, by each thread for its own scores; rows are reduced over
  // threads only when some score exceeds the old maximum. In place.
  kLazy,
};

// A row maximum may lag behind the true one by this much in log2 units: P <= 256 loses nothing in
// bf16 and is far from overflow in fp16 and in fp32 sums, and the accumulator is rescaled rarely.
inline constexpr float kMaxLag = 8.0f;

// Maxima beyond this, in log2 units, are subtracted from the scores before these are scaled: the
// fused multiply-add keeps the whole product and its addend is rounded, so that the difference of
// two equal numbers may be off by 2^-24 of them. Up to here that is 2^-14, far below a rounding of
// P.
inline constexpr float kLargeShift = 1024.0f;

// The tensor maps of so many tasks one warp acquires while the first tile is computed (45 ns a
// map); those of more, all service warps together, before it (20 ns a map: 256 tasks +3 %).
inline constexpr int32_t kMostTasksForOneWarp = 64;

// kModifies: softcap, ALiBi and odd scales are compiled in; without, the shorter code is 1 %
// faster. kWarpgroups: math warpgroups of 64 rows; one alone packs heads and cuts keys (decode).
// kKeys: keys of a block. kPingPong: warpgroups take turns to issue products. kDirect: O leaves by
// plain stores, for lack of shared memory to stage it or because rows are packed heads.
template <class Element_, int kDim_, int kDimV_, int kWarpgroups_, int kKeys_, int kKvStages_,
          int kQStages_, MaxPolicy kPolicy_, bool kPingPong_, bool kDirect_,
          int kBlocksPerMultiprocessor_ = 1, bool kModifies_ = true>
struct TileConfig {
  using Element = Element_;
  static constexpr int kDim = kDim_;
  static constexpr int kDimV = kDimV_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kKeys = kKeys_;
  static constexpr int kKvStages = kKvStages_;
  static constexpr int kQStages = kQStages_;
  static constexpr MaxPolicy kPolicy = kPolicy_;
  static constexpr bool kPingPong = kPingPong_;
  static constexpr bool kDirect = kDirect_;
  static constexpr bool kModifies = kModifies_;
  static constexpr int kBlocksPerMultiprocessor = kBlocksPerMultiprocessor_;

  // Rows may be packed heads, and items chunks of the keys.
  static constexpr bool kDecode = kWarpgroups == 1;

  static constexpr int kRowsPerWarpgroup = 64;  // wgmma's M
  static constexpr int kRows = kWarpgroups * kRowsPerWarpgroup;
  // Shared tiles are panels of 64 columns: rows of 128 bytes, the span of the 128-byte swizzle.
  static constexpr int kPanels = (kDim + 63) / 64;
  static constexpr int kPanelsV = (kDimV + 63) / 64;
  static constexpr int kRowBytes = 128;

  static constexpr uint32_t kQPanelBytes = kRows * kRowBytes;
  static constexpr uint32_t kKvPanelBytes = kKeys * kRowBytes;
  static constexpr uint32_t kQBytes = kPanels * kQPanelBytes;
  static constexpr uint32_t kKBytes = kPanels * kKvPanelBytes;
  static constexpr uint32_t kVBytes = kPanelsV * kKvPanelBytes;
  static constexpr uint32_t kOBytes = kDirect ? 0 : kPanelsV * kQPanelBytes;

  // Words of the bitmap of outputs that depend on a NaN or Inf (sm90_inspect.cuh).
  static constexpr uint32_t kPoisonWords = kRows * (kDimV / 32);

  // Items handed from the scheduler to the other warps: the one whose epilogue is due, current,
  // next; a power of two.
  static constexpr int kItemSlots = 4;

  // Layout of shared memory, from a base aligned to 1024 bytes (the swizzle's period).
  static constexpr uint32_t kQAt = 0;
  static constexpr uint32_t kKAt = kQAt + kQStages * kQBytes;
  static constexpr uint32_t kVAt = kKAt + kKvStages * kKBytes;
  static constexpr uint32_t kOAt = kVAt + kKvStages * kVBytes;
  static constexpr uint32_t kControlAt = kOAt + kOBytes;
  // struct Control, checked there.
  static constexpr uint32_t kControlBytes = 1024;
  static constexpr uint32_t kAlignment = 1024;
  static constexpr uint32_t kSharedBytes = kAlignment + kControlAt + kControlBytes;
  // A multiprocessor has 228 KB, of which each block takes 1 KB for itself.
  static_assert(kSharedBytes + 1024 <= 228 * 1024 / kBlocksPerMultiprocessor,
                "more shared memory than a block may have");

  static constexpr int kServiceThreads = 128;  // producer, scheduler and two inspector warps
  static constexpr int kThreads = kServiceThreads + 128 * kWarpgroups;

  // Registers of a thread after the service warps gave theirs away. The sum over all threads must
  // not pass what the launch allocated (threads x the launch bound's registers), or the kernel
  // hangs. Service warps spill at 24. One math warpgroup alone on its multiprocessor needs no
  // exchange: all threads have 255.
  static constexpr bool kExchangeRegisters = kWarpgroups * kBlocksPerMultiprocessor > 1;
  static constexpr int kServiceRegisters = kWarpgroups == 3 ? 32 : 40;
  static constexpr int kMathRegisters = kWarpgroups == 1 ? 216 : kWarpgroups == 2 ? 232 : 160;
  static_assert(!kExchangeRegisters ||
                kServiceRegisters + kWarpgroups * kMathRegisters <= 512 / kBlocksPerMultiprocessor);
};

// The tiles. Names: head sizes and query rows of a tile. Tiles whose scores are modified have no
// fast step, so lazy serves them as well as stale.
//
// D = 64: three warpgroups cover for each other's serial chain; two, with smaller tiles, win when
// sequences are short (S = 512 causal +12 %).
template <class T>
using ConfigD64Rows192 =
    TileConfig<T, 64, 64, 3, 128, 2, 2, MaxPolicy::kLazy, false, false, 1, false>;
template <class T>
using ConfigD64Rows128 =
    TileConfig<T, 64, 64, 2, 128, 2, 2, MaxPolicy::kStale, true, false, 1, false>;
template <class T>
using ConfigD64Modified = TileConfig<T, 64, 64, 2, 128, 2, 2, MaxPolicy::kLazy, true, false>;
// D = 96: laid out as D = 128 in shared memory, a quarter fewer products.
template <class T>
using ConfigD96Rows128 = TileConfig<T, 96, 96, 2, 128, 2, 2, MaxPolicy::kStale, true, false>;
// D = 128: 128 rows fit causal and short sequences; 192 rows read K and V less often, +2 to 5 %
// from S = 2048 on, and leave no registers for a second P (lazy).
template <class T>
using ConfigD128Rows128 =
    TileConfig<T, 128, 128, 2, 128, 2, 2, MaxPolicy::kStale, true, false, 1, false>;
template <class T>
using ConfigD128Modified = TileConfig<T, 128, 128, 2, 128, 2, 2, MaxPolicy::kLazy, true, false>;
template <class T>
using ConfigD128Rows192 =
    TileConfig<T, 128, 128, 3, 80, 2, 2, MaxPolicy::kLazy, true, false, 1, false>;
// Larger heads: shared memory holds one Q and none of O; the accumulator leaves no room for a
// second P from Dv = 192 on.
template <class T>
using ConfigD192V128Rows128 = TileConfig<T, 192, 128, 2, 128, 2, 1, MaxPolicy::kStale, true, true>;
template <class T>
using ConfigD192Rows128 = TileConfig<T, 192, 192, 2, 112, 2, 1, MaxPolicy::kLazy, true, true>;
template <class T>
using ConfigD256Rows128 = TileConfig<T, 256, 256, 2, 64, 2, 1, MaxPolicy::kLazy, true, true>;
// Few query rows over many keys: bound by the reading of K and V. One warpgroup's chain of product,
// softmax, product is about as long as the reading of its block, so two blocks share a
// multiprocessor and cover for each other where shared memory allows. A second place for Q keeps K
// and V coming while one chunk ends and the next begins.
template <class T>
using ConfigD64Decode = TileConfig<T, 64, 64, 1, 128, 2, 2, MaxPolicy::kStale, false, true, 2>;
template <class T>
using ConfigD128Decode = TileConfig<T, 128, 128, 1, 64, 2, 2, MaxPolicy::kStale, false, true, 2>;
template <class T>
using ConfigD256Decode = TileConfig<T, 256, 256, 1, 80, 2, 2, MaxPolicy::kLazy, false, true>;

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_CONFIG_H_
