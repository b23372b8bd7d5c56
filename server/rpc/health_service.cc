#include "server/rpc/health_service.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace attend {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using ServingStatus = HealthCheckResponse::ServingStatus;

// One Watch: writes the status whenever it differs from what was last written.
class HealthService::WatchCall final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                       public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(HealthService* service, bool known) : service_(service), known_(known) {}

  void Refuse(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      finished_ = true;
    }
    Finish(status);
  }

  void Update() {
    const std::shared_ptr<WatchCall> self = shared_from_this();
    bool write = false, finish = false;
    grpc::Status end;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      bool serving, shut_down;
      {
        MutexLock service_lock(service_->mutex_);
        serving = service_->serving_;
        shut_down = service_->shut_down_;
      }
      const ServingStatus now = !known_   ? HealthCheckResponse::SERVICE_UNKNOWN
                                : serving ? HealthCheckResponse::SERVING
                                          : HealthCheckResponse::NOT_SERVING;
      if (broken_) {
        finished_ = finish = true;
        end = grpc::Status::CANCELLED;
      } else if (last_ != now) {
        last_ = now;
        message_.set_status(now);
        writing_ = write = true;
      } else if (shut_down) {
        finished_ = finish = true;
        end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
      }
    }
    if (write) StartWrite(&message_);
    if (finish) Finish(end);
  }

 private:
  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok) broken_ = true;
    }
    Update();
  }
  void OnCancel() override {
    {
      MutexLock lock(mutex_);
      broken_ = true;
    }
    Update();
  }
  void OnDone() override {
    const std::shared_ptr<WatchCall> self = shared_from_this();
    MutexLock lock(service_->mutex_);
    service_->watches_.erase(self);
  }

  HealthService* const service_;
  const bool known_;
  HealthCheckResponse message_;  // owned by gRPC while a write is out
  Mutex mutex_;
  std::optional<ServingStatus> last_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

HealthService::HealthService(std::vector<std::string> names) : names_(std::move(names)) {}

HealthService::~HealthService() = default;

bool HealthService::Knows(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::vector<std::shared_ptr<HealthService::WatchCall>> HealthService::Watches() const {
  MutexLock lock(mutex_);
  return {watches_.begin(), watches_.end()};
}

void HealthService::SetServing(bool serving) {
  {
    MutexLock lock(mutex_);
    serving_ = serving && !shut_down_;
  }
  for (const std::shared_ptr<WatchCall>& watch : Watches()) watch->Update();
}

bool HealthService::serving() const {
  MutexLock lock(mutex_);
  return serving_;
}

void HealthService::Shutdown() {
  {
    MutexLock lock(mutex_);
    serving_ = false;
    shut_down_ = true;
  }
  for (const std::shared_ptr<WatchCall>& watch : Watches()) watch->Update();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!Knows(request->service())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no service of that name"));
    return reactor;
  }
  response->set_status(serving() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watch = std::make_shared<WatchCall>(this, Knows(request->service()));
  bool full;
  {
    MutexLock lock(mutex_);
    full = watches_.size() >= kMaxWatches;
    watches_.insert(watch);  // held there until OnDone, refused or not
  }
  if (full) {
    watch->Refuse(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many health watches"));
  } else {
    watch->Update();
  }
  return watch.get();
}

}  // namespace attend
