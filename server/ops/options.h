// Everything that can be set about attend-server.

#ifndef ATTEND_SERVER_OPS_OPTIONS_H_
#define ATTEND_SERVER_OPS_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/engine_options.h"
#include "server/ops/option_table.h"
#include "server/rpc/credential_files.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/request_codec.h"

namespace attend {

struct HttpOptions {
  std::string listen = "127.0.0.1:9464";  // IPv4 host:port; empty: no HTTP
  // Each idle connection holds a thread until the timeout: enough of them for scrapes to get
  // through.
  int threads = 16;
  std::chrono::milliseconds request_timeout{2000};
};

struct LogOptions {
  std::string format = "text";
  std::string level = "info";
  bool requests = false;          // a line for each answered request, not only refused ones
  int64_t lines_per_second = 20;  // of refused requests, and of answered ones; 0: no limit
};

struct ServerOptions {
  GrpcServerOptions grpc;
  SecurityOptions security;
  HttpOptions http;
  LogOptions log;
  std::string port_file;
  std::string config_file;

  std::string backend = "auto";
  std::string devices = "all";  // "all", or ordinals: "0,2"
  int threads = 0;
  int64_t device_memory_limit = 0;

  EngineOptions engine;
  CodecLimits codec;
  int copy_threads = 0;  // 0: half the cores, 1 to 8

  std::chrono::milliseconds drain_delay{0};
  std::chrono::milliseconds drain_timeout{30000};
};

// A row for each field of `options`, which outlives the table.
OptionTable MakeOptionTable(ServerOptions* options);

enum class Action : uint8_t { kServe, kHelp, kVersion };

struct CommandLine {
  Action action = Action::kServe;
  ServerOptions options;
};

// INVALID_ARGUMENT in one line. `args` is without the program's name.
absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> args,
                                             const OptionTable::GetEnv& get_env);

std::string HelpText();

// "0,2" as numbers, or empty for "all".
absl::StatusOr<std::vector<int>> ParseDevices(const std::string& text);

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_OPTIONS_H_
