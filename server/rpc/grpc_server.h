// The gRPC listener: limits, credentials and the services of one server.

#ifndef ATTEND_SERVER_RPC_GRPC_SERVER_H_
#define ATTEND_SERVER_RPC_GRPC_SERVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/engine/request.h"
#include "server/rpc/tcp_listener.h"

namespace attend {

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:50051";  // host:port or unix:/path; port 0 takes a free one

  // gRPC holds a whole message before anyone can refuse it, so this is no larger than the service
  // needs: 256 MiB is q, k and v of 10,000 rows of 32 heads of 128 in 16 bits.
  int64_t max_receive_message_bytes = int64_t{256} << 20;
  // What all messages on their way in may hold, whoever sends them. Above it gRPC closes
  // connections without calls and then resets calls of its choice (RESOURCE_EXHAUSTED at the
  // client) until what is left fits, so it is no share for ordinary days, only a guard against many
  // slow senders; a sudden flood passes it for the moment that gRPC needs to react. What comes
  // without ever being a whole message, headers without an end, may be twice as much. 0: eight of
  // the largest messages, and no less than 64 MiB.
  int64_t max_receive_buffer_bytes = 0;
  // Open connections, also of those that have not finished their handshakes; one more is closed at
  // once. 0: no limit. Not for Unix sockets, whose directory says who may connect.
  int64_t max_connections = 4096;
  int64_t max_connections_per_address = 256;  // of an IPv4 address, or an IPv6 /64 network
  int max_streams_per_connection = 1024;      // calls at once; more wait at the client
  int64_t max_metadata_bytes = 16 << 10;      // headers of one call

  // A connection that has not finished its handshakes by then is closed.
  std::chrono::milliseconds handshake_timeout{10000};
  // A silent connection is probed after this, and closed when no answer comes within the other.
  std::chrono::milliseconds keepalive_time{60000};
  std::chrono::milliseconds keepalive_timeout{20000};
  // A client that probes more often than this, twice, is told to go away.
  std::chrono::milliseconds min_client_ping_interval{10000};
  // Connections older than this are asked to reconnect, so that load balancers can move them. 0:
  // never.
  std::chrono::milliseconds max_connection_age{0};
  std::chrono::milliseconds max_connection_idle{0};  // 0: never closed

  bool reflection = true;
};

// OK, or INVALID_ARGUMENT: a buffer that does not hold two of the largest messages.
absl::Status Validate(const GrpcServerOptions& options);

class GrpcServer {
 public:
  // Serves `services` (kept by the caller, like `observer` and `ledger` alive until after Shutdown)
  // from now on. UNAVAILABLE when the address is taken or cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, std::shared_ptr<grpc::ServerCredentials> credentials,
      const std::vector<grpc::Service*>& services, RpcObserver* observer, ConnectionLedger* ledger);
  ~GrpcServer();

  int port() const { return port_; }  // 0 for a Unix socket

  // No new calls; waits for open ones, cancelling at the deadline those that are left.
  void Shutdown(Clock::time_point deadline);

 private:
  GrpcServer(std::shared_ptr<grpc::ServerCredentials> credentials,
             std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor,
             std::unique_ptr<grpc::Server> server, std::unique_ptr<TcpListener> listener);
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // asked at each handshake and call
  // Null on a Unix socket, where gRPC itself listens.
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  const std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<TcpListener> listener_;  // until Shutdown
  const int port_;
};

// Sends the log lines of gRPC and protobuf to `sink` from now on, instead of stderr: both write one
// for what any client can do wrong. `severity`: 0 debug, 1 info, 2 error. Call before their first
// use.
void RedirectLibraryLogs(void (*sink)(int severity, const char* message));

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_GRPC_SERVER_H_
