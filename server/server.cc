#include "server/server.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/engine/mutex.h"
#include "server/ops/http_server.h"
#include "server/ops/log.h"
#include "server/ops/metrics.h"
#include "server/ops/periodic.h"
#include "server/ops/request_log.h"
#include "server/rpc/attention_service.h"
#include "server/rpc/health_service.h"
#include "server/rpc/server_credentials.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
extern "C" void __sanitizer_purge_allocator();
#endif

namespace attend {
namespace {

// Gives free memory back to the system, as far as the allocator can.
void ReleaseFreeMemory() {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  __sanitizer_purge_allocator();  // its allocator, with its quarantine, replaces glibc's
#else
  malloc_trim(0);
#endif
}

// A line of JSON for /version.
std::string VersionPage(std::string_view backend) {
  const BuildInfo build = ThisBuild();
  return absl::StrCat("{",
                      FormatLogLine(LogFormat::kJson, "attend-server",
                                    std::vector<LogField>{{"version", build.version},
                                                          {"revision", build.revision},
                                                          {"compiler", build.compiler},
                                                          {"cuda", build.cuda},
                                                          {"grpc", build.grpc},
                                                          {"backend", backend}}),
                      "}\n");
}

// One backend for each wanted device of `entry`.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeDevices(const BackendEntry& entry,
                                                                  const ServerOptions& options) {
  absl::StatusOr<std::vector<int>> devices = ParseDevices(options.devices);
  if (!devices.ok()) return devices.status();
  const int count = entry.device_count();
  if (count == 0) {
    return absl::UnavailableError(
        absl::StrCat("backend ", std::string(entry.name), ": no device answers on this host"));
  }
  if (devices->empty()) {
    for (int i = 0; i < count; ++i) devices->push_back(i);
  }
  std::vector<std::unique_ptr<Backend>> backends;
  for (const int device : *devices) {
    if (device >= count) {
      return absl::InvalidArgumentError(absl::StrCat("--devices: there is no device ", device,
                                                     "; backend ", std::string(entry.name), " has ",
                                                     count));
    }
    BackendOptions backend_options;
    backend_options.device = device;
    backend_options.threads = options.threads;
    backend_options.device_memory_limit = options.device_memory_limit;
    absl::StatusOr<std::unique_ptr<Backend>> backend = entry.make(backend_options);
    if (!backend.ok()) return backend.status();
    backends.push_back(*std::move(backend));
  }
  return backends;
}

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const ServerOptions& options) {
  for (const BackendEntry& entry : BackendRegistry()) {
    if (options.backend == "auto" ? !entry.chosen_by_auto : options.backend != entry.name) continue;
    absl::StatusOr<std::vector<std::unique_ptr<Backend>>> backends = MakeDevices(entry, options);
    if (backends.ok() || options.backend != "auto" || absl::IsInvalidArgument(backends.status())) {
      return backends;
    }
    Log(LogLevel::kWarn, "backend not usable, trying the next",
        {{"backend", entry.name}, {"cause", std::string(backends.status().message())}});
  }
  return absl::UnavailableError(
      absl::StrCat("--backend=", options.backend, ": nothing of this build can run here"));
}

// A debug line for each batch, with its stages on the device's time base: what tests/bench/overlap
// reads.
void LogBatch(const BatchRecord& record) {
  if (GetLogLevel() > LogLevel::kDebug) return;
  const auto us = [](double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e6)); };
  Log(LogLevel::kDebug, "batch",
      {{"device", int64_t{record.device}},
       {"worker", int64_t{record.worker}},
       {"requests", record.requests},
       {"tasks", record.tasks},
       {"copy_in_begin_us", us(record.report.copy_in.begin_seconds)},
       {"copy_in_end_us", us(record.report.copy_in.end_seconds)},
       {"kernel_begin_us", us(record.report.kernel.begin_seconds)},
       {"kernel_end_us", us(record.report.kernel.end_seconds)},
       {"copy_out_begin_us", us(record.report.copy_out.begin_seconds)},
       {"copy_out_end_us", us(record.report.copy_out.end_seconds)}});
}

// Whether only this host can reach a gRPC listening address.
bool IsLocal(const std::string& listen) {
  for (const char* prefix : {"127.", "localhost:", "[::1]:", "unix:"}) {
    if (absl::StartsWith(listen, prefix)) return true;
  }
  return false;
}

int CopyThreads(int wanted) {
  if (wanted > 0) return wanted;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 2, 1, 8);
}

}  // namespace

