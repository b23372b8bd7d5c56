// Moving 16-bit tiles: global to shared memory, accumulators to global memory.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_TILE_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_TILE_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_layout.h"
#include "kernels/cuda/forward/sm80/sm80_ptx.cuh"

namespace attend::cuda::sm80 {

// The pieces of a tile [kTileRows][kColumns] that one of kThreads threads copies: a fixed column,
// rows kRowStep apart. Copies, checks and clears only its own pieces, so no barrier is needed
// between the three.
template <typename T, int kColumns, int kTileRows, int kThreads>
class TileCopy {
 public:
  static constexpr int kPieces = kColumns / kPieceElements;
  static constexpr int kRowStep = kThreads / kPieces;
  static constexpr int kCount = kTileRows / kRowStep;
  static_assert(kThreads % kPieces == 0 && kTileRows % kRowStep == 0);

  __device__ __forceinline__ TileCopy(int thread, int columns)
      : row_(thread / kPieces),
        piece_(thread % kPieces),
        inside_(piece_ * kPieceElements < columns) {}

  __device__ __forceinline__ int row() const { return row_; }
  __device__ __forceinline__ int column() const { return piece_ * kPieceElements; }

  // `from`: this thread's piece of the tile's row 0 + row(), i.e. already moved by row() rows and
  // column() elements. Rows at and past `rows`, and columns past the tensor's, become 0.
  __device__ __forceinline__ void Start(uint32_t tile, const char* from, int64_t row_bytes,
                                        int rows) const {
    const int limit = inside_ ? rows - row_ : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      CopyAsync16(tile + SwizzledOffset<kColumns>(row_ + i * kRowStep, piece_), from,
                  i * kRowStep < limit);
      from += row_bytes * kRowStep;
    }
  }

  // Replaces NaN and infinity by 0 in the pieces that this thread has copied and waited for; true
  // if there was one.
  __device__ __forceinline__ bool ClearNonFinite(uint32_t tile) const {
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const uint32_t at = tile + SwizzledOffset<kColumns>(row_ + i * kRowStep, piece_);
      uint32_t x[4];
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(at));
      bool bad = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) bad |= HasNonFinite<T>(x[j]);
      if (bad) {
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = FiniteOrZero<T>(x[j]);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(x[0]), "r"(x[1]),
                     "r"(x[2]), "r"(x[3])
                     : "memory");
        found = true;
      }
    }
    return found;
  }

 private:
  int row_;
  int piece_;
  bool inside_;
};

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_TILE_CUH_
