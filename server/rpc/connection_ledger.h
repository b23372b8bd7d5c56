// Which connections have brought a whole message lately: services write, the listener reads.

#ifndef ATTEND_SERVER_RPC_CONNECTION_LEDGER_H_
#define ATTEND_SERVER_RPC_CONNECTION_LEDGER_H_

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "server/engine/mutex.h"

namespace attend {

// Thread-safe.
class ConnectionLedger {
 public:
  // `peer` as gRPC names it: "ipv4:192.0.2.7:1234".
  void OnMessage(std::string peer) {
    MutexLock lock(mutex_);
    peers_.insert(std::move(peer));
  }
  // The peers of the messages since the last call.
  absl::flat_hash_set<std::string> Take() {
    MutexLock lock(mutex_);
    return std::exchange(peers_, {});
  }

 private:
  Mutex mutex_;
  absl::flat_hash_set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_CONNECTION_LEDGER_H_
