// The engine behind server/engine/engine.h.
//
// Threads: the callers', `workers` (each owns one executor), one timer, the completion pool.
// One mutex guards the queue and every request in it. It is never held while a batch runs, while
// the backend, the observer or `done` is called, or while memory is taken from the host. No lock is
// taken under those of AdmissionControl, StagingPool and CompletionPool.

#ifndef ATTEND_SERVER_ENGINE_ENGINE_IMPL_H_
#define ATTEND_SERVER_ENGINE_ENGINE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/admission_control.h"
#include "server/engine/batch_runner.h"
#include "server/engine/batcher.h"
#include "server/engine/completion_pool.h"
#include "server/engine/engine.h"
#include "server/engine/mutex.h"
#include "server/engine/staging_pool.h"

namespace attend {

struct Admission::State {
  std::shared_ptr<EngineImpl> engine;
  StagingLease lease;
  MemoryKind memory_kind = MemoryKind::kHost;
  std::string client;
  int64_t bytes = 0;  // as counted by admission
  double flops = 0;
  bool served = false;  // false: admission failed at a later step
  ~State();
};

class EngineImpl : public std::enable_shared_from_this<EngineImpl> {
 public:
  static absl::StatusOr<std::shared_ptr<EngineImpl>> Create(std::unique_ptr<Backend> backend,
                                                            const EngineOptions& options,
                                                            EngineObserver* observer);
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  const Backend& backend() const { return *backend_; }
  absl::StatusOr<Admission> Admit(const AdmissionRequest& request);
  RequestHandle Submit(Request request);
  void Cancel(uint64_t sequence);
  absl::Status Drain(Clock::time_point deadline);
  absl::Status WarmUp();
  EngineStats stats() const;
  absl::Status Healthy();
  // What ~Engine does. Called once.
  void Shutdown();

 private:
  friend struct Admission::State;

  // A request from Submit until its `done` has returned. Fields below the line are guarded by
  // mutex_; those above are constant, and workers read them without it while running_tasks > 0.
  struct Record {
    Request request;
    uint64_t sequence = 0;
    Clock::time_point arrival;
    double flops = 0;
    int64_t tokens = 0;
    int64_t bytes = 0;
    // ----
    int64_t queued_tasks = 0;
    int64_t running_tasks = 0;
    bool launched = false;
    bool counted = false;  // the observer has heard that it was cancelled or too late
    absl::Status status;   // first failure
    RequestReport report;
  };
  // A request that has ended, and what the observer has yet to hear. Delivered without the lock.
  struct Ended {
    std::unique_ptr<Record> record;  // null: only the observer's part
    std::optional<EndStage> cancelled;
    std::optional<EndStage> expired;
    std::optional<double> queue_seconds;
  };
  using EndedList = std::vector<Ended>;
  // One worker's scratch memory for a batch.
  struct Launch {
    Batch batch;
    std::vector<const Record*> records;  // by task
    std::vector<AttentionTask> tasks;
    std::vector<uint64_t> owners;
  };
  struct Worker {
    std::unique_ptr<BatchRunner> runner;
    std::thread thread;
    uint64_t warmed = 0;  // guarded by mutex_: the last warm-up it has run
  };

  EngineImpl(std::unique_ptr<Backend> backend, const EngineOptions& options,
             EngineObserver* observer);
  void StartThreads();

  // engine_impl.cc: admission, life cycle.
  void Leave(const Admission::State& admission) ABSL_LOCKS_EXCLUDED(mutex_);
  void MarkUnhealthy(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mutex_);

  // engine_queue.cc: a request from Submit to its end, outside of workers.
  absl::Status Refusal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the tasks of `record` that are still queued and, when there were any, makes `status` its
  // end. The record is extracted when no worker has a task of it; otherwise it ends when that
  // worker is through.
  Ended EndEarly(Record* record, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndAllQueued(absl::FunctionRef<absl::Status()> make_status, EndedList* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Clock::time_point> Expire(Clock::time_point now, EndedList* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Record> Extract(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountUnqueued(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the observer, then posts `done`.
  void Deliver(EndedList* ended) ABSL_LOCKS_EXCLUDED(mutex_);
  void PostDone(std::unique_ptr<Record> record) ABSL_LOCKS_EXCLUDED(mutex_);
  void TimerLoop() ABSL_LOCKS_EXCLUDED(mutex_);

  // engine_worker.cc: what workers do.
  void WorkerLoop(int index) ABSL_LOCKS_EXCLUDED(mutex_);
  void Prepare(Launch* launch, Clock::time_point now, EndedList* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunLaunch(int index, Launch* launch) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnResult(int index, const Launch& launch, RunResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunWarmUp(Worker* worker, uint64_t round) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<Backend> backend_;
  const EngineOptions options_;
  EngineObserver* const observer_;
  const int device_;
  std::unique_ptr<StagingPool> staging_;  // constant after Create
  AdmissionControl admission_control_;
  std::unique_ptr<CompletionPool> completions_;   // constant until Shutdown
  std::vector<std::unique_ptr<Worker>> workers_;  // the vector is constant after Create
  std::thread timer_;

  Mutex mutex_;
  CondVar work_;      // something to take, to warm up or to stop for
  CondVar deadline_;  // the timer has to look earlier than it meant to, or stop
  CondVar idle_;      // unfinished_, places or warm-ups have changed
  Batcher batcher_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::unique_ptr<Record>> records_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  Clock::time_point timer_wakes_ ABSL_GUARDED_BY(mutex_) = Clock::time_point::min();
  int64_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // submitted, `done` has not returned
  int busy_workers_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t warm_up_wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status warm_up_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status sick_ ABSL_GUARDED_BY(mutex_);      // the first sticky device error
  bool refusing_ ABSL_GUARDED_BY(mutex_) = false;  // drained: not even with an Admission
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // For stats() and Admit. draining_ and healthy_ change under mutex_, and so do the sums.
  std::atomic<bool> draining_{false};
  std::atomic<bool> healthy_{true};
  std::atomic<int64_t> queued_requests_{0};
  std::atomic<int64_t> queued_tokens_{0};
  std::atomic<int64_t> queued_bytes_{0};
  std::atomic<double> outstanding_flops_{0};
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_ENGINE_IMPL_H_
