#include "server/ops/options.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/backend.h"
#include "kernels/errors.h"

namespace attend {
namespace {

constexpr int64_t kMost64 = int64_t{1} << 50;  // bytes and counts: against typing errors
constexpr int kMostInt = std::numeric_limits<int>::max();

void AddListening(ServerOptions* o, OptionTable* table) {
  const std::string group = "Listening";
  table->Add("listen", &o->grpc.listen, group,
             "gRPC address, host:port or unix:/path; port 0 takes a free one");
  table->Add("http-listen", &o->http.listen, group,
             "address of /metrics, /livez, /readyz, /version; IPv4 host:port; empty turns it off");
  table->Add("http-threads", &o->http.threads, 2, 1024, group, "connections served at once");
  table->Add("http-request-timeout", &o->http.request_timeout, group,
             "a connection that sends no request is closed after this");
  table->Add("port-file", &o->port_file, group,
             "write \"grpc PORT\" and \"http PORT\" to this file once ready");
  table->Add("reflection", &o->grpc.reflection, group, "gRPC server reflection");
  table->Add("config-file", &o->config_file, group,
             "file of name = value lines; environment and command line override it");
}

void AddSecurity(ServerOptions* o, OptionTable* table) {
  const std::string group = "Security (files are read again when they change)";
  table->Add("tls-cert", &o->security.tls_cert, group,
             "PEM file: the server's certificate and its issuers; turns encryption on");
  table->Add("tls-key", &o->security.tls_key, group, "PEM file: its private key");
  table->Add("tls-client-ca", &o->security.tls_client_ca, group,
             "PEM file: signers of client certificates, which are then demanded");
  table->Add("auth-token-file", &o->security.auth_token_file, group,
             "file with one bearer token a line; each call must bring one, health checks excepted");
  table->Add("insecure-auth", &o->security.insecure_auth, group,
             "take tokens over connections that are not encrypted");
  table->Add("reload-interval", &o->security.reload_interval, group,
             "how often those files are looked at");
}

void AddBackend(ServerOptions* o, OptionTable* table) {
  const std::string group = "Backend";
  std::string names = "auto";
  for (const BackendEntry& entry : BackendRegistry()) {
    absl::StrAppend(&names, ", ", std::string(entry.name));
  }
  table->AddChoice("backend", &o->backend, names, group,
                   "what computes; auto takes the best one whose device answers");
  table->Add("devices", &o->devices, group, "device ordinals such as 0,2, or all");
  table->Add("threads", &o->threads, 0, 4096, group, "CPU backend: threads; 0: one for each core");
  table->Add("device-memory-limit", &o->device_memory_limit, Unit::kBytes, 0, kMost64, group,
             "most device memory to take; 0: 90 % of what is free at start");
  table->Add("workers", &o->engine.workers, 0, 1024, group,
             "streams for each device; 0: what the backend prefers");
}

void AddLimits(ServerOptions* o, OptionTable* table) {
  const std::string group = "Limits";
  table->Add("max-receive-message-bytes", &o->grpc.max_receive_message_bytes, Unit::kBytes, 1024,
             kMostInt, group, "largest request message");
  table->Add("max-receive-buffer-bytes", &o->grpc.max_receive_buffer_bytes, Unit::kBytes, 0,
             kMost64, group,
             "memory for all messages on their way in; 0: eight of the largest messages");
  table->Add("max-in-flight-requests", &o->engine.max_in_flight_requests, Unit::kCount, 1,
             int64_t{1} << 24, group, "requests accepted and not yet answered, for each device");
  table->Add("max-in-flight-bytes", &o->engine.max_in_flight_bytes, Unit::kBytes, 256, kMost64,
             group, "staging memory of those requests, for each device");
  table->Add("client-share", &o->engine.client_share, 0.0, 1.0, group,
             "share of both that one client address may take; 1: all");
  table->Add("max-sequences", &o->codec.max_sequences, Unit::kCount, 1, int64_t{1} << 24, group,
             "sequences of one request");
  table->Add("max-connections", &o->grpc.max_connections, Unit::kCount, 0, 1 << 20, group,
             "open gRPC connections; one more is closed at once; 0: no limit");
  table->Add("max-connections-per-address", &o->grpc.max_connections_per_address, Unit::kCount, 0,
             1 << 20, group, "the same from one IPv4 address or IPv6 /64 network; 0: no limit");
  table->Add("max-streams-per-connection", &o->grpc.max_streams_per_connection, 1, 1 << 20, group,
             "calls at once on one connection");
  table->Add("max-metadata-bytes", &o->grpc.max_metadata_bytes, Unit::kBytes, 1024, 1 << 20, group,
             "headers of one call");
  table->Add("staging-slab-bytes", &o->engine.staging_slab_bytes, Unit::kBytes, 4096, kMost64,
             group, "unit in which staging memory is taken");
  table->Add("staging-initial-bytes", &o->engine.staging_initial_bytes, Unit::kBytes, 0, kMost64,
             group, "staging memory taken at start");
}

void AddBatching(ServerOptions* o, OptionTable* table) {
  const std::string group = "Batching";
  table->Add("max-batch-tasks", &o->engine.max_batch_tasks, Unit::kCount, 1, int64_t{1} << 24,
             group, "sequences of one batch");
  table->Add("max-batch-flops", &o->engine.max_batch_flops, 1.0, 1e18, group,
             "floating-point operations of one batch");
  table->Add("max-batch-bytes", &o->engine.max_batch_bytes, Unit::kBytes, 1, kMost64, group,
             "tensors of one batch");
  table->Add("batch-delay", &o->engine.batch_delay, group,
             "how long an idle worker waits for company");
  table->Add("default-slack", &o->engine.default_slack, group,
             "deadline, for ordering, of a request without one");
  table->Add("ageing", &o->engine.ageing, group,
             "a waiting request gains one priority class per this");
}

void AddThreadsAndTimes(ServerOptions* o, OptionTable* table) {
  const std::string group = "Threads and times";
  table->Add("copy-threads", &o->copy_threads, 0, 1024, group,
             "threads that copy tensors out of messages; 0: half the cores, 1 to 8");
  table->Add("completion-threads", &o->engine.completion_threads, 1, 1024, group,
             "threads that send replies, for each device");
  table->Add("drain-delay", &o->drain_delay, group,
             "after SIGTERM: serve on, not ready, for this long (behind a load balancer: 5s)");
  table->Add("drain-timeout", &o->drain_timeout, group,
             "after that: longest wait for accepted requests to end");
  table->Add("handshake-timeout", &o->grpc.handshake_timeout, group,
             "a connection that is not set up by then is closed");
  table->Add("keepalive-time", &o->grpc.keepalive_time, group,
             "a silent connection is probed after this");
  table->Add("keepalive-timeout", &o->grpc.keepalive_timeout, group,
             "and closed when it does not answer within this");
  table->Add("min-client-ping-interval", &o->grpc.min_client_ping_interval, group,
             "clients that probe more often are sent away");
  table->Add("max-connection-age", &o->grpc.max_connection_age, group,
             "connections are asked to reconnect after this; 0: never");
  table->Add("max-connection-idle", &o->grpc.max_connection_idle, group,
             "connections without calls are closed after this; 0: never");
}

void AddLogs(ServerOptions* o, OptionTable* table) {
  const std::string group = "Logs";
  table->AddChoice("log-format", &o->log.format, "text, json", group, "form of a line on stderr");
  table->AddChoice("log-level", &o->log.level, "debug, info, warn, error, off", group,
                   "least level; at run time: PUT /log-level on the HTTP port, from this host");
  table->Add("log-requests", &o->log.requests, group,
             "a line for each answered request, not only for refused ones");
  table->Add("log-lines-per-second", &o->log.lines_per_second, Unit::kCount, 0, int64_t{1} << 30,
             group, "most lines of refused requests, and of answered ones; 0: no limit");
}

}  // namespace

OptionTable MakeOptionTable(ServerOptions* options) {
  OptionTable table;
  AddListening(options, &table);
  AddSecurity(options, &table);
  AddBackend(options, &table);
  AddLimits(options, &table);
  AddBatching(options, &table);
  AddThreadsAndTimes(options, &table);
  AddLogs(options, &table);
  return table;
}

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const std::string> args,
                                             const OptionTable::GetEnv& get_env) {
  CommandLine line;
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") line.action = Action::kHelp;
    if (arg == "--version") line.action = Action::kVersion;
    if (line.action != Action::kServe) return line;
  }
  absl::Status status = MakeOptionTable(&line.options).Parse(args, get_env);
  if (status.ok()) status = ParseDevices(line.options.devices).status();
  if (status.ok()) status = Validate(line.options.engine);
  if (status.ok()) status = Validate(line.options.grpc);
  if (status.ok()) status = Validate(line.options.security);
  if (!status.ok()) return status;
  return line;
}

std::string HelpText() {
  ServerOptions defaults;
  return absl::StrCat(
      "attend-server: serves batched attention over gRPC.\n\n"
      "Usage: attend-server [--OPTION=VALUE]...\n\n"
      "Each option has an environment twin: --max-batch-bytes is ATTEND_MAX_BATCH_BYTES. The "
      "command line\nwins over the environment, that over --config-file, that over the default, "
      "shown in parentheses.\nBYTES take the suffixes KiB, MiB, GiB; TIME needs one of us, ms, s, "
      "m, h.\n",
      MakeOptionTable(&defaults).Help(),
      "\nOther:\n  --help, --version\n\n"
      "Signals: SIGTERM and SIGINT finish what was accepted, then exit 0; a second one gives up on "
      "it.\nExit codes: 0 stopped when asked, 1 failed, 2 usage error.\n");
}

absl::StatusOr<std::vector<int>> ParseDevices(const std::string& text) {
  std::vector<int> devices;
  if (text == "all") return devices;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int device;
    if (!absl::SimpleAtoi(part, &device) || device < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices: \"", text, "\" is not all or numbers such as 0,2"));
    }
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices: ", device, " is named more than once"));
    }
    devices.push_back(device);
  }
  return devices;
}

}  // namespace attend
