#include "server/ops/metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "kernels/errors.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/engine/mutex.h"
#include "server/ops/buckets.h"
#include "server/ops/engine_metrics.h"
#include "server/ops/metric_family.h"
#include "server/ops/process_metrics.h"
#include "server/rpc/error_reply.h"

namespace attend {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

// Codes that a request can end with, and the most that absl knows.
constexpr int kCodes = 17;

// Values of attend_rejected_total{reason}; the rest is "other". The first are reasons that statuses
// carry, in lower case; the others are made from codes.
constexpr std::string_view kRejectReasons[] = {
    "queue_full",      "memory",           "client_share", "device_memory", "too_large",
    "draining",        "device_unhealthy", "deadline",     "malformed",     "unknown_field",
    "unauthenticated", "invalid",          "unsupported",  "other"};

std::string_view RejectReason(const absl::Status& status) {
  if (const std::optional<std::string> reason = ReasonOf(status)) {
    const std::string lower = absl::AsciiStrToLower(*reason);
    for (std::string_view known : kRejectReasons) {
      if (known == lower) return known;
    }
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return "invalid";
    case absl::StatusCode::kUnimplemented:
      return "unsupported";
    case absl::StatusCode::kUnauthenticated:
      return "unauthenticated";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    default:
      return "other";
  }
}

// Refused, as opposed to failed or given up by its client.
bool IsRejection(const absl::Status& status) {
  return !status.ok() && status.code() != absl::StatusCode::kCancelled &&
         status.code() != absl::StatusCode::kInternal;
}

// One NaN would poison a histogram's sum for ever.
void Observe(Histogram* histogram, double value) {
  if (value >= 0) histogram->Observe(value);
}

class Builder {
 public:
  explicit Builder(prometheus::Registry* registry) : registry_(registry) {}

  Counter* MakeCounter(const char* name, const char* help, const Labels& labels = {}) {
    return &prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
  }
  Gauge* MakeGauge(const char* name, const char* help, const Labels& labels = {}) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
  }
  Histogram* MakeHistogram(const char* name, const char* help,
                           const Histogram::BucketBoundaries& buckets, const Labels& labels = {}) {
    return &prometheus::BuildHistogram()
                .Name(name)
                .Help(help)
                .Register(*registry_)
                .Add(labels, buckets);
  }

 private:
  prometheus::Registry* const registry_;
};

struct MethodMetrics {
  std::array<Counter*, kCodes> by_code{};
  Gauge* in_flight = nullptr;
  Histogram* seconds = nullptr;
};

struct DeviceMetrics {
  std::array<Counter*, 2> batches{};  // by BatchReason
  Counter* busy_seconds = nullptr;
  Counter* copied_in = nullptr;
  Counter* copied_out = nullptr;
  Gauge* workspace = nullptr;
  Gauge* workspace_peak = nullptr;
  double peak = 0;  // guarded by State::peak_mutex
};

}  // namespace

struct Metrics::State {
  // The registry merges families of one name, so each child is made by a call of its own.
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};

  std::array<MethodMetrics, kMethodCount> methods;
  std::map<std::string, Counter*, std::less<>> rejected;
  std::array<Counter*, 2> cancelled{}, expired{};  // by EndStage
  std::map<std::string, Counter*, std::less<>> allocation_failures, kernel_launches;
  std::map<int, DeviceMetrics> devices;
  Histogram *stage_decode, *stage_queue, *stage_copy_in, *stage_kernel, *stage_copy_out;
  Histogram *queue_seconds, *kernel_seconds, *batch_requests, *batch_tokens;
  Counter *query_tokens, *kv_tokens, *padding_tokens, *sequences, *flops, *received, *transmitted;
  Counter *avoided_bytes, *workspace_total, *retried;
  Gauge *ready, *streams, *connections;
  std::array<Counter*, kConnectionLimitCount> connections_refused{};
  Counter *reloads, *reload_failures;

  Mutex peak_mutex;
  mutable Mutex mutex;
  const EngineGroup* engines ABSL_GUARDED_BY(mutex) = nullptr;
  double certificate_expiry ABSL_GUARDED_BY(mutex) = 0;  // 0: no certificate
  EngineOptions options ABSL_GUARDED_BY(mutex);
};

