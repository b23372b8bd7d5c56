#include "cli/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reference/number_formats.h"

namespace attend::cli {
namespace {

double Load(const NpyArray& array, int64_t index) {
  switch (array.type) {
    case NpyType::kF16:
      return reference::LoadElement(array.data.data(), DType::kF16, index);
    case NpyType::kF32:
      return reference::LoadElement(array.data.data(), DType::kF32, index);
    case NpyType::kU16:
      return reference::LoadElement(array.data.data(), DType::kBF16, index);
    case NpyType::kF64: {
      double value = 0;
      std::memcpy(&value, array.data.data() + index * 8, sizeof value);
      return value;
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double Error(double expected, double actual) {
  if (std::isfinite(expected) && std::isfinite(actual)) return std::abs(expected - actual);
  if (std::isnan(expected) && std::isnan(actual)) return 0;
  return expected == actual ? 0 : std::numeric_limits<double>::infinity();
}

}  // namespace

Comparison Compare(const NpyArray& expected, const NpyArray& actual, double tolerance) {
  Comparison comparison;
  double largest = 0;
  const int64_t count = static_cast<int64_t>(actual.data.size()) / ElementBytes(actual.type);
  for (int64_t i = 0; i < count; ++i) {
    const double want = Load(expected, i);
    if (std::isfinite(want)) largest = std::max(largest, std::abs(want));
    comparison.max_error = std::max(comparison.max_error, Error(want, Load(actual, i)));
  }
  comparison.allowed = tolerance * largest;
  comparison.within = comparison.max_error <= comparison.allowed;
  return comparison;
}

}  // namespace attend::cli
