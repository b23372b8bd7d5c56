// How the engine words the ends that are not a kernel's.
//
// Each call makes a status of its own, shared with nobody: its owner may be any thread.

#ifndef ATTEND_SERVER_ENGINE_STATUSES_H_
#define ATTEND_SERVER_ENGINE_STATUSES_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/engine/reasons.h"

namespace attend {

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
