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

// Writes what item number `number` of `segment` is. By one thread, field by field (volatile: in this
// order and no more at a time): the service warps have few registers.
template <class C>
ATTEND_DEVICE void WriteItem(const Sm90Task* tasks, const volatile Sm90Segment& segment,
                             int32_t number, Item& item) {
  uint32_t head = number - segment.first_item;
  uint32_t place;
  if (segment.rows_inner != 0) {
    const uint32_t places = segment.row_tiles * segment.chunks;
    place = head % places;
    head = head / places;
  } else {
    const uint32_t heads = segment.heads * segment.tasks;
    place = head / heads;
    head = head % heads;
  }
  const uint32_t chunk = place % segment.chunks;
  item.chunk = chunk;
  const int32_t tile = segment.row_tiles - 1 - place / segment.chunks;
  const uint32_t task_offset = head / segment.heads;
  head = head % segment.heads + segment.first_head;

  const volatile Sm90Task& task = tasks[segment.first_task + task_offset];
  const int32_t row = tile * task.rows;
  item.more = 1;
  item.task = const_cast<const Sm90Task*>(&task);
  item.head = head;
  item.kv_head = head / static_cast<uint32_t>(task.heads_per_kv);
  item.row = row;
  item.seqlen_q = task.seqlen_q;
  item.seqlen_k = task.seqlen_k;
  item.first_offset = task.first_offset;
  item.end_offset = task.end_offset;
  item.pack = task.pack;
  item.poisoned = 0;
  item.flags = task.flags;
  item.q_bytes = task.q_bytes;
  item.end_row = min(row + task.rows, task.padded_q);
  item.exponent_scale = task.exponent_scale;
  item.logit_scale = task.logit_scale;
  item.softmax_scale = task.softmax_scale;
  item.softcap = task.softcap;
  float* lse = task.lse;
  if (!C::kDecode && lse != nullptr) lse += head * task.lse_head_stride;
  item.lse = lse;

  // Keys of this chunk that some row sees, and those that every row sees.
  const int32_t last_row = min(row + task.rows, task.seqlen_q) - 1;
  const int32_t chunk_begin = task.chunk_origin + chunk * task.chunk_keys;
  const int32_t chunk_end = min(chunk_begin + task.chunk_keys, task.seqlen_k);
  const int32_t begin = max(chunk_begin, row + task.first_offset);
  const int32_t end = min(chunk_end, last_row + task.end_offset);
  if (last_row < row || begin >= end) {
    // Nothing to see: one block beyond the keys, all masked and read as 0.
    const int32_t block = task.seqlen_k / C::kKeys + 1;
    item.block_begin = block;
    item.block_end = item.full_begin = item.full_end = block + 1;
    return;
  }
  const int32_t block_begin = begin / C::kKeys;
  const int32_t block_end = (end + C::kKeys - 1) / C::kKeys;
  const int32_t all_begin = max(last_row + task.first_offset, chunk_begin);
  const int32_t all_end = max(min(row + task.end_offset, chunk_end), 0);
  const int32_t full_begin =
      Clamp((all_begin + C::kKeys - 1) / C::kKeys, block_begin, block_end);
  item.block_begin = block_begin;
  item.block_end = block_end;
  item.full_begin = full_begin;
  item.full_end = Clamp(all_end / C::kKeys, full_begin, block_end);
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
        item.more = 0;
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
      TensorLoad4(shared.base + C::kQAt + q.index() * C::kQBytes + panel * C::kQPanelBytes, &task->q,
                  64 * panel, row, head, shared.QFull(q.index()));
    }
  }

  ATTEND_DEVICE void Run() {
    Place last{};  // its V is still to be loaded
    bool pending = false;
    while (true) {
      const Ring<C::kItemSlots> slot{items++};
      BarrierWait(shared.ItemFull(slot.index()), slot.parity());
      const Item* item = shared.ItemAt(slot.index());
      if (item->more == 0) break;
      const Sm90Task* task = item->task;
      const int32_t row = item->row, head = item->head, q_bytes = item->q_bytes;
      const int32_t block_begin = item->block_begin;
      Place place{task, item->kv_head, item->block_end - 1};
      BarrierArrive(shared.ItemEmpty(slot.index()));

      // The next item is wanted early enough to hide finding it, and late enough to be drawn by the
      // block that will be free first.
      constexpr int32_t kAhead = 3;
      bool wanted = place.block - block_begin < kAhead;
      if (wanted) BarrierArrive(shared.ItemWanted());
      if constexpr (C::kQStages > 1) {
        LoadQ(task, row, head, q_bytes);
        LoadK(place);
        if (pending) LoadV<2>(last);
      } else {
        // Q's one place is free only after the item before has used its last K.
        if (pending) LoadV<1>(last);
        LoadK(place);
        LoadQ(task, row, head, q_bytes);
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
