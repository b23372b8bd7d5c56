// The engine: one device, its queue and its workers.
//
//   absl::StatusOr<Admission> admission = engine.Admit({"client-a", staging_bytes, flops});
//   ... copy the tensors into admission->staging(), point tasks at them ...
//   RequestHandle handle = engine.Submit(std::move(request));   // request.done will be called once
//   handle.Cancel();                                            // any time, any thread
//
// The engine speaks no gRPC, protobuf, CUDA or Prometheus: it can be tested without any of them.

#ifndef ATTEND_SERVER_ENGINE_ENGINE_H_
#define ATTEND_SERVER_ENGINE_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/engine/engine_observer.h"
#include "server/engine/engine_options.h"
#include "server/engine/request.h"

namespace attend {

class EngineImpl;  // owned by Engine; admissions keep it, with its backend, alive

// A place in the engine and its staging memory. Move-only. Destruction gives both back; the
// memory must not be used after that, so keep it until the reply has left.
class Admission {
 public:
  Admission();  // empty
  Admission(Admission&&) noexcept;
  Admission& operator=(Admission&&) noexcept;
  ~Admission();

  // 256-byte aligned; its content is arbitrary. Null when no bytes were asked for.
  std::byte* staging() const;
  size_t staging_bytes() const;
  MemoryKind memory_kind() const;

 private:
  friend class EngineImpl;
  friend class EngineGroup;
  struct State;
  std::unique_ptr<State> state_;
};

// Safe to copy, to use from any thread and to keep after the engine is gone.
class RequestHandle {
 public:
  RequestHandle() = default;
  // Asks for an early end. A request still queued leaves the queue at once and ends with
  // CANCELLED; one already launched runs to its end and `done` gets what it gets. Idempotent.
  void Cancel() const;

 private:
  friend class EngineImpl;
  std::weak_ptr<EngineImpl> engine_;
  uint64_t sequence_ = 0;
};

struct AdmissionRequest {
  std::string client;        // whose share it counts against
  size_t staging_bytes = 0;  // inputs and outputs together, paddings for alignment included
  double flops = 0;          // of all tasks (Flops); tells an EngineGroup where work is piling up
};

// A snapshot for gauges and for choosing an engine. Read from atomics: cheap, takes no lock.
struct EngineStats {
  int64_t queued_requests = 0;
  int64_t queued_tokens = 0;  // query rows
  int64_t queued_bytes = 0;
  int64_t in_flight_requests = 0;  // admitted and not yet released
  int64_t in_flight_bytes = 0;
  double in_flight_flops = 0;    // as told by AdmissionRequest::flops
  double outstanding_flops = 0;  // queued and running
  int64_t staging_used_bytes = 0;
  int64_t staging_reserved_bytes = 0;
  int64_t staging_peak_bytes = 0;
  int64_t staging_limit_bytes = 0;
  bool draining = false;
  bool healthy = true;
};

class Engine {
 public:
  // Takes the initial staging and starts the threads. INVALID_ARGUMENT names an option out of
  // range. `observer` may be null; it must outlive the engine, its handles and its admissions.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::unique_ptr<Backend> backend,
                                                        const EngineOptions& options,
                                                        EngineObserver* observer);
  // Refuses new work, runs what was submitted to its end without limit, then joins. Prefer Drain()
  // first. REQUIRES: no other call in progress, and not called from `done` or the observer.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Backend& backend() const;

  // Reserves a place, bytes and staging, before anything large is copied.
  // RESOURCE_EXHAUSTED with a retry hint and a reason (QUEUE_FULL, MEMORY, CLIENT_SHARE) when it
  // may pass later; INVALID_ARGUMENT (TOO_LARGE, naming the limit) when it never can; UNAVAILABLE
  // (DRAINING, DEVICE_UNHEALTHY) when draining or sick. Quick, but for the times when the staging
  // pool takes another slab from the host.
  absl::StatusOr<Admission> Admit(const AdmissionRequest& request);

  // Queues a request whose tensors are in place. Always answers through request.done, also when
  // refusing (UNAVAILABLE, DEADLINE_EXCEEDED). A request without tasks ends with OK at once.
  // REQUIRES: tasks passed Validate and Supports, and the caller keeps the Admission until after
  // done.
  RequestHandle Submit(Request request);

  // Admits nothing from now on, but still takes requests that hold an Admission. Returns when
  // every accepted request has ended and every Admission was given back (OK), or at the deadline
  // (DEADLINE_EXCEEDED, after ending what is still queued with UNAVAILABLE).
  absl::Status Drain(Clock::time_point deadline);

  // Runs small tasks of each dtype through every worker, so that the first client meets a warm
  // device. Call before reporting ready. The first error, or OK.
  absl::Status WarmUp();

  EngineStats stats() const;

  // UNAVAILABLE after a sticky device error, for ever. Asks the backend too, so that an idle
  // engine notices.
  absl::Status Healthy() const;

 private:
  explicit Engine(std::shared_ptr<EngineImpl> impl);
  std::shared_ptr<EngineImpl> impl_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_ENGINE_H_
