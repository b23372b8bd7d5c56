#include "tests/fuzz/request_check.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attend/v1/attention.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/attention.h"
#include "kernels/errors.h"
#include "server/rpc/request_codec.h"
#include "server/rpc/wire_scan.h"

namespace attend::testing {
namespace {

constexpr size_t kMaxHeader = size_t{1} << 20;

v1::Tensor* MutableTensor(v1::AttendRequest* request, TensorSlot slot) {
  switch (slot) {
    case TensorSlot::kQ:
      return request->has_q() ? request->mutable_q() : nullptr;
    case TensorSlot::kK:
      return request->has_k() ? request->mutable_k() : nullptr;
    case TensorSlot::kV:
      return request->has_v() ? request->mutable_v() : nullptr;
    case TensorSlot::kBias:
      return request->has_bias() ? request->mutable_bias() : nullptr;
    case TensorSlot::kAlibi:
      return request->has_alibi_slopes() ? request->mutable_alibi_slopes() : nullptr;
    case TensorSlot::kSinks:
      return request->has_sinks() ? request->mutable_sinks() : nullptr;
  }
  return nullptr;
}

// Puts the scanned bytes back where the header has empty ones.
void Refill(const ScannedMessage& scanned, v1::AttendRequest* request) {
  for (int i = 0; i < kTensorSlots; ++i) {
    v1::Tensor* tensor = MutableTensor(request, static_cast<TensorSlot>(i));
    if (tensor == nullptr || tensor->data_case() != v1::Tensor::kInline) continue;
    std::string bytes;
    for (const Fragment& fragment : scanned.tensors[i].fragments) {
      bytes.append(reinterpret_cast<const char*>(fragment.data), fragment.size);
    }
    tensor->set_inline_(bytes);
  }
}

// Every byte that a task may touch lies inside what was asked of the staging.
std::string CheckBounds(const DecodedRequest& decoded) {
  DecodedRequest placed = decoded;
  std::vector<std::byte> staging(decoded.staging_bytes);
  PlaceTasks(&placed, staging.data(), MemoryKind::kHost);
  const auto inside = [&](const void* data, int64_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    return bytes == 0 ||
           (begin >= staging.data() && begin + bytes <= staging.data() + staging.size());
  };
  for (const AttentionTask& task : placed.tasks) {
    if (!Validate(task).ok()) return "a decoded task is not valid";
    for (const TensorView* view : {&task.q, &task.k, &task.v, &task.o}) {
      if (!inside(view->data, view->rows * view->heads * view->columns * ByteSize(view->dtype))) {
        return "a tensor leaves the staging";
      }
    }
    const int64_t heads = task.heads_q();
    if (!task.lse.absent() && task.padded_q() > 0 &&
        !inside(task.lse.data, ((heads - 1) * task.lse.head_stride + task.padded_q()) * 4)) {
      return "the lse leaves the staging";
    }
    if (!task.bias.absent() && task.k.rows > 0 &&
        !inside(task.bias.data, ((heads - 1) * task.bias.head_stride +
                                 (task.padded_q() - 1) * task.bias.row_stride + task.k.rows) *
                                    ByteSize(task.bias.dtype))) {
      return "the bias leaves the staging";
    }
    if (!task.sinks.absent() && !inside(task.sinks.data, heads * 4)) {
      return "the sinks leave the staging";
    }
    if (!task.alibi_slopes.absent() && !inside(task.alibi_slopes.data, heads * 4)) {
      return "the slopes leave the staging";
    }
  }
  return "";
}

template <typename Message>
std::string Compare(MessageKind kind, const std::vector<Fragment>& slices,
                    const std::string& whole) {
  Message generated;
  const bool parsed = generated.ParseFromString(whole);
  absl::StatusOr<ScannedMessage> scanned = ScanMessage(slices, kind, kMaxHeader);
  Message header;
  const bool read = scanned.ok() && header.ParseFromString(scanned->header);
  if (read && !parsed) return "the scan accepts what the generated parser refuses";
  if (!read) {
    // A group is an unknown field, refused later in the other way; the rest must agree.
    const bool refused_later = parsed && !RefuseUnknownFields(generated).ok();
    const bool too_large = !scanned.ok() && ReasonOf(scanned.status()) == "TOO_LARGE";
    return parsed && !refused_later && !too_large ? "the scan refuses a good message" : "";
  }
  v1::AttendRequest* request;
  if constexpr (std::is_same_v<Message, v1::AttendRequest>) {
    request = &header;
  } else {
    request = header.has_attend() ? header.mutable_attend() : nullptr;
  }
  const v1::AttendRequest small = request == nullptr ? v1::AttendRequest() : *request;
  if (request != nullptr) Refill(*scanned, request);
  if (header.SerializeAsString() != generated.SerializeAsString()) {
    return "the scan reads another message than the generated parser";
  }
  if (request == nullptr || !RefuseUnknownFields(small).ok()) return "";
  CodecLimits limits;
  limits.max_sequences = 4096;
  absl::StatusOr<DecodedRequest> decoded = DecodeRequest(small, *scanned, limits);
  if (!decoded.ok()) {
    const absl::StatusCode code = decoded.status().code();
    if (code != absl::StatusCode::kInvalidArgument && code != absl::StatusCode::kUnimplemented) {
      return absl::StrCat("a bad request ends with ", decoded.status().ToString());
    }
    return FieldOf(decoded.status()).has_value()
               ? ""
               : absl::StrCat("no field is named: ", decoded.status().ToString());
  }
  // Outputs are at most Hq * Sq * Dv while inputs hold Hq * Sq * D: no message of a fuzzer is
  // large.
  if (decoded->staging_bytes > (size_t{1} << 28)) return "a small message asks for much memory";
  return CheckBounds(*decoded);
}

}  // namespace

std::string CheckRequestBytes(const uint8_t* data, size_t size) {
  if (size == 0) return "";
  static const google::protobuf::LogSilencer quiet;  // it has a line for each broken string
  const uint8_t control = data[0];
  ++data;
  --size;
  // Slices of 1 to 64 bytes, in a size of their own memory each, so that sanitizers see an overrun.
  const size_t step = size_t{1} << ((control >> 1) % 7);
  std::vector<std::vector<uint8_t>> owned;
  for (size_t at = 0; at < size; at += step) {
    owned.emplace_back(data + at, data + std::min(size, at + step));
    if (control & 0x80) owned.emplace_back();  // empty slices happen
  }
  std::vector<Fragment> slices;
  for (const std::vector<uint8_t>& bytes : owned) slices.push_back({bytes.data(), bytes.size()});
  const std::string whole(reinterpret_cast<const char*>(data), size);
  return control & 1
             ? Compare<v1::AttendStreamRequest>(MessageKind::kAttendStreamRequest, slices, whole)
             : Compare<v1::AttendRequest>(MessageKind::kAttendRequest, slices, whole);
}

}  // namespace attend::testing
