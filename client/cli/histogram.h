// Counts durations so that percentiles come out within 1 %: 128 equal steps in each power of two,
// after the idea of HdrHistogram (Gil Tene). Fixed memory, no allocation when recording.
//
// Units: nanoseconds, 0 to 2^62. Not thread-safe.

#ifndef ATTEND_CLIENT_CLI_HISTOGRAM_H_
#define ATTEND_CLIENT_CLI_HISTOGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace attend::cli {

class Histogram {
 public:
  // Negative durations count as 0.
  void Record(int64_t nanoseconds);

  int64_t count() const { return count_; }
  int64_t min() const { return count_ == 0 ? 0 : min_; }
  int64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

  // The smallest recorded value that at least `share` of the records do not pass, to within 1 %
  // upwards; never past max(). 0 without records. REQUIRES: 0 <= share <= 1.
  int64_t Percentile(double share) const;

 private:
  static constexpr int kStepBits = 7;
  static constexpr int64_t kSteps = int64_t{1} << kStepBits;
  static constexpr int kExponents = 62 - kStepBits;

  static size_t IndexOf(int64_t value);
  static int64_t HighestOf(size_t index);

  std::array<int64_t, static_cast<size_t>(kSteps) * (kExponents + 1)> counts_ = {};
  int64_t count_ = 0;
  int64_t min_ = 0;
  int64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_HISTOGRAM_H_
