#include "attend/internal/decode.h"

#include <optional>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"
#include "attend/v1/attention.pb.h"

namespace attend::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

absl::Status Malformed(const char* what) {
  return absl::InternalError(absl::StrCat("the server's reply does not parse: ", what));
}

bool IsLengthDelimited(uint32_t tag) {
  return WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}

bool IsVarint(uint32_t tag) {
  return WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_VARINT;
}

// Narrows the stream to one length-delimited field for the life of the object.
class FieldScope {
 public:
  explicit FieldScope(CodedInputStream* in) : in_(in) {
    int length = 0;
    if (!in->ReadVarintSizeAsInt(&length) || length > in->BytesUntilLimit()) return;
    limit_ = in->PushLimit(length);
    length_ = length;
  }
  ~FieldScope() {
    if (ok()) in_->PopLimit(limit_);
  }
  FieldScope(const FieldScope&) = delete;
  FieldScope& operator=(const FieldScope&) = delete;

  bool ok() const { return length_ >= 0; }
  int length() const { return length_; }

 private:
  CodedInputStream* const in_;
  CodedInputStream::Limit limit_ = 0;
  int length_ = -1;
};

std::optional<DataType> FromProto(uint64_t type) {
  switch (type) {
    case v1::DATA_TYPE_FP32:
      return DataType::kFp32;
    case v1::DATA_TYPE_FP16:
      return DataType::kFp16;
    case v1::DATA_TYPE_BF16:
      return DataType::kBf16;
    default:
      return std::nullopt;
  }
}

// The bytes of a tensor, before its shape has been checked against them.
struct RawTensor {
  std::optional<DataType> dtype;
  Shape shape;
  std::optional<Tensor> data;
};

absl::Status ReadBytes(CodedInputStream* in, const char* name, std::span<std::byte> destination,
                       RawTensor* tensor) {
  FieldScope field(in);
  if (!field.ok()) return Malformed("the tensor's length");
  const size_t size = static_cast<size_t>(field.length());
  if (!destination.empty() && destination.size() != size) {
    return absl::InvalidArgumentError(absl::StrCat(name, "_destination: holds ", destination.size(),
                                                   " bytes, but the output is ", size, " bytes"));
  }
  const DataType dtype = tensor->dtype.value_or(DataType::kFp32);
  tensor->data = destination.empty() ? Tensor::Allocate(dtype, {}, size)
                                     : Tensor::Borrow(dtype, {}, destination);
  if (!in->ReadRaw(tensor->data->mutable_bytes().data(), field.length())) {
    return Malformed("the tensor's bytes");
  }
  return absl::OkStatus();
}

bool ReadShape(CodedInputStream* in, uint32_t tag, Shape* shape) {
  uint64_t value = 0;
  if (IsVarint(tag)) {
    if (!in->ReadVarint64(&value)) return false;
    shape->push_back(static_cast<int64_t>(value));
    return true;
  }
  FieldScope field(in);
  if (!IsLengthDelimited(tag) || !field.ok()) return false;
  while (in->BytesUntilLimit() > 0) {
    if (!in->ReadVarint64(&value)) return false;
    shape->push_back(static_cast<int64_t>(value));
  }
  return true;
}

bool SizeMatches(DataType dtype, const Shape& shape, size_t size) {
  size_t bytes = static_cast<size_t>(ElementBytes(dtype));
  for (int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(dimension), &bytes)) {
      return false;
    }
  }
  return bytes == size;
}

absl::StatusOr<Tensor> ReadTensor(CodedInputStream* in, const char* name,
                                  std::span<std::byte> destination) {
  FieldScope scope(in);
  if (!scope.ok()) return Malformed("a tensor");
  RawTensor raw;
  while (in->BytesUntilLimit() > 0) {
    const uint32_t tag = in->ReadTag();
    uint64_t value = 0;
    switch (WireFormatLite::GetTagFieldNumber(tag)) {
      case v1::Tensor::kDataTypeFieldNumber:
        if (!IsVarint(tag) || !in->ReadVarint64(&value)) return Malformed("data_type");
        raw.dtype = FromProto(value);
        break;
      case v1::Tensor::kShapeFieldNumber:
        if (!ReadShape(in, tag, &raw.shape)) return Malformed("shape");
        break;
      case v1::Tensor::kInlineFieldNumber: {
        if (!IsLengthDelimited(tag)) return Malformed("inline");
        absl::Status status = ReadBytes(in, name, destination, &raw);
        if (!status.ok()) return status;
        break;
      }
      default:
        if (tag == 0 || !WireFormatLite::SkipField(in, tag)) return Malformed("a tensor's field");
    }
  }
  if (!raw.dtype.has_value()) return Malformed("a tensor without a known data type");
  const size_t size = raw.data.has_value() ? raw.data->bytes().size() : 0;
  if (!SizeMatches(*raw.dtype, raw.shape, size)) return Malformed("shape and bytes disagree");
  if (!raw.data.has_value()) return Tensor::Allocate(*raw.dtype, std::move(raw.shape), 0);
  return std::move(*raw.data).WithShape(*raw.dtype, std::move(raw.shape));
}