// Members in the order in which they are made; they end in reverse.
class Server::Impl {
 public:
  explicit Impl(const ServerOptions& server_options)
      : options(server_options),
        health({"", "attend.v1.AttentionService"}),
        copies(CopyThreads(options.copy_threads)) {}

  ~Impl() {
    if (grpc != nullptr) Drain(Clock::time_point::max()).IgnoreError();
    reloads.reset();
    http.reset();
    if (watch != nullptr) watch->Watch(nullptr, {});
    grpc.reset();
  }

  // Everything that engines and services report.
  class Observer final : public Metrics {
   public:
    Observer(Impl* impl, const Backend& backend, const std::vector<int>& devices)
        : Metrics(backend, devices), impl_(impl), requests_(impl->options.log) {}

    void OnRequestEnd(const RequestRecord& record) override {
      Metrics::OnRequestEnd(record);
      requests_.Write(record);
      impl_->ended_something = true;
    }
    void OnConnectionEnd() override {
      Metrics::OnConnectionEnd();
      impl_->ended_something = true;
    }
    void OnBatch(const BatchRecord& record) override {
      Metrics::OnBatch(record);
      LogBatch(record);
    }
    void OnUnauthenticated() override {
      Metrics::OnUnauthenticated();
      requests_.Unauthenticated();
    }
    void OnConnectionRefused(ConnectionLimit limit, const std::string& client) override {
      Metrics::OnConnectionRefused(limit, client);
      requests_.RefusedConnection(limit, client);
    }
    void OnUnhealthy(const absl::Status& status) override {
      Metrics::OnUnhealthy(status);
      Log(LogLevel::kError, "device failed", {{"cause", std::string(status.message())}});
      impl_->Fail(status);
    }

   private:
    Impl* const impl_;
    RequestLog requests_;
  };

  absl::Status Start(std::vector<std::unique_ptr<Backend>> backends) {
    std::vector<int> devices;
    devices.reserve(backends.size());
    for (const std::unique_ptr<Backend>& backend : backends) {
      devices.push_back(backend->device().ordinal);
    }
    watch = std::make_unique<Observer>(this, *backends.front(), devices);
    if (!options.http.listen.empty()) {
      HttpPages pages;
      pages.metrics = [this] { return watch->Render(); };
      pages.live = [this] { return !failed.load(); };
      pages.ready = [this] { return health.serving(); };
      pages.version = VersionPage(backends.front()->name());
      absl::StatusOr<std::unique_ptr<HttpServer>> started =
          HttpServer::Start(options.http, std::move(pages));
      if (!started.ok()) return started.status();
      http = *std::move(started);
    }
    std::vector<std::unique_ptr<Engine>> made;
    for (std::unique_ptr<Backend>& backend : backends) {
      absl::StatusOr<std::unique_ptr<Engine>> engine =
          Engine::Create(std::move(backend), options.engine, watch.get());
      if (!engine.ok()) return engine.status();
      made.push_back(*std::move(engine));
    }
    engines = std::make_unique<EngineGroup>(std::move(made));
    watch->Watch(engines.get(), options.engine);

    context.engines = engines.get();
    context.copies = &copies;
    context.observer = watch.get();
    context.limits = options.codec;
    ServiceInfo info;
    info.version = ThisBuild().version;
    info.max_receive_message_bytes = options.grpc.max_receive_message_bytes;
    info.engine = options.engine;
    service = std::make_unique<AttentionService>(&context, info);
    // Before the warm-up, so that a taken port is known at once; health says "not yet" meanwhile.
    if (absl::Status status = OpenCredentials(); !status.ok()) return status;
    absl::StatusOr<std::unique_ptr<GrpcServer>> started =
        GrpcServer::Start(options.grpc,
                          MakeServerCredentials(options.security, credentials.get(),
                                                [this] { watch->OnUnauthenticated(); }),
                          {service.get(), &health}, watch.get(), &context.ledger);
    if (!started.ok()) return started.status();
    grpc = *std::move(started);

    if (absl::Status status = engines->WarmUp(); !status.ok()) return status;
    SetReady(true);
    return absl::OkStatus();
  }

