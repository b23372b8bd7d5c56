#include "server/rpc/attention_service.h"

#include <utility>
#include <vector>

#include "kernels/errors.h"
#include "server/rpc/call_info.h"
#include "server/rpc/error_reply.h"
#include "server/rpc/stream_call.h"

namespace attend {
namespace {

// One Attend call. Owned by gRPC between the handler's return and OnDone.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(JobContext* context, grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : context_(context), call_(call), response_(response) {}

  void Start(grpc::ByteBuffer* request) {
    const Clock::time_point now = Clock::now();
    AttendJob::Origin origin;
    origin.method = Method::kAttend;
    origin.client = ClientOf(*call_);
    // Not valid: the call has ended, by its client or for the size of its headers, before a
    // message.
    if (request->Valid()) context_->ledger.OnMessage(call_->peer());
    origin.deadline = deadline_ = DeadlineOf(*call_);
    origin.arrival = now;
    origin.received_bytes = static_cast<int64_t>(request->Length());
    origin.retried = IsRetry(*call_);

    absl::StatusOr<ReceivedMessage> message =
        Receive(request, MessageKind::kAttendRequest, context_->limits.max_header_bytes);
    v1::AttendRequest header;
    absl::Status status = message.status();
    if (status.ok() && !header.ParseFromString(message->scanned.header)) {
      status = WithReason(absl::InvalidArgumentError("malformed message: not an AttendRequest"),
                          "MALFORMED");
    }
    absl::Status id_status;
    request_id_ = origin.request_id =
        ResolveRequestId(header.request_id(), HeaderOf(*call_, kRequestIdHeader), &id_status);
    if (status.ok()) status = id_status;
    call_->AddInitialMetadata(kRequestIdHeader, request_id_);

    AttendJob::Done done = [this](const absl::Status& end, grpc::ByteBuffer* reply) {
      Reply(end, reply);
    };
    if (!status.ok()) {
      AttendJob::Refuse(context_, std::move(origin), status, std::move(done));
    } else {
      job_ = AttendJob::Start(context_, std::move(origin), header, *std::move(message),
                              std::move(done));
    }
  }

 private:
  void Reply(const absl::Status& status, grpc::ByteBuffer* reply) {
    if (status.ok()) {
      response_->Swap(reply);
      Finish(grpc::Status::OK);
    } else {
      AddRetryPushback(status, call_);
      Finish(ToGrpcStatus(status, request_id_));
    }
  }

  void OnCancel() override {
    if (job_ && !EndsByDeadline(deadline_)) job_->Cancel();
  }
  void OnDone() override { delete this; }

  JobContext* const context_;
  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  std::optional<Clock::time_point> deadline_;
  std::string request_id_;
  std::shared_ptr<AttendJob> job_;  // set before the handler returns, hence before any reaction
};

v1::DataType ToProto(DType dtype) {
  return dtype == DType::kF32   ? v1::DATA_TYPE_FP32
         : dtype == DType::kF16 ? v1::DATA_TYPE_FP16
                                : v1::DATA_TYPE_BF16;
}

}  // namespace

AttentionService::AttentionService(JobContext* context, ServiceInfo info)
    : context_(context), info_(std::move(info)) {}

grpc::ServerUnaryReactor* AttentionService::Attend(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  auto* call = new UnaryCall(context_, context, response);
  // gRPC owns the buffer until the call ends; emptying it frees the message once it is in staging.
  call->Start(const_cast<grpc::ByteBuffer*>(request));
  return call;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttentionService::AttendStream(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<StreamCall>(this, context_, context);
  bool draining;
  {
    MutexLock lock(mutex_);
    streams_.insert(stream);
    draining = draining_;
  }
  stream->Start();
  if (draining) stream->Drain();
  return stream.get();  // streams_ keeps it until OnDone
}

void AttentionService::Remove(const std::shared_ptr<StreamCall>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

void AttentionService::DrainStreams() {
  std::vector<std::shared_ptr<StreamCall>> streams;
  {
    MutexLock lock(mutex_);
    draining_ = true;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const std::shared_ptr<StreamCall>& stream : streams) stream->Drain();
}

grpc::ServerUnaryReactor* AttentionService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetServerInfoRequest* request,
                                                          v1::GetServerInfoResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  RequestRecord record;
  record.method = Method::kGetServerInfo;
  record.client = ClientOf(*context);
  record.request_id = ResolveRequestId("", HeaderOf(*context, kRequestIdHeader), &record.status);
  record.received_bytes = static_cast<int64_t>(request->ByteSizeLong());
  context_->observer->OnRequestStart(record.method);
  context->AddInitialMetadata(kRequestIdHeader, record.request_id);
  if (record.status.ok()) record.status = RefuseUnknownFields(*request);
  if (record.status.ok()) {
    response->set_version(info_.version);
    const Backend& backend = context_->engines->backend();
    response->set_backend(std::string(backend.name()));
    for (const std::unique_ptr<Engine>& engine : context_->engines->engines()) {
      const DeviceInfo device = engine->backend().device();
      const DeviceMemoryStats memory = engine->backend().MemoryStats();
      v1::Device* out = response->add_devices();
      out->set_ordinal(device.ordinal);
      out->set_backend(std::string(engine->backend().name()));
      out->set_name(device.name);
      out->set_architecture(device.architecture);
      out->set_memory_bytes(memory.total);
      out->set_memory_limit_bytes(memory.limit);
    }
    v1::Limits* limits = response->mutable_limits();
    limits->set_max_receive_message_bytes(info_.max_receive_message_bytes);
    limits->set_max_in_flight_requests(info_.engine.max_in_flight_requests);
    limits->set_max_in_flight_bytes(info_.engine.max_in_flight_bytes);
    limits->set_client_share(info_.engine.client_share);
    limits->set_max_head_dim(kMaxHeadDim);
    const FeatureSet features = backend.Features();
    const std::pair<Feature, DType> dtypes[] = {{Feature::kFp32, DType::kF32},
                                                {Feature::kFp16, DType::kF16},
                                                {Feature::kBf16, DType::kBF16}};
    for (const auto& [feature, dtype] : dtypes) {
      if (features.Has(feature)) response->add_data_types(ToProto(dtype));
    }
    for (const Feature feature : List(features)) {
      response->add_features(std::string(Name(feature)));
    }
    record.sent_bytes = static_cast<int64_t>(response->ByteSizeLong());
  }
  context_->observer->OnRequestEnd(record);
  reactor->Finish(record.status.ok() ? grpc::Status::OK
                                     : ToGrpcStatus(record.status, record.request_id));
  return reactor;
}

}  // namespace attend
