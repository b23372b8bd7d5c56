// What the engine tells whoever watches it (server/ops turns this into metrics).

#ifndef ATTEND_SERVER_ENGINE_ENGINE_OBSERVER_H_
#define ATTEND_SERVER_ENGINE_ENGINE_OBSERVER_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "server/engine/request.h"

namespace attend {

// Why a batch was closed at the size it had.
enum class BatchReason : uint8_t {
  kDrained,  // nothing else of its class was waiting
  kFull,     // a budget of requests, FLOPs or bytes was reached
};

// Where a request was when it was cancelled or its deadline passed: kLaunched when any of its
// tasks had been given to a worker.
enum class EndStage : uint8_t { kQueue, kLaunched };

struct BatchRecord {
  int device = 0;
  int worker = 0;
  BatchReason reason = BatchReason::kDrained;
  int64_t requests = 0;
  int64_t tasks = 0;
  int64_t query_tokens = 0;
  int64_t kv_tokens = 0;
  double flops = 0;
  int64_t avoided_bytes = 0;  // score matrices that were never written
  BatchReport report;
};

// Called from engine threads and from threads that call the engine, never under a lock, and for
// each request before its `done`. Implementations are thread-safe and quick.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnBatch(const BatchRecord&) {}
  // Once a request that was queued: when its first task is launched, or when it ends unlaunched.
  virtual void OnQueueTime(double /*seconds*/) {}
  // At most once a request each; a launched request that was cancelled or came too late may still
  // end with OK.
  virtual void OnCancelled(EndStage) {}
  virtual void OnExpired(EndStage) {}
  virtual void OnAllocationFailure(std::string_view /*pool: "staging" or "device"*/) {}
  virtual void OnUnhealthy(const absl::Status&) {}  // once, at the first sticky device error
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_ENGINE_OBSERVER_H_
