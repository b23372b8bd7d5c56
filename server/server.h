// The composition root: one attend server, built, warmed up, drained and stopped in order.
//
//   absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
//   ... (*server)->grpc_port() ...
//   (*server)->Drain();   // or just destroy it
//
// Also what tests run in their own process.

#ifndef ATTEND_SERVER_SERVER_H_
#define ATTEND_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/engine/engine_group.h"
#include "server/ops/options.h"

namespace attend {

class Server {
 public:
  // Returns once the server is warm and ready. A failure is one line: a taken port, no device for
  // the wanted backend, too little memory.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // The same over backends made elsewhere, one for each device.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, std::vector<std::unique_ptr<Backend>> backends);

  // Drains without limit if nobody has, then stops.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int grpc_port() const;  // 0 on a Unix socket
  int http_port() const;  // 0 when off
  EngineGroup& engines();

  // Called once, from any thread, when a device has failed for good. Readiness is off by then. Set
  // it before the first request.
  void OnUnhealthy(std::function<void(const absl::Status&)> callback);

  // Housekeeping, to be called every few seconds: asks every device how it is, so that a failure is
  // noticed (and OnUnhealthy called) without a request; and once nothing has ended since the last
  // call, gives freed memory back to the system.
  void Tend();

  // Not ready from now on; still serves. First step of a shutdown. Idempotent.
  void StopBeingReady();

  // Refuses new requests, then returns when every accepted one has been answered (OK), or after the
  // drain timeout or Abort() (DEADLINE_EXCEEDED: what was still queued was answered UNAVAILABLE).
  absl::Status Drain();

  // Makes a Drain in progress give up. Any thread.
  void Abort();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_SERVER_H_
