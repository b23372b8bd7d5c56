// Who may come in: limits on requests and bytes in flight, and on one client's share of both.

#ifndef ATTEND_SERVER_ENGINE_ADMISSION_CONTROL_H_
#define ATTEND_SERVER_ENGINE_ADMISSION_CONTROL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "server/engine/drain_rate.h"
#include "server/engine/engine_options.h"
#include "server/engine/mutex.h"
#include "server/engine/request.h"

namespace attend {

// Thread-safe. Holds memory for clients that have something in flight, and for no others.
class AdmissionControl {
 public:
  explicit AdmissionControl(const EngineOptions& options) : options_(options) {}

  // Counts one request of `bytes` and `flops` in, or says why not, with a reason
  // (server/engine/reasons.h) and, where it may pass later, a hint when. A client with nothing in
  // flight is within its share whatever it asks, so that no request is refused for ever.
  absl::Status Enter(const std::string& client, int64_t bytes, double flops, Clock::time_point now);

  // REQUIRES: an Enter with the same arguments that passed. `served`: it left after work, not
  // because a later step of admission refused it; only then does it count as drained.
  void Leave(const std::string& client, int64_t bytes, double flops, bool served,
             Clock::time_point now);

  // When room for `bytes` may have drained.
  std::chrono::milliseconds RetryAfter(int64_t bytes, Clock::time_point now) const;

  int64_t requests() const { return requests_.load(); }
  int64_t bytes() const { return bytes_.load(); }
  double flops() const { return flops_.load(); }

 private:
  struct Usage {
    int64_t requests = 0;
    int64_t bytes = 0;
  };
  std::chrono::milliseconds Hint(int64_t requests, int64_t bytes, Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const EngineOptions options_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, Usage> clients_ ABSL_GUARDED_BY(mutex_);
  DrainRate drain_rate_ ABSL_GUARDED_BY(mutex_);
  // Written under mutex_, read anywhere.
  std::atomic<int64_t> requests_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<double> flops_{0};
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_ADMISSION_CONTROL_H_
