// One call of a caller: attempts over a transport, waits between them, one end.

#ifndef ATTEND_CLIENT_INTERNAL_CALL_STATE_H_
#define ATTEND_CLIENT_INTERNAL_CALL_STATE_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <grpcpp/alarm.h>

#include "attend/client.h"
#include "attend/internal/encode.h"
#include "attend/internal/transport.h"

namespace attend::client {

class CallState : public std::enable_shared_from_this<CallState> {
 public:
  using Ended = std::function<void(CallState*)>;

  // `transport` and `retry` must outlive the call. `ended` is called last, after `done`.
  CallState(Transport* transport, const RetryOptions* retry, EncodedRequest request,
            Destinations destinations, std::string request_id,
            std::chrono::steady_clock::time_point deadline, Client::Callback done, Ended ended);

  void Start() { Try(); }
  void Cancel();

 private:
  void Try();
  void OnOutcome(Outcome outcome);
  void OnBackoffEnd();
  void Finish(absl::StatusOr<AttendResult> result);
  void FinishCancelled(int attempts);
  absl::Status StatusOf(const AttemptError& error, int attempts) const;

  Transport* const transport_;
  const RetryOptions* const retry_;
  const EncodedRequest request_;
  const Destinations destinations_;
  const std::string request_id_;
  const std::chrono::steady_clock::time_point deadline_;
  Client::Callback done_;
  Ended ended_;

  std::mutex mutex_;
  // Guarded by mutex_.
  int attempts_ = 0;
  bool cancelled_ = false;
  std::shared_ptr<Attempt> attempt_;      // the one running, once its Start has returned
  std::unique_ptr<grpc::Alarm> backoff_;  // running between attempts
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_CALL_STATE_H_
