// attend health: flags and exit codes of grpc_health_probe, so that scripts know them.

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cli/command.h"

namespace attend::cli {
namespace {

constexpr int kServing = 0;
constexpr int kBadArguments = 1;
constexpr int kConnectFailed = 2;
constexpr int kRpcFailed = 3;
constexpr int kNotServing = 4;

const char* Name(client::HealthState state) {
  switch (state) {
    case client::HealthState::kServing:
      return "SERVING";
    case client::HealthState::kNotServing:
      return "NOT_SERVING";
    case client::HealthState::kServiceUnknown:
      return "SERVICE_UNKNOWN";
    case client::HealthState::kUnknown:
      return "UNKNOWN";
  }
  return "UNKNOWN";
}

}  // namespace

int HealthCommand(absl::Span<char* const> arguments) {
  ConnectionFlags connection;
  connection.options.channels = 1;
  std::string service;
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(1);
  std::chrono::nanoseconds rpc_timeout = std::chrono::seconds(1);
  FlagSet flags("attend health",
                "Asks a server whether it serves, by grpc.health.v1.\n"
                "Exit codes: 0 serving, 1 bad arguments, 2 connection failed, 3 call failed, 4 not "
                "serving.");
  flags.Group("Check");
  flags.Add("service", &service, "NAME", "service to ask about; empty: the server as a whole");
  flags.Add("connect-timeout", &connect_timeout, "TIME", "for the connection");
  flags.Add("rpc-timeout", &rpc_timeout, "TIME", "for the answer");
  flags.Group("Connection");
  flags.Add("addr", &connection.address, "HOST:PORT", "server; unix:/path for a Unix socket",
            "ATTEND_ADDR");
  connection.AddSecurityTo(flags);
  if (auto exit = ParseOrExit(flags, arguments, kBadArguments)) return *exit;

  auto client = connection.MakeClient();
  if (!client.ok()) return Fail(kBadArguments, Describe(client.status()));
  if (absl::Status status = (*client)->Connect(connect_timeout); !status.ok()) {
    return Fail(kConnectFailed,
                absl::StrCat(connection.address, ": ", std::string(status.message())));
  }
  const absl::StatusOr<client::HealthState> state = (*client)->CheckHealth(service, rpc_timeout);
  if (!state.ok()) {
    // grpc_health_probe calls an unknown service a failed call too.
    return Fail(kRpcFailed, Describe(state.status()));
  }
  std::printf("status: %s\n", Name(*state));
  return *state == client::HealthState::kServing ? kServing : kNotServing;
}

}  // namespace attend::cli
