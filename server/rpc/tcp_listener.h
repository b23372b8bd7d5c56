// Takes TCP connections within limits, and hands them on.
//
// gRPC's own listener takes whatever comes. This one counts connections by client address, closes
// at once what is too much, and gives the others to a `handler` (gRPC's acceptor of connections
// made elsewhere). gRPC does not tell when it closes one, so each socket is also held here, by a
// second descriptor, until both directions are shut down.
//
// gRPC also keeps headers without an end, outside of its memory quota: it checks their size a frame
// at a time. They are told by bytes that come without any whole message: HTTP/2 lets a client send
// nothing else before the end of its headers.

#ifndef ATTEND_SERVER_RPC_TCP_LISTENER_H_
#define ATTEND_SERVER_RPC_TCP_LISTENER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/rpc/connection_ledger.h"
#include "server/rpc/connection_table.h"
#include "server/rpc/rpc_observer.h"

namespace attend {

// A file descriptor, closed at the end.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

class TcpListener {
 public:
  // Owns `fd` from now on; `listener` is the socket that it came by.
  using Handler = std::function<void(int listener, int fd)>;

  // Listens on every address of "host:port" or "[IPv6]:port"; port 0 takes a free one, "[::]" IPv4
  // too. One line naming the address when that fails.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Open(const std::string& listen);
  // Takes no more connections; those handed on live on.
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  int port() const { return port_; }

  // Takes connections from now on, in a thread of its own; until then they wait. Once only. When
  // all connections together have brought more than `most_unfinished_bytes` since the last message
  // that `ledger` has of each, the one that brought most is ended.
  void Start(const ConnectionTable& limits, int64_t most_unfinished_bytes, RpcObserver* observer,
             ConnectionLedger* ledger, Handler handler);

 private:
  TcpListener() : table_(0, 0) {}
  void Run();
  void Take(int listener);
  void Ended(int held);
  void Arm(bool on);
  void EndHoarders();

  std::vector<UniqueFd> sockets_;
  int port_ = 0;
  ConnectionTable table_;
  RpcObserver* observer_ = nullptr;
  Handler handler_;
  UniqueFd epoll_, wake_;
  bool armed_ = true;

  struct Connection {
    std::string client, peer;
    uint64_t received_before = 0;  // bytes, when a message was last known to have come
    bool ended = false;
  };
  std::unordered_map<int, Connection> connections_;  // by the descriptor that is held
  int64_t most_unfinished_bytes_ = 0;
  ConnectionLedger* ledger_ = nullptr;
  std::chrono::steady_clock::time_point next_look_;
  std::thread thread_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_TCP_LISTENER_H_
