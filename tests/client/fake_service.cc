#include "tests/client/fake_service.h"

#include <algorithm>
#include <deque>
#include <unordered_set>
#include <utility>

#include <grpcpp/server_builder.h>

#include "attend/v1/error_details.pb.h"

namespace attend::client {

// One stream: answers in the order in which the handler is released.
class FakeServer::Reactor
    : public grpc::ServerBidiReactor<v1::AttendStreamRequest, v1::AttendStreamResponse> {
 public:
  explicit Reactor(FakeServer* fake) : fake_(fake) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      std::lock_guard lock(mutex_);
      reading_ended_ = true;
      MaybeFinish();
      return;
    }
    if (request_.has_cancel()) {
      std::lock_guard lock(mutex_);
      cancelled_.insert(request_.id());
      fake_->cancelled_.fetch_add(1);
      StartRead(&request_);
      return;
    }
    fake_->calls_.fetch_add(1);
    if (fake_->break_streams_.load() > 0) {
      fake_->break_streams_.fetch_sub(1);
      std::lock_guard lock(mutex_);
      finished_ = true;
      Finish({grpc::StatusCode::UNAVAILABLE, "the stream breaks"});
      return;
    }
    auto request = std::make_shared<v1::AttendStreamRequest>(std::move(request_));
    {
      std::lock_guard lock(mutex_);
      ++pending_;
    }
    fake_->Answer([this, request] { Reply(*request); });
    request_.Clear();
    StartRead(&request_);
  }

  void OnWriteDone(bool /*ok*/) override {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
    MaybeFinish();
  }

  void OnCancel() override {}
  void OnDone() override { delete this; }

 private:
  void Reply(const v1::AttendStreamRequest& request) {
    v1::AttendStreamResponse response;
    response.set_id(request.id());
    const grpc::Status status = fake_->handler_(request.attend(), response.mutable_attend());
    if (!status.ok()) {
      v1::StreamError* const error = response.mutable_error();
      error->set_code(status.error_code());
      error->set_message(status.error_message());
      error->set_details(status.error_details());
    }
    std::lock_guard lock(mutex_);
    --pending_;
    if (!finished_) {
      outgoing_.push_back(std::move(response));
      if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
    }
    MaybeFinish();
  }

  // REQUIRES: mutex_ held.
  void MaybeFinish() {
    if (!reading_ended_ || pending_ > 0 || !outgoing_.empty() || finished_) return;
    finished_ = true;
    Finish(grpc::Status::OK);
  }

  FakeServer* const fake_;
  v1::AttendStreamRequest request_;
  std::mutex mutex_;
  std::deque<v1::AttendStreamResponse> outgoing_;
  std::unordered_set<uint64_t> cancelled_;
  int pending_ = 0;
  bool reading_ended_ = false;
  bool finished_ = false;
};

class FakeServer::Service : public v1::AttentionService::CallbackService {
 public:
  explicit Service(FakeServer* fake) : fake_(fake) {}

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const v1::AttendRequest* request,
                                   v1::AttendResponse* response) override {
    class UnaryReactor : public grpc::ServerUnaryReactor {
     public:
      explicit UnaryReactor(FakeServer* fake) : fake_(fake) {}
      void OnCancel() override { fake_->cancelled_.fetch_add(1); }
      void OnDone() override { delete this; }

     private:
      FakeServer* const fake_;
    };
    auto* const reactor = new UnaryReactor(fake_);
    fake_->Note(*context);
    fake_->calls_.fetch_add(1);
    fake_->Answer([this, context, request, response, reactor] {
      const grpc::Status status = fake_->handler_(*request, response);
      std::string pushback;
      {
        std::lock_guard lock(fake_->mutex_);
        pushback = fake_->pushback_;
      }
      if (!status.ok() && !pushback.empty()) {
        context->AddTrailingMetadata("grpc-retry-pushback-ms", pushback);
      }
      reactor->Finish(status);
    });
    return reactor;
  }

  grpc::ServerBidiReactor<v1::AttendStreamRequest, v1::AttendStreamResponse>* AttendStream(
      grpc::CallbackServerContext* context) override {
    fake_->Note(*context);
    return new Reactor(fake_);
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* /*request*/,
                                          v1::GetServerInfoResponse* response) override {
    response->set_version("9.8.7");
    response->set_backend("fake");
    v1::Device* const device = response->add_devices();
    device->set_ordinal(3);
    device->set_name("a \"device\"");
    device->set_memory_bytes(int64_t{1} << 40);
    response->mutable_limits()->set_max_receive_message_bytes(12345);
    response->add_data_types(v1::DATA_TYPE_BF16);
    response->add_features("causal");
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  FakeServer* const fake_;
};

