#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <grpcpp/alarm.h>

#include "absl/strings/str_cat.h"
#include "attend/internal/grpc_status.h"
#include "attend/internal/transport.h"

namespace attend::client {
namespace {

constexpr char kMethod[] = "/attend.v1.AttentionService/AttendStream";

AttemptError LocalError(absl::StatusCode code, std::string message) {
  AttemptError error;
  error.code = code;
  error.message = std::move(message);
  return error;
}

// One request waiting for its answer on a stream.
struct Waiting {
  Destinations destinations;
  Transport::Done done;
  std::unique_ptr<grpc::Alarm> alarm;  // ends the attempt at its deadline
};

// One stream. Whoever takes a request out of `waiting_` ends it, so each ends exactly once. Keeps
// itself alive until gRPC is through with it.
class Stream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
               public std::enable_shared_from_this<Stream> {
 public:
  static absl::StatusOr<std::shared_ptr<Stream>> Open(ChannelPool::Slot* slot,
                                                      const ChannelPool& channels) {
    auto stream = std::make_shared<Stream>();
    if (absl::Status status = channels.Prepare(stream->context_.get()); !status.ok()) {
      return status;
    }
    stream->self_ = stream;
    slot->stub.PrepareBidiStreamingCall(stream->context_.get(), kMethod, {}, stream.get());
    stream->AddHold();  // for writes that start outside reactions; dropped when reading ends
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }

  // False when the stream has ended; then nothing of the arguments was taken.
  bool Send(uint64_t id, std::chrono::system_clock::time_point deadline, grpc::ByteBuffer* message,
            Waiting* waiting) {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    waiting->alarm = std::make_unique<grpc::Alarm>();
    waiting->alarm->Set(deadline, [weak = weak_from_this(), id](bool fired) {
      const std::shared_ptr<Stream> self = fired ? weak.lock() : nullptr;
      if (self == nullptr) return;
      self->Abandon(id, LocalError(absl::StatusCode::kDeadlineExceeded, "the deadline has passed"));
    });
    waiting_.emplace(id, std::move(*waiting));
    outgoing_.emplace_back(id, std::move(*message));
    WriteNext();
    return true;
  }

  // Ends request `id` with `error` unless it has ended already, and tells the server.
  void Abandon(uint64_t id, AttemptError error) {
    std::optional<Waiting> waiting;
    {
      std::lock_guard lock(mutex_);
      waiting = Take(id);
      if (!waiting.has_value()) return;
      // What has not been written need not be; the message being written is not in the queue.
      const size_t queued =
          std::erase_if(outgoing_, [id](auto& entry) { return entry.first == id; });
      if (queued == 0 && !ended_) {
        outgoing_.emplace_back(0, CancelMessage(id));
        WriteNext();
      }
    }
    End(std::move(*waiting), std::move(error));
  }

  // Returns when gRPC holds nothing of it any more.
  void Close() {
    Cancel();
    std::unique_lock lock(mutex_);
    done_changed_.wait(lock, [this] { return done_; });
  }

  bool ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  void Cancel() {
    std::shared_ptr<grpc::ClientContext> context;
    {
      std::lock_guard lock(mutex_);
      context = context_;
    }
    if (context != nullptr) context->TryCancel();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    writing_message_.Clear();
    if (ok) WriteNext();  // not ok: reading ends too, and cleans up
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        std::lock_guard lock(mutex_);
        ended_ = true;
        outgoing_.clear();
      }
      RemoveHold();
      return;
    }
    std::optional<Waiting> waiting;
    absl::StatusOr<StreamReply> reply =
        DecodeStreamReply(&incoming_, [&](uint64_t id) -> const Destinations* {
          std::lock_guard lock(mutex_);
          waiting = Take(id);
          return waiting.has_value() ? &waiting->destinations : nullptr;
        });
    incoming_.Clear();
    StartRead(&incoming_);
    if (!reply.ok()) {
      Cancel();  // out of step with the server: nothing after this can be trusted
      return;
    }
    if (!waiting.has_value()) return;  // abandoned before
    if (reply->result.ok()) {
      Outcome outcome;
      outcome.result = *std::move(reply->result);
      Finish(std::move(*waiting), std::move(outcome));
    } else if (reply->is_error) {
      End(std::move(*waiting),
          ReadError(reply->error_code, reply->error_message, reply->error_details, ""));
    } else {
      Finish(std::move(*waiting), Failed(reply->result.status()));
    }
  }

