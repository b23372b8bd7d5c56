// The metrics of the server: what engines and services report, and what is read when scraped.
//
// All label values come from closed sets and every series exists at 0 from the start, so that rates
// and alerts on absence work from the first scrape. README.md lists them.

#ifndef ATTEND_SERVER_OPS_METRICS_H_
#define ATTEND_SERVER_OPS_METRICS_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/engine/engine_group.h"
#include "server/engine/engine_observer.h"
#include "server/engine/engine_options.h"
#include "server/rpc/rpc_observer.h"

namespace attend {

// What does not change while the process lives.
struct BuildInfo {
  std::string version, revision, compiler, cuda, grpc;
};
BuildInfo ThisBuild();

// Thread-safe. Must outlive the engines and services that report to it.
class Metrics : public EngineObserver, public RpcObserver {
 public:
  // `backend` and its kernels, and the ordinals of the devices, give the label values.
  Metrics(const Backend& backend, const std::vector<int>& devices);
  ~Metrics() override;

  // From now on scrapes read the engines; until nullptr is given again. Waits for a scrape in
  // progress.
  void Watch(const EngineGroup* engines, const EngineOptions& options);
  void SetReady(bool ready);
  // Served from now on; shown only once it has been set.
  void SetCertificateExpiry(std::chrono::system_clock::time_point expiry);
  void CountCredentialsReload(bool good);

  // The text exposition, version 0.0.4.
  std::string Render() const;

  void OnBatch(const BatchRecord& record) override;
  void OnQueueTime(double seconds) override;
  void OnCancelled(EndStage stage) override;
  void OnExpired(EndStage stage) override;
  void OnAllocationFailure(std::string_view pool) override;
  void OnUnhealthy(const absl::Status& status) override;

  void OnRequestStart(Method method) override;
  void OnRequestEnd(const RequestRecord& record) override;
  void OnUnauthenticated() override;
  void OnConnectionStart() override;
  void OnConnectionEnd() override;
  void OnConnectionRefused(ConnectionLimit limit, const std::string& client) override;
  void OnStreamStart() override;
  void OnStreamEnd() override;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_METRICS_H_
