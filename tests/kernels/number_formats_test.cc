// The oracle's own number formats, against values worked out by hand and against every bit pattern.

#include "kernels/reference/number_formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace attend::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NumberFormats, DecodesKnownF16) {
  EXPECT_EQ(DecodeF16(0x3c00), 1.0);
  EXPECT_EQ(DecodeF16(0xc000), -2.0);
  EXPECT_EQ(DecodeF16(0x3555), 0.333251953125);
  EXPECT_EQ(DecodeF16(0x7bff), 65504.0);
  EXPECT_EQ(DecodeF16(0x0400), 0x1p-14);         // smallest normal
  EXPECT_EQ(DecodeF16(0x03ff), 1023 * 0x1p-24);  // largest subnormal
  EXPECT_EQ(DecodeF16(0x0001), 0x1p-24);
  EXPECT_EQ(DecodeF16(0x7c00), kInfinity);
  EXPECT_EQ(DecodeF16(0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(DecodeF16(0x7e00)));
  EXPECT_TRUE(std::isnan(DecodeF16(0xfc01)));
  EXPECT_TRUE(std::signbit(DecodeF16(0x8000)));
  EXPECT_EQ(DecodeF16(0x8000), 0.0);
}

TEST(NumberFormats, DecodesKnownBf16) {
  EXPECT_EQ(DecodeBf16(0x3f80), 1.0);
  EXPECT_EQ(DecodeBf16(0xc040), -3.0);
  EXPECT_EQ(DecodeBf16(0x3eab), 0.333984375);
  EXPECT_EQ(DecodeBf16(0x7f7f), 255 * 0x1p120);  // largest finite
  EXPECT_EQ(DecodeBf16(0x0080), 0x1p-126);
  EXPECT_EQ(DecodeBf16(0x0001), 0x1p-133);
  EXPECT_EQ(DecodeBf16(0x7f80), kInfinity);
  EXPECT_TRUE(std::isnan(DecodeBf16(0x7fc0)));
}

TEST(NumberFormats, RoundsF16ToNearestEven) {
  EXPECT_EQ(EncodeF16(1.0), 0x3c00);
  EXPECT_EQ(EncodeF16(-0.0), 0x8000);
  EXPECT_EQ(EncodeF16(1.0 / 3), 0x3555);
  // A step at 1 is 2^-10. Halves go to the even neighbour, anything more goes on.
  EXPECT_EQ(EncodeF16(1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(EncodeF16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
  EXPECT_EQ(EncodeF16(1 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(EncodeF16(2 - 0x1p-11), 0x4000);  // carries into the next binade
  EXPECT_EQ(EncodeF16(65504), 0x7bff);
  EXPECT_EQ(EncodeF16(65519.99), 0x7bff);
  EXPECT_EQ(EncodeF16(65520), 0x7c00);  // half a step past the largest: infinity
  EXPECT_EQ(EncodeF16(-1e30), 0xfc00);
  EXPECT_EQ(EncodeF16(kInfinity), 0x7c00);
  EXPECT_TRUE(std::isnan(DecodeF16(EncodeF16(std::nan("")))));
}

TEST(NumberFormats, KeepsF16Subnormals) {
  EXPECT_EQ(EncodeF16(0x1p-24), 0x0001);
  EXPECT_EQ(EncodeF16(0x1p-25), 0x0000);  // a tie, to even: zero
  EXPECT_EQ(EncodeF16(0x1p-25 * 1.0000001), 0x0001);
  EXPECT_EQ(EncodeF16(3 * 0x1p-25), 0x0002);       // a tie, to even: two
  EXPECT_EQ(EncodeF16(1023.5 * 0x1p-24), 0x0400);  // rounds up to the smallest normal
  EXPECT_EQ(EncodeF16(-0x1p-24), 0x8001);
  EXPECT_EQ(EncodeF16(1e-300), 0x0000);
}

TEST(NumberFormats, RoundsBf16ToNearestEven) {
  EXPECT_EQ(EncodeBf16(1.0), 0x3f80);
  EXPECT_EQ(EncodeBf16(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(EncodeBf16(1 + 3 * 0x1p-8), 0x3f82);
  EXPECT_EQ(EncodeBf16(1 + 0x1p-8 + 0x1p-50), 0x3f81);  // would be a tie after rounding to fp32
  EXPECT_EQ(EncodeBf16(255.5 * 0x1p120), 0x7f80);
  EXPECT_EQ(EncodeBf16(255.49 * 0x1p120), 0x7f7f);
  EXPECT_EQ(EncodeBf16(0x1p-133), 0x0001);
  EXPECT_EQ(EncodeBf16(0x1p-134), 0x0000);
  EXPECT_EQ(EncodeBf16(127.5 * 0x1p-133), 0x0080);
  EXPECT_TRUE(std::isnan(DecodeBf16(EncodeBf16(-std::nan("")))));
}

TEST(NumberFormats, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    if (!std::isnan(DecodeF16(pattern))) {
      ASSERT_EQ(EncodeF16(DecodeF16(pattern)), pattern);
    }
    if (!std::isnan(DecodeBf16(pattern))) {
      ASSERT_EQ(EncodeBf16(DecodeBf16(pattern)), pattern);
      // bf16 is the upper half of fp32.
      ASSERT_EQ(static_cast<float>(DecodeBf16(pattern)), std::bit_cast<float>(bits << 16));
    }
  }
}

TEST(NumberFormats, EveryMidpointGoesToTheEvenNeighbour) {
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const double middle = (DecodeF16(bits) + DecodeF16(static_cast<uint16_t>(bits + 1))) / 2;
    ASSERT_EQ(EncodeF16(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(EncodeF16(std::nextafter(middle, 0)), bits);
    ASSERT_EQ(EncodeF16(std::nextafter(middle, 1e9)), bits + 1);
  }
}

TEST(NumberFormats, LoadsAndStoresByDType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    uint8_t memory[16] = {};
    StoreElement(memory, dtype, 2, 1.5);
    EXPECT_EQ(LoadElement(memory, dtype, 2), 1.5);
    EXPECT_EQ(LoadElement(memory, dtype, 1), 0);
    EXPECT_EQ(LoadElement(memory, dtype, 3), 0);
  }
}

TEST(NumberFormats, RoundingSteps) {
  EXPECT_EQ(RoundingStep(1, DType::kF16), 0x1p-10);
  EXPECT_EQ(RoundingStep(1.99, DType::kBF16), 0x1p-7);
  EXPECT_EQ(RoundingStep(-2, DType::kBF16), 0x1p-6);
  EXPECT_EQ(RoundingStep(0.75, DType::kF32), 0x1p-24);
  EXPECT_EQ(RoundingStep(0, DType::kF16), 0x1p-24);
  EXPECT_EQ(RoundingStep(1e-7, DType::kF16), 0x1p-24);
}

}  // namespace
}  // namespace attend::reference
