// From a block's number to its task, head, rows and keys; and from a row to its query.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_ITEM_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_ITEM_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_params.h"

namespace attend::cuda::sm80 {

// Largest i with first[i] <= n, for first[0] <= n < first[count]. All lanes of the warp ask
// together: each round narrows the range 32-fold, so 1,000 tasks cost two loads.
__device__ __forceinline__ int FindInPrefixSums(const int64_t* first, int count, int64_t n) {
  const int lane = threadIdx.x & 31;
  int low = 0;
  while (count > 1) {
    const int step = (count + 31) / 32;
    const int probe = lane * step;
    const bool below = probe < count && first[low + probe] <= n;
    const int last = 31 - __clz(__ballot_sync(0xffffffffu, below));
    low += last * step;
    count = min(step, count - last * step);
  }
  return low;
}

__device__ __forceinline__ int64_t Max64(int64_t a, int64_t b) { return a > b ? a : b; }
__device__ __forceinline__ int64_t Min64(int64_t a, int64_t b) { return a < b ? a : b; }

// A block's share of the work: `rows` rows of a task's head from `first_row`, over the keys that at
// least one of them sees.
struct Item {
  const TaskParams* params;
  int64_t first_row;
  int rows;  // valid ones, at least 1
  int head_kv;
  int head_q;  // of row 0; rows of a packed tile belong to heads head_q + row % group
  int chunk;
  int64_t key_begin, key_end;    // what some row sees, within the chunk; begin >= end: nothing
  int64_t full_begin, full_end;  // what every row sees, within [key_begin, key_end)
};

// Query index of row `row` (counted from the task's first row) and its head's distance from head_q.
struct QueryOfRow {
  int64_t query;
  int head;
};
__device__ __forceinline__ QueryOfRow FindQuery(int64_t row, int group) {
  if (group == 1) return {row, 0};
  // Packed rows are few: 32 bits hold them.
  const uint32_t r = static_cast<uint32_t>(row);
  const uint32_t g = static_cast<uint32_t>(group);
  return {r / g, static_cast<int>(r % g)};
}

template <int kTileRows>
__device__ __forceinline__ Item FindItem(const ItemLaunch& launch) {
  const int64_t n = launch.first + blockIdx.x;
  const int index = FindInPrefixSums(launch.first_item, launch.task_count, n);
  Item item;
  item.params = launch.tasks + index;
  const TaskParams& p = *item.params;
  // The host refuses tasks of 2^31 items and more.
  const uint32_t local = static_cast<uint32_t>(n - launch.first_item[index]);
  const uint32_t chunks = static_cast<uint32_t>(p.chunks);
  const uint32_t tiles = static_cast<uint32_t>(p.row_tiles);
  item.chunk = static_cast<int>(local % chunks);
  const uint32_t tile = tiles - 1 - local / chunks % tiles;
  const int head = static_cast<int>(local / chunks / tiles);
  item.head_kv = head / p.heads_per_kv;
  item.head_q = head * p.group;
  item.first_row = static_cast<int64_t>(tile) * kTileRows;
  item.rows = static_cast<int>(Min64(p.rows - item.first_row, kTileRows));

  const DeviceTask& t = p.task;
  const int64_t shift = t.seqlen_k - t.seqlen_q;
  const int64_t low = FindQuery(item.first_row, p.group).query + shift;
  const int64_t high = FindQuery(item.first_row + item.rows - 1, p.group).query + shift;
  const int64_t chunk_begin = item.chunk * p.chunk_keys;
  const int64_t chunk_end = Min64(chunk_begin + p.chunk_keys, t.seqlen_k);
  item.key_begin = Max64(chunk_begin, low - t.window_left);
  item.key_end = Min64(chunk_end, high + t.window_right + 1);
  item.full_begin = Max64(item.key_begin, high - t.window_left);
  item.full_end = Min64(item.key_end, low + t.window_right + 1);
  return item;
}

// The block's item for all its threads.
template <int kTileRows>
__device__ __forceinline__ void ShareItem(const ItemLaunch& launch, Item* shared) {
  if (threadIdx.x < 32) {
    const Item item = FindItem<kTileRows>(launch);
    if (threadIdx.x == 0) *shared = item;
  }
  __syncthreads();
}

// `x` - `origin` for comparison with positions inside a tile: clipped to 30 bits.
__device__ __forceinline__ int Relative(int64_t x, int64_t origin) {
  constexpr int64_t kLimit = 1 << 30;
  return static_cast<int>(Max64(Min64(x - origin, kLimit), -kLimit));
}

// Keys [begin, end) that one row sees, counted from `origin`.
struct RowKeys {
  int begin, end;
};
__device__ __forceinline__ RowKeys KeysOfQuery(const Item& item, int64_t query, int64_t origin) {
  const DeviceTask& t = item.params->task;
  const int64_t position = query + t.seqlen_k - t.seqlen_q;
  return {Relative(Max64(item.key_begin, position - t.window_left), origin),
          Relative(Min64(item.key_end, position + t.window_right + 1), origin)};
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_ITEM_CUH_
