// What the small part of a request says, checked field by field against itself and against the
// bytes that came.

#ifndef ATTEND_SERVER_RPC_REQUEST_HEADER_H_
#define ATTEND_SERVER_RPC_REQUEST_HEADER_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "attend/v1/attention.pb.h"
#include "kernels/attention.h"
#include "server/rpc/request_codec.h"
#include "server/rpc/wire_scan.h"

namespace attend {

// Sequences of a request: how its tensors are cut.
enum class Batching : uint8_t { kOne, kPadded, kRagged };

struct RequestHeader {
  Priority priority = Priority::kNormal;
  AttentionTask task;  // the options, which all sequences share
  std::array<DType, kTensorSlots> dtypes{};
  std::array<int64_t, kTensorSlots> bytes{};  // of the tensors; 0 for those that are absent

  Batching batching = Batching::kOne;
  int64_t sequences = 0;
  int64_t rows_q = 0, rows_k = 0;  // of one sequence, padded; of all when ragged
  int64_t heads_q = 0, heads_k = 0;
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t bias_sequences = 0, bias_heads = 0, bias_rows = 0;

  DType dtype() const { return dtypes[static_cast<size_t>(TensorSlot::kQ)]; }
};

// INVALID_ARGUMENT naming the field, or UNIMPLEMENTED naming an option that no backend has yet.
absl::StatusOr<RequestHeader> CheckHeader(const v1::AttendRequest& request,
                                          const ScannedMessage& scanned, const CodecLimits& limits);

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_REQUEST_HEADER_H_
