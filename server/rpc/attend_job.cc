#include "server/rpc/attend_job.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/errors.h"
#include "server/rpc/reply_writer.h"

namespace attend {
namespace {

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

bool JobContext::Enter() {
  MutexLock lock(mutex_);
  if (!accepting_) {
    last_refusal_ = Clock::now();
    return false;
  }
  ++inside_;
  return true;
}

void JobContext::Leave() {
  MutexLock lock(mutex_);
  if (--inside_ == 0) none_inside_.NotifyAll();
}

bool JobContext::StopAccepting(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  accepting_ = false;
  while (inside_ > 0) {
    if (!none_inside_.WaitUntil(mutex_, deadline)) return inside_ == 0;
  }
  return true;
}

void JobContext::AwaitQuiet(Clock::duration quiet, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  last_refusal_ = Clock::now();  // answers just sent bring their clients back
  for (;;) {
    const Clock::time_point until = std::min(last_refusal_ + quiet, deadline);
    if (Clock::now() >= until) return;
    none_inside_.WaitUntil(mutex_, until);
  }
}

absl::StatusOr<ReceivedMessage> Receive(grpc::ByteBuffer* buffer, MessageKind kind,
                                        size_t max_header_bytes) {
  ReceivedMessage message;
  message.bytes = static_cast<int64_t>(buffer->Length());
  if (!buffer->Dump(&message.slices).ok()) {
    return WithReason(absl::InvalidArgumentError("the message could not be read"), "MALFORMED");
  }
  buffer->Clear();
  std::vector<Fragment> fragments;
  fragments.reserve(message.slices.size());
  for (const grpc::Slice& slice : message.slices) {
    fragments.push_back({slice.begin(), slice.size()});
  }
  absl::StatusOr<ScannedMessage> scanned = ScanMessage(fragments, kind, max_header_bytes);
  if (!scanned.ok()) return scanned.status();
  message.scanned = *std::move(scanned);
  return message;
}

AttendJob::AttendJob(JobContext* context, Origin origin, Done done)
    : context_(context),
      done_(std::move(done)),
      deadline_(origin.deadline),
      stream_id_(origin.stream_id),
      arrival_(origin.arrival) {
  record_.method = origin.method;
  record_.request_id = std::move(origin.request_id);
  record_.client = std::move(origin.client);
  record_.received_bytes = origin.received_bytes;
  record_.retried = origin.retried;
  context_->observer->OnRequestStart(record_.method);
}

std::shared_ptr<AttendJob> AttendJob::Start(JobContext* context, Origin origin,
                                            const v1::AttendRequest& request,
                                            ReceivedMessage message, Done done) {
  std::shared_ptr<AttendJob> job(new AttendJob(context, std::move(origin), std::move(done)));
  if (!context->Enter()) {
    job->End(WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING"), {});
    return job;
  }
  const absl::Status status = job->Admit(request, message);
  if (!status.ok()) {
    context->Leave();
    job->End(status, {});
  } else if (job->decoded_.tasks.empty()) {  // no query row anywhere: nothing to compute
    context->Leave();
    job->OnEngineDone(absl::OkStatus(), {});
  } else {
    job->Gather(std::move(message));
  }
  return job;
}

void AttendJob::Refuse(JobContext* context, Origin origin, const absl::Status& status, Done done) {
  std::shared_ptr<AttendJob> job(new AttendJob(context, std::move(origin), std::move(done)));
  job->End(status, {});
}

absl::Status AttendJob::Admit(const v1::AttendRequest& request, const ReceivedMessage& message) {
  if (absl::Status status = RefuseUnknownFields(request); !status.ok()) return status;
  absl::StatusOr<DecodedRequest> decoded =
      DecodeRequest(request, message.scanned, context_->limits);
  if (!decoded.ok()) return decoded.status();
  decoded_ = *std::move(decoded);
  record_.sequences = decoded_.sequences;
  record_.query_tokens = decoded_.query_tokens;
  record_.kv_tokens = decoded_.kv_tokens;
  record_.padding_tokens = decoded_.padding_tokens;

  AdmissionRequest wanted;
  wanted.client = record_.client;
  wanted.staging_bytes = decoded_.staging_bytes;
  for (const AttentionTask& task : decoded_.tasks) wanted.flops += Flops(task);
  const Backend& backend = context_->engines->backend();
  for (const AttentionTask& task : decoded_.tasks) {
    if (absl::Status status = backend.Supports(task); !status.ok()) return status;
  }
  if (decoded_.tasks.empty()) return absl::OkStatus();
  absl::StatusOr<Admission> admission = context_->engines->Admit(wanted);
  if (!admission.ok()) return admission.status();
  admission_ = std::make_shared<Admission>(*std::move(admission));
  PlaceTasks(&decoded_, admission_->staging(), admission_->memory_kind());
  return absl::OkStatus();
}

void AttendJob::Gather(ReceivedMessage message) {
  std::vector<CopyPiece> pieces;
  for (int i = 0; i < kTensorSlots; ++i) {
    std::byte* to = admission_->staging() + decoded_.input_offsets[i];
    for (const Fragment& fragment : message.scanned.tensors[i].fragments) {
      pieces.push_back({to, fragment});
      to += fragment.size;
    }
  }
  // The slices live in the closure and are freed with it, before the request waits in the queue.
  auto slices = std::make_shared<std::vector<grpc::Slice>>(std::move(message.slices));
  context_->copies->Gather(std::move(pieces),
                           [self = shared_from_this(), slices = std::move(slices)] {
                             slices->clear();
                             self->Submit();
                           });
}

void AttendJob::Submit() {
  record_.decode_seconds = SecondsSince(arrival_);
  bool cancelled;
  {
    MutexLock lock(mutex_);
    cancelled = cancelled_;
  }
  if (cancelled) {
    context_->Leave();
    End(absl::CancelledError("cancelled by the client"), {});
    return;
  }
  Request request;
  request.id = record_.request_id;
  request.client = record_.client;
  request.tasks = std::move(decoded_.tasks);
  request.priority = decoded_.priority;
  request.deadline = deadline_;
  request.done = [self = shared_from_this()](const absl::Status& status,
                                             const RequestReport& report) {
    self->OnEngineDone(status, report);
  };
  JobContext* const context = context_;
  // The admission as well may be gone as soon as the request is submitted.
  const std::shared_ptr<Admission> admission = admission_;
  RequestHandle handle = context->engines->Submit(*admission, std::move(request));
  {
    MutexLock lock(mutex_);
    handle_ = handle;
    cancelled = cancelled_;
  }
  if (cancelled) handle.Cancel();
  context->Leave();
}

void AttendJob::Cancel() {
  RequestHandle handle;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  handle.Cancel();
}

void AttendJob::OnEngineDone(const absl::Status& status, const RequestReport& report) {
  if (!status.ok()) {
    End(status, {});
    return;
  }
  record_.ran = admission_ != nullptr;
  record_.report = report;
  v1::AttendResponse head;
  head.set_request_id(record_.request_id);
  v1::ServingStats* stats = head.mutable_stats();
  stats->set_decode_seconds(record_.decode_seconds);
  stats->set_queue_seconds(report.queue_seconds);
  stats->set_copy_in_seconds(report.copy_in_seconds);
  stats->set_kernel_seconds(report.kernel_seconds);
  stats->set_copy_out_seconds(report.copy_out_seconds);
  stats->set_total_seconds(SecondsSince(arrival_));
  stats->set_batch_requests(report.batch_requests);
  stats->set_batch_tasks(report.batch_tasks);
  stats->set_batch_tokens(report.batch_tokens);
  stats->set_backend(std::string(context_->engines->backend().name()));
  stats->set_device(report.device);
  // Without an admission there was no query row, hence no byte of output.
  std::byte* const staging = admission_ ? admission_->staging() : nullptr;
  End(absl::OkStatus(), WriteReply(head, decoded_, staging, admission_, stream_id_));
}

void AttendJob::End(const absl::Status& status, grpc::ByteBuffer reply) {
  admission_.reset();  // memory is back before the client hears of a refusal
  record_.status = status;
  record_.sent_bytes = static_cast<int64_t>(reply.Length());
  record_.total_seconds = SecondsSince(arrival_);
  context_->observer->OnRequestEnd(record_);
  done_(status, &reply);
}

}  // namespace attend
