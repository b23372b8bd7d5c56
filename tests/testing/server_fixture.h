// A server in this process over fake devices, and plain gRPC calls to it.

#ifndef ATTEND_TESTS_TESTING_SERVER_FIXTURE_H_
#define ATTEND_TESTS_TESTING_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend/v1/attention.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/server.h"
#include "tests/testing/attend_request.h"
#include "tests/testing/fake_backend.h"

namespace attend::testing {

// Polls until `condition` holds; false after half a minute.
bool Eventually(const std::function<bool()>& condition);

class ServerFixture {
 public:
  // Free ports, no log lines, small staging.
  static ServerOptions Options();

  // `devices` fake devices that compute by the oracle.
  explicit ServerFixture(ServerOptions options = Options(), int devices = 1);

  Server& server() { return *server_; }
  FakeDevice& device(int i = 0) { return *devices_[static_cast<size_t>(i)]; }
  std::string address() const;
  // Ends the server; a drain is up to the caller.
  void Stop() { server_.reset(); }

  // A channel of its own connection.
  std::shared_ptr<grpc::Channel> Connect() const;
  std::unique_ptr<v1::AttentionService::Stub> Stub() const;

 private:
  std::vector<std::shared_ptr<FakeDevice>> devices_;
  std::unique_ptr<Server> server_;
};

struct CallResult {
  grpc::Status status;
  v1::AttendResponse reply;
  std::string request_id;               // of the initial metadata
  std::optional<std::string> pushback;  // of the trailing metadata
};

using ContextSetter = std::function<void(grpc::ClientContext*)>;
CallResult Call(v1::AttentionService::Stub* stub, const v1::AttendRequest& request,
                const ContextSetter& set = nullptr);

// What the details of an error say.
struct ErrorInfo {
  std::string reason, field, request_id;
  std::optional<double> retry_seconds;
};
ErrorInfo InfoOf(const std::string& serialized_details);
inline ErrorInfo InfoOf(const grpc::Status& status) { return InfoOf(status.error_details()); }

// The value of `series` ("name" or "name{labels}") on the metrics page; nullopt when absent.
std::optional<double> MetricOf(int http_port, const std::string& series);

struct HttpReply {
  int code = 0;
  std::string headers, body;
};
// One request to 127.0.0.1, as given; whatever comes until the other side closes.
HttpReply Http(int port, const std::string& request);
HttpReply HttpGet(int port, const std::string& path);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_SERVER_FIXTURE_H_
