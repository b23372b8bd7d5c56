// When an open loop sends: times that do not depend on how fast the server answers.
//
// Latency is measured from these times, so a stalled server cannot hide its stall by holding back
// the requests that would have met it (coordinated omission).

#ifndef ATTEND_CLIENT_CLI_SCHEDULE_H_
#define ATTEND_CLIENT_CLI_SCHEDULE_H_

#include <chrono>
#include <cstdint>
#include <random>

namespace attend::cli {

enum class Arrivals : uint8_t { kConstant, kPoisson };

class Schedule {
 public:
  // `rate`: requests a second, > 0.
  Schedule(Arrivals arrivals, double rate, uint64_t seed)
      : arrivals_(arrivals), rate_(rate), generator_(seed) {}

  // The next send, from the start of the run. Constant: k / rate; Poisson: exponential gaps.
  std::chrono::nanoseconds Next();

 private:
  const Arrivals arrivals_;
  const double rate_;
  std::mt19937_64 generator_;
  int64_t sent_ = 0;
  double seconds_ = 0;
};

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_SCHEDULE_H_
