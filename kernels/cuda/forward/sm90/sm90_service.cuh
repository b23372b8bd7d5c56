// The warps that serve the math warpgroups: scheduler and producer (inspectors: sm90_inspect.cuh).

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SERVICE_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SERVICE_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_config.h"
#include "kernels/cuda/forward/sm90/sm90_control.cuh"
#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"

namespace attend::cuda::sm90 {

// The last segment whose first item is at or before `item`: a warp looks at 32 places at a time.
ATTEND_DEVICE int32_t FindSegment(const Sm90Launch& launch, int32_t item, int32_t lane) {
  int32_t begin = 0;
  int32_t count = launch.segment_count;
  while (count > 1) {
    const int32_t stride = (count + 31) / 32;
    const int32_t at = lane * stride;
    const bool before = at < count && launch.segments[begin + at].first_item <= item;
    const int32_t last = 31 - __clz(static_cast<int>(__ballot_sync(kAllLanes, before)));
    begin += last * stride;
    count = min(stride, count - last * stride);
  }
  return begin;
}

ATTEND_DEVICE int32_t Clamp(int32_t value, int32_t low, int32_t high) {
  return min(max(value, low), high);
}

ATTEND_DEVICE void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The upload may have written a map where another batch's was: without a fence the copy engine may
// still hold that one.
ATTEND_DEVICE void AcquireMap(const CUtensorMap* map) {
  ::cuda::ptx::fence_proxy_tensormap_generic(::cuda::ptx::sem_acquire, ::cuda::ptx::scope_sys, map,
                                             ::cuda::ptx::n32_t<sizeof(CUtensorMap)>{});
}

template <class C>
inline constexpr uint32_t kMapsOfTask = C::kDirect ? 3 : 4;  // q, k, v and o

// All maps of the launch, by `threads` threads. A fence takes 20 ns, on the multiprocessor and not
// in its thread, and holds up what else goes on: one for each work item cost 7 % at S = 512. So the
// scheduler sees to the first item's maps alone, often the only item, and to all of them before the
// second; where there are many, all service warps do it before anything else.
template <class C>
ATTEND_DEVICE void AcquireMaps(const Sm90Launch& launch, uint32_t thread, uint32_t threads) {
  const Sm90Task* tasks = launch.tasks + launch.first_task;
  const uint32_t maps = kMapsOfTask<C> * static_cast<uint32_t>(launch.task_count);
  for (uint32_t i = thread; i < maps; i += threads) {
    AcquireMap(&tasks[i / kMapsOfTask<C>].q + i % kMapsOfTask<C>);
  }
}
ATTEND_DEVICE bool ManyMaps(const Sm90Launch& launch) {
  return launch.task_count > kMostTasksForOneWarp;
}

// Publishes what item number `number` is. By a whole warp: the loads that depend on each other are
// the segment and the task, and each is one for all lanes.
template <class C>
ATTEND_DEVICE void WriteItem(const Sm90Launch& launch, int32_t number, bool first, int32_t lane,
                             Item* item) {
  Sm90Segment segment = launch.only;
  if (launch.segment_count > 1) {
    const int32_t found = FindSegment(launch, number, lane);
    static_assert(sizeof(Sm90Segment) == 32);
    const int32_t* words = reinterpret_cast<const int32_t*>(launch.segments + found);
    const int32_t word = lane < 8 ? __ldg(words + lane) : 0;
    const auto field = [word](size_t offset) {
      return __shfl_sync(kAllLanes, word, static_cast<int>(offset / 4));
    };
    segment.first_item = field(offsetof(Sm90Segment, first_item));
    segment.first_task = field(offsetof(Sm90Segment, first_task));
    segment.tasks = field(offsetof(Sm90Segment, tasks));
    segment.first_head = field(offsetof(Sm90Segment, first_head));
    segment.heads = field(offsetof(Sm90Segment, heads));
    segment.row_tiles = field(offsetof(Sm90Segment, row_tiles));
    segment.chunks = field(offsetof(Sm90Segment, chunks));
    segment.rows_inner = field(offsetof(Sm90Segment, rows_inner));
  }
  // Unsigned: division is shorter.
  const uint32_t chunks = segment.chunks, row_tiles = segment.row_tiles, heads = segment.heads;
  uint32_t head = number - segment.first_item;
  uint32_t place;
  if (segment.rows_inner != 0) {
    place = head % (row_tiles * chunks);
    head = head / (row_tiles * chunks);
  } else {
    const uint32_t all_heads = heads * segment.tasks;
    place = head / all_heads;
    head = head % all_heads;
  }
  const Sm90Task* task = launch.tasks + segment.first_task + head / heads;
  constexpr int32_t kPieces = sizeof(Sm90Scalars) / 16;
  static_assert(sizeof(Sm90Scalars) % 16 == 0 && kPieces <= 32);
  if (lane < kPieces) {
    reinterpret_cast<uint4*>(static_cast<Sm90Scalars*>(item))[lane] =
        __ldg(reinterpret_cast<const uint4*>(static_cast<const Sm90Scalars*>(task)) + lane);
  } else if (lane < kPieces + static_cast<int32_t>(kMapsOfTask<C>)) {
    const CUtensorMap* map = &task->q + (lane - kPieces);
    if (first) AcquireMap(map);
    PrefetchMap(map);
  }
  head = head % heads + segment.first_head;
  __syncwarp();
  if (lane != 0) return;

  const int32_t chunk = static_cast<int32_t>(place % chunks);
  const int32_t row = static_cast<int32_t>(row_tiles - 1 - place / chunks) * item->rows;
  item->task = task;
  item->head = head;
  item->kv_head = head / static_cast<uint32_t>(item->heads_per_kv);
  item->row = row;
  item->end_row = min(row + item->rows, item->padded_q);
  item->chunk = chunk;
  item->poisoned = 0;
  item->head_lse = item->lse == nullptr ? nullptr : item->lse + head * item->lse_head_stride;
  item->whole = (item->flags & kSinks) == 0 && row + C::kRows <= item->seqlen_q ? 1 : 0;

  // Keys of this chunk that some row sees, and those that every row sees.
  const int32_t last_row = min(row + item->rows, item->seqlen_q) - 1;
  const int32_t chunk_begin = item->chunk_origin + chunk * item->chunk_keys;
  const int32_t chunk_end = min(chunk_begin + item->chunk_keys, item->seqlen_k);
  const int32_t begin = max(chunk_begin, row + item->first_offset);
  const int32_t end = min(chunk_end, last_row + item->end_offset);
  int32_t block_begin = begin / C::kKeys, block_end = (end + C::kKeys - 1) / C::kKeys;
  int32_t full_begin = (max(last_row + item->first_offset, chunk_begin) + C::kKeys - 1) / C::kKeys;
  int32_t full_end = max(min(row + item->end_offset, chunk_end), 0) / C::kKeys;
  if (last_row < row || begin >= end) {
    // Nothing to see: one block beyond the keys, all masked and read as 0.
    block_begin = item->seqlen_k / C::kKeys + 1;
    block_end = block_begin + 1;
    full_begin = full_end = block_end;
  }
  full_begin = Clamp(full_begin, block_begin, block_end);
  full_end = Clamp(full_end, full_begin, block_end);
  item->block_end = block_end;
  item->block_begin = block_begin;
  item->full_begin = full_begin;
  item->full_end = full_end;
  if constexpr (C::kQStages == 1) {
#pragma unroll
    for (int32_t w = 0; w < C::kWarpgroups; ++w) {
      const int32_t keys = row + C::kRowsPerWarpgroup * (w + 1) - 1 + item->end_offset;
      item->seen_end[w] = Clamp((keys + C::kKeys - 1) / C::kKeys, block_begin + 1, block_end);
    }
  }
  item->fast_begin = (item->flags & kModifiedScores) != 0 ? full_end : full_begin;
  item->fast_end = full_end;
}

// Warp 1: draws items and publishes them, one when the producer asks for it: early enough to hide
// finding it, late enough that the block draws it that will be free first. A fixed stride needs no
// such care.
template <class C>
ATTEND_DEVICE void RunScheduler(const Sm90Launch& launch, const Shared<C>& shared, int32_t lane) {
  int32_t number = static_cast<int32_t>(blockIdx.x);
  for (Ring<C::kItemSlots> slot;; slot.Advance()) {
    if (slot.count > 0) {
      if (launch.fixed_stride != 0) {
        number += static_cast<int32_t>(gridDim.x);
      } else {
        BarrierWait(shared.ItemWanted(), (slot.count - 1) & 1);
        __syncwarp();
        if (lane == 0) number = atomicAdd(launch.next_item, 1) + static_cast<int32_t>(gridDim.x);
        number = __shfl_sync(kAllLanes, number, 0);
      }
    }
    BarrierWait(shared.ItemEmpty(slot.index()), slot.parity() ^ 1);
    __syncwarp();
    Item* item = shared.ItemAt(slot.index());
    const bool more = number < launch.items;
    if (more) {
      const bool few_maps = !ManyMaps(launch);
      if (slot.count == 1 && few_maps) {
        AcquireMaps<C>(launch, static_cast<uint32_t>(lane), 32);
        __syncwarp();
      }
      WriteItem<C>(launch, number, slot.count == 0 && few_maps, lane, item);
    } else if (lane == 0) {
      item->block_end = 0;
    }
    BarrierArrive(shared.ItemFull(slot.index()));  // each lane for what it wrote
    __syncwarp();
    if (!more) break;
  }
  // The last block to finish rewinds the counter, so that the same upload can be launched again.
  if (lane == 0 && launch.fixed_stride == 0) {
    const int32_t finished = atomicAdd(launch.next_item + 1, 1);
    if (finished == static_cast<int32_t>(gridDim.x) - 1) {
      launch.next_item[0] = 0;
      launch.next_item[1] = 0;
    }
  }
}

// Warp 0, one thread: fills the rings of K, V and Q. V trails K by a block, as its use does.
template <class C>
struct Producer {
  const Sm90Launch launch;
  const Shared<C> shared;
  Ring<C::kKvStages> k;
  uint32_t items = 0;

