// grpc.health.v1 over one truth: whether this server takes work.
//
// Not gRPC's built-in service: that one answers SERVING between its start and the first word of
// ours, and reflection cannot describe it.

#ifndef ATTEND_SERVER_RPC_HEALTH_SERVICE_H_
#define ATTEND_SERVER_RPC_HEALTH_SERVICE_H_

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/engine/mutex.h"

namespace attend {

// Thread-safe. Must outlive the grpc::Server that it is registered with.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // Watches at once; more are refused (RESOURCE_EXHAUSTED), since each costs memory for ever.
  static constexpr size_t kMaxWatches = 1024;

  // Not serving at first. `names` share one status; "" is among them or not as given.
  explicit HealthService(std::vector<std::string> names);
  ~HealthService() override;

  void SetServing(bool serving);
  bool serving() const;

  // Not serving for good; every Watch gets a last NOT_SERVING and ends, so that the server can
  // stop.
  void Shutdown();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  class WatchCall;

  bool Knows(const std::string& name) const;
  std::vector<std::shared_ptr<WatchCall>> Watches() const;

  const std::vector<std::string> names_;
  mutable Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_set<std::shared_ptr<WatchCall>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_HEALTH_SERVICE_H_
