// Connections to one server, each with a socket of its own, and the credentials for them.

#ifndef ATTEND_CLIENT_INTERNAL_CHANNEL_POOL_H_
#define ATTEND_CLIENT_INTERNAL_CHANNEL_POOL_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attend/options.h"

namespace attend::client {

// Thread-safe.
class ChannelPool {
 public:
  struct Slot {
    explicit Slot(std::shared_ptr<grpc::Channel> c) : channel(c), stub(std::move(c)) {}
    const std::shared_ptr<grpc::Channel> channel;
    grpc::GenericStub stub;
    std::atomic<int> in_flight{0};  // attempts on it now
  };

  static absl::StatusOr<std::unique_ptr<ChannelPool>> Create(const std::string& target,
                                                             const ClientOptions& options);

  // The slot with the fewest attempts on it; equals take turns.
  Slot& Pick();
  std::vector<std::unique_ptr<Slot>>& slots() { return slots_; }

  // Adds the bearer token, if there is one. UNAUTHENTICATED when its file cannot be read now.
  absl::Status Prepare(grpc::ClientContext* context) const;

 private:
  ChannelPool() = default;

  std::vector<std::unique_ptr<Slot>> slots_;
  std::atomic<size_t> turn_{0};
  std::string token_;
  std::string token_file_;
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_CHANNEL_POOL_H_
