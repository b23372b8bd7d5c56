// A serialized reply whose tensors stay where the device wrote them.
//
// Only the small fields are serialized; the bytes of lse and o are slices over the staging buffer,
// which `keep_alive` holds until gRPC has sent them.

#ifndef ATTEND_SERVER_RPC_REPLY_WRITER_H_
#define ATTEND_SERVER_RPC_REPLY_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "attend/v1/attention.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/request_codec.h"

namespace attend {

// A serialized AttendResponse, or, with a stream id, the AttendStreamResponse around it. `head` is
// the reply without its tensors; `staging` is the base of the layout in `request`.
grpc::ByteBuffer WriteReply(const v1::AttendResponse& head, const DecodedRequest& request,
                            std::byte* staging, const std::shared_ptr<const void>& keep_alive,
                            std::optional<uint64_t> stream_id);

// A small message whole.
grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_REPLY_WRITER_H_
