#include "server/rpc/stream_call.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/rpc/attention_service.h"
#include "server/rpc/call_info.h"
#include "server/rpc/error_reply.h"
#include "server/rpc/reply_writer.h"

namespace attend {

StreamCall::StreamCall(AttentionService* service, JobContext* context,
                       grpc::CallbackServerContext* call)
    : service_(service),
      context_(context),
      call_(call),
      client_(ClientOf(*call)),
      deadline_(DeadlineOf(*call)),
      header_id_(HeaderOf(*call, kRequestIdHeader)) {}

void StreamCall::Start() {
  context_->observer->OnStreamStart();
  absl::Status status;
  stream_id_ = ResolveRequestId("", header_id_, &status);
  call_->AddInitialMetadata(kRequestIdHeader, stream_id_);
  StartSendInitialMetadata();
  if (!status.ok()) {
    EndWith(status);
    return;
  }
  Advance();
}

void StreamCall::Drain() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
  }
  Advance();
}

void StreamCall::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(mutex_);
      reads_over_ = true;
    }
    Advance();
    return;
  }
  context_->ledger.OnMessage(call_->peer());
  const auto bytes = static_cast<int64_t>(incoming_.Length());
  const absl::Status status = Handle(&incoming_);
  if (!status.ok()) {
    // A message that belongs to no request of its own: it ends the stream, and counts.
    RequestRecord record;
    record.method = Method::kAttendStream;
    record.request_id = stream_id_;
    record.client = client_;
    record.received_bytes = bytes;
    record.status = status;
    context_->observer->OnRequestStart(record.method);
    context_->observer->OnRequestEnd(record);
    EndWith(status);
    return;
  }
  {
    MutexLock lock(mutex_);
    read_wanted_ = true;
  }
  Advance();
}

absl::Status StreamCall::Handle(grpc::ByteBuffer* buffer) {
  absl::StatusOr<ReceivedMessage> message =
      Receive(buffer, MessageKind::kAttendStreamRequest, context_->limits.max_header_bytes);
  if (!message.ok()) return message.status();
  v1::AttendStreamRequest request;
  if (!request.ParseFromString(message->scanned.header)) {
    return WithReason(absl::InvalidArgumentError("malformed message: not an AttendStreamRequest"),
                      "MALFORMED");
  }
  const uint64_t id = request.id();
  if (request.message_case() == v1::AttendStreamRequest::kCancel) {
    if (absl::Status status = RefuseUnknownFields(request); !status.ok()) return status;
    std::shared_ptr<AttendJob> job;
    {
      MutexLock lock(mutex_);
      const auto found = jobs_.find(id);
      if (found != jobs_.end()) job = found->second;
    }
    if (job) job->Cancel();  // else it has ended already
    return absl::OkStatus();
  }
  return StartJob(id, request, *std::move(message));
}

