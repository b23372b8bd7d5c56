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

// Steps of the loop over blocks that all rows see in full.
enum class FastStep {
  kToSecond,  // P of the block before in `p`, of this one into `second` (stale policy)
  kToFirst,   // the other way round; with the lazy policy, `p` in and out
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
  int32_t careful = 0;  // stale policy: the last block's maximum rose, or is large; look at the
                        // next block's first
  int32_t large = 0;    // see TooLargeToFuse
  Rescale rescale;
  bool must_rescale = false;
  int32_t started = 0;  // 0: the next product of P and V overwrites O

  uint32_t blocks = 0;  // K blocks used so far; V trails by one
  uint32_t items = 0;   // items whose Q is used up
  Ring<C::kKvStages> verdict;
  uint32_t q_low;
  int32_t block_begin, fast_begin, fast_end;  // of the item, uniform

  // Flags that live long are numbers in registers: as predicates, of which there are seven, they
  // would leave the mask one to work with, and its selects would wait for each other.
  static ATTEND_DEVICE int32_t Flag(bool value) { return Opaque(value ? 1 : 0); }
  int32_t k_ready = 0, v_ready = 0;

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
  ATTEND_DEVICE void WaitV() {
    WarpBarrierWait(shared.VFull(VRing().index()), VRing().parity());
    if (v_ready < 0) {
      WarpBarrierWait(shared.Verdict(verdict.index()), verdict.parity());
      verdict.Advance();
    }
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
                                v_low + i * kStepAcrossRows, i == 0 ? started : 1);
    }
    WgmmaCommit();
    started = 1;
  }

  // The block's K is used up; then looks whether the next K and V are there.
  ATTEND_DEVICE void ReleaseK() {
    if (lane == 0) BarrierArrive(shared.KEmpty(KRing().index()));
    ++blocks;
    k_ready = Flag(WarpBarrierTest(shared.KFull(KRing().index()), KRing().parity()));
    v_ready = Flag(WarpBarrierTest(shared.VFull(VRing().index()), VRing().parity()));
  }
  // offset -1: after ReleaseK of the same step, which made VRing() name the next.
  ATTEND_DEVICE void ReleaseV(int32_t offset) const {
    if (lane == 0) BarrierArrive(shared.VEmpty(VRing().Offset(offset).index()));
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

  // Scores of any block to packed probabilities, in place.
  // first: of its tile.
  ATTEND_DEVICE void GeneralSoftmax(Scores& s, const Item& item, int32_t block, bool first) {
    if (block >= fast_end || block < fast_begin) {
      const int32_t tile_row = WarpRow() + (lane >> 2);
      if (C::kModifies && (item.flags & kModifiedScores) != 0) {
        ModifyScores<C::kKeys, C::kDecode>(s, item, *item.task, tile_row, block, lane, launch.zero);
      }
      if (block >= item.full_end || block < item.full_begin) {
        MaskScores<C::kKeys, C::kDecode>(s, item, tile_row, block, lane);
      }
    }
    LazySoftmax<true>(s, first);
  }

  // kPacked: leaves packed pairs, which saves registers for the steps that need them and costs
  // instructions in the loop that does not.
  // look: at the maximum without asking first whether it is exceeded.
  template <bool kPacked>
  ATTEND_DEVICE void LazySoftmax(Scores& s, bool look) {
    must_rescale = look || MaxExceeded(rows, s, lag);
    if (must_rescale) {
      rescale = RaiseMaxTo(rows, s, exponent_scale, look);
      careful = large = Flag(TooLargeToFuse(rows));
    }
    if (large != 0) SubtractMax(rows, s);
    if constexpr (kPacked) {
      ExponentialsPacked<T>(rows, s, exponent_scale);
    } else {
      Exponentials(rows, s, exponent_scale);
      Pin(s);
    }
    KeepOrder();
  }

  ATTEND_DEVICE void StaleSoftmax(Scores& s, Probabilities& to) {
    must_rescale = careful != 0;
    if (careful == 0) {
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
      rescale = RaiseMaxTo(rows, s, exponent_scale, false);
      large = Flag(TooLargeToFuse(rows));
      careful = Flag(Rises(rescale)) | large;
      if (large != 0) SubtractMax(rows, s);
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

  ATTEND_DEVICE void MoveProbabilities(const Probabilities& from, Probabilities& to) const {
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i) to[i] = from[i] ^ launch.zero;
  }

  // The block's V must not be multiplied before the inspectors have seen it.
  ATTEND_DEVICE void ExpectVerdict(const Item& item, int32_t block) {
    if (block < fast_end && block >= fast_begin) return;
    if (Inspected(item.flags, item.full_begin, item.full_end, block)) v_ready = -1;
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

  ATTEND_DEVICE void TakeTurn() const {
    if constexpr (C::kPingPong) NamedSync(kTurnBarrier + warpgroup, 256);
  }
  ATTEND_DEVICE void PassTurn() const {
    if constexpr (C::kPingPong) {
      NamedArrive(warpgroup == C::kWarpgroups - 1 ? kTurnBarrier : kTurnBarrier + 1 + warpgroup,
                  256);
    }
  }

  // One key block without mask: its scores, and the values of the block before.
  template <FastStep kStep>
  ATTEND_DEVICE void RunFast(Scores& s, Outputs& o, Probabilities& p, Probabilities& second) {
    const uint32_t v_low = VLow();
    const uint32_t k_low = KLow();
    if (k_ready == 0) WaitK();
    TakeTurn();
    WgmmaFence();
    Pin(s);
    Pin(o);
    IssueScores(s, k_low);
    if (v_ready <= 0) WaitV();
    WgmmaFence();  // again: a wait loop between two chains would serialise them
    if constexpr (kStep == FastStep::kToFirst && kStale) {
      IssueValues(o, second, v_low);
    } else {
      IssueValues(o, p, v_low);
    }
    PassTurn();
    WgmmaWait<1>();
    Pin(s);
    ReleaseK();
    if constexpr (!kStale) {
      LazySoftmax<false>(s, false);
    } else if constexpr (kStep == FastStep::kToSecond) {
      StaleSoftmax(s, second);
    } else {
      StaleSoftmax(s, p);
    }
    WgmmaWait<0>();
    Pin(o);
    ReleaseV(-1);
    if constexpr (!kStale) TakeProbabilities<false>(s, p);
    ApplyRescale(o);
  }

  // Any other step. joins: `block` is the first of its tile, and the values are the last of the
  // tile before, in slot `finished_slot`, which ends here. Both kinds are one piece of code: what a
  // tile runs once must not push the loop out of the instruction cache. (Products cannot be
  // conditional, or ptxas serialises them all: the first and the last tile have code of their own.)
  ATTEND_DEVICE void RunGeneral(Scores& s, Outputs& o, Probabilities& p, const Item& item,
                                int32_t block, int32_t joins, uint32_t finished_slot) {
    const uint32_t v_low = VLow();
    const uint32_t k_low = KLow();
    if (k_ready == 0) WaitK();
    TakeTurn();
    WgmmaFence();
    Pin(s);
    Pin(o);
    IssueScores(s, k_low);
    if (v_ready <= 0) WaitV();
    WgmmaFence();
    IssueValues(o, p, v_low);
    PassTurn();
    Factors finished;
    if (joins != 0) {
      finished = FinishItemRows(finished_slot);
      StartRows(item);
    }
    WgmmaWait<1>();
    Pin(s);
    ReleaseK();
    GeneralSoftmax(s, item, block, joins != 0);
    WgmmaWait<0>();
    Pin(o);
    ReleaseV(-1);
    TakeProbabilities<true>(s, p);  // first: frees registers
    if (joins != 0) {
      StoreItem(o, finished_slot, finished);
      started = 0;
    } else {
      ApplyRescale(o);
    }
    ExpectVerdict(item, block);
  }

  // Everything that the steps of a tile need of its item. Placed where products run meanwhile.
  ATTEND_DEVICE void StartRows(const Item& item) {
    rows.Reset();
    exponent_scale = item.exponent_scale;
    lag = kMaxLag * Reciprocal(exponent_scale);
    careful = 0;
    large = 0;
    block_begin = Uniform(item.block_begin);
    fast_begin = Uniform(item.fast_begin);
    fast_end = Uniform(item.fast_end);
  }

  // A block that no row of this warpgroup sees. The others take a turn with it and so must this
  // one; the parities of the rings demand that it is waited for.
  ATTEND_DEVICE void PassOver(const Item& item, int32_t block) {
    TakeTurn();
    PassTurn();
    WaitK();
    if (lane == 0) BarrierArrive(shared.KEmpty(KRing().index()));
    ++blocks;
    v_ready = Inspected(item.flags, item.full_begin, item.full_end, block) ? -1 : 0;
    WaitV();
    ReleaseV(0);
  }

  // The first block of a tile when no product runs before it.
  ATTEND_DEVICE void StartTile(Scores& s, Probabilities& p, const Item& item, int32_t block) {
    WaitK();
    WgmmaFence();
    Pin(s);
    IssueScores(s, KLow());
    StartRows(item);
    WgmmaWait<0>();
    Pin(s);
    ReleaseK();
    GeneralSoftmax(s, item, block, true);
    TakeProbabilities<true>(s, p);
    ExpectVerdict(item, block);
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
    ReleaseV(0);
    StoreItem(o, item_slot, factors);
    started = 0;
  }

  // All blocks without mask that come next.
  ATTEND_DEVICE void RunFastBlocks(Scores& s, Outputs& o, Probabilities& p, Probabilities& second,
                                   int32_t* block) {
    if constexpr (kStale) {
      while (*block <= fast_end && *block - 1 >= fast_begin) {
        RunFast<FastStep::kToSecond>(s, o, p, second);
        *block -= 1;
        if (*block - 1 < fast_begin) {  // an odd number of them
          MoveProbabilities(second, p);
          break;
        }
        RunFast<FastStep::kToFirst>(s, o, p, second);
        *block -= 1;
      }
    } else {
      while (*block <= fast_end && *block - 1 >= fast_begin) {
        RunFast<FastStep::kToFirst>(s, o, p, second);
        *block -= 1;
      }
    }
  }

  // The next item, whose Q has arrived; its block_end is 0 when there is no more. (The producer has
  // waited for the item.)
  ATTEND_DEVICE const Item& NextItem() {
    WaitQ();
    q_low = QLow();
    return *shared.ItemAt(ItemRing().index());
  }

  // With one place for Q tiles do not join: the next Q arrives while the last product and the
  // epilogue run.
  ATTEND_DEVICE void RunApart(Scores& s, Outputs& o, Probabilities& p, Probabilities& second) {
    const Item* item = &NextItem();
    int32_t end = Uniform(item->block_end);
    while (end != 0) {
      int32_t block = Uniform(item->seen_end[warpgroup]);  // from here up, blocks are done
      while (end > block) PassOver(*item, --end);
      StartTile(s, p, *item, --block);
      while (true) {
        RunFastBlocks(s, o, p, second, &block);
        if (block == block_begin) break;
        RunGeneral(s, o, p, *item, --block, Flag(false), 0);
      }
      const uint32_t slot = ItemRing().index();
      ReleaseQ();
      FinishTile(o, p, slot);
      item = &NextItem();
      end = Uniform(item->block_end);
    }
  }

  ATTEND_DEVICE void RunChain(Scores& s, Outputs& o, Probabilities& p, Probabilities& second) {
    const Item* item = &NextItem();
    int32_t block = Uniform(item->block_end);
    if (block == 0) return;
    StartTile(s, p, *item, --block);
    while (true) {
      RunFastBlocks(s, o, p, second, &block);
      bool joins = false;
      uint32_t finished_slot = 0;
      if (block == block_begin) {
        finished_slot = ItemRing().index();
        ReleaseQ();
        item = &NextItem();
        block = Uniform(item->block_end);
        if (block == 0) break;
        joins = true;
      }
      RunGeneral(s, o, p, *item, --block, Flag(joins), finished_slot);
    }
    FinishTile(o, p, ItemRing().Offset(-1).index());
  }

  ATTEND_DEVICE void Run() {
    Scores s;
    Outputs o;
    Probabilities p, second;  // `second`: stale policy only
    if (C::kPingPong && warpgroup == C::kWarpgroups - 1) NamedArrive(kTurnBarrier, 256);
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) o[i] = 0.0f;
    if constexpr (C::kQStages == 1) {
      RunApart(s, o, p, second);
    } else {
      RunChain(s, o, p, second);
    }
    if (!C::kDirect && lane == 0) StoreWaitRead();  // after that shared memory may go
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
  if (ManyMaps(launch) && ThreadIndex() < C::kServiceThreads) {
    AcquireMaps<C>(launch, ThreadIndex(), C::kServiceThreads);
  }
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
