// How fast requests leave, for retry hints: an exponentially decaying mean.

#ifndef ATTEND_SERVER_ENGINE_DRAIN_RATE_H_
#define ATTEND_SERVER_ENGINE_DRAIN_RATE_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/engine/request.h"

namespace attend {

// Time is an argument. Not thread-safe.
class DrainRate {
 public:
  // A request of `bytes` has left.
  void Record(int64_t bytes, Clock::time_point now);

  // How long until `requests` and `bytes` will have left, by the rate of the last few seconds;
  // between kShortest and kLongest. kUnknown before anything has left.
  std::chrono::milliseconds TimeToDrain(int64_t requests, int64_t bytes,
                                        Clock::time_point now) const;

  static constexpr std::chrono::milliseconds kShortest{10};   // a round trip and some
  static constexpr std::chrono::milliseconds kLongest{5000};  // then ask again anyway
  static constexpr std::chrono::milliseconds kUnknown{100};

 private:
  double Decay(Clock::time_point now) const;

  std::optional<Clock::time_point> first_;
  Clock::time_point last_;
  double requests_ = 0;  // decayed sums, as of last_
  double bytes_ = 0;
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_DRAIN_RATE_H_