ServingStats FromProto(const v1::ServingStats& proto) {
  ServingStats stats;
  stats.decode_seconds = proto.decode_seconds();
  stats.queue_seconds = proto.queue_seconds();
  stats.copy_in_seconds = proto.copy_in_seconds();
  stats.kernel_seconds = proto.kernel_seconds();
  stats.copy_out_seconds = proto.copy_out_seconds();
  stats.total_seconds = proto.total_seconds();
  stats.batch_requests = proto.batch_requests();
  stats.batch_tasks = proto.batch_tasks();
  stats.batch_tokens = proto.batch_tokens();
  stats.backend = proto.backend();
  stats.device = proto.device();
  return stats;
}

bool ReadString(CodedInputStream* in, std::string* text) {
  FieldScope field(in);
  return field.ok() && in->ReadString(text, field.length());
}

// The rest of `in` up to its limit.
absl::StatusOr<AttendResult> ReadResponse(CodedInputStream* in, const Destinations& destinations) {
  AttendResult result;
  bool has_output = false;
  while (in->BytesUntilLimit() > 0) {
    const uint32_t tag = in->ReadTag();
    const int field = IsLengthDelimited(tag) ? WireFormatLite::GetTagFieldNumber(tag) : 0;
    switch (field) {
      case v1::AttendResponse::kRequestIdFieldNumber:
        if (!ReadString(in, &result.request_id)) return Malformed("request_id");
        break;
      case v1::AttendResponse::kStatsFieldNumber: {
        std::string bytes;
        v1::ServingStats stats;
        if (!ReadString(in, &bytes) || !stats.ParseFromString(bytes)) return Malformed("stats");
        result.stats = FromProto(stats);
        break;
      }
      case v1::AttendResponse::kLseFieldNumber: {
        absl::StatusOr<Tensor> lse = ReadTensor(in, "lse", destinations.lse);
        if (!lse.ok()) return lse.status();
        result.lse = *std::move(lse);
        break;
      }
      case v1::AttendResponse::kOFieldNumber: {
        absl::StatusOr<Tensor> o = ReadTensor(in, "o", destinations.o);
        if (!o.ok()) return o.status();
        result.o = *std::move(o);
        has_output = true;
        break;
      }
      default:
        if (tag == 0 || !WireFormatLite::SkipField(in, tag)) return Malformed("a field");
    }
  }
  if (!has_output) return Malformed("no output in it");
  return result;
}

}  // namespace

absl::StatusOr<AttendResult> DecodeResponse(grpc::ByteBuffer* message,
                                            const Destinations& destinations) {
  grpc::ProtoBufferReader reader(message);
  if (!reader.status().ok()) return Malformed("no message");
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(message->Length()));
  return ReadResponse(&in, destinations);
}

absl::StatusOr<StreamReply> DecodeStreamReply(
    grpc::ByteBuffer* message, const std::function<const Destinations*(uint64_t id)>& claim) {
  grpc::ProtoBufferReader reader(message);
  if (!reader.status().ok()) return Malformed("no message");
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(message->Length()));

  // The id comes first: the generated and the server's own writers keep fields in order. An id of
  // 0 is never given out.
  StreamReply reply;
  const uint32_t id_tag = in.ReadTag();
  if (WireFormatLite::GetTagFieldNumber(id_tag) != v1::AttendStreamResponse::kIdFieldNumber ||
      !IsVarint(id_tag) || !in.ReadVarint64(&reply.id)) {
    return Malformed("no id in front");
  }
  const Destinations* const destinations = claim(reply.id);
  reply.claimed = destinations != nullptr;
  if (!reply.claimed) return reply;
  while (in.BytesUntilLimit() > 0) {
    const uint32_t tag = in.ReadTag();
    const int field = IsLengthDelimited(tag) ? WireFormatLite::GetTagFieldNumber(tag) : 0;
    if (field == v1::AttendStreamResponse::kAttendFieldNumber) {
      FieldScope scope(&in);
      reply.result = scope.ok() ? ReadResponse(&in, *destinations) : Malformed("attend");
      if (!reply.result.ok()) return reply;
    } else if (field == v1::AttendStreamResponse::kErrorFieldNumber) {
      std::string bytes;
      v1::StreamError error;
      reply.is_error = true;
      reply.error_code = static_cast<int>(absl::StatusCode::kUnknown);
      if (ReadString(&in, &bytes) && error.ParseFromString(bytes)) {
        reply.error_code = error.code();
        reply.error_message = error.message();
        reply.error_details = error.details();
      }
    } else if (tag == 0 || !WireFormatLite::SkipField(&in, tag)) {
      reply.result = Malformed("a field");
      return reply;
    }
  }
  return reply;
}

}  // namespace attend::client
