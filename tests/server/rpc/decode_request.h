// Requests through the scanner, the parser and the codec, as the service takes them; and where a
// bad request starts from: all of these are good.

#ifndef ATTEND_TESTS_SERVER_RPC_DECODE_REQUEST_H_
#define ATTEND_TESTS_SERVER_RPC_DECODE_REQUEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/request_codec.h"
#include "tests/testing/attend_request.h"

namespace attend::testing {

inline absl::StatusOr<DecodedRequest> Decode(const v1::AttendRequest& request,
                                             CodecLimits limits = {}) {
  const std::string bytes = request.SerializeAsString();
  const Fragment slice = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  absl::StatusOr<ScannedMessage> scanned =
      ScanMessage({&slice, 1}, MessageKind::kAttendRequest, limits.max_header_bytes);
  if (!scanned.ok()) return scanned.status();
  v1::AttendRequest header;
  if (!header.ParseFromString(scanned->header)) return absl::InternalError("header is broken");
  if (absl::Status status = RefuseUnknownFields(header); !status.ok()) return status;
  return DecodeRequest(header, *scanned, limits);
}

inline v1::AttendRequest One() {
  Random random(1);
  return MakeRequest({}, &random);
}
inline v1::AttendRequest Padded() {  // two sequences
  Random random(2);
  RequestShape shape;
  shape.batch = 2;
  return MakeRequest(shape, &random);
}
inline v1::AttendRequest Ragged() {  // three sequences of 5 and 7 rows in all
  v1::AttendRequest request = One();
  for (int64_t offset : {0, 2, 2, 5}) request.add_cu_seqlens_q(offset);
  for (int64_t offset : {0, 0, 3, 7}) request.add_cu_seqlens_k(offset);
  return request;
}

}  // namespace attend::testing

#endif  // ATTEND_TESTS_SERVER_RPC_DECODE_REQUEST_H_
