#include "kernels/unfused/products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/unfused/products.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

// After highway.h.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attend::unfused {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kTileRows = 6;      // with two vectors of columns: 12 sums, 15 registers
constexpr int64_t kDepthBlock = 256;  // of two vectors each: a slice of a panel fits in L1

int64_t PanelWidthImpl() { return 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

// A tile of c: kRows rows by one panel. Adds to what is there when `accumulate`.
template <int kRows>
HWY_ATTR void MultiplyTile(const float* a, int64_t a_stride, int64_t depth, const float* panel,
                           bool accumulate, float* c, int64_t c_stride) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V left[kRows], right[kRows];
  for (int r = 0; r < kRows; ++r) {
    left[r] = accumulate ? hn::LoadU(d, c + r * c_stride) : hn::Zero(d);
    right[r] = accumulate ? hn::LoadU(d, c + r * c_stride + lanes) : hn::Zero(d);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const V b0 = hn::LoadU(d, panel + k * 2 * lanes);
    const V b1 = hn::LoadU(d, panel + k * 2 * lanes + lanes);
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, a[r * a_stride + k]);
      left[r] = hn::MulAdd(factor, b0, left[r]);
      right[r] = hn::MulAdd(factor, b1, right[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    hn::StoreU(left[r], d, c + r * c_stride);
    hn::StoreU(right[r], d, c + r * c_stride + lanes);
  }
}

HWY_ATTR void MultiplyRows(int64_t rows, const float* a, int64_t a_stride, int64_t depth,
                           const float* panel, bool accumulate, float* c, int64_t c_stride) {
  switch (rows) {
    case 1:
      return MultiplyTile<1>(a, a_stride, depth, panel, accumulate, c, c_stride);
    case 2:
      return MultiplyTile<2>(a, a_stride, depth, panel, accumulate, c, c_stride);
    case 3:
      return MultiplyTile<3>(a, a_stride, depth, panel, accumulate, c, c_stride);
    case 4:
      return MultiplyTile<4>(a, a_stride, depth, panel, accumulate, c, c_stride);
    case 5:
      return MultiplyTile<5>(a, a_stride, depth, panel, accumulate, c, c_stride);
    default:
      return MultiplyTile<kTileRows>(a, a_stride, depth, panel, accumulate, c, c_stride);
  }
}

HWY_ATTR void MultiplyImpl(const float* a, int64_t a_stride, int64_t rows, int64_t depth,
                           const float* panels, int64_t columns, float* c, int64_t c_stride) {
  const int64_t width = PanelWidthImpl();
  constexpr int64_t kMaxWidth = 2 * HWY_MAX_BYTES / sizeof(float);
  float edge[kTileRows * kMaxWidth];  // for the last panel, when it is not full
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t block = std::min(kDepthBlock, depth - k);
    for (int64_t column = 0; column < columns; column += width) {
      const float* panel = panels + column * depth + k * width;
      const int64_t used = std::min(width, columns - column);
      for (int64_t row = 0; row < rows; row += kTileRows) {
        const int64_t tile = std::min(kTileRows, rows - row);
        const float* from = a + row * a_stride + k;
        float* to = c + row * c_stride + column;
        if (used == width) {
          MultiplyRows(tile, from, a_stride, block, panel, k > 0, to, c_stride);
          continue;
        }
        for (int64_t r = 0; r < tile && k > 0; ++r) {
          std::fill_n(edge + r * width, width, 0.0f);
          std::copy_n(to + r * c_stride, used, edge + r * width);
        }
        MultiplyRows(tile, from, a_stride, block, panel, k > 0, edge, width);
        for (int64_t r = 0; r < tile; ++r) std::copy_n(edge + r * width, used, to + r * c_stride);
      }
    }
  }
}

HWY_ATTR float ExpAndSumImpl(float* x, int64_t count, float maximum) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto base = hn::Set(d, maximum);
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), base));
    hn::StoreU(value, d, x + i);
    sums = hn::Add(sums, value);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < count; ++i) {
    x[i] = std::exp(x[i] - maximum);
    sum += x[i];
  }
  return sum;
}

