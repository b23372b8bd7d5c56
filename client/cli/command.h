// What the subcommands share: exit codes, the flags of a connection, how errors are printed.

#ifndef ATTEND_CLIENT_CLI_COMMAND_H_
#define ATTEND_CLIENT_CLI_COMMAND_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attend/client.h"
#include "cli/flags.h"

namespace attend::cli {

// Exit codes of run, bench and info. `health` has those of grpc_health_probe.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// Each takes what follows the subcommand's name and returns the exit code.
int RunCommand(absl::Span<char* const> arguments);
int BenchCommand(absl::Span<char* const> arguments);
int HealthCommand(absl::Span<char* const> arguments);
int InfoCommand(absl::Span<char* const> arguments);

// Parses, and prints the help or the usage error. A value: exit with that code.
std::optional<int> ParseOrExit(FlagSet& flags, absl::Span<char* const> arguments,
                               int usage_exit_code = kExitUsage);

// Prints "attend: what" and returns `code`.
int Fail(int code, std::string_view what);
// The status in one line: code, message, field, reason, request id.
std::string Describe(const absl::Status& status);

// The flags that say where the server is and how to reach it.
struct ConnectionFlags {
  std::string address = "127.0.0.1:50051";
  client::ClientOptions options;
  bool stream = false;

  void AddTo(FlagSet& flags);          // all of them, under their own titles
  void AddSecurityTo(FlagSet& flags);  // TLS and token alone
  // The TLS flags imply --tls, as they mean nothing without it.
  absl::StatusOr<std::unique_ptr<client::Client>> MakeClient() const;
};

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_COMMAND_H_
