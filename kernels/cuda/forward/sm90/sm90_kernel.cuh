// The Hopper forward kernel: one persistent block a multiprocessor, a warpgroup of service warps
// and one to three math warpgroups of 64 query rows each.
//
// Per key block a math warpgroup issues S = Q K^T of this block and O += P V of the one before
// together, and computes the softmax of this block while the tensor cores run the latter. The chain
// crosses tiles: the first product of a tile overlaps the last of the tile before, whose epilogue
// follows. Scores, probabilities and outputs stay in registers.
//
// Structure after FlashAttention-3 (Shah et al., 2024); encodings, order of waits and what ptxas
// needs were found by experiment: see kernels/cuda/notes/sm90.md.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_KERNEL_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_config.h"
#include "kernels/cuda/forward/sm90/sm90_control.cuh"
#include "kernels/cuda/forward/sm90/sm90_epilogue.cuh"
#include "kernels/cuda/forward/sm90/sm90_inspect.cuh"
#include "kernels/cuda/forward/sm90/sm90_mask.cuh"
#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"
#include "kernels/cuda/forward/sm90/sm90_service.cuh"
#include "kernels/cuda/forward/sm90/sm90_softmax.cuh"
#include "kernels/cuda/forward/sm90/sm90_wgmma.cuh"

namespace attend::cuda::sm90 {

enum class Step {
  kFastToSecond,  // no mask; P of the block before in `p`, of this one into `second`
  kFastToFirst,   // the other way round; with the lazy policy, `p` in and out
  kGeneral,       // any mask, `p` in and out
  kBoundary,      // kGeneral for the first block of a tile, with the epilogue of the tile before
};

template <class C>
struct MathWarpgroup {
  using T = typename C::Element;
  static constexpr bool kStale = C::kPolicy == MaxPolicy::kStale;

  const Sm90Launch launch;
  const Shared<C> shared;
  const uint32_t warpgroup;
  const int32_t lane;

  // Scores, outputs and probabilities are locals of Run(), handed down by reference: as members
  // they would not become registers.
  using Scores = float[C::kKeys / 2];
  using Outputs = float[C::kDimV / 2];
  using Probabilities = uint32_t[C::kKeys / 4];

  RowState rows;
  float exponent_scale, lag;
  bool careful = false;  // stale policy: the last block's maximum rose, expect the next to
  Rescale rescale;
  bool must_rescale = false;

  uint32_t blocks = 0;  // K blocks used so far; V trails by one
  uint32_t items = 0;   // items whose Q is used up
  Ring<C::kKvStages> verdict;
  uint32_t q_low;
  int32_t block_begin, fast_begin, fast_end;  // of the item, uniform
  bool k_ready = false, v_ready = false;

  ATTEND_DEVICE Ring<C::kKvStages> KRing() const { return {blocks}; }
  ATTEND_DEVICE Ring<C::kKvStages> VRing() const { return {blocks - 1}; }
  ATTEND_DEVICE Ring<C::kQStages> QRing() const { return {items}; }
  ATTEND_DEVICE Ring<C::kItemSlots> ItemRing() const { return {items}; }

  // First row of this warp in the tile. Read anew where it is needed: a register less in the loop.
  static ATTEND_DEVICE int32_t WarpRow() {
    return static_cast<int32_t>((ThreadIndex() - C::kServiceThreads) / 32 * 16);
  }

  ATTEND_DEVICE uint32_t KLow() const {
    return Uniform(DescriptorLow(shared.base + C::kKAt, 16) + KRing().index() * (C::kKBytes >> 4));
  }
  ATTEND_DEVICE uint32_t VLow() const {
    return Uniform(DescriptorLow(shared.base + C::kVAt, C::kKvPanelBytes) +
                   VRing().index() * (C::kVBytes >> 4));
  }
  ATTEND_DEVICE uint32_t QLow() const {
    return Uniform(DescriptorLow(shared.base + C::kQAt + warpgroup * 64 * C::kRowBytes, 16) +
                   QRing().index() * (C::kQBytes >> 4));
  }

  ATTEND_DEVICE void WaitK() const {
    WarpBarrierWait(shared.KFull(KRing().index()), KRing().parity());
  }
  ATTEND_DEVICE void WaitV() const {
    WarpBarrierWait(shared.VFull(VRing().index()), VRing().parity());
  }
  ATTEND_DEVICE void WaitQ() const {
    WarpBarrierWait(shared.QFull(QRing().index()), QRing().parity());
  }
  ATTEND_DEVICE void IssueScores(Scores& s, uint32_t k_low) {
#pragma unroll
    for (int i = 0; i < C::kDim / 16; ++i) {
      Wgmma<T, C::kKeys>::Score(
          s, q_low + (i / 4) * (C::kQPanelBytes >> 4) + (i % 4) * kStepAlongRow,
          k_low + (i / 4) * (C::kKvPanelBytes >> 4) + (i % 4) * kStepAlongRow, i != 0);
    }
    WgmmaCommit();
  }

