// attend-server: options, signals and exit codes around a Server.
//
// Exit codes: 0 stopped when asked and every accepted request was answered; 1 failed; 2 usage
// error.

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/ops/log.h"
#include "server/ops/metrics.h"
#include "server/ops/options.h"
#include "server/rpc/grpc_server.h"
#include "server/server.h"

namespace attend {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// An idle server notices a failed device, and gives memory back, this late.
constexpr std::chrono::milliseconds kTendInterval{2000};

int Complain(const absl::Status& status, int exit_code) {
  const std::string text(status.message());
  std::fprintf(stderr, "attend-server: %s\n", text.c_str());
  return exit_code;
}

// Each connection takes two descriptors, and many systems give a process 1024 to begin with.
void RaiseFileLimit(int64_t max_connections) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return;
  constexpr int64_t kOthers = 256;
  const int64_t wanted = 2 * max_connections + kOthers;
  if (static_cast<int64_t>(files.rlim_cur) >= wanted) return;
  Log(LogLevel::kWarn, "fewer files may be open than --max-connections needs",
      {{"may", static_cast<int64_t>(files.rlim_cur)}, {"needs", wanted}});
}

// Signals and news of a failed device, as file descriptors to wait on.
class Events {
 public:
  // Blocks the signals in this thread and all that it starts. Call before any thread exists.
  Events() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signal(SIGPIPE, SIG_IGN);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC);
  }

  // From any thread.
  void Wake() {
    const uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0) return;  // full: it will wake anyway
  }

  enum class Event { kTimeout, kSignal, kWake };
  // Negative: without limit.
  Event Wait(std::chrono::milliseconds timeout) {
    pollfd fds[] = {{signals_, POLLIN, 0}, {wake_, POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(timeout.count()));
    if (ready > 0 && (fds[0].revents & POLLIN) != 0) {
      signalfd_siginfo info;
      if (read(signals_, &info, sizeof info) > 0) return Event::kSignal;
    }
    if (ready > 0 && (fds[1].revents & POLLIN) != 0) {
      uint64_t count;
      if (read(wake_, &count, sizeof count) > 0) return Event::kWake;
    }
    return Event::kTimeout;
  }

 private:
  int signals_ = -1;
  int wake_ = -1;
};

// Readers see all of the file or none of it.
absl::Status WritePortFile(const std::string& path, const Server& server) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream file(temporary);
  file << "grpc " << server.grpc_port() << "\nhttp " << server.http_port() << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("--port-file: cannot write ", path));
  }
  return absl::OkStatus();
}

// From the first signal, or the device's failure, to the end.
int Stop(Server* server, Events* events, const ServerOptions& options, bool failed) {
  Log(LogLevel::kInfo, "stopping",
      {{"cause", failed ? "a device failed" : "signal"},
       {"drain_delay_seconds", std::chrono::duration<double>(options.drain_delay).count()}});
  server->StopBeingReady();
  const auto until = std::chrono::steady_clock::now() + options.drain_delay;
  bool give_up = false;
  while (!failed && !give_up) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    give_up = events->Wait(left) == Events::Event::kSignal;
  }
  absl::Status status;
  std::atomic<bool> done{false};
  std::thread drain([&] {
    status = server->Drain();
    done = true;
    events->Wake();
  });
  while (!done) {
    if (give_up || events->Wait(std::chrono::milliseconds(-1)) == Events::Event::kSignal) {
      if (!done) {
        Log(LogLevel::kWarn, "second signal: giving up on what is queued");
        server->Abort();
      }
      give_up = false;
    }
  }
  drain.join();
  if (!status.ok()) {
    Log(LogLevel::kError, "stopped early", {{"cause", std::string(status.message())}});
    return kExitFailed;
  }
  Log(LogLevel::kInfo, "stopped");
  return failed ? kExitFailed : 0;
}

int Serve(const ServerOptions& options) {
  Events events;
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(options.log.level, &level);
  StartLog(options.log.format == "json" ? LogFormat::kJson : LogFormat::kText, level);
  const absl::Cleanup stop_log = [] { StopLog(); };
  RedirectLibraryLogs([](int severity, const char* message) {
    // Below errors gRPC may write what was sent to it, tokens included, when its tracing is on.
    if (severity > 1) Log(LogLevel::kDebug, "library", {{"detail", message}});
  });

  RaiseFileLimit(options.grpc.max_connections);
  std::atomic<bool> failed{false};
  absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(options);
  if (!started.ok()) return Complain(started.status(), kExitFailed);
  Server& server = **started;
  server.OnUnhealthy([&](const absl::Status&) {
    failed = true;
    events.Wake();
  });
  if (!options.port_file.empty()) {
    if (absl::Status status = WritePortFile(options.port_file, server); !status.ok()) {
      return Complain(status, kExitFailed);
    }
  }
  const Backend& backend = server.engines().backend();
  Log(LogLevel::kInfo, "ready",
      {{"version", ThisBuild().version},
       {"backend", backend.name()},
       {"device", backend.device().name},
       {"devices", static_cast<int64_t>(server.engines().engines().size())},
       {"listen", options.grpc.listen},
       {"grpc_port", int64_t{server.grpc_port()}},
       {"http_port", int64_t{server.http_port()}}});
  Events::Event event = Events::Event::kTimeout;
  while (event != Events::Event::kSignal && !failed) {
    event = events.Wait(kTendInterval);
    if (event == Events::Event::kTimeout) server.Tend();
  }
  const int exit_code = Stop(&server, &events, options, failed);
  if (!options.port_file.empty()) std::remove(options.port_file.c_str());
  return exit_code;
}

}  // namespace
}  // namespace attend

int main(int argc, char** argv) {
  // Debian's abseil, on which gRPC stands, looks for cycles of locks at every lock, and does so
  // under one lock for all.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const std::vector<std::string> args(argv + 1, argv + argc);
  absl::StatusOr<attend::CommandLine> line = attend::ParseCommandLine(args, &std::getenv);
  if (!line.ok()) return attend::Complain(line.status(), attend::kExitUsage);
  switch (line->action) {
    case attend::Action::kHelp:
      std::fputs(attend::HelpText().c_str(), stdout);
      return 0;
    case attend::Action::kVersion:
      std::printf("attend-server %s\n", attend::ThisBuild().version.c_str());
      return 0;
    case attend::Action::kServe:
      return attend::Serve(line->options);
  }
}
