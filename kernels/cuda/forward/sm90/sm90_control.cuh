// The block's control memory: barriers, the ring of work items, and the verdicts on V blocks.
//
// One producer thread loads, one scheduler warp finds work, two inspector warps look for NaN and
// Inf in V blocks that some rows must not see, and the math warpgroups compute. All of them walk
// the same items and the same key blocks, from the last to the first.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_CONTROL_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_CONTROL_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"

namespace attend::cuda::sm90 {

// A work item as the scheduler hands it on. Blocks run from block_end - 1 down to block_begin;
// there is always at least one. Those in [full_begin, full_end) need no mask; those in
// [fast_begin, fast_end), the same or none, no modification of scores either.
struct alignas(16) Item : Sm90Scalars {
  int32_t block_end;  // 0: no item, no more work
  int32_t block_begin, fast_begin, fast_end;
  int32_t full_begin, full_end;
  // Where the blocks end that some row of a math warpgroup sees: it passes over those from here to
  // block_end. Only for tiles that do not join (RunApart).
  int32_t seen_end[3];
  int32_t head;  // in units of packed heads
  int32_t kv_head;
  int32_t row;      // first query row
  int32_t end_row;  // rows of outputs to write end here
  int32_t chunk;
  int32_t whole;     // 1: no padding rows and no sinks: what most tiles are, told by one look
  int32_t poisoned;  // set by the inspectors: some outputs depend on a NaN or Inf in V
  const Sm90Task* task;
  float* head_lse;  // lse of this head, unless the kernel packs heads; null: not wanted
};

inline constexpr int kInspectorWarps = 2;

// Named barriers; 0 is __syncthreads. Math warpgroup w may issue its products when kTurn + w opens.
inline constexpr uint32_t kTurnBarrier = 1;
inline constexpr uint32_t kInspectBarrier = 4;

template <class C>
struct Control {
  uint64_t k_full[C::kKvStages], k_empty[C::kKvStages];
  uint64_t v_full[C::kKvStages], v_empty[C::kKvStages];
  uint64_t q_full[C::kQStages], q_empty[C::kQStages];
  uint64_t item_full[C::kItemSlots], item_empty[C::kItemSlots];
  uint64_t item_wanted;
  // Inspected V blocks in order: clean now. A stage's V cannot be replaced before its verdict was
  // read, so as many slots as stages suffice.
  uint64_t verdict[C::kKvStages];
  uint32_t never_written;
};
// The items' ring stands behind it.
inline constexpr uint32_t kItemsAfter = 256;

// Addresses of the control memory's parts.
template <class C>
struct Shared {
  uint32_t base;

  static_assert(sizeof(Control<C>) <= kItemsAfter);
  static_assert(kItemsAfter + C::kItemSlots * sizeof(Item) <= C::kControlBytes);
  ATTEND_DEVICE uint32_t Barrier(size_t offset, uint32_t index) const {
    return base + C::kControlAt + static_cast<uint32_t>(offset) + 8 * index;
  }
#define ATTEND_BARRIER(name, field) \
  ATTEND_DEVICE uint32_t name(uint32_t i) const { return Barrier(offsetof(Control<C>, field), i); }
  ATTEND_BARRIER(KFull, k_full)
  ATTEND_BARRIER(KEmpty, k_empty)
  ATTEND_BARRIER(VFull, v_full)
  ATTEND_BARRIER(VEmpty, v_empty)
  ATTEND_BARRIER(QFull, q_full)
  ATTEND_BARRIER(QEmpty, q_empty)
  ATTEND_BARRIER(ItemFull, item_full)
  ATTEND_BARRIER(ItemEmpty, item_empty)
  ATTEND_BARRIER(Verdict, verdict)
#undef ATTEND_BARRIER
  ATTEND_DEVICE uint32_t ItemWanted() const {
    return Barrier(offsetof(Control<C>, item_wanted), 0);
  }
  ATTEND_DEVICE uint32_t NeverWritten() const {
    return base + C::kControlAt + static_cast<uint32_t>(offsetof(Control<C>, never_written));
  }
  ATTEND_DEVICE Item* ItemAt(uint32_t slot) const {
    return SharedPointer<Item>(base + C::kControlAt + kItemsAfter +
                               static_cast<uint32_t>(sizeof(Item)) * slot);
  }

  // By one thread, before the block's first barrier.
  ATTEND_DEVICE void Init() const {
    constexpr uint32_t kMathWarps = 4 * C::kWarpgroups;
    for (uint32_t i = 0; i < C::kKvStages; ++i) {
      BarrierInit(KFull(i), 1);
      BarrierInit(KEmpty(i), kMathWarps);
      BarrierInit(VFull(i), 1);
      BarrierInit(VEmpty(i), kMathWarps + kInspectorWarps);
      BarrierInit(Verdict(i), kInspectorWarps);
    }
    for (uint32_t i = 0; i < C::kQStages; ++i) {
      BarrierInit(QFull(i), 1);
      BarrierInit(QEmpty(i), kMathWarps);
    }
    for (uint32_t i = 0; i < C::kItemSlots; ++i) {
      BarrierInit(ItemFull(i), 32);  // the scheduler's lanes
      BarrierInit(ItemEmpty(i), kMathWarps + 1 + kInspectorWarps);
    }
    BarrierInit(ItemWanted(), 1);
    BarrierInitFence();
  }
};

// Position in a ring, as one number that only grows: fewer registers than a place and a parity. A
// consumer waits for parity(); a producer for the opposite, which makes its first round pass.
template <uint32_t kStages>
struct Ring {
  static_assert((kStages & (kStages - 1)) == 0);
  uint32_t count = 0;

  ATTEND_DEVICE uint32_t index() const { return count % kStages; }
  ATTEND_DEVICE uint32_t parity() const { return count / kStages & 1; }
  ATTEND_DEVICE void Advance() { ++count; }
  ATTEND_DEVICE Ring Offset(int32_t by) const { return {count + static_cast<uint32_t>(by)}; }
};

// Whether the inspector looks at block `block` of an item: rows differ in which of its keys they
// see. (Keys past the end of the sequence do not count: their V reads as 0.)
ATTEND_DEVICE bool Inspected(int32_t flags, int32_t full_begin, int32_t full_end, int32_t block) {
  return (flags & kMasked) != 0 && (block < full_begin || block >= full_end);
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_CONTROL_CUH_
