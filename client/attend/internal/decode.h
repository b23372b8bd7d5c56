// Replies from wire bytes, with one copy: from gRPC's slices into the result's memory.
//
// Replies are as little trusted as requests: lengths are checked against what has arrived before
// anything is allocated. A reply that does not parse is INTERNAL.

#ifndef ATTEND_CLIENT_INTERNAL_DECODE_H_
#define ATTEND_CLIENT_INTERNAL_DECODE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attend/request.h"

namespace attend::client {

// Where the outputs should go; empty spans: memory of their own.
struct Destinations {
  std::span<std::byte> o;
  std::span<std::byte> lse;
};

// An AttendResponse.
absl::StatusOr<AttendResult> DecodeResponse(grpc::ByteBuffer* message,
                                            const Destinations& destinations);

// An AttendStreamResponse. `claim` is called once the id is known and says where its outputs go, or
// null for an id that nobody waits for any more, whose rest is skipped.
struct StreamReply {
  uint64_t id = 0;
  bool claimed = false;
  absl::StatusOr<AttendResult> result = absl::InternalError("the reply is empty");
  bool is_error = false;  // the server answered with a StreamError
  int error_code = 0;
  std::string error_message;
  std::string error_details;
};
absl::StatusOr<StreamReply> DecodeStreamReply(
    grpc::ByteBuffer* message, const std::function<const Destinations*(uint64_t id)>& claim);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_DECODE_H_
