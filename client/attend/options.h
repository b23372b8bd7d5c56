// How a client reaches its server.
//
// Units: bytes and std::chrono. Ownership: plain values, copied by Client::Create.
// Threads: plain values.

#ifndef ATTEND_CLIENT_OPTIONS_H_
#define ATTEND_CLIENT_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace attend::client {

// Paths of PEM files, read once by Client::Create.
struct TlsOptions {
  bool enabled = false;
  std::string ca_file;      // trusted roots; empty: the system's
  std::string cert_file;    // client certificate (mTLS); needs key_file
  std::string key_file;     // its private key
  std::string server_name;  // name to expect in the server's certificate; empty: the target's host
};

// A call is tried again after UNAVAILABLE, and after RESOURCE_EXHAUSTED when the server says when.
// A CANCELLED that the caller did not ask for counts as UNAVAILABLE: a server shutting down.
// The server's hint (RetryInfo, or the grpc-retry-pushback-ms trailer) replaces the backoff. No
// retry starts that would end past the call's deadline.
struct RetryOptions {
  int max_attempts = 5;  // 1: never retry
  std::chrono::milliseconds initial_backoff{50};
  std::chrono::milliseconds max_backoff{5000};
  double multiplier = 2.0;
};

enum class CallMode : uint8_t {
  kUnary,   // one RPC a request
  kStream,  // one long-lived stream a channel, many requests in flight on it
};

struct ClientOptions {
  // Connections. One connection moves about one CPU core's worth of bytes, so more of them move
  // more; past the cores at hand they only cost memory.
  int channels = 4;
  CallMode mode = CallMode::kUnary;
  std::chrono::nanoseconds default_timeout = std::chrono::seconds(60);
  RetryOptions retry;
  TlsOptions tls;

  // Bearer token, or a file that holds one; the file is read again at every call, so that a token
  // can be rotated. A token is refused without TLS (FAILED_PRECONDITION), since anyone on the way
  // could read it, unless allow_insecure_token is set.
  std::string token;
  std::string token_file;
  bool allow_insecure_token = false;

  // Most bytes of send buffers kept for reuse while idle. Fresh buffers cost page faults.
  int64_t idle_buffer_bytes = int64_t{256} << 20;

  // Pings an idle connection after this long; 0: off. A server closes connections that ping more
  // often than it allows.
  std::chrono::milliseconds keepalive_time{0};
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_OPTIONS_H_