  void OnDone(const grpc::Status& status) override {
    std::unordered_map<uint64_t, Waiting> left;
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      left.swap(waiting_);
    }
    AttemptError error = ReadError(status, context_->GetServerTrailingMetadata());
    // A stream that ends well with requests on it (the server drains) has not answered them.
    if (status.ok())
      error = LocalError(absl::StatusCode::kUnavailable, "the server ended the stream");
    for (auto& [id, waiting] : left) End(std::move(waiting), error);
    const std::shared_ptr<Stream> self = std::move(self_);  // may be the last reference
    std::lock_guard lock(mutex_);
    // Before the client can end: the context holds the channel, and on gRPC's own thread, which
    // runs this, a channel must never be the last of its process to go.
    context_.reset();
    done_ = true;
    done_changed_.notify_all();
  }

  // REQUIRES: mutex_ held.
  void WriteNext() {
    if (writing_ || ended_ || outgoing_.empty()) return;
    writing_ = true;
    writing_message_ = outgoing_.front().second;  // shares the slices
    outgoing_.pop_front();
    StartWrite(&writing_message_);
  }

  // REQUIRES: mutex_ held.
  std::optional<Waiting> Take(uint64_t id) {
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) return std::nullopt;
    std::optional<Waiting> waiting(std::move(it->second));
    waiting_.erase(it);
    return waiting;
  }

  static void Finish(Waiting waiting, Outcome outcome) {
    waiting.alarm.reset();
    waiting.done(std::move(outcome));
  }
  static void End(Waiting waiting, AttemptError error) {
    Outcome outcome;
    outcome.error = std::move(error);
    Finish(std::move(waiting), std::move(outcome));
  }

  std::shared_ptr<grpc::ClientContext> context_ = std::make_shared<grpc::ClientContext>();
  grpc::ByteBuffer incoming_;
  std::shared_ptr<Stream> self_;

  std::mutex mutex_;
  std::condition_variable done_changed_;
  // Guarded by mutex_.
  std::unordered_map<uint64_t, Waiting> waiting_;
  std::deque<std::pair<uint64_t, grpc::ByteBuffer>> outgoing_;  // id 0: a cancellation
  grpc::ByteBuffer writing_message_;
  bool writing_ = false;
  bool ended_ = false;  // no more writes
  bool done_ = false;   // gRPC is through
};

class StreamAttempt : public Attempt {
 public:
  StreamAttempt(std::weak_ptr<Stream> stream, uint64_t id) : stream_(std::move(stream)), id_(id) {}
  void Cancel() override {
    if (const std::shared_ptr<Stream> stream = stream_.lock()) {
      stream->Abandon(id_, LocalError(absl::StatusCode::kCancelled, "cancelled by the caller"));
    }
  }

 private:
  const std::weak_ptr<Stream> stream_;
  const uint64_t id_;
};

class StreamTransport : public Transport {
 public:
  StreamTransport(ChannelPool* channels, std::shared_ptr<BufferPool> buffers)
      : channels_(channels), buffers_(std::move(buffers)), streams_(channels->slots().size()) {}

  ~StreamTransport() override {
    for (const std::shared_ptr<Stream>& stream : streams_) {
      if (stream != nullptr) stream->Close();
    }
    for (const std::shared_ptr<Stream>& stream : retired_) stream->Close();
  }

  std::shared_ptr<Attempt> Start(const EncodedRequest& request, const Destinations& destinations,
                                 std::chrono::system_clock::time_point deadline,
                                 Done done) override {
    const uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
    ChannelPool::Slot* const slot = &channels_->Pick();
    const std::chrono::duration<double> left = deadline - std::chrono::system_clock::now();
    absl::StatusOr<grpc::ByteBuffer> message =
        request.Message(*buffers_, EncodedRequest::Envelope{id, left.count()});
    if (!message.ok()) {
      done(Failed(message.status()));
      return nullptr;
    }
    slot->in_flight.fetch_add(1, std::memory_order_relaxed);
    Waiting waiting{destinations,
                    [slot, done = std::move(done)](Outcome outcome) {
                      slot->in_flight.fetch_sub(1, std::memory_order_relaxed);
                      done(std::move(outcome));
                    },
                    nullptr};
    // A stream may end between being looked up and being used; two in a row are no accident.
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<std::shared_ptr<Stream>> stream = StreamOf(slot);
      if (!stream.ok()) {
        waiting.done(Failed(stream.status()));
        return nullptr;
      }
      if ((*stream)->Send(id, deadline, &*message, &waiting)) {
        return std::make_shared<StreamAttempt>(*stream, id);
      }
    }
    Outcome outcome;
    outcome.error = LocalError(absl::StatusCode::kUnavailable, "the server ended the stream");
    waiting.done(std::move(outcome));
    return nullptr;
  }

 private:
  // The stream of a channel, a new one when the last has ended.
  absl::StatusOr<std::shared_ptr<Stream>> StreamOf(ChannelPool::Slot* slot) {
    size_t index = 0;
    while (channels_->slots()[index].get() != slot) ++index;
    std::lock_guard lock(mutex_);
    std::shared_ptr<Stream>& stream = streams_[index];
    if (stream == nullptr || stream->ended()) {
      absl::StatusOr<std::shared_ptr<Stream>> opened = Stream::Open(slot, *channels_);
      if (!opened.ok()) return opened.status();
      std::erase_if(retired_, [](const auto& old) { return old->done(); });
      if (stream != nullptr) retired_.push_back(std::move(stream));
      stream = *std::move(opened);
    }
    return stream;
  }

  ChannelPool* const channels_;
  const std::shared_ptr<BufferPool> buffers_;
  std::atomic<uint64_t> next_id_{1};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<Stream>> streams_;  // one a channel
  std::vector<std::shared_ptr<Stream>> retired_;  // ended, and perhaps not yet done
};

}  // namespace

std::unique_ptr<Transport> MakeStreamTransport(ChannelPool* channels,
                                               std::shared_ptr<BufferPool> buffers) {
  return std::make_unique<StreamTransport>(channels, std::move(buffers));
}

}  // namespace attend::client
