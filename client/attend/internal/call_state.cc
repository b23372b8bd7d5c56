#include "attend/internal/call_state.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attend/internal/retry.h"

namespace attend::client {
namespace {

double Chance() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

// gRPC's deadlines are wall-clock times; what is left is measured on the steady clock.
std::chrono::system_clock::time_point WallTime(std::chrono::steady_clock::time_point time) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(
             time - std::chrono::steady_clock::now());
}

}  // namespace

CallState::CallState(Transport* transport, const RetryOptions* retry, EncodedRequest request,
                     Destinations destinations, std::string request_id,
                     std::chrono::steady_clock::time_point deadline, Client::Callback done,
                     Ended ended)
    : transport_(transport),
      retry_(retry),
      request_(std::move(request)),
      destinations_(destinations),
      request_id_(std::move(request_id)),
      deadline_(deadline),
      done_(std::move(done)),
      ended_(std::move(ended)) {}

void CallState::Try() {
  int number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++attempts_;
    attempt_ = nullptr;
  }
  std::shared_ptr<Attempt> attempt = transport_->Start(
      request_, destinations_, WallTime(deadline_),
      [self = shared_from_this()](Outcome outcome) { self->OnOutcome(std::move(outcome)); });
  if (attempt == nullptr) return;  // has ended
  {
    std::lock_guard lock(mutex_);
    if (attempts_ != number) return;  // has ended, and the next one runs
    attempt_ = attempt;
    if (!cancelled_) return;
  }
  attempt->Cancel();
}

void CallState::OnOutcome(Outcome outcome) {
  std::unique_lock lock(mutex_);
  const int attempts = attempts_;
  if (outcome.result.has_value()) {
    lock.unlock();
    outcome.result->attempts = attempts;
    return Finish(*std::move(outcome.result));
  }
  if (outcome.error.code == absl::StatusCode::kCancelled && !cancelled_) {
    // A gRPC server that shuts down ends so the calls that it had not yet handed to its service.
    outcome.error.code = absl::StatusCode::kUnavailable;
    outcome.error.message = absl::StrCat("ended by the server: ", outcome.error.message);
  }
  const auto remaining = deadline_ - std::chrono::steady_clock::now();
  const std::optional<std::chrono::nanoseconds> delay =
      RetryDelay(*retry_, outcome.error, attempts, remaining, Chance());
  if (!delay.has_value()) {
    lock.unlock();
    return Finish(StatusOf(outcome.error, attempts));
  }
  if (cancelled_) {  // what would have been tried again ends by the cancellation
    lock.unlock();
    return FinishCancelled(attempts);
  }
  // Set under the lock: a cancellation either comes before and is seen above, or finds the alarm.
  backoff_ = std::make_unique<grpc::Alarm>();
  backoff_->Set(WallTime(std::chrono::steady_clock::now() + *delay),
                [self = shared_from_this()](bool /*fired*/) { self->OnBackoffEnd(); });
}

void CallState::OnBackoffEnd() {
  bool cancelled = false;
  int attempts = 0;
  // The alarm holds this callback, which holds this object: kept, they would keep each other.
  std::unique_ptr<grpc::Alarm> alarm;
  {
    std::lock_guard lock(mutex_);
    alarm = std::move(backoff_);
    cancelled = cancelled_;
    attempts = attempts_;
  }
  if (cancelled) {
    FinishCancelled(attempts);
  } else {
    Try();
  }
}

void CallState::FinishCancelled(int attempts) {
  AttemptError error;
  error.code = absl::StatusCode::kCancelled;
  error.message = "cancelled by the caller";
  Finish(StatusOf(error, attempts));
}

void CallState::Cancel() {
  std::shared_ptr<Attempt> attempt;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    attempt = attempt_;
    if (backoff_ != nullptr) backoff_->Cancel();
  }
  if (attempt != nullptr) attempt->Cancel();
}

void CallState::Finish(absl::StatusOr<AttendResult> result) {
  const std::shared_ptr<CallState> self = shared_from_this();
  std::exchange(done_, nullptr)(std::move(result));
  std::exchange(ended_, nullptr)(this);
}

absl::Status CallState::StatusOf(const AttemptError& error, int attempts) const {
  ErrorDetails details = error.details;
  details.attempts = attempts;
  if (details.request_id.empty()) details.request_id = request_id_;
  return MakeStatus(
      error.code,
      attempts > 1 ? absl::StrCat(error.message, " (", attempts, " attempts)") : error.message,
      details);
}

}  // namespace attend::client
