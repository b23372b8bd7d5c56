// The index arithmetic of the portable kernels' shared memory. Needs no device.

#include "kernels/cuda/forward/sm80/sm80_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace attend::cuda::sm80 {
namespace {

template <int columns>
void CheckTile() {
  constexpr uint32_t kPieces = columns / kPieceElements;
  constexpr uint32_t kRows = 64;
  std::set<uint32_t> offsets;
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t piece = 0; piece < kPieces; ++piece) {
      const uint32_t offset = SwizzledOffset<columns>(row, piece);
      EXPECT_EQ(offset % kPieceBytes, 0u);
      EXPECT_LT(offset, kRows * columns * 2);
      // A piece stays in its row and in its line of 128 bytes.
      EXPECT_EQ(offset / (columns * 2), row);
      EXPECT_EQ(offset % (columns * 2) / 128, piece / 8);
      offsets.insert(offset);
    }
  }
  EXPECT_EQ(offsets.size(), size_t{kRows} * kPieces);  // no two share a place

  // Eight rows at one column, the unit of ldmatrix, cover all 32 banks.
  for (uint32_t row = 0; row < kRows; row += 8) {
    for (uint32_t piece = 0; piece < kPieces; ++piece) {
      std::set<uint32_t> banks;
      for (uint32_t i = 0; i < 8; ++i) {
        banks.insert(SwizzledOffset<columns>(row + i, piece) % 128 / kPieceBytes);
      }
      EXPECT_EQ(banks.size(), 8u);
    }
  }
  // So do eight neighbouring pieces of one row, the unit of a 16-byte store.
  for (uint32_t row = 0; row < 8; ++row) {
    for (uint32_t line = 0; line < kPieces / 8; ++line) {
      std::set<uint32_t> banks;
      for (uint32_t i = 0; i < 8; ++i) {
        banks.insert(SwizzledOffset<columns>(row, line * 8 + i) % 128 / kPieceBytes);
      }
      EXPECT_EQ(banks.size(), 8u);
    }
  }
  // Stepping from piece 0 or 1 reaches every piece.
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t piece = 0; piece < 2; ++piece) {
      for (uint32_t step = 0; step < kPieces / 2; ++step) {
        EXPECT_EQ(StepColumns(SwizzledOffset<columns>(row, piece), step),
                  SwizzledOffset<columns>(row, piece + 2 * step));
      }
    }
  }
}

TEST(Sm80LayoutTest, Columns64) { CheckTile<64>(); }
TEST(Sm80LayoutTest, Columns128) { CheckTile<128>(); }
TEST(Sm80LayoutTest, Columns256) { CheckTile<256>(); }

// Lane 8 m + r addresses row r of matrix m; register m of every lane then comes from matrix m.
TEST(Sm80LayoutTest, LanesAddressTheFourMatricesOfAnOperand) {
  struct Corner {
    uint32_t row, piece;
  };
  const Corner a[] = {{0, 0}, {8, 0}, {0, 1}, {8, 1}};
  const Corner b[] = {{0, 0}, {0, 1}, {8, 0}, {8, 1}};
  const Corner transposed[] = {{0, 0}, {8, 0}, {0, 1}, {8, 1}};
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t matrix = lane / 8;
    const uint32_t row = lane % 8;
    EXPECT_EQ(LaneOfA(lane).row, a[matrix].row + row);
    EXPECT_EQ(LaneOfA(lane).piece, a[matrix].piece);
    EXPECT_EQ(LaneOfB(lane).row, b[matrix].row + row);
    EXPECT_EQ(LaneOfB(lane).piece, b[matrix].piece);
    EXPECT_EQ(LaneOfTransposedB(lane).row, transposed[matrix].row + row);
    EXPECT_EQ(LaneOfTransposedB(lane).piece, transposed[matrix].piece);
  }
}

}  // namespace
}  // namespace attend::cuda::sm80