Metrics::Metrics(const Backend& backend, const std::vector<int>& devices)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  Builder make(&s.registry);
  const std::string backend_name(backend.name());

  for (int i = 0; i < kMethodCount; ++i) {
    const std::string method(Name(static_cast<Method>(i)));
    MethodMetrics& m = s.methods[i];
    for (int code = 0; code < kCodes; ++code) {
      m.by_code[code] = make.MakeCounter(
          "attend_requests_total", "Requests answered; a request of a stream counts as one.",
          {{"method", method},
           {"code", std::string(CodeName(static_cast<absl::StatusCode>(code)))}});
    }
    m.in_flight = make.MakeGauge("attend_requests_in_flight",
                                 "Requests received and not yet answered.", {{"method", method}});
    m.seconds = make.MakeHistogram("attend_request_duration_seconds",
                                   "From the received message to its reply.", RequestSeconds(),
                                   {{"method", method}});
  }
  const auto stage = [&](const char* name) {
    return make.MakeHistogram("attend_request_stage_duration_seconds",
                              "Stages of answered requests; device stages are those of the batch.",
                              RequestSeconds(), {{"stage", name}});
  };
  s.stage_decode = stage("decode");
  s.stage_queue = stage("queue");
  s.stage_copy_in = stage("copy_in");
  s.stage_kernel = stage("kernel");
  s.stage_copy_out = stage("copy_out");
  for (std::string_view reason : kRejectReasons) {
    s.rejected.emplace(reason,
                       make.MakeCounter("attend_rejected_total", "Requests refused, by reason.",
                                        {{"reason", std::string(reason)}}));
  }
  for (const EndStage where : {EndStage::kQueue, EndStage::kLaunched}) {
    const Labels labels = {{"stage", where == EndStage::kQueue ? "queue" : "launched"}};
    s.cancelled[static_cast<int>(where)] = make.MakeCounter(
        "attend_cancelled_total", "Requests cancelled, by where they were.", labels);
    s.expired[static_cast<int>(where)] = make.MakeCounter(
        "attend_expired_total", "Requests whose deadline passed, by where they were.", labels);
  }
  for (const char* pool : {"staging", "device"}) {
    s.allocation_failures.emplace(
        pool, make.MakeCounter("attend_allocation_failures_total",
                               "Times that memory could not be had.", {{"pool", pool}}));
  }
  for (std::string_view kernel : backend.KernelNames()) {
    s.kernel_launches.emplace(kernel,
                              make.MakeCounter("attend_kernel_launches_total", "Kernel launches.",
                                               {{"kernel", std::string(kernel)}}));
  }
  for (const int ordinal : devices) {
    const std::string device = std::to_string(ordinal);
    DeviceMetrics& d = s.devices[ordinal];
    for (const BatchReason reason : {BatchReason::kDrained, BatchReason::kFull}) {
      d.batches[static_cast<int>(reason)] =
          make.MakeCounter("attend_batches_total", "Batches run, by why they were no larger.",
                           {{"backend", backend_name},
                            {"device", device},
                            {"reason", reason == BatchReason::kDrained ? "drained" : "full"}});
    }
    d.busy_seconds = make.MakeCounter("attend_device_busy_seconds_total",
                                      "Time spent in kernels, all workers of the device together.",
                                      {{"device", device}});
    d.copied_in =
        make.MakeCounter("attend_device_copy_bytes_total", "Bytes copied to and from the device.",
                         {{"device", device}, {"direction", "in"}});
    d.copied_out =
        make.MakeCounter("attend_device_copy_bytes_total", "Bytes copied to and from the device.",
                         {{"device", device}, {"direction", "out"}});
    d.workspace = make.MakeGauge("attend_workspace_bytes",
                                 "Memory of the last batch beyond its inputs and outputs.",
                                 {{"device", device}});
    d.workspace_peak =
        make.MakeGauge("attend_workspace_peak_bytes", "Most of that so far.", {{"device", device}});
  }
  s.queue_seconds = make.MakeHistogram("attend_queue_duration_seconds",
                                       "Time from submission to launch.", RequestSeconds());
  s.kernel_seconds = make.MakeHistogram("attend_kernel_duration_seconds", "Kernel time of a batch.",
                                        KernelSeconds());
  s.batch_requests =
      make.MakeHistogram("attend_batch_requests", "Requests of a batch.", BatchSizes());
  s.batch_tokens =
      make.MakeHistogram("attend_batch_tokens", "Query rows of a batch.", BatchTokens());
  s.query_tokens = make.MakeCounter("attend_query_tokens_total", "Query rows computed.");
  s.kv_tokens = make.MakeCounter("attend_kv_tokens_total", "Key rows attended to.");
  s.padding_tokens =
      make.MakeCounter("attend_padding_tokens_total", "Query rows that were only padding.");
  s.sequences = make.MakeCounter("attend_sequences_total", "Sequences of answered requests.");
  s.flops = make.MakeCounter("attend_flops_total",
                             "Useful floating-point operations: visible pairs only.",
                             {{"backend", backend_name}});
  s.received = make.MakeCounter("attend_receive_bytes_total", "Bytes of received messages.");
  s.transmitted = make.MakeCounter("attend_transmit_bytes_total", "Bytes of sent replies.");
  s.avoided_bytes = make.MakeCounter(
      "attend_score_matrix_avoided_bytes_total",
      "Bytes of score matrices that an unfused implementation would have written.");
  s.workspace_total =
      make.MakeCounter("attend_workspace_bytes_total",
                       "Workspace of all batches, to compare with the bytes avoided.");
  s.retried = make.MakeCounter("attend_retried_requests_total",
                               "Requests whose client says that it tried before.");
  s.ready = make.MakeGauge("attend_ready", "1 while the server takes work.");
  s.streams = make.MakeGauge("attend_streams_open", "AttendStream calls open.");
  s.connections = make.MakeGauge("attend_connections_open", "TCP connections of the gRPC port.");
  for (int i = 0; i < kConnectionLimitCount; ++i) {
    s.connections_refused[i] =
        make.MakeCounter("attend_connections_refused_total",
                         "Connections refused or ended by the server, by the limit that they met.",
                         {{"reason", std::string(Name(static_cast<ConnectionLimit>(i)))}});
  }
  s.reloads = make.MakeCounter("attend_credentials_reloads_total",
                               "Times that new certificate or token files were taken.");
  s.reload_failures =
      make.MakeCounter("attend_credentials_reload_failures_total",
                       "Times that such files were bad, so that the last good ones stayed.");
  const BuildInfo build = ThisBuild();
  make.MakeGauge("attend_build_info", "1; its labels describe the build.",
                 {{"version", build.version},
                  {"revision", build.revision},
                  {"compiler", build.compiler},
                  {"cuda", build.cuda},
                  {"grpc", build.grpc}})
      ->Set(1);
}

