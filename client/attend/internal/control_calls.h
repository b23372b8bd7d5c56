// The small calls: connect, server info, health. Each blocks up to its timeout.

#ifndef ATTEND_CLIENT_INTERNAL_CONTROL_CALLS_H_
#define ATTEND_CLIENT_INTERNAL_CONTROL_CALLS_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attend/internal/channel_pool.h"
#include "attend/server_info.h"

namespace attend::client {

absl::Status WaitConnected(ChannelPool& channels, std::chrono::nanoseconds timeout);
absl::StatusOr<ServerInfo> CallGetServerInfo(ChannelPool& channels,
                                             std::chrono::nanoseconds timeout);
absl::StatusOr<HealthState> CallHealthCheck(ChannelPool& channels, const std::string& service,
                                            std::chrono::nanoseconds timeout);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_CONTROL_CALLS_H_
