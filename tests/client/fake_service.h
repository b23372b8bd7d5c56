// An attention server of scripted answers, over real gRPC on a port of its own.
//
// It speaks through the generated classes, which the client library does not use for tensors: each
// checks the other's bytes.

#ifndef ATTEND_TESTS_CLIENT_FAKE_SERVICE_H_
#define ATTEND_TESTS_CLIENT_FAKE_SERVICE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/server.h>
#include <grpcpp/server_context.h>

#include "attend/v1/attention.grpc.pb.h"

namespace attend::client {

struct FakeOptions {
  int max_receive_bytes = 64 << 20;
  std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: plaintext
};

class FakeServer {
 public:
  // Answers one request; for both kinds of call. `metadata` is what the client sent.
  using Metadata = std::multimap<std::string, std::string>;
  using Handler = std::function<grpc::Status(const v1::AttendRequest&, v1::AttendResponse*)>;

  explicit FakeServer(Handler handler, const FakeOptions& options = {});
  ~FakeServer();

  std::string target() const;
  // Requests that have reached the handler.
  int calls() const { return calls_.load(); }
  // Connections that have sent a request.
  size_t peers() const;
  Metadata last_metadata() const;

  // What grpc.health.v1 says of the server as a whole.
  void SetServing(bool serving);
  // Holds every answer back until Release().
  void Hold();
  void Release();
  // Calls that ended because the client gave up.
  int cancelled() const { return cancelled_.load(); }
  // Ends all streams with this status at the next request.
  void BreakStreams(int times) { break_streams_.store(times); }
  // Sent as the grpc-retry-pushback-ms trailer with every failed unary call; empty: none.
  void SetPushback(std::string milliseconds);

 private:
  class Service;
  class Reactor;
  friend class Service;

  void Note(const grpc::CallbackServerContext& context);
  void Answer(std::function<void()> answer);  // now, or at Release()

  const Handler handler_;
  std::atomic<int> calls_{0};
  std::atomic<int> cancelled_{0};
  std::atomic<int> break_streams_{0};
  mutable std::mutex mutex_;
  bool held_ = false;
  std::vector<std::function<void()>> waiting_;
  std::vector<std::string> peers_;
  Metadata last_metadata_;
  std::string pushback_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// o = q with every byte inverted, [.., Dv] taken from v; enough to see that bytes travel.
grpc::Status EchoHandler(const v1::AttendRequest& request, v1::AttendResponse* response);

// A failure with google.rpc details, written with the generated google.rpc twins.
grpc::Status RichError(grpc::StatusCode code, const std::string& message, const std::string& reason,
                       const std::string& field, int retry_after_ms = -1,
                       const std::string& request_id = "");

}  // namespace attend::client

#endif  // ATTEND_TESTS_CLIENT_FAKE_SERVICE_H_
