// How many connections each client address has open, and whether it may open one more.

#ifndef ATTEND_SERVER_RPC_CONNECTION_TABLE_H_
#define ATTEND_SERVER_RPC_CONNECTION_TABLE_H_

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/rpc/rpc_observer.h"

namespace attend {

// Not thread-safe.
class ConnectionTable {
 public:
  // 0: no limit.
  ConnectionTable(int64_t most, int64_t most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

  // Counts one more connection of `client`, unless a limit stands against it: then that one.
  std::optional<ConnectionLimit> Admit(const std::string& client);
  // One that was admitted has ended.
  void Release(const std::string& client);

  int64_t open() const { return open_; }

 private:
  int64_t most_, most_per_address_;
  int64_t open_ = 0;
  absl::flat_hash_map<std::string, int64_t> by_client_;  // no zeros
};

// Whom a connection counts for: the IPv4 address, or the /64 network of an IPv6 address, since
// whoever has one address of it has all.
std::string ConnectionClient(const sockaddr_storage& peer);

// The name that gRPC gives to a peer: "ipv4:192.0.2.7:1234", "ipv6:%5B::1%5D:1234".
std::string PeerName(const sockaddr_storage& peer);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_CONNECTION_TABLE_H_
