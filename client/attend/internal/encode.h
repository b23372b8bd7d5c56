// Requests to wire bytes, with one copy: from the caller's memory into the send buffer.
//
// The generated classes hold tensor bytes in std::string, which would cost a second copy and fresh
// pages for every request. So the small fields go through the generated classes and the tensors
// are placed by hand; the bytes are those that the generated class would write.

#ifndef ATTEND_CLIENT_INTERNAL_ENCODE_H_
#define ATTEND_CLIENT_INTERNAL_ENCODE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "attend/internal/buffer_pool.h"
#include "attend/request.h"

namespace attend::client {

class EncodedRequest {
 public:
  // INVALID_ARGUMENT naming the field when a tensor's bytes do not match its shape (nothing is
  // read then), or when the message would pass gRPC's 2 GiB. Everything else is the server's to
  // judge. Keeps pointers to the tensors' bytes.
  static absl::StatusOr<EncodedRequest> Make(const AttendInputs& inputs,
                                             const AttendOptions& options,
                                             std::string_view request_id);

  // What an AttendStreamRequest adds.
  struct Envelope {
    uint64_t id = 0;
    double timeout_seconds = 0;  // sent when > 0
  };

  // A message in a buffer of `pool`: an AttendRequest, or with `envelope` an AttendStreamRequest
  // that holds it. Reads the caller's tensors; may be called again for a retry.
  // RESOURCE_EXHAUSTED when the host has no memory for it.
  absl::StatusOr<grpc::ByteBuffer> Message(BufferPool& pool,
                                           const std::optional<Envelope>& envelope) const;

  size_t size_bytes() const { return size_; }

 private:
  struct Part {
    std::string prefix;  // tag and length of the field, then all of the Tensor but its bytes
    const void* data;
    size_t size;
  };

  absl::Status Add(int field, std::string_view name, const TensorRef& tensor);

  std::string header_;  // the AttendRequest without its tensors
  std::vector<Part> parts_;
  size_t size_ = 0;  // of the AttendRequest
};

// An AttendStreamRequest that cancels `stream_id`.
grpc::ByteBuffer CancelMessage(uint64_t stream_id);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_ENCODE_H_