  ATTEND_DEVICE void IssueValues(Outputs& o, const Probabilities& from, uint32_t v_low) {
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i) {
      Wgmma<T, C::kDimV>::Value(o, from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3],
                                v_low + i * kStepAcrossRows);
    }
    WgmmaCommit();
  }

  // The block's K is used up; then looks whether the next K and V are there.
  ATTEND_DEVICE void ReleaseK() {
    if (lane == 0) BarrierArrive(shared.KEmpty(KRing().index()));
    ++blocks;
    k_ready = WarpBarrierTest(shared.KFull(KRing().index()), KRing().parity());
    v_ready = WarpBarrierTest(shared.VFull(VRing().index()), VRing().parity());
  }
  // After ReleaseK of the same step: the V before the one that VRing() names now.
  ATTEND_DEVICE void ReleaseV() const {
    if (lane == 0) BarrierArrive(shared.VEmpty(VRing().Offset(-1).index()));
  }
  ATTEND_DEVICE void ReleaseQ() {
    if (lane == 0) BarrierArrive(shared.QEmpty(QRing().index()));
    ++items;
  }

  // A store that never happens (sums are never negative) but depends on the softmax: without it
  // ptxas hoists the wait for P V above the whole softmax and the overlap is gone.
  ATTEND_DEVICE void KeepOrder() const {
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.u32 [%1], %1;\n}" ::"f"(
            rows.sum_a + rows.sum_b),
        "r"(shared.NeverWritten())
        : "memory");
  }

  // Scores of a masked, modified or first block to packed probabilities, in place.
  template <bool kFirst>
  ATTEND_DEVICE void GeneralSoftmax(Scores& s, const Item& item, int32_t block) {
    if (block >= fast_end || block < fast_begin) {
      const int32_t tile_row = WarpRow() + (lane >> 2);
      if (__builtin_expect((item.flags & kModifiedScores) != 0, 0)) {
        ModifyScores<C::kKeys, C::kDecode>(s, item, *item.task, tile_row, block, lane,
                                            launch.zero);
      }
      if (block >= item.full_end || block < item.full_begin) {
        MaskScores<C::kKeys, C::kDecode>(s, item, tile_row, block, lane);
      }
    }
    LazySoftmax<kFirst, true>(s);
  }

  // kFirst: nothing has been added to O yet. kPacked: leaves packed pairs, which saves registers
  // for the steps that need them and costs instructions in the loop that does not.
  template <bool kFirst, bool kPacked>
  ATTEND_DEVICE void LazySoftmax(Scores& s) {
    if constexpr (kFirst) {
      SetMax(rows, s, exponent_scale);
    } else {
      must_rescale = MaxExceeded(rows, s, lag);
      if (must_rescale) rescale = RaiseMaxTo(rows, s, exponent_scale);
    }
    if constexpr (kPacked) {
      ExponentialsPacked<T>(rows, s, exponent_scale);
    } else {
      Exponentials(rows, s, exponent_scale);
      Pin(s);
    }
    KeepOrder();
  }

  ATTEND_DEVICE void StaleSoftmax(const Scores& s, Probabilities& to) {
    must_rescale = careful;
    if (!careful) {
      float max_a, max_b, sum_a, sum_b;
      ThreadMax(s, &max_a, &max_b);
      const bool exceeded = (max_a > rows.max_a + lag) | (max_b > rows.max_b + lag);
      ExponentialsTo<T>(rows, s, to, exponent_scale, &sum_a, &sum_b);
      must_rescale = __any_sync(kAllLanes, exceeded) != 0;
      if (!must_rescale) {
        rows.sum_a += sum_a;
        rows.sum_b += sum_b;
      }
    }
    if (must_rescale) {
      rescale = RaiseMaxTo(rows, s, exponent_scale);
      constexpr float kRose = 1.0f / 256.0f;  // 2^-kMaxLag: a stale start would have failed
      careful = __any_sync(kAllLanes, (rescale.a < kRose) | (rescale.b < kRose)) != 0;
      float sum_a, sum_b;
      ExponentialsTo<T>(rows, s, to, exponent_scale, &sum_a, &sum_b);
      rows.sum_a += sum_a;
      rows.sum_b += sum_b;
    }
    KeepOrder();
  }

  ATTEND_DEVICE void ApplyRescale(Outputs& o) {
    if (!must_rescale) return;
#pragma unroll
    for (int i = 0; i < C::kDimV / 8; ++i) {
      o[4 * i] *= rescale.a;
      o[4 * i + 1] *= rescale.a;
      o[4 * i + 2] *= rescale.b;
      o[4 * i + 3] *= rescale.b;
    }
  }

  // Once the product that reads `p` is over. Packed pairs do not just move: ptxas would give both
  // one register, which the product still reads while the exponentials are written (C7513: all is
  // serialised).
  template <bool kPacked>
  ATTEND_DEVICE void TakeProbabilities(const Scores& s, Probabilities& p) const {
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i) {
      p[i] = kPacked ? __float_as_uint(s[i]) ^ launch.zero : Pack<T>(s[2 * i], s[2 * i + 1]);
    }
  }

  // Until the inspectors have seen the block that the next step will multiply.
  ATTEND_DEVICE void AwaitVerdict(const Item& item, int32_t block) {
    if (block < fast_end && block >= fast_begin) return;
    if (!Inspected(item.flags, item.full_begin, item.full_end, block)) return;
    WarpBarrierWait(shared.Verdict(verdict.index()), verdict.parity());
    verdict.Advance();
  }

  ATTEND_DEVICE Factors FinishItemRows(uint32_t item_slot) const {
    const Item& item = *shared.ItemAt(item_slot);
    return FinishRows<C>(rows, item, WarpRow(), lane);
  }
  ATTEND_DEVICE void StoreItem(Outputs& o, uint32_t item_slot, const Factors& factors) const {
    // Opaque: nothing that FinishItemRows read is kept over the softmax between the two.
    const uint32_t opaque_slot = static_cast<uint32_t>(Opaque(static_cast<int32_t>(item_slot)));
    Epilogue<C>(o, factors, *shared.ItemAt(opaque_slot), launch, shared.base + C::kOAt, WarpRow(),
                lane);
    __syncwarp();
    if (lane == 0) BarrierArrive(shared.ItemEmpty(item_slot));
  }

  // One key block: its scores, and the values of the block before.
  template <Step kStep>
  ATTEND_DEVICE void RunStep(Scores& s, Outputs& o, Probabilities& p, Probabilities& second,
                             const Item& item, int32_t block, uint32_t previous_slot) {
    constexpr bool kFast = kStep == Step::kFastToSecond || kStep == Step::kFastToFirst;
    const uint32_t v_low = VLow();
    const uint32_t k_low = KLow();
    if (!k_ready) WaitK();
    if constexpr (C::kPingPong) NamedSync(kTurnBarrier + warpgroup, 256);
    WgmmaFence();
    Pin(s);
    Pin(o);
    IssueScores(s, k_low);
    if (!v_ready) WaitV();
    WgmmaFence();  // again: a wait loop between two chains would serialise them
    if constexpr (kStep == Step::kFastToFirst && kStale) {
      IssueValues(o, second, v_low);
    } else {
      IssueValues(o, p, v_low);
    }
    if constexpr (C::kPingPong) {
      NamedArrive(warpgroup == C::kWarpgroups - 1 ? kTurnBarrier : kTurnBarrier + 1 + warpgroup,
                  256);
    }
    Factors finished;
    if constexpr (kStep == Step::kBoundary) {
      finished = FinishItemRows(previous_slot);
      StartRows(item);
    }
    WgmmaWait<1>();
    Pin(s);
    ReleaseK();
    if constexpr (kFast && kStale) {
      if constexpr (kStep == Step::kFastToSecond) {
        StaleSoftmax(s, second);
      } else {
        StaleSoftmax(s, p);
      }
    } else if constexpr (kFast) {
      LazySoftmax<false, false>(s);
    } else {
      GeneralSoftmax<kStep == Step::kBoundary>(s, item, block);
    }
    WgmmaWait<0>();
    Pin(o);
    ReleaseV();
    if constexpr (!kFast || !kStale) TakeProbabilities<!kFast>(s, p);  // first: frees registers
    if constexpr (kStep == Step::kBoundary) {
      StoreItem(o, previous_slot, finished);
    } else {
      ApplyRescale(o);
    }
    if constexpr (!kFast) AwaitVerdict(item, block);
  }

  // Everything that the steps of a tile need of its item. Placed where products run meanwhile.
  ATTEND_DEVICE void StartRows(const Item& item) {
    rows.Reset();
    exponent_scale = item.exponent_scale;
    lag = kMaxLag * Reciprocal(exponent_scale);
    careful = false;
    block_begin = Uniform(item.block_begin);
    fast_begin = Uniform(item.fast_begin);
    fast_end = Uniform(item.fast_end);
  }

  // The first block of a tile when no product runs before it.
  ATTEND_DEVICE void StartTile(Scores& s, Probabilities& p, const Item& item, int32_t block) {
    q_low = QLow();
    WaitK();
    WgmmaFence();
    Pin(s);
    IssueScores(s, KLow());
    StartRows(item);
    WgmmaWait<0>();
    Pin(s);
    ReleaseK();
    GeneralSoftmax<true>(s, item, block);
    TakeProbabilities<true>(s, p);
    AwaitVerdict(item, block);
  }

  // The last product of a tile when none runs beside it.
  ATTEND_DEVICE void FinishTile(Outputs& o, const Probabilities& p, uint32_t item_slot) {
    WaitV();
    WgmmaFence();
    Pin(o);
    IssueValues(o, p, VLow());
    const Factors factors = FinishItemRows(item_slot);
    WgmmaWait<0>();
    Pin(o);
    if (lane == 0) BarrierArrive(shared.VEmpty(VRing().index()));
    StoreItem(o, item_slot, factors);
  }

  // Blocks `block` - 1 down to the item's last.
  ATTEND_DEVICE void RunBlocks(Scores& s, Outputs& o, Probabilities& p, Probabilities& second,
                               const Item& item, int32_t block) {
    while (block > block_begin) {
      if constexpr (kStale) {
        while (block <= fast_end && block - 2 >= fast_begin) {
          RunStep<Step::kFastToSecond>(s, o, p, second, item, block - 1, 0);
          RunStep<Step::kFastToFirst>(s, o, p, second, item, block - 2, 0);
          block -= 2;
        }
      } else {
        while (block <= fast_end && block - 1 >= fast_begin) {
          RunStep<Step::kFastToFirst>(s, o, p, second, item, block - 1, 0);
          block -= 1;
        }
      }
      if (block > block_begin) {
        --block;
        RunStep<Step::kGeneral>(s, o, p, second, item, block, 0);
      }
    }
  }

  ATTEND_DEVICE void Run() {
    Scores s;
    Outputs o;
    Probabilities p, second;  // `second`: stale policy only
    if (C::kPingPong && warpgroup == C::kWarpgroups - 1) NamedArrive(kTurnBarrier, 256);
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) o[i] = 0.0f;
    WaitQ();
    const Item* item = shared.ItemAt(0);
    int32_t block_end = Uniform(item->block_end);
    if (block_end == 0) return;
    if constexpr (C::kQStages == 1) {
      // The next Q arrives while the last product and the epilogue run, so tiles do not overlap.
      do {
        StartTile(s, p, *item, block_end - 1);
        RunBlocks(s, o, p, second, *item, block_end - 1);
        const uint32_t finished_slot = ItemRing().index();
        ReleaseQ();
        FinishTile(o, p, finished_slot);
        WaitQ();
        item = shared.ItemAt(ItemRing().index());
        block_end = Uniform(item->block_end);
      } while (block_end != 0);
    } else {
      StartTile(s, p, *item, block_end - 1);
      while (true) {
        RunBlocks(s, o, p, second, *item, block_end - 1);
        const uint32_t previous_slot = ItemRing().index();
        ReleaseQ();
        WaitQ();  // the producer has waited for the item
        item = shared.ItemAt(ItemRing().index());
        block_end = Uniform(item->block_end);
        q_low = QLow();
        if (block_end == 0) {
          FinishTile(o, p, previous_slot);
          break;
        }
        RunStep<Step::kBoundary>(s, o, p, second, *item, block_end - 1, previous_slot);
      }
    }
    if (!C::kDirect && lane == 0) StoreWait();
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    ForwardKernel(const __grid_constant__ Sm90Launch argument) {
  if constexpr (C::kDecode) LetDependentStart();
  const Sm90Launch launch = argument;  // its address would cost registers
  extern __shared__ uint8_t memory[];
  const Shared<C> shared{(SharedAddress(memory) + C::kAlignment - 1) & ~(C::kAlignment - 1)};
  if (ThreadIndex() == 0) shared.Init();
  __syncthreads();
  const uint32_t group = Uniform(ThreadIndex() >> 7);
  const int32_t lane = static_cast<int32_t>(ThreadIndex() & 31);
  if (group == 0) {
    if constexpr (C::kExchangeRegisters) ShrinkRegisters<C::kServiceRegisters>();
    const uint32_t warp = ThreadIndex() >> 5;
    if (warp == 0) {
      if (lane == 0) Producer<C>{launch, shared}.Run();
    } else if (warp == 1) {
      RunScheduler<C>(launch, shared, lane);
    } else {
      Inspector<C>{launch, shared, ThreadIndex() - 64, lane}.Run();
    }
  } else {
    if constexpr (C::kExchangeRegisters) GrowRegisters<C::kMathRegisters>();
    const uint32_t warpgroup = group - 1;
    MathWarpgroup<C>{launch, shared, warpgroup, lane}.Run();
  }
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_KERNEL_CUH_
