// absl::Status to what a client sees: a code, a message and google.rpc details.

#ifndef ATTEND_SERVER_RPC_ERROR_REPLY_H_
#define ATTEND_SERVER_RPC_ERROR_REPLY_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "attend/v1/attention.pb.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace attend {

// Reason of a status that names none, by its code: "INVALID_ARGUMENT", ...
std::string_view CodeName(absl::StatusCode code);

// The serialized google.rpc.Status: ErrorInfo and RequestInfo always; BadRequest when a field is at
// fault; RetryInfo when there is a retry hint. At most a few KiB, as headers must be.
std::string ErrorDetails(const absl::Status& status, std::string_view request_id);

// REQUIRES: !status.ok().
grpc::Status ToGrpcStatus(const absl::Status& status, std::string_view request_id);

// `grpc-retry-pushback-ms`, when the status has a retry hint.
void AddRetryPushback(const absl::Status& status, grpc::CallbackServerContext* context);

// The same content for one request of a stream.
v1::StreamError ToStreamError(const absl::Status& status, std::string_view request_id);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_ERROR_REPLY_H_
