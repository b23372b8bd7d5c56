// From what gRPC reports to an absl::Status that carries ErrorDetails.

#ifndef ATTEND_CLIENT_INTERNAL_STATUS_DETAILS_H_
#define ATTEND_CLIENT_INTERNAL_STATUS_DETAILS_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "attend/error.h"

namespace attend::client {

// What a failed attempt left behind.
struct AttemptError {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  ErrorDetails details;
  bool retry_forbidden = false;  // the server said so (negative pushback)
};

// `details_bytes`: a serialized google.rpc.Status, or empty. ErrorInfo, BadRequest, RetryInfo and
// RequestInfo are understood, the rest is skipped; bytes that do not parse are as good as none.
// `pushback`: the grpc-retry-pushback-ms trailer, or empty; milliseconds, or negative for "never".
AttemptError ReadError(int code, std::string_view message, std::string_view details_bytes,
                       std::string_view pushback);

// An OK-free status with `details` attached for DetailsOf().
absl::Status MakeStatus(absl::StatusCode code, std::string_view message,
                        const ErrorDetails& details);

// The library's own INVALID_ARGUMENT.
absl::Status InvalidField(std::string_view field, std::string_view what);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_STATUS_DETAILS_H_
