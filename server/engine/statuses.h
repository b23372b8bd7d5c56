// How the engine words the ends that are not a kernel's.
//
// Each call makes a status of its own, shared with nobody. Copies of an absl::Status share a count
// that distributions' libraries keep without instrumentation, so that ThreadSanitizer reports a
// race when two threads drop their copies.

#ifndef ATTEND_SERVER_ENGINE_STATUSES_H_
#define ATTEND_SERVER_ENGINE_STATUSES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/engine/reasons.h"

namespace attend {

// An equal status that shares nothing with `status`.
inline absl::Status Detached(const absl::Status& status) {
  absl::Status copy(status.code(), status.message());
  status.ForEachPayload([&](absl::string_view key, const absl::Cord& payload) {
    copy.SetPayload(key, absl::Cord(std::string(payload)));
  });
  return copy;
}

inline absl::Status DrainingStatus() {
  return WithReason(absl::UnavailableError("the server is shutting down"), kReasonDraining);
}

inline absl::Status UnhealthyStatus(const absl::Status& cause) {
  return WithReason(
      absl::UnavailableError(absl::StrCat("the device has failed: ", cause.message())),
      kReasonUnhealthy);
}

inline absl::Status ExpiredStatus() {
  return WithReason(absl::DeadlineExceededError("the deadline passed before all work was launched"),
                    kReasonDeadline);
}

inline absl::Status CancelledStatus() { return absl::CancelledError("the request was cancelled"); }

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_STATUSES_H_
