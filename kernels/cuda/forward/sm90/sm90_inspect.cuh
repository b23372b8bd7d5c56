// NaN and Inf in V of keys that some rows of a tile see and others do not.
//
// A masked probability is 0, and the tensor core would still multiply it: 0 * NaN = NaN would reach
// rows that must not know of it. Two warps look at every V block whose keys not all rows see, while
// the math warpgroups are busy with its scores. Where a block is finite, nothing else happens.
// Where it is not, they overwrite the bad elements with 0 and note, in a bitmap of the tile in
// device memory, which outputs depend on one; the epilogue makes those NaN. Exact for each row and
// column, and free for finite tensors.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_INSPECT_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_INSPECT_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_config.h"
#include "kernels/cuda/forward/sm90/sm90_control.cuh"
#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"
#include "kernels/cuda/forward/sm90/sm90_wgmma.cuh"

namespace attend::cuda::sm90 {

// This block's bitmap: bit (column % 32) of word [row of the tile][column / 32].
template <class C>
ATTEND_DEVICE uint32_t* PoisonBitmap(const Sm90Launch& launch) {
  return launch.poison + static_cast<size_t>(blockIdx.x) * C::kPoisonWords;
}

// NaN or Inf times 0 is NaN, and adding keeps NaN: one multiply-add tests two elements.
template <class T>
ATTEND_DEVICE uint32_t AddTimes0(uint32_t sum, uint32_t pair) {
  uint32_t result;
  if constexpr (kIsBf16<T>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0u), "r"(sum));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0u), "r"(sum));
  }
  return result;
}

// Zeroes the elements of a pair that are NaN or Inf; bits 0 and 1 of the answer say which were.
template <class T>
ATTEND_DEVICE uint32_t CleanPair(uint32_t& pair) {
  constexpr uint32_t kExponent = kIsBf16<T> ? 0x7f80u : 0x7c00u;
  const bool low = (pair & kExponent) == kExponent;
  const bool high = (pair >> 16 & kExponent) == kExponent;
  pair = (low ? 0 : pair & 0xffffu) | (high ? 0 : pair & 0xffff0000u);
  return (low ? 1u : 0u) | (high ? 2u : 0u);
}

template <class C>
struct Inspector {
  using T = typename C::Element;
  static constexpr uint32_t kThreads = 32 * kInspectorWarps;
  static constexpr uint32_t kStride = 16 * kThreads;  // bytes of a round; one thread has 16
  static_assert(C::kVBytes % kStride == 0);

  const Sm90Launch launch;
  const Shared<C> shared;
  const uint32_t thread;  // among the inspectors
  const int32_t lane;

