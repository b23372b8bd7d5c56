#include "attend/internal/grpc_status.h"

#include "attend/internal/transport.h"

namespace attend::client {

AttemptError ReadError(const grpc::Status& status,
                       const std::multimap<grpc::string_ref, grpc::string_ref>& trailers) {
  std::string_view pushback;
  if (const auto it = trailers.find("grpc-retry-pushback-ms"); it != trailers.end()) {
    pushback = {it->second.data(), it->second.size()};
  }
  return ReadError(status.error_code(), status.error_message(), status.error_details(), pushback);
}

Outcome Failed(const absl::Status& status) {
  Outcome outcome;
  outcome.error.code = status.code();
  outcome.error.message = std::string(status.message());
  outcome.error.details = DetailsOf(status);
  outcome.error.retry_forbidden = true;  // this side's own fault stays one
  return outcome;
}

}  // namespace attend::client
