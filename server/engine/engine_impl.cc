#include "server/engine/engine_impl.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/engine/reasons.h"
#include "server/engine/statuses.h"

namespace attend {
namespace {

EngineObserver* OrSilent(EngineObserver* observer) {
  static EngineObserver silent;  // has no state
  return observer == nullptr ? &silent : observer;
}

}  // namespace

Admission::State::~State() {
  lease = StagingLease();
  engine->Leave(*this);
}

EngineImpl::EngineImpl(std::unique_ptr<Backend> backend, const EngineOptions& options,
                       EngineObserver* observer)
    : backend_(std::move(backend)),
      options_(options),
      observer_(OrSilent(observer)),
      device_(backend_->device().ordinal),
      admission_control_(options),
      batcher_(options) {}

absl::StatusOr<std::shared_ptr<EngineImpl>> EngineImpl::Create(std::unique_ptr<Backend> backend,
                                                               const EngineOptions& options,
                                                               EngineObserver* observer) {
  if (backend == nullptr) return absl::InvalidArgumentError("an engine needs a backend");
  absl::Status status = Validate(options);
  if (!status.ok()) return status;
  std::shared_ptr<EngineImpl> engine(new EngineImpl(std::move(backend), options, observer));

  StagingPoolOptions staging;
  staging.limit_bytes = options.max_in_flight_bytes;
  staging.slab_bytes = options.staging_slab_bytes;
  staging.initial_bytes = options.staging_initial_bytes;
  absl::StatusOr<std::unique_ptr<StagingPool>> pool =
      StagingPool::Create(engine->backend_.get(), staging);
  if (!pool.ok()) return pool.status();
  engine->staging_ = *std::move(pool);

  const int workers =
      std::max(1, options.workers > 0 ? options.workers : engine->backend_->PreferredExecutors());
  for (int i = 0; i < workers; ++i) {
    absl::StatusOr<std::unique_ptr<Executor>> executor = engine->backend_->MakeExecutor();
    if (!executor.ok()) return executor.status();
    engine->workers_.push_back(std::make_unique<Worker>());
    engine->workers_.back()->runner = std::make_unique<BatchRunner>(
        engine->backend_.get(), *std::move(executor), engine->observer_);
  }
  engine->StartThreads();
  return engine;
}

void EngineImpl::StartThreads() {
  completions_ = std::make_unique<CompletionPool>(options_.completion_threads);
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    workers_[static_cast<size_t>(i)]->thread = std::thread([this, i] { WorkerLoop(i); });
  }
  timer_ = std::thread([this] { TimerLoop(); });
}

absl::StatusOr<Admission> EngineImpl::Admit(const AdmissionRequest& request) {
  const auto refusal = [this] {
    MutexLock lock(mutex_);
    return sick_.ok() ? DrainingStatus() : UnhealthyStatus(sick_);
  };
  if (!healthy_ || draining_) return refusal();
  // Counted as the pool gives it out, so that what fits the limit on paper fits it in memory.
  constexpr size_t kUnit = StagingPool::kAlignment;
  constexpr size_t kMost = static_cast<size_t>(std::numeric_limits<int64_t>::max()) / 2;
  const size_t units =
      std::min(request.staging_bytes, kMost) / kUnit + (request.staging_bytes % kUnit != 0 ? 1 : 0);
  const int64_t bytes = static_cast<int64_t>(units * kUnit);
  absl::Status status =
      admission_control_.Enter(request.client, bytes, request.flops, Clock::now());
  if (!status.ok()) return status;
  // From here on ~State gives everything back.
  auto state = std::make_unique<Admission::State>();
  state->engine = shared_from_this();
  state->client = request.client;
  state->bytes = bytes;
  state->flops = request.flops;
  state->memory_kind = staging_->memory_kind();
  // Drain() sets the flag before it counts places, and this place was taken before the flag is read
  // again: either this refuses or the drain waits for it.
  if (draining_) return refusal();
  absl::StatusOr<StagingLease> lease = staging_->Allocate(request.staging_bytes);
  if (!lease.ok()) {
    observer_->OnAllocationFailure("staging");
    return WithRetryAfter(WithReason(lease.status(), kReasonMemory),
                          admission_control_.RetryAfter(bytes, Clock::now()));
  }
  state->lease = *std::move(lease);
  state->served = true;
  Admission admission;
  admission.state_ = std::move(state);
  return admission;
}

