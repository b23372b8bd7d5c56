#include "server/engine/drain_rate.h"

#include <algorithm>
#include <cmath>

namespace attend {
namespace {

// Long enough to smooth over batches, short enough to follow a change of load.
constexpr double kTimeConstantSeconds = 2.0;

double Seconds(Clock::duration duration) {
  return std::max(0.0, std::chrono::duration<double>(duration).count());
}

}  // namespace

double DrainRate::Decay(Clock::time_point now) const {
  return std::exp(-Seconds(now - last_) / kTimeConstantSeconds);
}

void DrainRate::Record(int64_t bytes, Clock::time_point now) {
  if (!first_.has_value()) {
    first_ = now;
    last_ = now;
  }
  const double decay = Decay(now);
  requests_ = requests_ * decay + 1;
  bytes_ = bytes_ * decay + static_cast<double>(bytes);
  last_ = std::max(last_, now);
}

std::chrono::milliseconds DrainRate::TimeToDrain(int64_t requests, int64_t bytes,
                                                 Clock::time_point now) const {
  if (!first_.has_value()) return kUnknown;
  // A sum of x e^(-age / T) over a steady stream of rate r is r T (1 - e^(-elapsed / T)). Dividing
  // by that also corrects the first seconds, when little has been seen.
  const double shortest = std::chrono::duration<double>(kShortest).count();
  const double elapsed = std::max(Seconds(now - *first_), shortest);
  const double window = kTimeConstantSeconds * (1 - std::exp(-elapsed / kTimeConstantSeconds));
  const double decay = Decay(now);
  const auto seconds = [&](int64_t amount, double sum) {
    if (amount <= 0) return 0.0;
    const double rate = sum * decay / window;
    return rate > 0 ? static_cast<double>(amount) / rate : 1e9;
  };
  const double wait = std::max(seconds(requests, requests_), seconds(bytes, bytes_));
  const double longest = std::chrono::duration<double>(kLongest).count();
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::ceil(std::clamp(wait, shortest, longest) * 1e3)));
}

}  // namespace attend