absl::Status StreamCall::StartJob(uint64_t id, const v1::AttendStreamRequest& request,
                                  ReceivedMessage message) {
  {
    MutexLock lock(mutex_);
    if (!jobs_.emplace(id, nullptr).second) {
      return InvalidField("id", absl::StrCat(id, " is in use by a request in flight"));
    }
  }
  AttendJob::Origin origin;
  origin.method = Method::kAttendStream;
  origin.client = client_;
  origin.deadline = deadline_;
  origin.stream_id = id;
  origin.arrival = Clock::now();
  origin.received_bytes = message.bytes;
  // The header's id names the stream; requests without an id of their own get one each.
  absl::Status status;
  origin.request_id = ResolveRequestId(request.attend().request_id(), std::nullopt, &status);
  if (status.ok() && request.message_case() != v1::AttendStreamRequest::kAttend) {
    status = InvalidField("message", "missing: neither attend nor cancel");
  }
  // Unknown fields of the envelope; those of the request are the job's to refuse.
  if (status.ok()) status = RefuseUnknownFields(request);
  if (status.ok() && request.has_timeout_seconds()) {
    const double timeout = request.timeout_seconds();
    if (!std::isfinite(timeout) || timeout <= 0) {
      status = InvalidField("timeout_seconds", absl::StrCat(timeout, " is not finite and > 0"));
    } else {
      // Past a year it is as good as none, and the clock could not name it.
      const std::chrono::duration<double> bounded(std::min(timeout, 365.0 * 24 * 3600));
      const Clock::time_point own =
          origin.arrival + std::chrono::duration_cast<Clock::duration>(bounded);
      if (!origin.deadline || own < *origin.deadline) origin.deadline = own;
    }
  }
  AttendJob::Done done = [self = shared_from_this(), id, request_id = origin.request_id](
                             const absl::Status& end, grpc::ByteBuffer* reply) {
    self->OnJobDone(id, request_id, end, reply);
  };
  if (!status.ok()) {
    AttendJob::Refuse(context_, std::move(origin), status, std::move(done));
    return absl::OkStatus();
  }
  std::shared_ptr<AttendJob> job = AttendJob::Start(context_, std::move(origin), request.attend(),
                                                    std::move(message), std::move(done));
  bool cancel = false;
  {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(id);
    // Gone when it has ended already; no new request can have taken its id, since only this thread
    // reads.
    if (found != jobs_.end()) found->second = job;
    cancel = broken_ && !EndsByDeadline(deadline_);
  }
  if (cancel) job->Cancel();
  return absl::OkStatus();
}

void StreamCall::OnJobDone(uint64_t id, const std::string& request_id, const absl::Status& status,
                           grpc::ByteBuffer* reply) {
  if (!status.ok()) {
    v1::AttendStreamResponse response;
    response.set_id(id);
    *response.mutable_error() = ToStreamError(status, request_id);
    *reply = WriteMessage(response);
  }
  {
    MutexLock lock(mutex_);
    jobs_.erase(id);
    if (!broken_) unsent_.emplace_back().Swap(reply);
  }
  Advance();
}

void StreamCall::OnWriteDone(bool ok) {
  outgoing_.Clear();
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) broken_ = true;
  }
  Advance();
}

void StreamCall::OnCancel() {
  std::vector<std::shared_ptr<AttendJob>> jobs;
  {
    MutexLock lock(mutex_);
    broken_ = true;
    unsent_.clear();
    if (!EndsByDeadline(deadline_)) {
      for (const auto& [id, job] : jobs_) {
        if (job) jobs.push_back(job);
      }
    }
  }
  for (const std::shared_ptr<AttendJob>& job : jobs) job->Cancel();
  Advance();
}

void StreamCall::EndWith(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (end_status_.ok()) end_status_ = status;
  }
  Advance();
}

void StreamCall::Advance() {
  const std::shared_ptr<StreamCall> self = shared_from_this();  // OnDone may come at any time
  bool write = false, read = false, finish = false;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    if (!writing_ && !unsent_.empty() && !broken_) {
      writing_ = write = true;
      outgoing_.Swap(&unsent_.front());
      unsent_.pop_front();
    }
    const bool ending = reads_over_ || broken_ || draining_ || !end_status_.ok();
    if (read_wanted_ && !ending && unsent_.size() < kMaxUnsentReplies) {
      read_wanted_ = false;
      starting_read_ = read = true;
    }
    if (ending && jobs_.empty() && !writing_ && !starting_read_ && (unsent_.empty() || broken_)) {
      finished_ = finish = true;
      if (broken_) {
        status = absl::CancelledError("the stream was cancelled");
      } else if (!end_status_.ok()) {
        status = end_status_;
      } else if (draining_ && !reads_over_) {
        status = WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING");
      }
    }
  }
  if (write) StartWrite(&outgoing_);
  if (read) {
    StartRead(&incoming_);
    {
      MutexLock lock(mutex_);
      starting_read_ = false;
    }
    Advance();  // the end may have waited for this
  }
  if (finish) Finish(status.ok() ? grpc::Status::OK : ToGrpcStatus(status, stream_id_));
}

void StreamCall::OnDone() {
  context_->observer->OnStreamEnd();
  service_->Remove(shared_from_this());
}

}  // namespace attend
