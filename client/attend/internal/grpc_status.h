// grpc::Status and its trailers to AttemptError.

#ifndef ATTEND_CLIENT_INTERNAL_GRPC_STATUS_H_
#define ATTEND_CLIENT_INTERNAL_GRPC_STATUS_H_

#include <map>

#include <grpcpp/support/status.h>
#include <grpcpp/support/string_ref.h>

#include "attend/internal/status_details.h"

namespace attend::client {

AttemptError ReadError(const grpc::Status& status,
                       const std::multimap<grpc::string_ref, grpc::string_ref>& trailers);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_GRPC_STATUS_H_