FakeServer::FakeServer(Handler handler, const FakeOptions& options)
    : handler_(std::move(handler)), service_(std::make_unique<Service>(this)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(
      "127.0.0.1:0", options.credentials ? options.credentials : grpc::InsecureServerCredentials(),
      &port_);
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

FakeServer::~FakeServer() {
  Release();
  server_->Shutdown(std::chrono::system_clock::now());
}

std::string FakeServer::target() const { return "127.0.0.1:" + std::to_string(port_); }

size_t FakeServer::peers() const {
  std::lock_guard lock(mutex_);
  return peers_.size();
}

FakeServer::Metadata FakeServer::last_metadata() const {
  std::lock_guard lock(mutex_);
  return last_metadata_;
}

void FakeServer::SetPushback(std::string milliseconds) {
  std::lock_guard lock(mutex_);
  pushback_ = std::move(milliseconds);
}

void FakeServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void FakeServer::Hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeServer::Release() {
  std::vector<std::function<void()>> waiting;
  {
    std::lock_guard lock(mutex_);
    held_ = false;
    waiting.swap(waiting_);
  }
  for (const auto& answer : waiting) answer();
}

void FakeServer::Answer(std::function<void()> answer) {
  {
    std::lock_guard lock(mutex_);
    if (held_) {
      waiting_.push_back(std::move(answer));
      return;
    }
  }
  answer();
}

void FakeServer::Note(const grpc::CallbackServerContext& context) {
  std::lock_guard lock(mutex_);
  const std::string peer = context.peer();
  if (std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) peers_.push_back(peer);
  last_metadata_.clear();
  for (const auto& [key, value] : context.client_metadata()) {
    last_metadata_.emplace(std::string(key.data(), key.size()),
                           std::string(value.data(), value.size()));
  }
}

grpc::Status EchoHandler(const v1::AttendRequest& request, v1::AttendResponse* response) {
  response->set_request_id(request.request_id());
  response->mutable_stats()->set_batch_requests(3);
  response->mutable_stats()->set_backend("fake");
  response->mutable_stats()->set_queue_seconds(0.25);
  v1::Tensor* const o = response->mutable_o();
  o->set_data_type(request.q().data_type());
  *o->mutable_shape() = request.q().shape();
  std::string bytes = request.q().inline_();
  for (char& byte : bytes) byte = static_cast<char>(~byte);
  o->set_inline_(std::move(bytes));
  if (request.return_lse()) {
    v1::Tensor* const lse = response->mutable_lse();
    lse->set_data_type(v1::DATA_TYPE_FP32);
    lse->add_shape(2);
    const float values[] = {1.5f, -2.5f};
    lse->set_inline_(std::string(reinterpret_cast<const char*>(values), sizeof values));
  }
  return grpc::Status::OK;
}

grpc::Status RichError(grpc::StatusCode code, const std::string& message, const std::string& reason,
                       const std::string& field, int retry_after_ms,
                       const std::string& request_id) {
  v1::RpcStatus status;
  status.set_code(code);
  status.set_message(message);
  const auto add = [&status](const char* type, const google::protobuf::Message& detail) {
    google::protobuf::Any* const any = status.add_details();
    any->set_type_url(std::string("type.googleapis.com/google.rpc.") + type);
    any->set_value(detail.SerializeAsString());
  };
  v1::RpcErrorInfo info;
  info.set_reason(reason);
  info.set_domain("attend");
  add("ErrorInfo", info);
  if (!field.empty()) {
    v1::RpcBadRequest bad;
    bad.add_field_violations()->set_field(field);
    add("BadRequest", bad);
  }
  if (retry_after_ms >= 0) {
    v1::RpcRetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(retry_after_ms % 1000 * 1'000'000);
    add("RetryInfo", retry);
  }
  if (!request_id.empty()) {
    v1::RpcRequestInfo request;
    request.set_request_id(request_id);
    add("RequestInfo", request);
  }
  return {code, message, status.SerializeAsString()};
}

}  // namespace attend::client
