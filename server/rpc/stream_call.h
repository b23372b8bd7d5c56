// One AttendStream call: many requests in flight, replies in completion order.
//
// Reads go on while requests run; they pause while the client leaves replies unread. How much may
// be in flight is the engine's to decide (admission). A broken message, or an id that is still in
// use, ends the stream: no reply could be told from another's.

#ifndef ATTEND_SERVER_RPC_STREAM_CALL_H_
#define ATTEND_SERVER_RPC_STREAM_CALL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/attend_job.h"

namespace attend {

class AttentionService;

// Thread-safe. The service owns it until OnDone.
class StreamCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  // Replies that wait for the client before reading pauses: a few hundred bytes each when refused.
  static constexpr size_t kMaxUnsentReplies = 256;

  StreamCall(AttentionService* service, JobContext* context, grpc::CallbackServerContext* call);

  void Start();
  // Ends with UNAVAILABLE once nothing is in flight.
  void Drain();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // What one message asks for. A status means that the stream must end with it.
  absl::Status Handle(grpc::ByteBuffer* buffer);
  absl::Status StartJob(uint64_t id, const v1::AttendStreamRequest& request,
                        ReceivedMessage message);
  void OnJobDone(uint64_t id, const std::string& request_id, const absl::Status& status,
                 grpc::ByteBuffer* reply);
  void EndWith(const absl::Status& status);
  // Starts whatever may be started now: a read, a write or the end. gRPC is never called under the
  // lock, since it may react on the calling thread.
  void Advance();

  AttentionService* const service_;
  JobContext* const context_;
  grpc::CallbackServerContext* const call_;
  const std::string client_;
  const std::optional<Clock::time_point> deadline_;
  std::optional<std::string> header_id_;
  std::string stream_id_;      // of the stream itself, for its own errors
  grpc::ByteBuffer incoming_;  // owned by gRPC while a read is out
  grpc::ByteBuffer outgoing_;  // owned by gRPC while a write is out

  Mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<AttendJob>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mutex_);
  bool read_wanted_ ABSL_GUARDED_BY(mutex_) = true;  // the last message has been handled
  bool starting_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_over_ ABSL_GUARDED_BY(mutex_) = false;  // the client has no more to say
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // cancelled, or the client is gone
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);  // not OK: end with it
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_STREAM_CALL_H_
