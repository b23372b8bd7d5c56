// The pieces of unfused attention: conversions over every bit pattern, products of ugly shapes.

#include "kernels/unfused/products.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/number_formats.h"
#include "tests/testing/random.h"

namespace attend::unfused {
namespace {

TEST(UnfusedProducts, EveryPatternConvertsAsTheFormatSays) {
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> values(patterns.size());
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    ToFloats(patterns.data(), dtype, static_cast<int64_t>(patterns.size()), values.data());
    for (size_t i = 0; i < patterns.size(); ++i) {
      const double want = reference::LoadElement(patterns.data(), dtype, static_cast<int64_t>(i));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(values[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]),
                  std::bit_cast<uint32_t>(static_cast<float>(want)))
            << i;
      }
    }
  }
}

TEST(UnfusedProducts, RoundingIsToNearestEven) {
  const uint64_t seed = testing::TestSeed();
  testing::Random random(seed);
  std::vector<float> values = {0.0f,
                               -0.0f,
                               65504.0f,
                               65519.99f,
                               65520.0f,
                               0x1p-24f,
                               0x1p-25f,
                               1.5f * 0x1p-25f,
                               0x1p-14f,
                               0x1.ffcp-15f,
                               1e-45f,
                               3e38f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()};
  // Any bits, and numbers around the ties of both formats.
  for (int i = 0; i < 300000; ++i) {
    uint32_t bits = static_cast<uint32_t>(random.Next());
    if (i % 3 == 1) bits = (bits & 0xffff8000u) | (0x8000u + static_cast<uint32_t>(i % 5) - 2);
    if (i % 3 == 2) bits = (bits & 0x8fffe000u) | 0x30001000u;
    const float value = std::bit_cast<float>(bits);
    if (!std::isnan(value)) values.push_back(value);
  }
  std::vector<uint16_t> rounded(values.size());
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    FromFloats(values.data(), static_cast<int64_t>(values.size()), dtype, rounded.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t want =
          dtype == DType::kF16 ? reference::EncodeF16(values[i]) : reference::EncodeBf16(values[i]);
      ASSERT_EQ(rounded[i], want) << values[i] << " as " << Name(dtype) << " seed " << seed;
    }
  }
  const float nan = std::nanf("");
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    FromFloats(&nan, 1, dtype, rounded.data());
    EXPECT_TRUE(std::isnan(reference::LoadElement(rounded.data(), dtype, 0)));
  }
}

TEST(UnfusedProducts, ProductsOfUglyShapes) {
  const uint64_t seed = testing::TestSeed();
  testing::Random random(seed);
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t rows = random.Between(1, 20), depth = random.Between(1, 600);
    const int64_t columns = random.Between(1, 100);
    const int64_t stride_a = depth + random.Between(0, 3),
                  stride_c = columns + random.Between(0, 3);
    std::vector<float> a(static_cast<size_t>(rows * stride_a));
    std::vector<float> b(static_cast<size_t>(depth * columns)), transposed(b.size());
    for (float& x : a) x = static_cast<float>(random.Between(-8, 8));
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t c = 0; c < columns; ++c) {
        const float x = static_cast<float>(random.Between(-8, 8));
        b[static_cast<size_t>(k * columns + c)] = x;
        transposed[static_cast<size_t>(c * depth + k)] = x;
      }
    }
    for (const bool transpose : {false, true}) {
      std::vector<float> panels(static_cast<size_t>(PanelFloats(depth, columns)), -1.0f);
      if (transpose) {
        PackTransposedPanels(transposed.data(), depth, columns, panels.data());
      } else {
        PackPanels(b.data(), depth, columns, panels.data());
      }
      constexpr float kUntouched = 12345;
      std::vector<float> c(static_cast<size_t>(rows * stride_c), kUntouched);
      Multiply(a.data(), stride_a, rows, depth, panels.data(), columns, c.data(), stride_c);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < stride_c; ++j) {
          float want = kUntouched;  // small integers: exact in any order
          if (j < columns) {
            want = 0;
            for (int64_t k = 0; k < depth; ++k) {
              want += a[static_cast<size_t>(i * stride_a + k)] *
                      b[static_cast<size_t>(k * columns + j)];
            }
          }
          ASSERT_EQ(c[static_cast<size_t>(i * stride_c + j)], want)
              << rows << " x " << depth << " x " << columns << " seed " << seed;
        }
      }
    }
  }
}

TEST(UnfusedProducts, Exponentials) {
  for (const int64_t count : {1, 7, 8, 16, 33}) {
    std::vector<float> x(static_cast<size_t>(count));
    double want = 0;
    for (int64_t i = 0; i < count; ++i) {
      x[static_cast<size_t>(i)] = static_cast<float>(-i * i) * 0.37f;
      want += std::exp(static_cast<double>(x[static_cast<size_t>(i)]) - 1.5);
    }
    EXPECT_NEAR(ExpAndSum(x.data(), count, 1.5f) / want, 1, 1e-6);
  }
  std::vector<float> masked(40, -std::numeric_limits<float>::infinity());
  masked[3] = masked[39] = 2;
  EXPECT_EQ(ExpAndSum(masked.data(), 40, 2), 2);
  EXPECT_EQ(masked[3], 1);
  EXPECT_EQ(masked[4], 0);
}

}  // namespace
}  // namespace attend::unfused