  struct Place {
    const Sm90Task* task;
    int32_t kv_head;
    int32_t block;
  };

  static ATTEND_DEVICE void LoadBox(uint32_t destination, const CUtensorMap* map, int32_t column,
                                    int32_t row, int32_t head, uint32_t barrier) {
    if constexpr (C::kDecode) {
      TensorLoad3Once(destination, map, column, row, head, barrier);
    } else {
      TensorLoad3(destination, map, column, row, head, barrier);
    }
  }

  ATTEND_DEVICE void LoadK(const Place& place) {
    BarrierWait(shared.KEmpty(k.index()), k.parity() ^ 1);
    BarrierExpect(shared.KFull(k.index()), C::kKBytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      LoadBox(shared.base + C::kKAt + k.index() * C::kKBytes + panel * C::kKvPanelBytes,
              &place.task->k, 64 * panel, place.block * C::kKeys, place.kv_head,
              shared.KFull(k.index()));
    }
    k.Advance();
  }

  // kBehind: blocks by which V trails the K that is to be loaded next.
  template <int kBehind>
  ATTEND_DEVICE void LoadV(const Place& place) {
    const Ring<C::kKvStages> v = k.Offset(-kBehind);
    BarrierWait(shared.VEmpty(v.index()), v.parity() ^ 1);
    BarrierExpect(shared.VFull(v.index()), C::kVBytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanelsV; ++panel) {
      LoadBox(shared.base + C::kVAt + v.index() * C::kVBytes + panel * C::kKvPanelBytes,
              &place.task->v, 64 * panel, place.block * C::kKeys, place.kv_head,
              shared.VFull(v.index()));
    }
  }