// The conversions below are loops over integer and float lanes without branches, which the
// compiler turns into vectors of the target that this is compiled for.

HWY_ATTR void F16ToFloats(const uint16_t* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = static_cast<uint32_t>(source[i] & 0x7fffu) << 13;
    const uint32_t sign = static_cast<uint32_t>(source[i] & 0x8000u) << 16;
    // The fields of fp16 read as fp32 are 2^112 times too small; the product is exact, and turns
    // subnormals into normal numbers.
    const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const bool special = magnitude >= (0x7c00u << 13);
    out[i] = std::bit_cast<float>((special ? magnitude | 0x7f800000u : scaled) | sign);
  }
}

HWY_ATTR void FloatsToF16(const float* source, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(source[i]);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Adding half and then one less for even numbers rounds to nearest even.
    const uint32_t odd = (magnitude >> 13) & 1;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    // Below 2^-14: one place of 0.5f is one place of a subnormal fp16, so the addition rounds.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and more
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    out[i] = static_cast<uint16_t>(half | sign);
  }
}

HWY_ATTR void Bf16ToFloats(const uint16_t* source, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(source[i]) << 16);
  }
}

HWY_ATTR void FloatsToBf16(const float* source, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(source[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out[i] = static_cast<uint16_t>(nan ? 0x7fc0u : rounded);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attend::unfused
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::unfused {

HWY_EXPORT(PanelWidthImpl);
HWY_EXPORT(MultiplyImpl);
HWY_EXPORT(ExpAndSumImpl);
HWY_EXPORT(F16ToFloats);
HWY_EXPORT(FloatsToF16);
HWY_EXPORT(Bf16ToFloats);
HWY_EXPORT(FloatsToBf16);

void ToFloats(const void* source, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      HWY_DYNAMIC_DISPATCH(F16ToFloats)(static_cast<const uint16_t*>(source), count, out);
      return;
    case DType::kBF16:
      HWY_DYNAMIC_DISPATCH(Bf16ToFloats)(static_cast<const uint16_t*>(source), count, out);
      return;
  }
}

void FromFloats(const float* source, int64_t count, DType dtype, void* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      HWY_DYNAMIC_DISPATCH(FloatsToF16)(source, count, static_cast<uint16_t*>(out));
      return;
    case DType::kBF16:
      HWY_DYNAMIC_DISPATCH(FloatsToBf16)(source, count, static_cast<uint16_t*>(out));
      return;
  }
}

int64_t PanelWidth() { return HWY_DYNAMIC_DISPATCH(PanelWidthImpl)(); }

int64_t PanelFloats(int64_t depth, int64_t columns) {
  const int64_t width = PanelWidth();
  return (columns + width - 1) / width * width * depth;
}

void PackPanels(const float* b, int64_t depth, int64_t columns, float* panels) {
  const int64_t width = PanelWidth();
  for (int64_t column = 0; column < columns; column += width) {
    const int64_t used = std::min(width, columns - column);
    for (int64_t k = 0; k < depth; ++k) {
      float* to = panels + column * depth + k * width;
      std::copy_n(b + k * columns + column, used, to);
      std::fill(to + used, to + width, 0.0f);
    }
  }
}

void PackTransposedPanels(const float* b, int64_t depth, int64_t columns, float* panels) {
  const int64_t width = PanelWidth();
  for (int64_t column = 0; column < columns; column += width) {
    for (int64_t k = 0; k < depth; ++k) {
      float* to = panels + column * depth + k * width;
      for (int64_t c = 0; c < width; ++c) {
        to[c] = column + c < columns ? b[(column + c) * depth + k] : 0.0f;
      }
    }
  }
}

void Multiply(const float* a, int64_t a_stride, int64_t rows, int64_t depth, const float* panels,
              int64_t columns, float* c, int64_t c_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyImpl)(a, a_stride, rows, depth, panels, columns, c, c_stride);
}

float ExpAndSum(float* x, int64_t count, float maximum) {
  return HWY_DYNAMIC_DISPATCH(ExpAndSumImpl)(x, count, maximum);
}

}  // namespace attend::unfused
#endif  // HWY_ONCE
