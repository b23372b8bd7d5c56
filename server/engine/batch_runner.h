// Runs a batch to its end on one executor, whatever happens on the way.
//
// - Out of memory: the batch is cut in two and both halves tried, down to a single task, which then
//   ends with RESOURCE_EXHAUSTED.
// - Another failure: cut between requests, so that one bad request fails alone (INTERNAL) and its
//   batch-mates are answered. A request that has failed is not tried again.
// - A device error that no later call survives: everything left of the batch is INTERNAL.
// At most 2 * tasks runs in all.

#ifndef ATTEND_SERVER_ENGINE_BATCH_RUNNER_H_
#define ATTEND_SERVER_ENGINE_BATCH_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "server/engine/engine_observer.h"

namespace attend {

// What became of tasks [begin, end) of the batch. They do not run again.
struct RunResult {
  size_t begin = 0;
  size_t end = 0;
  absl::Status status;  // OK, RESOURCE_EXHAUSTED or INTERNAL
  BatchReport report;   // of the run that they shared, when OK
};

// Single-threaded, like its executor. `backend` and `observer` outlive it.
class BatchRunner {
 public:
  BatchRunner(const Backend* backend, std::unique_ptr<Executor> executor, EngineObserver* observer);

  // `owners[i]` says whose task i is; the tasks of one owner stand together. Calls `on_result` with
  // each part as soon as its fate is known; the parts cover the batch once, in order.
  void Run(absl::Span<const AttentionTask> tasks, absl::Span<const uint64_t> owners,
           absl::FunctionRef<void(RunResult)> on_result);

  // One run, exceptions turned into statuses; no second try.
  absl::Status RunOnce(absl::Span<const AttentionTask> tasks, BatchReport* report);

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  const Backend* const backend_;
  const std::unique_ptr<Executor> executor_;
  EngineObserver* const observer_;
  std::vector<Range> todo_;  // a stack, kept for its memory
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_BATCH_RUNNER_H_
