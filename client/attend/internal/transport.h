// One attempt at a request, over whatever carries it. Retrying is not the transport's business.

#ifndef ATTEND_CLIENT_INTERNAL_TRANSPORT_H_
#define ATTEND_CLIENT_INTERNAL_TRANSPORT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "attend/internal/buffer_pool.h"
#include "attend/internal/channel_pool.h"
#include "attend/internal/decode.h"
#include "attend/internal/encode.h"
#include "attend/internal/status_details.h"
#include "attend/request.h"

namespace attend::client {

struct Outcome {
  std::optional<AttendResult> result;
  AttemptError error;  // when there is no result
};

// Thread-safe; may be kept after the attempt has ended.
class Attempt {
 public:
  virtual ~Attempt() = default;
  // Asks for an early end with CANCELLED. Idempotent.
  virtual void Cancel() = 0;
};

// Thread-safe.
class Transport {
 public:
  using Done = std::function<void(Outcome)>;

  virtual ~Transport() = default;

  // `request` and `destinations` must stay valid until `done`, which is called exactly once, on
  // any thread, possibly before this returns.
  virtual std::shared_ptr<Attempt> Start(const EncodedRequest& request,
                                         const Destinations& destinations,
                                         std::chrono::system_clock::time_point deadline,
                                         Done done) = 0;
};

// `channels` must outlive the transport, and no attempt may be running when it is destroyed.
std::unique_ptr<Transport> MakeUnaryTransport(ChannelPool* channels,
                                              std::shared_ptr<BufferPool> buffers);
std::unique_ptr<Transport> MakeStreamTransport(ChannelPool* channels,
                                               std::shared_ptr<BufferPool> buffers);

// An outcome made of a status of this library's own.
Outcome Failed(const absl::Status& status);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_TRANSPORT_H_
