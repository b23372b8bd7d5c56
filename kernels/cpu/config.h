// Every number of the CPU backend, with its reason. Constants only: this header is read by files
// that are compiled for instruction sets which the host may lack, so nothing here may become code.

#ifndef ATTEND_KERNELS_CPU_CONFIG_H_
#define ATTEND_KERNELS_CPU_CONFIG_H_

#include <cstdint>

namespace attend::cpu {

// Registers decide the micro-kernel: rows x two vectors of columns, all sums in registers beside
// two loaded vectors and a broadcast. 6 x 2 fills 16 registers; with 32 registers every shape from
// 8 x 2 up reaches the same rate, and 8 divides most row counts.
inline constexpr int kStripRows16 = 6;
inline constexpr int kStripRows32 = 8;
inline constexpr int kMaxStripRows = 8;

// Keys of one block: packed K and V of a block stay in L2 while the strips of a tile pass over
// them, beside the next block, which is packed meanwhile; a strip's scores (strip rows x keys) stay
// in L1. Fewer keys than 256 cost more in what each strip does once a block (128: 10 %).
inline constexpr int kKeyBlock16 = 256;
inline constexpr int kKeyBlock32 = 512;
inline constexpr int kMaxKeyBlock = 512;

// Added to a row of scores, so that the rows of a strip do not meet in one set of L1.
inline constexpr int kScorePadding = 16;

// Query rows of one work item. Each item packs the keys it visits, which costs as much as computing
// ten rows, and more when the keys come from memory. So a batch with more than kItemsAThread items
// for each thread merges tiles, up to kMaxTileRows: on an EPYC with AVX2, 768 rows instead of 192
// are 4 % faster at 512 keys and 9 to 24 % at 2048. Merging changes no row's arithmetic. Tiles of a
// task are cut evenly, so these are the most and not the usual numbers.
inline constexpr int kTileRows = 192;
inline constexpr int kMaxTileRows = 768;
inline constexpr int kItemsAThread = 4;

// Items of at most this many strips read K and V in place: packing pays only when enough rows
// share it.
inline constexpr int kStreamStrips = 2;

// Heads that share a kv head are packed into the rows of one tile up to this many query rows.
inline constexpr int kPackRows = 16;

// A task with fewer items cuts its keys into chunks of at least kMinChunkKeys, so that one long
// decode step can use every core. Merging costs one row of output for each chunk.
inline constexpr int kEnoughItems = 64;
inline constexpr int kMinChunkKeys = 1024;

// Scale times log2(e) is folded into the packed queries inside these bounds. Outside of them the
// product could leave fp32's range where the score does not, so scores are scaled one by one.
inline constexpr float kMinFoldedScale = 0x1p-24f;
inline constexpr float kMaxFoldedScale = 0x1p+8f;

// Rows of K and V fetched ahead when they are read in place; one row is one or more cache lines at
// a stride that no hardware prefetcher follows.
inline constexpr int kPrefetchRows = 8;

// Keys whose values several query rows read in place before the next: all columns of so many rows
// stay in L1 or L2. With the whole block at once, four query rows of one kv head took 1.3 to 2.3
// times as long at 1024 keys of 128 fp32 columns.
inline constexpr int kStreamKeys = 16;

inline constexpr int kMaxColumns = 256;  // of an output row

inline constexpr int kCacheLine = 64;
inline constexpr int kIntoL2 = 2;  // locality of __builtin_prefetch

// Query rows that are read beside keys in place are padded to whole vectors of any instruction set.
inline constexpr int kStreamAlignment = 16;

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_CONFIG_H_
