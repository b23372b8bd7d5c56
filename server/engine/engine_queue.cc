// A request from Submit to its end, outside of workers.

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/errors.h"
#include "server/engine/engine_impl.h"
#include "server/engine/reasons.h"
#include "server/engine/statuses.h"

namespace attend {
namespace {

// How often staging memory that nobody uses is looked for.
constexpr std::chrono::seconds kTrimPeriod{10};

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

absl::Status EngineImpl::Refusal() {
  if (!sick_.ok()) return UnhealthyStatus(sick_);
  // While draining, a request passes when someone holds a place that no request has used yet.
  if (refusing_ ||
      (draining_ && static_cast<int64_t>(records_.size()) >= admission_control_.requests())) {
    return DrainingStatus();
  }
  return absl::OkStatus();
}

RequestHandle EngineImpl::Submit(Request request) {
  auto owned = std::make_unique<Record>();
  Record* const record = owned.get();
  record->request = std::move(request);
  record->report.device = device_;
  record->queued_tasks = static_cast<int64_t>(record->request.tasks.size());
  BatcherRequest item;
  item.priority = record->request.priority;
  item.deadline = record->request.deadline;
  item.tasks.reserve(record->request.tasks.size());
  for (const AttentionTask& task : record->request.tasks) {
    const TaskCost& cost = item.tasks.emplace_back(CostOf(task, *backend_));
    record->flops += cost.flops;
    record->tokens += task.seqlen_q;
    record->bytes = CheckedAdd(record->bytes, cost.bytes).value_or(kMostCountedBytes);
  }
  record->bytes = std::min(record->bytes, kMostCountedBytes);

  RequestHandle handle;
  EndedList ended;
  {
    MutexLock lock(mutex_);
    ++unfinished_;
    const Clock::time_point now = Clock::now();
    const std::optional<Clock::time_point> deadline = record->request.deadline;
    const bool too_late = deadline.has_value() && *deadline <= now;
    record->arrival = now;
    record->sequence = next_sequence_++;
    record->status = Refusal();
    if (record->status.ok() && too_late) record->status = ExpiredStatus();
    if (record->status.ok() && record->queued_tasks > 0) {
      item.sequence = record->sequence;
      if (!batcher_.Add(std::move(item), now)) {
        record->status = WithRetryAfter(
            WithReason(absl::ResourceExhaustedError("the queue is full"), kReasonQueueFull),
            admission_control_.RetryAfter(record->bytes, now));
      }
    }
    if (!record->status.ok() || record->queued_tasks == 0) {
      Ended& end = ended.emplace_back();
      if (absl::IsDeadlineExceeded(record->status)) end.expired = EndStage::kQueue;
      end.record = std::move(owned);
    } else {
      handle.engine_ = weak_from_this();
      handle.sequence_ = record->sequence;
      queued_requests_ += 1;
      queued_tokens_ += record->tokens;
      queued_bytes_ += record->bytes;
      outstanding_flops_ += record->flops;
      records_.emplace(record->sequence, std::move(owned));
      if (deadline.has_value() && *deadline < timer_wakes_) deadline_.NotifyOne();
    }
  }
  if (ended.empty()) {
    work_.NotifyOne();
  } else {
    Deliver(&ended);
  }
  return handle;
}

void EngineImpl::Cancel(uint64_t sequence) {
  EndedList ended;
  {
    MutexLock lock(mutex_);
    const auto found = records_.find(sequence);
    if (found == records_.end()) return;
    Record* const record = found->second.get();
    const bool counted = std::exchange(record->counted, true);
    const EndStage stage = record->launched ? EndStage::kLaunched : EndStage::kQueue;
    Ended& end = ended.emplace_back(EndEarly(record, CancelledStatus()));
    if (!counted) end.cancelled = stage;
  }
  Deliver(&ended);
}

EngineImpl::Ended EngineImpl::EndEarly(Record* record, absl::Status status) {
  Ended end;
  if (record->queued_tasks == 0) return end;
  batcher_.Remove(record->sequence);
  record->queued_tasks = 0;
  CountUnqueued(*record);
  if (record->status.ok()) record->status = std::move(status);
  if (!record->launched) {
    record->report.queue_seconds = Seconds(Clock::now() - record->arrival);
    end.queue_seconds = record->report.queue_seconds;
  }
  if (record->running_tasks == 0) end.record = Extract(record->sequence);
  return end;
}

void EngineImpl::EndAllQueued(absl::FunctionRef<absl::Status()> make_status, EndedList* ended) {
  std::vector<Record*> queued;  // EndEarly changes the map
  for (const auto& [sequence, record] : records_) {
    if (record->queued_tasks > 0) queued.push_back(record.get());
  }
  for (Record* record : queued) ended->push_back(EndEarly(record, make_status()));
}

std::optional<Clock::time_point> EngineImpl::Expire(Clock::time_point now, EndedList* ended) {
  std::vector<uint64_t> expired;
  const std::optional<Clock::time_point> next = batcher_.Expire(now, &expired);
  for (const uint64_t sequence : expired) {
    Record* const record = records_.find(sequence)->second.get();
    const bool counted = std::exchange(record->counted, true);
    const EndStage stage = record->launched ? EndStage::kLaunched : EndStage::kQueue;
    Ended& end = ended->emplace_back(EndEarly(record, ExpiredStatus()));
    if (!counted) end.expired = stage;
  }
  return next;
}

std::unique_ptr<EngineImpl::Record> EngineImpl::Extract(uint64_t sequence) {
  auto node = records_.extract(sequence);
  std::unique_ptr<Record> record = std::move(node.mapped());
  // Starts from zero again whenever it can, so that rounding errors do not add up.
  outstanding_flops_ = records_.empty() ? 0 : outstanding_flops_ - record->flops;
  return record;
}

void EngineImpl::CountUnqueued(const Record& record) {
  queued_requests_ -= 1;
  queued_tokens_ -= record.tokens;
  queued_bytes_ -= record.bytes;
}

void EngineImpl::Deliver(EndedList* ended) {
  for (Ended& end : *ended) {
    if (end.queue_seconds.has_value()) observer_->OnQueueTime(*end.queue_seconds);
    if (end.cancelled.has_value()) observer_->OnCancelled(*end.cancelled);
    if (end.expired.has_value()) observer_->OnExpired(*end.expired);
    if (end.record != nullptr) PostDone(std::move(end.record));
  }
  ended->clear();
}

void EngineImpl::PostDone(std::unique_ptr<Record> record) {
  completions_->Post([this, record = std::move(record)]() mutable {
    if (record->request.done) record->request.done(record->status, record->report);
    record.reset();  // it may hold an Admission, and its end belongs to the end of the request
    {
      MutexLock lock(mutex_);
      --unfinished_;
    }
    idle_.NotifyAll();
  });
}

void EngineImpl::TimerLoop() {
  Clock::time_point next_trim = Clock::now() + kTrimPeriod;
  while (true) {
    EndedList ended;
    Clock::time_point now;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      now = Clock::now();
      const std::optional<Clock::time_point> next = Expire(now, &ended);
      if (ended.empty() && now < next_trim) {
        timer_wakes_ = std::min(next.value_or(Clock::time_point::max()), next_trim);
        deadline_.WaitUntil(mutex_, timer_wakes_);
        timer_wakes_ = Clock::time_point::min();  // awake: it looks at the queue before it waits
        continue;
      }
    }
    Deliver(&ended);
    if (now >= next_trim) {
      staging_->Trim(now);
      next_trim = now + kTrimPeriod;
    }
  }
}

}  // namespace attend
