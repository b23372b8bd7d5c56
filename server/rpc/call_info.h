// What a call says about itself outside its messages: who, until when, under which id.

#ifndef ATTEND_SERVER_RPC_CALL_INFO_H_
#define ATTEND_SERVER_RPC_CALL_INFO_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "server/engine/request.h"

namespace attend {

inline constexpr char kRequestIdHeader[] = "x-request-id";

// The host part of a gRPC peer name ("ipv4:10.0.0.7:4711" is "10.0.0.7"); "local" for Unix sockets.
std::string HostOf(std::string_view peer);

// Who calls, for shares and logs: the name in the client's certificate when one was demanded and
// checked, else its host.
std::string ClientOf(const grpc::CallbackServerContext& context);

// The call's deadline on the engine's clock; absent when the client set none.
std::optional<Clock::time_point> DeadlineOf(const grpc::CallbackServerContext& context);

// True when a call that gRPC reports as cancelled has, or is about to, run out of time. gRPC's
// timer is some milliseconds early; such a call is left to the engine, which ends it at the
// deadline itself and calls it expired, not cancelled.
bool EndsByDeadline(const std::optional<Clock::time_point>& deadline);

// The first value of a request header; absent when it was not sent.
std::optional<std::string> HeaderOf(const grpc::CallbackServerContext& context,
                                    const std::string& name);

// True when the client says that this is not its first attempt.
bool IsRetry(const grpc::CallbackServerContext& context);

// The id of a request: its field, else the call's header, else a new one. An invalid one is
// replaced by a new one, and `status` says why it was refused.
std::string ResolveRequestId(const std::string& field, const std::optional<std::string>& header,
                             absl::Status* status);

// 16 hexadecimal digits, unique in this process and unlikely elsewhere. Thread-safe.
std::string MakeRequestId();

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_CALL_INFO_H_