  ATTEND_DEVICE void LoadQ(const Sm90Task* task, int32_t row, int32_t head, int32_t panel_bytes) {
    const Ring<C::kQStages> q{items - 1};
    BarrierWait(shared.QEmpty(q.index()), q.parity() ^ 1);
    BarrierExpect(shared.QFull(q.index()), static_cast<uint32_t>(panel_bytes) * C::kPanels);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      TensorLoad4(shared.base + C::kQAt + q.index() * C::kQBytes + panel * C::kQPanelBytes,
                  &task->q, 64 * panel, row, head, shared.QFull(q.index()));
    }
  }

  // Waits for the next item; false: no more. Meanwhile `last`'s V must not wait for it.
  ATTEND_DEVICE bool Next(Place* place, int32_t* row, int32_t* head, int32_t* q_bytes,
                          int32_t* block_begin, const Place& last, bool* pending) {
    const Ring<C::kItemSlots> slot{items++};
    if (*pending && !BarrierTest(shared.ItemFull(slot.index()), slot.parity())) {
      LoadV<1>(last);
      *pending = false;
    }
    BarrierWait(shared.ItemFull(slot.index()), slot.parity());
    const Item* item = shared.ItemAt(slot.index());
    if (item->block_end == 0) {
      if (*pending) LoadV<1>(last);
      // The math warps learn it from Q's barrier, the only one that they watch between tiles.
      const Ring<C::kQStages> q{items - 1};
      BarrierWait(shared.QEmpty(q.index()), q.parity() ^ 1);
      BarrierArrive(shared.QFull(q.index()));
      return false;
    }
    *place = {item->task, item->kv_head, item->block_end - 1};
    *row = item->row;
    *head = item->head;
    *q_bytes = item->q_bytes;
    *block_begin = item->block_begin;
    BarrierArrive(shared.ItemEmpty(slot.index()));
    return true;
  }

  ATTEND_DEVICE void Run() {
    Place last{};  // its V is still to be loaded, if pending
    bool pending = false;
    Place place;
    int32_t row, head, q_bytes, block_begin;
    while (Next(&place, &row, &head, &q_bytes, &block_begin, last, &pending)) {
      constexpr int32_t kAhead = 4;  // blocks
      bool wanted = place.block - block_begin < kAhead;
      if (wanted) BarrierArrive(shared.ItemWanted());
      if constexpr (C::kQStages > 1) {
        LoadQ(place.task, row, head, q_bytes);
        LoadK(place);
        if (pending) LoadV<2>(last);
      } else {
        // Q's one place is free only after the item before has used its last K.
        if (pending) LoadV<1>(last);
        LoadK(place);
        LoadQ(place.task, row, head, q_bytes);
      }
      last = place;
      while (last.block > block_begin) {
        place.block = last.block - 1;
        if (!wanted && place.block - block_begin < kAhead) {
          wanted = true;
          BarrierArrive(shared.ItemWanted());
        }
        LoadK(place);
        LoadV<2>(last);
        last = place;
      }
      pending = true;
    }
  }
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SERVICE_CUH_
