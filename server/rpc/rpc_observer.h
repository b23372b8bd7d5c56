// What the services tell whoever watches them (server/ops turns this into metrics and log lines).

#ifndef ATTEND_SERVER_RPC_RPC_OBSERVER_H_
#define ATTEND_SERVER_RPC_RPC_OBSERVER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/engine/request.h"

namespace attend {

enum class Method : uint8_t { kAttend, kAttendStream, kGetServerInfo };
inline constexpr int kMethodCount = 3;
constexpr std::string_view Name(Method method) {
  constexpr std::string_view kNames[] = {"Attend", "AttendStream", "GetServerInfo"};
  return kNames[static_cast<int>(method)];
}

// What stands against one more connection, or ends one: the last.
enum class ConnectionLimit : uint8_t { kAddress, kTotal, kFiles, kMemory };
inline constexpr int kConnectionLimitCount = 4;
constexpr std::string_view Name(ConnectionLimit limit) {
  constexpr std::string_view kNames[] = {"address", "total", "files", "memory"};
  return kNames[static_cast<int>(limit)];
}

// One request that has ended; a request of a stream counts as one.
struct RequestRecord {
  Method method = Method::kAttend;
  std::string request_id;
  std::string client;  // the peer's address without its port
  absl::Status status;
  double total_seconds = 0;   // from the received message to its reply
  double decode_seconds = 0;  // checks and the copy into staging
  bool ran = false;           // `report` is filled
  RequestReport report;
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
  int64_t sequences = 0;
  int64_t query_tokens = 0;
  int64_t kv_tokens = 0;
  int64_t padding_tokens = 0;
  bool retried = false;  // the client said that this is not its first attempt
};

// Called from many threads, never under a lock. Implementations are thread-safe and quick.
class RpcObserver {
 public:
  virtual ~RpcObserver() = default;
  virtual void OnRequestStart(Method) {}
  virtual void OnRequestEnd(const RequestRecord&) {}
  virtual void OnUnauthenticated() {}  // a call without a good token, refused unread
  virtual void OnConnectionStart() {}
  virtual void OnConnectionEnd() {}
  // Closed as soon as it was taken, or ended for the memory that it holds. `client`: its address,
  // or network for IPv6.
  virtual void OnConnectionRefused(ConnectionLimit, const std::string& /*client*/) {}
  virtual void OnStreamStart() {}
  virtual void OnStreamEnd() {}
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_RPC_OBSERVER_H_