void EngineImpl::Leave(const Admission::State& admission) {
  admission_control_.Leave(admission.client, admission.bytes, admission.flops, admission.served,
                           Clock::now());
  if (!draining_) return;
  // The empty scope orders this with a Drain() that has counted places and is about to wait.
  { MutexLock lock(mutex_); }
  idle_.NotifyAll();
}

absl::Status EngineImpl::Drain(Clock::time_point deadline) {
  EndedList ended;
  bool in_time = true;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    while (in_time && (unfinished_ > 0 || admission_control_.requests() > 0)) {
      in_time = idle_.WaitUntil(mutex_, deadline);
    }
    in_time = unfinished_ == 0 && admission_control_.requests() == 0;
    refusing_ = true;
    if (!in_time) EndAllQueued([] { return DrainingStatus(); }, &ended);
  }
  Deliver(&ended);
  if (in_time) return absl::OkStatus();
  return absl::DeadlineExceededError("requests were still in flight at the end of the drain");
}

void EngineImpl::Shutdown() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
    refusing_ = true;
    while (unfinished_ > 0) idle_.Wait(mutex_);
    stopping_ = true;
  }
  work_.NotifyAll();
  deadline_.NotifyAll();
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->thread.join();
    worker->runner.reset();
  }
  timer_.join();
  completions_.reset();
}

absl::Status EngineImpl::WarmUp() {
  MutexLock lock(mutex_);
  const auto all_have_run = [this](uint64_t round) {
    return std::all_of(workers_.begin(), workers_.end(),
                       [round](const auto& worker) { return worker->warmed >= round; });
  };
  // A round in progress keeps its error.
  if (all_have_run(warm_up_wanted_)) warm_up_status_ = absl::OkStatus();
  const uint64_t round = ++warm_up_wanted_;
  work_.NotifyAll();
  while (!all_have_run(round)) idle_.Wait(mutex_);
  return Detached(warm_up_status_);
}

EngineStats EngineImpl::stats() const {
  const StagingStats staging = staging_->stats();
  EngineStats stats;
  stats.queued_requests = queued_requests_;
  stats.queued_tokens = queued_tokens_;
  stats.queued_bytes = queued_bytes_;
  stats.in_flight_requests = admission_control_.requests();
  stats.in_flight_bytes = admission_control_.bytes();
  stats.in_flight_flops = admission_control_.flops();
  stats.outstanding_flops = outstanding_flops_;
  stats.staging_used_bytes = staging.used;
  stats.staging_reserved_bytes = staging.reserved;
  stats.staging_peak_bytes = staging.peak;
  stats.staging_limit_bytes = staging.limit;
  stats.draining = draining_;
  stats.healthy = healthy_;
  return stats;
}

absl::Status EngineImpl::Healthy() {
  const absl::Status now = backend_->Healthy();
  if (!now.ok()) MarkUnhealthy(now);
  MutexLock lock(mutex_);
  return sick_.ok() ? absl::OkStatus() : UnhealthyStatus(sick_);
}

void EngineImpl::MarkUnhealthy(const absl::Status& cause) {
  EndedList ended;
  {
    MutexLock lock(mutex_);
    if (!sick_.ok()) return;
    sick_ = absl::UnavailableError(cause.message());
    healthy_ = false;
    EndAllQueued([&] { return UnhealthyStatus(cause); }, &ended);
  }
  observer_->OnUnhealthy(cause);
  Deliver(&ended);
}

}  // namespace attend
