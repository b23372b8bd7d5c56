// From the small part of a request to tasks: every check that needs no tensor bytes.
//
//   absl::StatusOr<DecodedRequest> decoded = DecodeRequest(header, scanned, limits);
//   ... Supports(), Admit(decoded->staging_bytes) ...
//   PlaceTasks(&*decoded, admission.staging(), admission.memory_kind());
//
// Nothing large is copied or allocated here: a shape's product is computed with overflow checks and
// compared with the bytes that came.

#ifndef ATTEND_SERVER_RPC_REQUEST_CODEC_H_
#define ATTEND_SERVER_RPC_REQUEST_CODEC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attend/v1/attention.pb.h"
#include "kernels/attention.h"
#include "server/engine/request.h"
#include "server/rpc/wire_scan.h"

namespace attend {

struct CodecLimits {
  // Sequences of one request. A sequence without rows costs a client 2 bytes and the server a
  // descriptor of some 400.
  int64_t max_sequences = 131072;
  // A request without its tensors: room for the lengths of max_sequences.
  size_t max_header_bytes = size_t{4} << 20;
};

inline constexpr size_t kStagingAlignment = 256;  // every tensor starts on such an offset
inline constexpr size_t kMaxRequestIdBytes = 128;

// One tensor of the reply.
struct OutputLayout {
  bool wanted = false;
  size_t offset = 0;  // in staging
  size_t bytes = 0;
  std::vector<int64_t> shape;
};

struct DecodedRequest {
  std::string request_id;  // empty: none was given
  Priority priority = Priority::kNormal;
  DType dtype = DType::kF32;

  // One for each sequence that has query rows; others have no output. Their pointers mean nothing
  // before PlaceTasks.
  std::vector<AttentionTask> tasks;

  // Inputs then outputs, and what the descriptors themselves weigh.
  size_t staging_bytes = 0;
  std::array<size_t, kTensorSlots> input_offsets{};
  OutputLayout o, lse;

  int64_t sequences = 0;
  int64_t query_tokens = 0;  // real rows
  int64_t kv_tokens = 0;
  int64_t padding_tokens = 0;  // rows of q past q_lens
  int64_t input_bytes = 0;     // of all tensors
};

// INVALID_ARGUMENT naming the field, or UNIMPLEMENTED naming an option that no backend has yet.
absl::StatusOr<DecodedRequest> DecodeRequest(const v1::AttendRequest& header,
                                             const ScannedMessage& scanned,
                                             const CodecLimits& limits);

// Points the tasks into `staging`, which holds staging_bytes. Call once.
void PlaceTasks(DecodedRequest* request, std::byte* staging, MemoryKind memory);

// OK, or INVALID_ARGUMENT: at most kMaxRequestIdBytes printable ASCII characters.
absl::Status ValidateRequestId(const std::string& id);

// INVALID_ARGUMENT naming the first field that this build does not know, at any depth.
absl::Status RefuseUnknownFields(const google::protobuf::Message& message);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_REQUEST_CODEC_H_
