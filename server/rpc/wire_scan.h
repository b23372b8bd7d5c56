// Reads a serialized AttendRequest without copying its tensors.
//
// gRPC hands over a message as slices of at most 64 KiB. The scan walks the protobuf wire format
// over them, notes where the inline bytes of each tensor lie, and collects everything else into
// `header`: a serialized message of the same type whose `inline` fields are present but empty. The
// generated code then parses that small header, so every rule of protobuf (merging, oneofs, unknown
// fields) stays protobuf's own; only the large bytes take another way.
//
// Equivalent to parsing the whole message with the generated code: a fuzz test compares them.

#ifndef ATTEND_SERVER_RPC_WIRE_SCAN_H_
#define ATTEND_SERVER_RPC_WIRE_SCAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace attend {

// Bytes owned by somebody else.
struct Fragment {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

// The tensors of a request, in the order of their staging.
enum class TensorSlot : uint8_t { kQ, kK, kV, kBias, kAlibi, kSinks };
inline constexpr int kTensorSlots = 6;
// Its field's name in AttendRequest.
const char* Name(TensorSlot slot);

// The inline bytes of one tensor, in order.
struct InlineBytes {
  std::vector<Fragment> fragments;
  int64_t size = 0;
};

struct ScannedMessage {
  std::string header;
  std::array<InlineBytes, kTensorSlots> tensors;

  const InlineBytes& at(TensorSlot slot) const { return tensors[static_cast<size_t>(slot)]; }
};

enum class MessageKind : uint8_t {
  kAttendRequest,        // tensors at the top level
  kAttendStreamRequest,  // an AttendRequest in field `attend`
};

// INVALID_ARGUMENT when the bytes are no protobuf message, or (reason TOO_LARGE) when the header
// would pass `max_header_bytes`. The fragments of the result point into `slices`.
absl::StatusOr<ScannedMessage> ScanMessage(absl::Span<const Fragment> slices, MessageKind kind,
                                           size_t max_header_bytes);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_WIRE_SCAN_H_
