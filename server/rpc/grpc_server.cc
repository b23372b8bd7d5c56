#include "server/rpc/grpc_server.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/resource_quota.h"

namespace attend {
namespace {

int Milliseconds(std::chrono::milliseconds duration) {
  return static_cast<int>(std::min<int64_t>(duration.count(), std::numeric_limits<int>::max()));
}

int BoundedInt(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, std::numeric_limits<int>::max()));
}

int64_t ReceiveBufferBytes(const GrpcServerOptions& options) {
  if (options.max_receive_buffer_bytes > 0) return options.max_receive_buffer_bytes;
  return std::max(8 * options.max_receive_message_bytes, int64_t{64} << 20);
}

void (*log_sink)(int, const char*) = nullptr;

}  // namespace

absl::Status Validate(const GrpcServerOptions& options) {
  if (ReceiveBufferBytes(options) / 2 >= options.max_receive_message_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("max_receive_buffer_bytes is ", options.max_receive_buffer_bytes,
                   ", but must hold two messages of max_receive_message_bytes, ",
                   options.max_receive_message_bytes));
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const GrpcServerOptions& options, std::shared_ptr<grpc::ServerCredentials> credentials,
    const std::vector<grpc::Service*>& services, RpcObserver* observer, ConnectionLedger* ledger) {
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // Without this a second server on the port would take a random half of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(BoundedInt(options.max_receive_message_bytes));
  builder.SetMaxSendMessageSize(-1);
  grpc::ResourceQuota memory("receive buffers");
  memory.Resize(static_cast<size_t>(ReceiveBufferBytes(options)));
  builder.SetResourceQuota(memory);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, BoundedInt(options.max_metadata_bytes));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(options.handshake_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(options.min_client_ping_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  if (options.max_connection_age.count() > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               Milliseconds(options.max_connection_age));
  }
  if (options.max_connection_idle.count() > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                               Milliseconds(options.max_connection_idle));
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<TcpListener> listener;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  if (absl::StartsWith(options.listen, "unix:")) {
    builder.AddListeningPort(options.listen, credentials);
  } else {
    absl::StatusOr<std::unique_ptr<TcpListener>> opened = TcpListener::Open(options.listen);
    if (!opened.ok()) return opened.status();
    listener = *std::move(opened);
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.listen, " for gRPC"));
  }
  std::unique_ptr<GrpcServer> started(new GrpcServer(std::move(credentials), std::move(acceptor),
                                                     std::move(server), std::move(listener)));
  if (started->listener_ != nullptr) {
    started->listener_->Start(
        ConnectionTable(options.max_connections, options.max_connections_per_address),
        2 * ReceiveBufferBytes(options), observer, ledger,
        [to = started->acceptor_.get()](int from, int fd) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
          connection.listener_fd = from;
          connection.fd = fd;
          to->HandleNewConnection(&connection);
        });
  }
  return started;
}

GrpcServer::GrpcServer(std::shared_ptr<grpc::ServerCredentials> credentials,
                       std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor,
                       std::unique_ptr<grpc::Server> server, std::unique_ptr<TcpListener> listener)
    : credentials_(std::move(credentials)),
      acceptor_(std::move(acceptor)),
      server_(std::move(server)),
      listener_(std::move(listener)),
      port_(listener_ == nullptr ? 0 : listener_->port()) {}

GrpcServer::~GrpcServer() { Shutdown(Clock::now()); }

void GrpcServer::Shutdown(Clock::time_point deadline) {
  listener_.reset();  // gRPC would leave open what it is given from here on
  const auto left =
      std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - Clock::now());
  server_->Shutdown(std::chrono::system_clock::now() + left);
  server_->Wait();
}

void RedirectLibraryLogs(void (*sink)(int severity, const char* message)) {
  log_sink = sink;
  gpr_set_log_function(
      [](gpr_log_func_args* args) { log_sink(static_cast<int>(args->severity), args->message); });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char*, int, const std::string& message) {
        log_sink(level >= google::protobuf::LOGLEVEL_ERROR ? 2 : 1, message.c_str());
      });
}

}  // namespace attend
