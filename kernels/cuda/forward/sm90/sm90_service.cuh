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

// Loads through L1, one at a time and in this order: the service warps have few registers, and the
// compiler would have all fields in flight at once.
ATTEND_DEVICE int32_t Load(const int32_t& field) {
  int32_t value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(&field));
  return value;
}
ATTEND_DEVICE int32_t Load(const float& field) {
  return Load(reinterpret_cast<const int32_t&>(field));
}

// Writes what item number `number` of `segment` is. By one thread.
template <class C>
ATTEND_DEVICE void WriteItem(const Sm90Task* tasks, const Sm90Segment& segment, int32_t number,
                             Item& item) {
  uint32_t head = number - Load(segment.first_item);
  const uint32_t chunks = Load(segment.chunks), row_tiles = Load(segment.row_tiles);
  const uint32_t segment_heads = Load(segment.heads);
  uint32_t place;
  if (Load(segment.rows_inner) != 0) {
    place = head % (row_tiles * chunks);
    head = head / (row_tiles * chunks);
  } else {
    const uint32_t heads = segment_heads * Load(segment.tasks);
    place = head / heads;
    head = head % heads;
  }
  const Sm90Task& task = tasks[Load(segment.first_task) + head / segment_heads];
  PrefetchMap(&task.q);
  PrefetchMap(&task.k);
  PrefetchMap(&task.v);
  item.task = &task;
  head = head % segment_heads + Load(segment.first_head);
  const uint32_t chunk = chunks == 1 ? 0 : place % chunks;
  const int32_t tile = row_tiles - 1 - (chunks == 1 ? place : place / chunks);
  const int32_t rows = Load(task.rows), seqlen_q = Load(task.seqlen_q);
  const int32_t row = tile * rows;
  item.head = head;
  item.kv_head = head / static_cast<uint32_t>(Load(task.heads_per_kv));
  item.row = row;
  item.chunk = chunk;
  item.seqlen_q = seqlen_q;
  item.pack = Load(task.pack);
  item.poisoned = 0;
  item.q_bytes = Load(task.q_bytes);
  item.end_row = min(row + rows, Load(task.padded_q));
  item.exponent_scale = __int_as_float(Load(task.exponent_scale));
  item.logit_scale = __int_as_float(Load(task.logit_scale));
  item.softmax_scale = __int_as_float(Load(task.softmax_scale));
  item.softcap = __int_as_float(Load(task.softcap));
  float* lse = task.lse;
  if (!C::kDecode && lse != nullptr) lse += head * task.lse_head_stride;
  item.lse = lse;

  // Keys of this chunk that some row sees, and those that every row sees.
  const int32_t seqlen_k = Load(task.seqlen_k);
  const int32_t first_offset = Load(task.first_offset), end_offset = Load(task.end_offset);
  const int32_t flags = Load(task.flags);
  item.seqlen_k = seqlen_k;
  item.first_offset = first_offset;
  item.end_offset = end_offset;
  item.flags = flags;
  const int32_t last_row = min(row + rows, seqlen_q) - 1;
  const int32_t chunk_keys = Load(task.chunk_keys);
  const int32_t chunk_begin = Load(task.chunk_origin) + chunk * chunk_keys;
  const int32_t chunk_end = min(chunk_begin + chunk_keys, seqlen_k);
  const int32_t begin = max(chunk_begin, row + first_offset);
  const int32_t end = min(chunk_end, last_row + end_offset);
  int32_t block_begin = begin / C::kKeys, block_end = (end + C::kKeys - 1) / C::kKeys;
  int32_t full_begin = (max(last_row + first_offset, chunk_begin) + C::kKeys - 1) / C::kKeys;
  int32_t full_end = max(min(row + end_offset, chunk_end), 0) / C::kKeys;
  if (last_row < row || begin >= end) {
    // Nothing to see: one block beyond the keys, all masked and read as 0.
    block_begin = seqlen_k / C::kKeys + 1;
    block_end = block_begin + 1;
    full_begin = full_end = block_end;
  }
  full_begin = Clamp(full_begin, block_begin, block_end);
  full_end = Clamp(full_end, full_begin, block_end);
  item.block_end = block_end;
  item.block_begin = block_begin;
  item.full_begin = full_begin;
  item.full_end = full_end;
  item.fast_begin = (flags & kModifiedScores) != 0 ? full_end : full_begin;
  item.fast_end = full_end;
}

// Warp 1: draws items and publishes them, one when the producer asks for it.
template <class C>
ATTEND_DEVICE void RunScheduler(const Sm90Launch& launch, const Shared<C>& shared, int32_t lane) {
  int32_t number = static_cast<int32_t>(blockIdx.x);
  for (Ring<C::kItemSlots> slot;; slot.Advance()) {
    if (slot.count > 0) {
      BarrierWait(shared.ItemWanted(), (slot.count - 1) & 1);
      __syncwarp();
      if (launch.fixed_stride != 0) {
        number += static_cast<int32_t>(gridDim.x);
      } else {
        if (lane == 0) number = atomicAdd(launch.next_item, 1) + static_cast<int32_t>(gridDim.x);
        number = __shfl_sync(kAllLanes, number, 0);
      }
    }
    const bool more = number < launch.items;
    const int32_t segment = more ? FindSegment(launch, number, lane) : 0;
    if (lane == 0) {
      BarrierWait(shared.ItemEmpty(slot.index()), slot.parity() ^ 1);
      Item& item = *shared.ItemAt(slot.index());
      if (more) {
        WriteItem<C>(launch.tasks, launch.segments[segment], number, item);
      } else {
        item.block_end = 0;
      }
      BarrierArrive(shared.ItemFull(slot.index()));
    }
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

  ATTEND_DEVICE void LoadK(const Place& place) {
    BarrierWait(shared.KEmpty(k.index()), k.parity() ^ 1);
    BarrierExpect(shared.KFull(k.index()), C::kKBytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      TensorLoad3(shared.base + C::kKAt + k.index() * C::kKBytes + panel * C::kKvPanelBytes,
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
      TensorLoad3(shared.base + C::kVAt + v.index() * C::kVBytes + panel * C::kKvPanelBytes,
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

  // Waits for the next item; false: no more. Until then `last`'s V must not wait for it.
  ATTEND_DEVICE bool Next(Place* place, int32_t* row, int32_t* head, int32_t* q_bytes,
                          int32_t* block_begin, const Place& last, bool* pending) {
    const Ring<C::kItemSlots> slot{items++};
    if (C::kQStages > 1 && *pending && !BarrierTest(shared.ItemFull(slot.index()), slot.parity())) {
      LoadV<1>(last);
      *pending = false;
    }
    BarrierWait(shared.ItemFull(slot.index()), slot.parity());
    const Item* item = shared.ItemAt(slot.index());
    if (item->block_end == 0) return false;
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
      // The next item is wanted early enough to hide finding it, and late enough to be drawn by the
      // block that will be free first.
      constexpr int32_t kAhead = 4;
      bool wanted = place.block - block_begin < kAhead;
      if (wanted) BarrierArrive(shared.ItemWanted());
      if constexpr (C::kQStages > 1) {
        LoadK(place);
        LoadQ(place.task, row, head, q_bytes);
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
    if (pending) LoadV<1>(last);
  }
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SERVICE_CUH_
