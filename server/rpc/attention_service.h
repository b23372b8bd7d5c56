// The service of attention.proto on gRPC's callback API. Its methods take raw buffers, so that
// tensors are copied once on the way in and never on the way out.

#ifndef ATTEND_SERVER_RPC_ATTENTION_SERVICE_H_
#define ATTEND_SERVER_RPC_ATTENTION_SERVICE_H_

#include <memory>
#include <string>
#include <unordered_set>

#include "attend/v1/attention.grpc.pb.h"
#include "server/engine/engine_options.h"
#include "server/rpc/attend_job.h"

namespace attend {

class StreamCall;

// What GetServerInfo tells beside what the engines know.
struct ServiceInfo {
  std::string version;
  int64_t max_receive_message_bytes = 0;
  EngineOptions engine;
};

// Thread-safe. Must outlive the grpc::Server that it is registered with.
class AttentionService final : public v1::AttentionService::WithRawCallbackMethod_Attend<
                                   v1::AttentionService::WithRawCallbackMethod_AttendStream<
                                       v1::AttentionService::WithCallbackMethod_GetServerInfo<
                                           v1::AttentionService::Service>>> {
 public:
  // Everything in `context` must outlive the service.
  AttentionService(JobContext* context, ServiceInfo info);

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttendStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

  // Open streams end with UNAVAILABLE as soon as nothing is in flight on them. Call after
  // JobContext::StopAccepting.
  void DrainStreams();

 private:
  friend class StreamCall;
  void Remove(const std::shared_ptr<StreamCall>& stream);

  JobContext* const context_;
  const ServiceInfo info_;
  Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_set<std::shared_ptr<StreamCall>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_ATTENTION_SERVICE_H_
