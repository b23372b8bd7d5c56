// How 16-bit tiles lie in shared memory: index arithmetic alone, checked on the host.
//
// A tile is [rows][columns] with rows of whole 128-byte lines. Within each group of eight rows the
// 16-byte pieces of a line are exchanged by row, so that the eight rows that one ldmatrix phase
// reads at the same column fall into eight different bank groups, and a row's pieces written side
// by side do too.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_LAYOUT_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_LAYOUT_H_

#include <cstdint>

#if defined(__CUDACC__)
#define ATTEND_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ATTEND_HOST_DEVICE inline
#endif

namespace attend::cuda::sm80 {

inline constexpr int kPieceBytes = 16;    // one cp.async, one ldmatrix row
inline constexpr int kPieceElements = 8;  // of 16 bits

// Byte offset of piece `piece` of row `row` in a tile of `columns` 16-bit columns (a multiple of
// 64).
template <int columns>
ATTEND_HOST_DEVICE constexpr uint32_t SwizzledOffset(uint32_t row, uint32_t piece) {
  static_assert(columns % 64 == 0);
  return row * (columns * 2) + ((piece ^ (row & 7)) * kPieceBytes);
}

// The same piece `step` * 2 pieces further right, from the offset of a piece 0 or 1 of that row:
// the exchange touches three address bits only, so steps of 32 bytes are an exclusive or below one
// line and an addition above it.
ATTEND_HOST_DEVICE constexpr uint32_t StepColumns(uint32_t offset, uint32_t step) {
  return (offset ^ ((step & 3) * 32)) + (step >> 2) * 128;
}

// Which rows and pieces the lanes of a warp address for ldmatrix.x4, relative to the corner of a
// 16 x 16 block, so that the four registers come out in the order of an mma operand.
struct LaneAddress {
  uint32_t row;
  uint32_t piece;
};

// Operand A from [m][k] rows: registers (m, k), (m + 8, k), (m, k + 8), (m + 8, k + 8).
ATTEND_HOST_DEVICE constexpr LaneAddress LaneOfA(uint32_t lane) { return {lane & 15, lane >> 4}; }

// Operand B from [n][k] rows: registers (n, k), (n, k + 8), (n + 8, k), (n + 8, k + 8).
ATTEND_HOST_DEVICE constexpr LaneAddress LaneOfB(uint32_t lane) {
  return {(lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1};
}

// Operand B from [k][n] rows, read transposed: (k, n), (k + 8, n), (k, n + 8), (k + 8, n + 8).
ATTEND_HOST_DEVICE constexpr LaneAddress LaneOfTransposedB(uint32_t lane) {
  return {lane & 15, lane >> 4};
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_LAYOUT_H_
