// At most so many lines a second of one kind, so that a flood of refusals costs no disk.

#ifndef ATTEND_SERVER_OPS_LOG_SAMPLER_H_
#define ATTEND_SERVER_OPS_LOG_SAMPLER_H_

#include <cstdint>
#include <optional>

#include "server/engine/mutex.h"
#include "server/engine/request.h"

namespace attend {

// Thread-safe.
class LogSampler {
 public:
  explicit LogSampler(int64_t lines_per_second) : limit_(lines_per_second) {}

  // The number of lines left out since the last one that was let through, when this line may be
  // written; nullopt when it may not. 0 lines a second means no limit.
  std::optional<int64_t> Admit(Clock::time_point now) {
    MutexLock lock(mutex_);
    if (limit_ == 0) return 0;
    if (now - window_ >= std::chrono::seconds(1)) {
      window_ = now;
      written_ = 0;
    }
    if (written_ >= limit_) {
      ++left_out_;
      return std::nullopt;
    }
    ++written_;
    const int64_t left_out = left_out_;
    left_out_ = 0;
    return left_out;
  }

 private:
  const int64_t limit_;
  Mutex mutex_;
  Clock::time_point window_ ABSL_GUARDED_BY(mutex_);
  int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_LOG_SAMPLER_H_