  ATTEND_DEVICE bool Finite(uint32_t v_address) const {
    uint32_t sum = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < C::kVBytes / kStride; ++i) {
      const uint4 words = *SharedPointer<const uint4>(v_address + thread * 16 + i * kStride);
      sum = AddTimes0<T>(sum, words.x);
      sum = AddTimes0<T>(sum, words.y);
      sum = AddTimes0<T>(sum, words.z);
      sum = AddTimes0<T>(sum, words.w);
    }
    return (sum & 0x7fff7fffu) == 0;
  }

  ATTEND_DEVICE void ClearBitmap() const {
    uint32_t* bitmap = PoisonBitmap<C>(launch);
#pragma unroll 1
    for (uint32_t i = thread; i < C::kPoisonWords; i += kThreads) bitmap[i] = 0;
  }

  // Marks columns `column` + bits of `bad` in every row of the tile that sees `key`.
  ATTEND_DEVICE void Mark(const Item& item, int32_t key, int32_t column, uint32_t bad) const {
    if (key >= item.seqlen_k) return;
    uint32_t* words = PoisonBitmap<C>(launch) + column / 32;
    const uint32_t bits = bad << (column % 32);
    const int32_t first = max(key - item.end_offset + 1 - item.row, 0) * item.pack;
    const int32_t end =
        min(min(key - item.first_offset + 1 - item.row, C::kRows) * item.pack, C::kRows);
#pragma unroll 1
    for (int32_t row = first; row < end; ++row) {
      atomicOr(words + row * (C::kDimV / 32), bits);
    }
  }

  ATTEND_DEVICE void Clean(const Item& item, int32_t block, uint32_t v_address) const {
#pragma unroll 1
    for (uint32_t at = thread * 16; at < C::kVBytes; at += kStride) {
      uint4* place = SharedPointer<uint4>(v_address + at);
      uint4 words = *place;
      const uint32_t bad = CleanPair<T>(words.x) | CleanPair<T>(words.y) << 2 |
                           CleanPair<T>(words.z) << 4 | CleanPair<T>(words.w) << 6;
      if (bad == 0) continue;
      *place = words;
      const uint32_t panel = at / C::kKvPanelBytes;
      const uint32_t key = at % C::kKvPanelBytes / C::kRowBytes;
      const uint32_t chunk = at % C::kRowBytes / 16 ^ (key & 7);  // the swizzle
      const int32_t column = static_cast<int32_t>(64 * panel + 8 * chunk);
      if (column < C::kDimV) Mark(item, block * C::kKeys + static_cast<int32_t>(key), column, bad);
    }
    ProxyFence();
    __threadfence_block();
  }

  ATTEND_DEVICE void Run() {
    Ring<C::kItemSlots> slot;
    Ring<C::kKvStages> v, verdict;
    while (true) {
      BarrierWait(shared.ItemFull(slot.index()), slot.parity());
      __syncwarp();
      Item& item = *shared.ItemAt(slot.index());
      if (item.block_end == 0) break;
      bool poisoned = false;
      for (int32_t block = item.block_end - 1; block >= item.block_begin; --block, v.Advance()) {
        // Every block is waited for and released, also unseen: running ahead of the ring or falling
        // behind it would make its parities ambiguous.
        BarrierWait(shared.VFull(v.index()), v.parity());
        __syncwarp();
        if (!Inspected(item.flags, item.full_begin, item.full_end, block)) {
          if (lane == 0) BarrierArrive(shared.VEmpty(v.index()));
          continue;
        }
        const uint32_t v_address = shared.base + C::kVAt + v.index() * C::kVBytes;
        const bool bad = !Finite(v_address);
        if (NamedAny(kInspectBarrier, kThreads, bad)) {
          if (!poisoned) {
            // The bitmap is the item before's until its epilogues are over.
            if (slot.count > 0) {
              const Ring<C::kItemSlots> previous = slot.Offset(-1);
              BarrierWait(shared.ItemEmpty(previous.index()), previous.parity());
            }
            ClearBitmap();
            item.poisoned = 1;
            poisoned = true;
          }
          NamedSync(kInspectBarrier, kThreads);
          Clean(item, block, v_address);
        }
        __syncwarp();
        if (lane == 0) {
          BarrierArrive(shared.Verdict(verdict.index()));
          BarrierArrive(shared.VEmpty(v.index()));
        }
        verdict.Advance();
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(shared.ItemEmpty(slot.index()));
      slot.Advance();
    }
  }
};

// Outputs of rows A and B that depend on a NaN or Inf. tile_row: of row A.
template <class C>
ATTEND_DEVICE void ApplyPoison(float (&o)[C::kDimV / 2], const Sm90Launch& launch, int32_t tile_row,
                               int32_t lane) {
  const volatile uint32_t* a = PoisonBitmap<C>(launch) + tile_row * (C::kDimV / 32);
  const volatile uint32_t* b = a + 8 * (C::kDimV / 32);
  const float nan = __int_as_float(0x7fffffff);
#pragma unroll
  for (int i = 0; i < C::kDimV / 8; ++i) {
    const uint32_t bits_a = a[i / 4] >> (8 * (i % 4) + 2 * (lane & 3));
    const uint32_t bits_b = b[i / 4] >> (8 * (i % 4) + 2 * (lane & 3));
    if ((bits_a & 1) != 0) o[4 * i] = nan;
    if ((bits_a & 2) != 0) o[4 * i + 1] = nan;
    if ((bits_b & 1) != 0) o[4 * i + 2] = nan;
    if ((bits_b & 2) != 0) o[4 * i + 3] = nan;
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_INSPECT_CUH_
