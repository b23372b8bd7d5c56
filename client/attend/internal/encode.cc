#include "attend/internal/encode.h"

#include <climits>
#include <cstring>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attend/internal/status_details.h"
#include "attend/v1/attention.pb.h"

namespace attend::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

v1::DataType ToProto(DataType type) {
  switch (type) {
    case DataType::kFp32:
      return v1::DATA_TYPE_FP32;
    case DataType::kFp16:
      return v1::DATA_TYPE_FP16;
    case DataType::kBf16:
      return v1::DATA_TYPE_BF16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::Priority ToProto(Priority priority) {
  switch (priority) {
    case Priority::kLow:
      return v1::PRIORITY_LOW;
    case Priority::kNormal:
      return v1::PRIORITY_NORMAL;
    case Priority::kHigh:
      return v1::PRIORITY_HIGH;
  }
  return v1::PRIORITY_UNSPECIFIED;
}

// Bytes of a shape, or nullopt when it is negative anywhere or past 64 bits.
std::optional<size_t> BytesOf(DataType type, const Shape& shape) {
  size_t bytes = static_cast<size_t>(ElementBytes(type));
  bool empty = false;
  for (int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, static_cast<size_t>(dimension), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

uint32_t LengthDelimitedTag(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

v1::AttendRequest SmallFields(const AttendOptions& options, std::string_view request_id) {
  v1::AttendRequest request;
  request.set_request_id(std::string(request_id));
  request.set_priority(ToProto(options.priority));
  if (options.scale.has_value()) request.set_softmax_scale(*options.scale);
  request.set_causal(options.causal);
  if (options.window_left.has_value()) request.mutable_window()->set_left(*options.window_left);
  if (options.window_right.has_value()) request.mutable_window()->set_right(*options.window_right);
  if (options.softcap.has_value()) request.set_softcap(*options.softcap);
  request.set_return_lse(options.return_lse);
  request.mutable_q_lens()->Assign(options.q_lens.begin(), options.q_lens.end());
  request.mutable_kv_lens()->Assign(options.kv_lens.begin(), options.kv_lens.end());
  request.mutable_cu_seqlens_q()->Assign(options.cu_seqlens_q.begin(), options.cu_seqlens_q.end());
  request.mutable_cu_seqlens_k()->Assign(options.cu_seqlens_k.begin(), options.cu_seqlens_k.end());
  return request;
}

}  // namespace

absl::Status EncodedRequest::Add(int field, std::string_view name, const TensorRef& tensor) {
  const std::optional<size_t> bytes = BytesOf(tensor.dtype, tensor.shape);
  if (!bytes.has_value()) {
    return InvalidField(absl::StrCat(std::string(name), ".shape"),
                        absl::StrCat("[", absl::StrJoin(tensor.shape, ", "),
                                     "] has a negative dimension or is past 64 bits"));
  }
  if (*bytes != tensor.size_bytes) {
    return InvalidField(std::string(name),
                        absl::StrCat("shape [", absl::StrJoin(tensor.shape, ", "), "] of ",
                                     std::string(Name(tensor.dtype)), " is ", *bytes,
                                     " bytes, but the data is ", tensor.size_bytes, " bytes"));
  }
  if (tensor.data == nullptr && *bytes > 0) {
    return InvalidField(std::string(name), "the data is null");
  }
  if (*bytes > INT_MAX - size_) {
    return InvalidField(std::string(name),
                        "the request passes 2 GiB, the most that one gRPC message can carry");
  }

  v1::Tensor small;
  small.set_data_type(ToProto(tensor.dtype));
  small.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  Part part{small.SerializeAsString(), tensor.data, tensor.size_bytes};
  {
    StringOutputStream sink(&part.prefix);  // appends
    CodedOutputStream out(&sink);
    out.WriteTag(LengthDelimitedTag(v1::Tensor::kInlineFieldNumber));
    out.WriteVarint64(tensor.size_bytes);
  }
  std::string tag_and_length;
  {
    StringOutputStream sink(&tag_and_length);
    CodedOutputStream out(&sink);
    out.WriteTag(LengthDelimitedTag(field));
    out.WriteVarint64(part.prefix.size() + part.size);
  }
  part.prefix.insert(0, tag_and_length);
  size_ += part.prefix.size() + part.size;
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

absl::StatusOr<EncodedRequest> EncodedRequest::Make(const AttendInputs& inputs,
                                                    const AttendOptions& options,
                                                    std::string_view request_id) {
  using R = v1::AttendRequest;
  const struct {
    int field;
    const char* name;
    const TensorRef* tensor;
  } tensors[] = {
      {R::kAlibiSlopesFieldNumber, "alibi_slopes",
       options.alibi_slopes ? &*options.alibi_slopes : nullptr},
      {R::kSinksFieldNumber, "sinks", options.sinks ? &*options.sinks : nullptr},
      {R::kBiasFieldNumber, "bias", options.bias ? &*options.bias : nullptr},
      {R::kQFieldNumber, "q", &inputs.q},
      {R::kKFieldNumber, "k", &inputs.k},
      {R::kVFieldNumber, "v", &inputs.v},
  };
  EncodedRequest encoded;
  encoded.header_ = SmallFields(options, request_id).SerializeAsString();
  encoded.size_ = encoded.header_.size();
  for (const auto& row : tensors) {
    if (row.tensor == nullptr) continue;
    if (absl::Status status = encoded.Add(row.field, row.name, *row.tensor); !status.ok()) {
      return status;
    }
  }
  // Room for the envelope of a stream message.
  if (encoded.size_ > INT_MAX - 64) {
    return InvalidField("v", "the request passes 2 GiB, the most that one gRPC message can carry");
  }
  return encoded;
}

absl::StatusOr<grpc::ByteBuffer> EncodedRequest::Message(
    BufferPool& pool, const std::optional<Envelope>& envelope) const {
  std::string before;
  if (envelope.has_value()) {
    v1::AttendStreamRequest small;
    small.set_id(envelope->id);
    if (envelope->timeout_seconds > 0) small.set_timeout_seconds(envelope->timeout_seconds);
    before = small.SerializeAsString();
    StringOutputStream sink(&before);  // appends
    CodedOutputStream out(&sink);
    out.WriteTag(LengthDelimitedTag(v1::AttendStreamRequest::kAttendFieldNumber));
    out.WriteVarint64(size_);
  }
  const size_t total = before.size() + size_;
  BufferPool::Buffer buffer = pool.Take(total);
  if (buffer.data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this host has no memory for a request of ", total, " bytes"));
  }
  std::byte* cursor = buffer.data.get();
  const auto put = [&cursor](const void* data, size_t size) {
    if (size > 0) std::memcpy(cursor, data, size);
    cursor += size;
  };
  put(before.data(), before.size());
  put(header_.data(), header_.size());
  for (const Part& part : parts_) {
    put(part.prefix.data(), part.prefix.size());
    put(part.data, part.size);
  }
  const grpc::Slice slice = pool.ToSlice(std::move(buffer), total);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer CancelMessage(uint64_t stream_id) {
  v1::AttendStreamRequest message;
  message.set_id(stream_id);
  message.mutable_cancel();
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace attend::client
