// One attention request from its message to its reply, whatever call carried it.
//
//   decode -> Validate -> Supports -> Admit -> gather into staging -> Submit -> reply
//
// Nothing large is copied before everything that can refuse has agreed.

#ifndef ATTEND_SERVER_RPC_ATTEND_JOB_H_
#define ATTEND_SERVER_RPC_ATTEND_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attend/v1/attention.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "server/engine/engine_group.h"
#include "server/engine/mutex.h"
#include "server/rpc/connection_ledger.h"
#include "server/rpc/copy_pool.h"
#include "server/rpc/request_codec.h"
#include "server/rpc/rpc_observer.h"
#include "server/rpc/wire_scan.h"

namespace attend {

// What all requests of a server share. Thread-safe.
struct JobContext {
  EngineGroup* engines = nullptr;
  CopyPool* copies = nullptr;
  RpcObserver* observer = nullptr;
  ConnectionLedger ledger;
  CodecLimits limits;

  // New requests are refused from now on. Returns when every admitted one has been submitted, so
  // that a drain of the engines finds them all, or false at the deadline.
  bool StopAccepting(Clock::time_point deadline);

  // After that: returns once no request has come for `quiet`, or at the deadline. gRPC's own
  // shutdown ends calls that it has not yet handed over with a bare CANCELLED; until their clients
  // have heard of the drain they are better served here.
  void AwaitQuiet(Clock::duration quiet, Clock::time_point deadline);

  // Used by jobs around admission and submission. Enter() is false once accepting has stopped.
  bool Enter();
  void Leave();

 private:
  Mutex mutex_;
  CondVar none_inside_;
  bool accepting_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point last_refusal_ ABSL_GUARDED_BY(mutex_);
};

// A received message: gRPC's slices and what the scan found in them.
struct ReceivedMessage {
  std::vector<grpc::Slice> slices;
  ScannedMessage scanned;
  int64_t bytes = 0;
};

// Takes the slices of `buffer` (which is left empty) and scans them.
absl::StatusOr<ReceivedMessage> Receive(grpc::ByteBuffer* buffer, MessageKind kind,
                                        size_t max_header_bytes);

class AttendJob : public std::enable_shared_from_this<AttendJob> {
 public:
  struct Origin {
    Method method = Method::kAttend;
    std::string request_id;
    std::string client;
    std::optional<Clock::time_point> deadline;
    std::optional<uint64_t> stream_id;
    Clock::time_point arrival;
    int64_t received_bytes = 0;
    bool retried = false;
  };
  // Called exactly once, from any thread, perhaps before Start returns. The reply, empty unless the
  // status is OK, is the callee's to swap away.
  using Done = std::function<void(const absl::Status& status, grpc::ByteBuffer* reply)>;

  // `request` is the parsed header of `message`, only read during the call.
  static std::shared_ptr<AttendJob> Start(JobContext* context, Origin origin,
                                          const v1::AttendRequest& request, ReceivedMessage message,
                                          Done done);

  // A request refused before there was a job: records and answers it like any other.
  static void Refuse(JobContext* context, Origin origin, const absl::Status& status, Done done);

  // Idempotent, any thread, any time.
  void Cancel();

 private:
  AttendJob(JobContext* context, Origin origin, Done done);

  absl::Status Admit(const v1::AttendRequest& request, const ReceivedMessage& message);
  void Gather(ReceivedMessage message);
  void Submit();
  void OnEngineDone(const absl::Status& status, const RequestReport& report);
  void End(const absl::Status& status, grpc::ByteBuffer reply);

  JobContext* const context_;
  const Done done_;
  RequestRecord record_;
  const std::optional<Clock::time_point> deadline_;
  const std::optional<uint64_t> stream_id_;
  const Clock::time_point arrival_;
  DecodedRequest decoded_;
  std::shared_ptr<Admission> admission_;  // shared with the slices of the reply

  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  RequestHandle handle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_ATTEND_JOB_H_
