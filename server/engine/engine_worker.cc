// What a worker does: take a batch, run it, hand out what became of it.

#include <algorithm>
#include <utility>

#include "kernels/errors.h"
#include "server/engine/engine_impl.h"
#include "server/engine/statuses.h"
#include "server/engine/warm_up.h"

namespace attend {

void EngineImpl::WorkerLoop(int index) {
  Worker* const worker = workers_[static_cast<size_t>(index)].get();
  Launch launch;
  while (true) {
    EndedList ended;
    std::optional<uint64_t> warm_up;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (worker->warmed < warm_up_wanted_) {
          warm_up = warm_up_wanted_;
          break;
        }
        const Clock::time_point now = Clock::now();
        Expire(now, &ended);  // the timer may be late, and an expired request is never launched
        batcher_.Take(now, &launch.batch);
        if (!launch.batch.tasks.empty()) {
          Prepare(&launch, now, &ended);
          ++busy_workers_;
          break;
        }
        if (!ended.empty()) break;
        if (stopping_) return;
        work_.WaitUntil(mutex_, launch.batch.ready_at.value_or(Clock::time_point::max()));
      }
      // Submit wakes one worker for each request; this one may have been woken for several.
      if (!batcher_.empty()) work_.NotifyOne();
    }
    Deliver(&ended);
    if (warm_up.has_value()) {
      RunWarmUp(worker, *warm_up);
    } else if (!launch.batch.tasks.empty()) {
      RunLaunch(index, &launch);
      MutexLock lock(mutex_);
      --busy_workers_;
    }
  }
}

void EngineImpl::RunWarmUp(Worker* worker, uint64_t round) {
  const absl::Status status = RunWarmUpTasks(backend_.get(), worker->runner.get());
  const absl::Status health = backend_->Healthy();
  if (!health.ok()) MarkUnhealthy(health);
  {
    MutexLock lock(mutex_);
    worker->warmed = round;
    if (warm_up_status_.ok()) warm_up_status_ = Detached(status);
  }
  idle_.NotifyAll();
}

void EngineImpl::Prepare(Launch* launch, Clock::time_point now, EndedList* ended) {
  launch->records.clear();
  Record* record = nullptr;
  for (const TaskRef& ref : launch->batch.tasks) {
    if (record == nullptr || record->sequence != ref.sequence) {
      record = records_.find(ref.sequence)->second.get();
      if (!record->launched) {
        record->launched = true;
        record->report.queue_seconds = std::chrono::duration<double>(now - record->arrival).count();
        ended->emplace_back().queue_seconds = record->report.queue_seconds;
      }
    }
    ++record->running_tasks;
    if (--record->queued_tasks == 0) CountUnqueued(*record);
    launch->records.push_back(record);
  }
}

void EngineImpl::RunLaunch(int index, Launch* launch) {
  launch->tasks.clear();
  launch->owners.clear();
  for (size_t i = 0; i < launch->records.size(); ++i) {
    const TaskRef& ref = launch->batch.tasks[i];
    launch->owners.push_back(ref.sequence);
    launch->tasks.push_back(launch->records[i]->request.tasks[static_cast<size_t>(ref.index)]);
  }
  workers_[static_cast<size_t>(index)]->runner->Run(
      launch->tasks, launch->owners,
      [&](RunResult result) { OnResult(index, *launch, std::move(result)); });
}

void EngineImpl::OnResult(int index, const Launch& launch, RunResult result) {
  BatchRecord batch;
  batch.device = device_;
  batch.worker = index;
  batch.reason = launch.batch.reason;
  batch.tasks = static_cast<int64_t>(result.end - result.begin);
  for (size_t i = result.begin; i < result.end; ++i) {
    const AttentionTask& task = launch.tasks[i];
    if (i == result.begin || launch.owners[i] != launch.owners[i - 1]) ++batch.requests;
    batch.query_tokens += task.seqlen_q;
    batch.kv_tokens += task.seqlen_k;
    batch.flops += Flops(task);
    batch.avoided_bytes =
        CheckedAdd(batch.avoided_bytes, ScoreMatrixBytes(task)).value_or(INT64_MAX);
  }
  batch.report = std::move(result.report);
  if (result.status.ok()) {
    observer_->OnBatch(batch);
  } else {
    // Before the answers leave: whoever hears INTERNAL and asks again must not join a dead queue.
    const absl::Status health = backend_->Healthy();
    if (!health.ok()) MarkUnhealthy(health);
  }

  EndedList ended;
  {
    MutexLock lock(mutex_);
    // Memory that other batches hold now may be free later.
    if (absl::IsResourceExhausted(result.status) && busy_workers_ > 1) {
      result.status =
          WithRetryAfter(std::move(result.status), admission_control_.RetryAfter(0, Clock::now()));
    }
    const Clock::time_point now = Clock::now();
    for (size_t i = result.begin; i < result.end;) {
      const uint64_t sequence = launch.owners[i];
      Record* const record = records_.find(sequence)->second.get();
      for (; i < result.end && launch.owners[i] == sequence; ++i) --record->running_tasks;
      if (result.status.ok()) {
        RequestReport& report = record->report;
        report.copy_in_seconds += batch.report.copy_in.seconds();
        report.kernel_seconds += batch.report.kernel.seconds();
        report.copy_out_seconds += batch.report.copy_out.seconds();
        report.batch_requests = std::max(report.batch_requests, batch.requests);
        report.batch_tasks = std::max(report.batch_tasks, batch.tasks);
        report.batch_tokens = std::max(report.batch_tokens, batch.query_tokens);
      } else {
        if (record->status.ok()) record->status = Detached(result.status);
        // Whatever else it asked for is of no use now. May extract it already.
        Ended end = EndEarly(record, record->status);
        if (end.record != nullptr) {
          ended.push_back(std::move(end));
          continue;
        }
      }
      if (record->running_tasks > 0 || record->queued_tasks > 0) continue;
      const std::optional<Clock::time_point> deadline = record->request.deadline;
      const bool late = deadline.has_value() && *deadline < now && !record->counted;
      Ended& end = ended.emplace_back();
      if (late) end.expired = EndStage::kLaunched;
      end.record = Extract(sequence);
    }
  }
  Deliver(&ended);
}

}  // namespace attend
