// What an error of the client library says beyond its code and message.
//
//   absl::StatusOr<AttendResult> result = client->Attend(inputs, options);
//   if (!result.ok()) {
//     ErrorDetails details = DetailsOf(result.status());   // details.field == "q.shape"
//   }
//
// Codes are those of the server (INVALID_ARGUMENT, UNIMPLEMENTED, RESOURCE_EXHAUSTED,
// DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE, INTERNAL, UNAUTHENTICATED). INVALID_ARGUMENT and
// FAILED_PRECONDITION also come from the library itself, before anything was sent; `attempts` is
// then 0.
// Ownership: values. Threads: pure function.

#ifndef ATTEND_CLIENT_ERROR_H_
#define ATTEND_CLIENT_ERROR_H_

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace attend::client {

struct ErrorDetails {
  std::string reason;      // UPPER_SNAKE word, e.g. "QUEUE_FULL", "MESSAGE_TOO_LARGE"; may be empty
  std::string field;       // path in the request, e.g. "q.shape"; may be empty
  std::string request_id;  // may be empty
  std::optional<std::chrono::milliseconds> retry_after;  // the server's hint
  int attempts = 0;                                      // tries that reached for the server
};

// Empty for an OK status, and for one that is not this library's.
ErrorDetails DetailsOf(const absl::Status& status);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_ERROR_H_
