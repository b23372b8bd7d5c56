// The client of an attend server.
//
//   using namespace attend::client;
//   absl::StatusOr<std::unique_ptr<Client>> client = Client::Create("127.0.0.1:50051");
//   AttendInputs inputs{TensorRef::Fp16(q, {512, 8, 64}), TensorRef::Fp16(k, {512, 8, 64}),
//                       TensorRef::Fp16(v, {512, 8, 64})};
//   absl::StatusOr<AttendResult> result = (*client)->Attend(inputs, {.causal = true});
//   // result->o: fp16 [512, 8, 64]
//
// Shapes and units: request.h. Errors: error.h.
// Ownership: tensors and destinations belong to the caller and must stay valid until the call has
// ended (Attend returned, the callback was called, the future is ready). The client owns its
// connections; destroying it cancels what is in flight and waits for its callbacks.
// Threads: every method may be called from any thread at once. Callbacks run on the library's
// threads: they must be quick, may start other calls, and must not block on one or destroy the
// client.

#ifndef ATTEND_CLIENT_CLIENT_H_
#define ATTEND_CLIENT_CLIENT_H_

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attend/error.h"
#include "attend/options.h"
#include "attend/request.h"
#include "attend/server_info.h"
#include "attend/tensor.h"

namespace attend::client {

class ClientImpl;
class CallState;

// One asynchronous call. Copyable; safe to keep after the call has ended or the client is gone.
class Call {
 public:
  Call() = default;
  explicit Call(std::weak_ptr<CallState> state) : state_(std::move(state)) {}
  // Asks for an early end with CANCELLED. The callback still runs, exactly once.
  void Cancel() const;

 private:
  std::weak_ptr<CallState> state_;
};

class Client {
 public:
  using Callback = std::function<void(absl::StatusOr<AttendResult>)>;

  // `target`: host:port, dns:///host:port or unix:/path. Does not connect yet. INVALID_ARGUMENT or
  // FAILED_PRECONDITION for options that contradict each other, NOT_FOUND for files that cannot be
  // read.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& target,
                                                        const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<AttendResult> Attend(const AttendInputs& inputs,
                                      const AttendOptions& options = {});

  // `done` is called exactly once, possibly before this returns (when nothing could be sent).
  Call AttendAsync(const AttendInputs& inputs, const AttendOptions& options, Callback done);

  std::future<absl::StatusOr<AttendResult>> AttendFuture(const AttendInputs& inputs,
                                                         const AttendOptions& options = {});

  // Waits until one connection stands. UNAVAILABLE when it does not within `timeout`.
  absl::Status Connect(std::chrono::nanoseconds timeout);

  // Both are single tries, without retries.
  absl::StatusOr<ServerInfo> GetServerInfo(std::chrono::nanoseconds timeout);
  // `service`: "" for the server as a whole. NOT_FOUND for a service it does not know.
  absl::StatusOr<HealthState> CheckHealth(const std::string& service,
                                          std::chrono::nanoseconds timeout);

 private:
  explicit Client(std::shared_ptr<ClientImpl> impl);
  std::shared_ptr<ClientImpl> impl_;
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_CLIENT_H_