  // Reads certificate and tokens, and from then on looks at their files now and then.
  absl::Status OpenCredentials() {
    const SecurityOptions& security = options.security;
    if (absl::Status status = Validate(security); !status.ok()) return status;
    if (!security.tls() && !IsLocal(options.grpc.listen)) {
      Log(LogLevel::kWarn,
          "not encrypted: whoever can reach the address can read and send requests",
          {{"listen", options.grpc.listen}});
    }
    if (!security.tls() && !security.tokens()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<CredentialFiles>> opened =
        CredentialFiles::Open(security, [this](const absl::Status& status) {
          watch->CountCredentialsReload(status.ok());
          if (status.ok()) {
            Log(LogLevel::kInfo, "new certificate or tokens in use");
          } else {
            Log(LogLevel::kError, "bad certificate or token files; the last good ones stay in use",
                {{"cause", std::string(status.message())}});
          }
        });
    if (!opened.ok()) return opened.status();
    credentials = *std::move(opened);
    ShowExpiry();
    reloads = std::make_unique<Periodic>(security.reload_interval, [this] {
      if (credentials->Reload()) ShowExpiry();
    });
    return absl::OkStatus();
  }

  void ShowExpiry() {
    if (options.security.tls()) watch->SetCertificateExpiry(credentials->current()->expiry);
  }

  void SetReady(bool ready) {
    MutexLock lock(mutex);
    if (ready && (stopping || failed)) return;
    stopping = stopping || !ready;
    health.SetServing(ready);
    watch->SetReady(ready);
  }

  void Fail(const absl::Status& status) {
    failed = true;
    SetReady(false);
    std::function<void(const absl::Status&)> callback;
    {
      MutexLock lock(mutex);
      callback = std::exchange(on_unhealthy, nullptr);
    }
    if (callback) callback(status);
  }

  absl::Status Drain(Clock::time_point deadline) {
    SetReady(false);
    context.StopAccepting(deadline);
    service->DrainStreams();
    absl::Status status = engines->Drain(deadline);
    // Clients in a closed loop come once more and hear of the drain.
    constexpr std::chrono::milliseconds kQuiet{50};
    constexpr std::chrono::seconds kLongestQuiet{1};
    context.AwaitQuiet(kQuiet, std::min(deadline, Clock::now() + kLongestQuiet));
    health.Shutdown();
    // What is left is replies on their way and calls without work; a client that does not read must
    // not hold the process.
    constexpr std::chrono::seconds kLastReplies{5};
    grpc->Shutdown(std::min(deadline, Clock::now() + kLastReplies));
    if (aborted) return absl::DeadlineExceededError("the drain was given up");
    return status;
  }

  const ServerOptions options;
  std::atomic<bool> failed{false};
  std::atomic<bool> aborted{false};
  std::atomic<bool> ended_something{false};  // since Tend was last called
  Mutex mutex;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::function<void(const absl::Status&)> on_unhealthy ABSL_GUARDED_BY(mutex);

  HealthService health;
  std::unique_ptr<Observer> watch;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<EngineGroup> engines;
  CopyPool copies;  // its threads submit to the engines: it ends before them
  JobContext context;
  std::unique_ptr<AttentionService> service;
  std::unique_ptr<CredentialFiles> credentials;
  std::unique_ptr<Periodic> reloads;
  std::unique_ptr<GrpcServer> grpc;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> backends = MakeBackends(options);
  if (!backends.ok()) return backends.status();
  return Start(options, *std::move(backends));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, std::vector<std::unique_ptr<Backend>> backends) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Start(std::move(backends)); !status.ok()) return status;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

int Server::grpc_port() const { return impl_->grpc->port(); }
int Server::http_port() const { return impl_->http == nullptr ? 0 : impl_->http->port(); }
EngineGroup& Server::engines() { return *impl_->engines; }

void Server::OnUnhealthy(std::function<void(const absl::Status&)> callback) {
  MutexLock lock(impl_->mutex);
  impl_->on_unhealthy = std::move(callback);
}

void Server::Tend() {
  for (const std::unique_ptr<Engine>& engine : impl_->engines->engines()) {
    engine->Healthy().IgnoreError();
  }
  // Messages are freed in pieces between what lives on, so without this glibc keeps the most that
  // was ever in use at once. Not under load, which would only fault the same pages in again.
  if (!impl_->ended_something.exchange(false)) ReleaseFreeMemory();
}

void Server::StopBeingReady() { impl_->SetReady(false); }

absl::Status Server::Drain() { return impl_->Drain(Clock::now() + impl_->options.drain_timeout); }

void Server::Abort() {
  impl_->aborted = true;
  impl_->engines->Drain(Clock::now()).IgnoreError();
}

}  // namespace attend
