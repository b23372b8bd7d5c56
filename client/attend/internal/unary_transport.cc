#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "attend/internal/grpc_status.h"
#include "attend/internal/transport.h"

namespace attend::client {
namespace {

constexpr char kMethod[] = "/attend.v1.AttentionService/Attend";

class UnaryAttempt : public Attempt {
 public:
  UnaryAttempt(ChannelPool::Slot* slot, const Destinations& destinations, Transport::Done done)
      : slot_(slot), destinations_(destinations), done_(std::move(done)) {
    slot_->in_flight.fetch_add(1, std::memory_order_relaxed);
  }

  static void Run(const std::shared_ptr<UnaryAttempt>& self, const EncodedRequest& request,
                  const ChannelPool& channels, BufferPool& buffers,
                  std::chrono::system_clock::time_point deadline) {
    grpc::ClientContext* const context = self->context_.get();  // not touched once the call runs
    context->set_deadline(deadline);
    if (absl::Status status = channels.Prepare(context); !status.ok()) {
      return self->Finish(Failed(status));
    }
    absl::StatusOr<grpc::ByteBuffer> message = request.Message(buffers, std::nullopt);
    if (!message.ok()) return self->Finish(Failed(message.status()));
    self->message_.Swap(&*message);
    self->slot_->stub.UnaryCall(context, kMethod, {}, &self->message_, &self->reply_,
                                [self](const grpc::Status& status) { self->OnDone(status); });
    // gRPC holds its own reference; without ours the buffer is free as soon as it has been sent.
    self->message_.Clear();
  }

  void Cancel() override {
    std::shared_ptr<grpc::ClientContext> context;
    {
      std::lock_guard lock(mutex_);
      context = context_;
    }
    if (context != nullptr) context->TryCancel();
  }

 private:
  void OnDone(const grpc::Status& status) {
    Outcome outcome;
    if (!status.ok()) {
      outcome.error = ReadError(status, context_->GetServerTrailingMetadata());
    } else if (auto result = DecodeResponse(&reply_, destinations_); result.ok()) {
      outcome.result = *std::move(result);
    } else {
      outcome = Failed(result.status());
    }
    reply_.Clear();
    // Before the client can end: the context holds the channel, and on gRPC's own thread, which
    // runs this, a channel must never be the last of its process to go.
    {
      std::lock_guard lock(mutex_);
      context_.reset();
    }
    Finish(std::move(outcome));
  }

  // The slot and everything else of the client may be gone once `done_` has been called.
  void Finish(Outcome outcome) {
    slot_->in_flight.fetch_sub(1, std::memory_order_relaxed);
    std::exchange(done_, nullptr)(std::move(outcome));
  }

  ChannelPool::Slot* const slot_;
  const Destinations destinations_;
  Transport::Done done_;
  std::mutex mutex_;
  std::shared_ptr<grpc::ClientContext> context_ = std::make_shared<grpc::ClientContext>();
  grpc::ByteBuffer message_;
  grpc::ByteBuffer reply_;
};

class UnaryTransport : public Transport {
 public:
  UnaryTransport(ChannelPool* channels, std::shared_ptr<BufferPool> buffers)
      : channels_(channels), buffers_(std::move(buffers)) {}

  std::shared_ptr<Attempt> Start(const EncodedRequest& request, const Destinations& destinations,
                                 std::chrono::system_clock::time_point deadline,
                                 Done done) override {
    auto attempt =
        std::make_shared<UnaryAttempt>(&channels_->Pick(), destinations, std::move(done));
    UnaryAttempt::Run(attempt, request, *channels_, *buffers_, deadline);
    return attempt;
  }

 private:
  ChannelPool* const channels_;
  const std::shared_ptr<BufferPool> buffers_;
};

}  // namespace

std::unique_ptr<Transport> MakeUnaryTransport(ChannelPool* channels,
                                              std::shared_ptr<BufferPool> buffers) {
  return std::make_unique<UnaryTransport>(channels, std::move(buffers));
}

}  // namespace attend::client
