// Hopper instructions that CUDA C++ does not name: mbarriers and bulk tensor copies (through
// cuda::ptx where it has them), named barriers, register reallocation, stmatrix, fast math.
//
// Shared memory is addressed by its 32-bit shared-window address throughout: 64-bit pointer
// arithmetic in the hot loop costs registers and issue slots.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PTX_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PTX_CUH_

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

namespace attend::cuda::sm90 {

#define ATTEND_DEVICE __device__ __forceinline__

inline constexpr uint32_t kAllLanes = 0xffffffffu;

ATTEND_DEVICE uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

template <class T = void>
ATTEND_DEVICE T* SharedPointer(uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// The same value in every lane, placed in a uniform register: a reduction's result is the one
// thing ptxas knows to be warp-uniform, and descriptors and loop bounds must be.
ATTEND_DEVICE uint32_t Uniform(uint32_t value) { return __reduce_or_sync(kAllLanes, value); }
ATTEND_DEVICE int32_t Uniform(int32_t value) {
  return static_cast<int32_t>(__reduce_or_sync(kAllLanes, static_cast<uint32_t>(value)));
}

// ---- mbarriers ----

ATTEND_DEVICE void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  ::cuda::ptx::mbarrier_init(SharedPointer<uint64_t>(barrier), arrivals);
}

ATTEND_DEVICE void BarrierInitFence() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

ATTEND_DEVICE void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared,
                                         SharedPointer<uint64_t>(barrier), bytes);
}

ATTEND_DEVICE void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Non-blocking. try_wait would suspend the thread for about 80 cycles when the phase is not over.
ATTEND_DEVICE bool BarrierTest(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

ATTEND_DEVICE bool BarrierTry(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// For one thread.
ATTEND_DEVICE void BarrierWait(uint32_t barrier, uint32_t parity) {
  while (!BarrierTry(barrier, parity)) {
  }
}

// For a whole warp: the vote keeps the loop provably uniform, else ptxas gives up the uniform
// datapath for everything after it.
ATTEND_DEVICE bool WarpBarrierTest(uint32_t barrier, uint32_t parity) {
  return __all_sync(kAllLanes, BarrierTest(barrier, parity)) != 0;
}
// Tests before it suspends: usually the phase is over.
ATTEND_DEVICE void WarpBarrierWait(uint32_t barrier, uint32_t parity) {
  if (WarpBarrierTest(barrier, parity)) return;
  while (__all_sync(kAllLanes, BarrierTry(barrier, parity)) == 0) {
  }
}

// ---- named barriers (id 0 is __syncthreads) ----

ATTEND_DEVICE void NamedSync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
ATTEND_DEVICE void NamedArrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Whether any of the threads that meet here brings true.
ATTEND_DEVICE bool NamedAny(uint32_t id, uint32_t threads, bool value) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(value ? 1u : 0u), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

// ---- bulk tensor copies ----

// Box of a map {columns, rows, heads} at (column, row, head) into shared memory; `barrier` counts
// the whole box's bytes even where the map ends and zeros are written.
ATTEND_DEVICE void TensorLoad3(uint32_t destination, const CUtensorMap* map, int32_t column,
                               int32_t row, int32_t head, uint32_t barrier) {
  const int32_t at[3] = {column, row, head};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                    SharedPointer(destination), map, at,
                                    SharedPointer<uint64_t>(barrier));
}

// The same for what is read once: the first to leave L2.
ATTEND_DEVICE void TensorLoad3Once(uint32_t destination, const CUtensorMap* map, int32_t column,
                                   int32_t row, int32_t head, uint32_t barrier) {
  constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;  // what createpolicy.fractional makes
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}

// Box of a map {columns, heads of a group, rows, groups}.
ATTEND_DEVICE void TensorLoad4(uint32_t destination, const CUtensorMap* map, int32_t column,
                               int32_t row, int32_t group, uint32_t barrier) {
  const int32_t at[4] = {column, 0, row, group};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                    SharedPointer(destination), map, at,
                                    SharedPointer<uint64_t>(barrier));
}

ATTEND_DEVICE void TensorStore3(const CUtensorMap* map, uint32_t source, int32_t column,
                                int32_t row, int32_t head) {
  const int32_t at[3] = {column, row, head};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, map, at,
                                    SharedPointer(source));
}

ATTEND_DEVICE void StoreCommit() { ::cuda::ptx::cp_async_bulk_commit_group(); }
// The staging memory may be written again.
ATTEND_DEVICE void StoreWaitRead() {
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
}

// Orders this thread's shared-memory writes before what the tensor cores and copies read next.
ATTEND_DEVICE void ProxyFence() { ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared); }

// ---- launches that overlap ----

// The next kernel of the stream may start when all blocks have come here, if it was launched so; it
// waits by itself for this one's results.
ATTEND_DEVICE void LetDependentStart() { asm volatile("griddepcontrol.launch_dependents;"); }
ATTEND_DEVICE void WaitForPreceding() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- registers ----

template <int kRegisters>
ATTEND_DEVICE void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
ATTEND_DEVICE void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// threadIdx.x, read where it stands: kept over the loop it would cost a register.
ATTEND_DEVICE uint32_t ThreadIndex() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// Makes a value opaque, so that arithmetic on it is not hoisted out of the epilogue into the loop.
ATTEND_DEVICE int32_t Opaque(int32_t value) {
  int32_t result;
  asm volatile("mov.b32 %0, %1;" : "=r"(result) : "r"(value));
  return result;
}

// ---- arithmetic ----

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

ATTEND_DEVICE float NegativeInfinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

ATTEND_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ATTEND_DEVICE float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x; a plain division calls a routine.
ATTEND_DEVICE float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

ATTEND_DEVICE void StoreMatrix4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PTX_CUH_
