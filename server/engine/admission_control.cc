#include "server/engine/admission_control.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/engine/reasons.h"

namespace attend {
namespace {

// Everyone who is refused comes back when told: spread them over the time in which this part of
// what is in flight drains, rather than send all of them after the next free place.
constexpr int64_t kHintDivisor = 4;

absl::Status Refuse(std::string_view reason, const std::string& message,
                    std::chrono::milliseconds retry_after) {
  return WithRetryAfter(WithReason(absl::ResourceExhaustedError(message), reason), retry_after);
}

int64_t Share(double share, int64_t limit) {
  return std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(limit)));
}

}  // namespace

absl::Status AdmissionControl::Enter(const std::string& client, int64_t bytes, double flops,
                                     Clock::time_point now) {
  if (bytes < 0 || bytes > options_.max_in_flight_bytes) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("the request needs ", bytes,
                                                " bytes of staging memory; max_in_flight_bytes is ",
                                                options_.max_in_flight_bytes)),
        kReasonTooLarge);
  }
  MutexLock lock(mutex_);
  const int64_t requests = requests_.load();
  if (requests >= options_.max_in_flight_requests) {
    return Refuse(kReasonQueueFull,
                  absl::StrCat(requests, " requests are in flight; max_in_flight_requests is ",
                               options_.max_in_flight_requests),
                  Hint(1, 0, now));
  }
  const int64_t excess = bytes - (options_.max_in_flight_bytes - bytes_.load());
  if (excess > 0) {
    return Refuse(kReasonMemory,
                  absl::StrCat(bytes_.load(), " bytes are in flight and the request needs ", bytes,
                               "; max_in_flight_bytes is ", options_.max_in_flight_bytes),
                  Hint(0, excess, now));
  }
  const auto known = clients_.find(client);
  if (known != clients_.end()) {
    const Usage& usage = known->second;
    const int64_t most_requests = Share(options_.client_share, options_.max_in_flight_requests);
    const int64_t most_bytes = Share(options_.client_share, options_.max_in_flight_bytes);
    if (usage.requests >= most_requests) {
      return Refuse(kReasonClientShare,
                    absl::StrCat("this client has ", usage.requests,
                                 " requests in flight; its share is ", most_requests),
                    Hint(1, 0, now));
    }
    if (bytes > most_bytes - usage.bytes) {
      return Refuse(
          kReasonClientShare,
          absl::StrCat("this client has ", usage.bytes, " bytes in flight and the request needs ",
                       bytes, "; its share is ", most_bytes),
          Hint(0, bytes - (most_bytes - usage.bytes), now));
    }
  }
  Usage& usage = clients_[client];
  ++usage.requests;
  usage.bytes += bytes;
  requests_ += 1;
  bytes_ += bytes;
  flops_ += flops;
  return absl::OkStatus();
}

void AdmissionControl::Leave(const std::string& client, int64_t bytes, double flops, bool served,
                             Clock::time_point now) {
  MutexLock lock(mutex_);
  const auto known = clients_.find(client);
  known->second.bytes -= bytes;
  if (--known->second.requests == 0) clients_.erase(known);
  requests_ -= 1;
  bytes_ -= bytes;
  // Starts from zero again whenever it can, so that rounding errors do not add up.
  flops_ = requests_ == 0 ? 0 : flops_ - flops;
  if (served) drain_rate_.Record(bytes, now);
}

std::chrono::milliseconds AdmissionControl::RetryAfter(int64_t bytes, Clock::time_point now) const {
  MutexLock lock(mutex_);
  return Hint(0, bytes, now);
}

std::chrono::milliseconds AdmissionControl::Hint(int64_t requests, int64_t bytes,
                                                 Clock::time_point now) const {
  if (requests > 0) requests = std::max(requests, requests_.load() / kHintDivisor);
  if (bytes > 0) bytes = std::max(bytes, bytes_.load() / kHintDivisor);
  return drain_rate_.TimeToDrain(requests, bytes, now);
}

}  // namespace attend
