// Several engines, one for each device, behind the surface of one.
//
//   absl::StatusOr<Admission> admission = group.Admit({"client-a", staging_bytes, flops});
//   RequestHandle handle = group.Submit(*admission, std::move(request));
//
// A request goes to the engine with the least outstanding work; an engine that is sick gets none,
// while the others go on. All engines drive the same kind of backend, so what one supports all do.

#ifndef ATTEND_SERVER_ENGINE_ENGINE_GROUP_H_
#define ATTEND_SERVER_ENGINE_ENGINE_GROUP_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/engine/engine.h"

namespace attend {

// Thread-safe. Destruction ends its engines as ~Engine does.
class EngineGroup {
 public:
  // REQUIRES: at least one engine.
  explicit EngineGroup(std::vector<std::unique_ptr<Engine>> engines);
  EngineGroup(const EngineGroup&) = delete;
  EngineGroup& operator=(const EngineGroup&) = delete;

  absl::Span<const std::unique_ptr<Engine>> engines() const { return engines_; }

  // The first engine's: for Supports() and GetServerInfo.
  const Backend& backend() const { return engines_.front()->backend(); }

  // As Engine::Admit, from the least loaded healthy engine, then from the next when that one has
  // no room. When all refuse: the answer of the least loaded one.
  absl::StatusOr<Admission> Admit(const AdmissionRequest& request);

  // As Engine::Submit, on the engine that gave `admission`. REQUIRES: `admission` is not empty.
  RequestHandle Submit(const Admission& admission, Request request);

  // Drains all engines at once. The first error, or OK.
  absl::Status Drain(Clock::time_point deadline);

  // Warms all engines up at once. The first error, or OK.
  absl::Status WarmUp();

  // Sums over all engines; `draining` when all drain, `healthy` when all are.
  EngineStats stats() const;

  // OK while at least one engine is healthy; otherwise the first engine's status. A server with a
  // sick device should finish what it holds and be restarted: see OnUnhealthy.
  absl::Status Healthy() const;

 private:
  const std::vector<std::unique_ptr<Engine>> engines_;
  std::atomic<size_t> next_{0};  // where the next round over equals starts
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_ENGINE_GROUP_H_