Metrics::~Metrics() = default;

void Metrics::Watch(const EngineGroup* engines, const EngineOptions& options) {
  MutexLock lock(state_->mutex);
  state_->engines = engines;
  state_->options = options;
}

void Metrics::SetReady(bool ready) { state_->ready->Set(ready ? 1 : 0); }

std::string Metrics::Render() const {
  std::vector<prometheus::MetricFamily> families = state_->registry.Collect();
  {
    MutexLock lock(state_->mutex);
    if (state_->certificate_expiry != 0) {
      AddSingle(&families, prometheus::MetricType::Gauge,
                "attend_tls_certificate_expiry_timestamp_seconds",
                "When the served certificate, or one of its issuers, expires.",
                state_->certificate_expiry);
    }
    if (state_->engines != nullptr) CollectEngines(*state_->engines, state_->options, &families);
  }
  CollectProcess(&families);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

void Metrics::OnBatch(const BatchRecord& record) {
  State& s = *state_;
  s.batch_requests->Observe(static_cast<double>(record.requests));
  s.batch_tokens->Observe(static_cast<double>(record.query_tokens));
  Observe(s.kernel_seconds, record.report.kernel.seconds());
  s.query_tokens->Increment(static_cast<double>(record.query_tokens));
  s.kv_tokens->Increment(static_cast<double>(record.kv_tokens));
  s.flops->Increment(record.flops);
  s.avoided_bytes->Increment(static_cast<double>(record.avoided_bytes));
  const double workspace = static_cast<double>(record.report.workspace_bytes);
  s.workspace_total->Increment(workspace);
  for (const KernelLaunches& launch : record.report.launches) {
    const auto found = s.kernel_launches.find(launch.kernel);
    if (found != s.kernel_launches.end()) {
      found->second->Increment(static_cast<double>(launch.launches));
    }
  }
  const auto device = s.devices.find(record.device);
  if (device == s.devices.end()) return;
  DeviceMetrics& d = device->second;
  d.batches[static_cast<int>(record.reason)]->Increment();
  d.busy_seconds->Increment(record.report.kernel.seconds());  // negative ones are ignored
  d.copied_in->Increment(static_cast<double>(record.report.bytes_in));
  d.copied_out->Increment(static_cast<double>(record.report.bytes_out));
  d.workspace->Set(workspace);
  MutexLock lock(s.peak_mutex);
  d.peak = std::max(d.peak, workspace);
  d.workspace_peak->Set(d.peak);
}

void Metrics::OnQueueTime(double seconds) { Observe(state_->queue_seconds, seconds); }

void Metrics::OnCancelled(EndStage stage) {
  state_->cancelled[static_cast<int>(stage)]->Increment();
}

void Metrics::OnExpired(EndStage stage) { state_->expired[static_cast<int>(stage)]->Increment(); }

void Metrics::OnAllocationFailure(std::string_view pool) {
  const auto found = state_->allocation_failures.find(pool);
  if (found != state_->allocation_failures.end()) found->second->Increment();
}

void Metrics::OnUnhealthy(const absl::Status&) { SetReady(false); }

void Metrics::OnRequestStart(Method method) {
  state_->methods[static_cast<int>(method)].in_flight->Increment();
}

void Metrics::OnRequestEnd(const RequestRecord& record) {
  State& s = *state_;
  MethodMetrics& m = s.methods[static_cast<int>(record.method)];
  m.in_flight->Decrement();
  const int code = static_cast<int>(record.status.code());
  m.by_code[code >= 0 && code < kCodes ? code : 2]->Increment();  // 2: UNKNOWN
  Observe(m.seconds, record.total_seconds);
  s.received->Increment(static_cast<double>(record.received_bytes));
  s.transmitted->Increment(static_cast<double>(record.sent_bytes));
  if (record.retried) s.retried->Increment();
  if (IsRejection(record.status)) s.rejected.find(RejectReason(record.status))->second->Increment();
  if (!record.ran) return;
  s.sequences->Increment(static_cast<double>(record.sequences));
  s.padding_tokens->Increment(static_cast<double>(record.padding_tokens));
  Observe(s.stage_decode, record.decode_seconds);
  Observe(s.stage_queue, record.report.queue_seconds);
  Observe(s.stage_copy_in, record.report.copy_in_seconds);
  Observe(s.stage_kernel, record.report.kernel_seconds);
  Observe(s.stage_copy_out, record.report.copy_out_seconds);
}

void Metrics::SetCertificateExpiry(std::chrono::system_clock::time_point expiry) {
  MutexLock lock(state_->mutex);
  state_->certificate_expiry = std::chrono::duration<double>(expiry.time_since_epoch()).count();
}

void Metrics::CountCredentialsReload(bool good) {
  (good ? state_->reloads : state_->reload_failures)->Increment();
}

void Metrics::OnUnauthenticated() { state_->rejected.find("unauthenticated")->second->Increment(); }

void Metrics::OnConnectionStart() { state_->connections->Increment(); }
void Metrics::OnConnectionEnd() { state_->connections->Decrement(); }
void Metrics::OnConnectionRefused(ConnectionLimit limit, const std::string&) {
  state_->connections_refused[static_cast<int>(limit)]->Increment();
}

void Metrics::OnStreamStart() { state_->streams->Increment(); }
void Metrics::OnStreamEnd() { state_->streams->Decrement(); }

}  // namespace attend
