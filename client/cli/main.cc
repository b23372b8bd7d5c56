// attend: the command line of the attention server.

#include <csignal>
#include <cstdio>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cli/command.h"

namespace attend::cli {
namespace {

struct Command {
  std::string_view name;
  int (*run)(absl::Span<char* const> arguments);
  const char* summary;
};

constexpr Command kCommands[] = {
    {"run", RunCommand, "send one request from .npy files, store or check the answer"},
    {"bench", BenchCommand, "put load on a server, measure it and check its answers"},
    {"health", HealthCommand, "ask whether a server serves (exit codes of grpc_health_probe)"},
    {"info", InfoCommand, "show what a server is and what it accepts"},
};

void PrintHelp(std::FILE* to) {
  std::fputs("attend " ATTEND_VERSION
             ": the command line of the attention server\n\n"
             "Usage: attend COMMAND [flags]\n\nCommands:\n",
             to);
  for (const Command& command : kCommands) {
    std::fprintf(to, "  %-8.*s %s\n", static_cast<int>(command.name.size()), command.name.data(),
                 command.summary);
  }
  std::fputs(
      "\nattend COMMAND --help shows the flags of a command, their units and defaults.\n"
      "attend --version shows the version.\n",
      to);
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, not a silent death
  if (argc < 2) {
    PrintHelp(stderr);
    return kExitUsage;
  }
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::puts("attend " ATTEND_VERSION);
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(absl::MakeConstSpan(argv + 2, argc - 2));
  }
  return Fail(kExitUsage, absl::StrCat("unknown command \"", std::string(name),
                                       "\" (attend --help lists them)"));
}

}  // namespace
}  // namespace attend::cli

int main(int argc, char** argv) {
  // Debian's abseil, on which gRPC stands, looks for cycles of locks at every lock, and does so
  // under one lock for all.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return attend::cli::Main(argc, argv);
}
