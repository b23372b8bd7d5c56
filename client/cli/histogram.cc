#include "cli/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace attend::cli {

// Values below kSteps have a counter each. A larger one is shifted right until its kStepBits + 1
// top bits are left: the shift chooses a row of kSteps counters, the bits below the leading one a
// place in it.
size_t Histogram::IndexOf(int64_t value) {
  if (value < kSteps) return static_cast<size_t>(value);
  const int exponent =
      static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - (kStepBits + 1);
  const int64_t step = (value >> exponent) - kSteps;
  return static_cast<size_t>((exponent + 1) * kSteps + step);
}

int64_t Histogram::HighestOf(size_t index) {
  const int64_t i = static_cast<int64_t>(index);
  if (i < kSteps) return i;
  const int exponent = static_cast<int>(i / kSteps) - 1;
  return ((i % kSteps + kSteps + 1) << exponent) - 1;
}

void Histogram::Record(int64_t nanoseconds) {
  const int64_t value = std::clamp<int64_t>(nanoseconds, 0, (int64_t{1} << 62) - 1);
  ++counts_[IndexOf(value)];
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value);
  ++count_;
}

int64_t Histogram::Percentile(double share) const {
  if (count_ == 0) return 0;
  const auto wanted = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(share * static_cast<double>(count_) - 1e-9)));
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= wanted) return std::min(HighestOf(i), max_);
  }
  return max_;
}

}  // namespace attend::cli
