#include "server/rpc/reply_writer.h"

#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"

namespace attend {
namespace {

using google::protobuf::internal::WireFormatLite;

v1::DataType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return v1::DATA_TYPE_FP32;
    case DType::kF16:
      return v1::DATA_TYPE_FP16;
    case DType::kBF16:
      return v1::DATA_TYPE_BF16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

// Tag and length of a length-delimited field.
void AppendField(int number, size_t length, std::string* out) {
  google::protobuf::io::StringOutputStream stream(out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteTag(WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  coded.WriteVarint64(length);
}

// What stands before the bytes of a tensor: its field in the reply, its head, its `inline` tag.
std::string TensorPrefix(int number, DType dtype, const OutputLayout& layout) {
  v1::Tensor head;
  head.set_data_type(ToProto(dtype));
  head.mutable_shape()->Add(layout.shape.begin(), layout.shape.end());
  std::string inner = head.SerializeAsString();
  AppendField(v1::Tensor::kInlineFieldNumber, layout.bytes, &inner);
  std::string out;
  AppendField(number, inner.size() + layout.bytes, &out);
  return out + inner;
}

// gRPC calls this when it has sent the slice.
void Release(void* keep_alive) { delete static_cast<std::shared_ptr<const void>*>(keep_alive); }

}  // namespace

grpc::ByteBuffer WriteReply(const v1::AttendResponse& head, const DecodedRequest& request,
                            std::byte* staging, const std::shared_ptr<const void>& keep_alive,
                            std::optional<uint64_t> stream_id) {
  struct Piece {
    std::string prefix;
    const OutputLayout* layout;
  };
  std::vector<Piece> pieces;
  if (request.lse.wanted) {
    pieces.push_back({TensorPrefix(v1::AttendResponse::kLseFieldNumber, DType::kF32, request.lse),
                      &request.lse});
  }
  pieces.push_back(
      {TensorPrefix(v1::AttendResponse::kOFieldNumber, request.dtype, request.o), &request.o});

  std::string front = head.SerializeAsString();
  if (stream_id) {
    size_t size = front.size();
    for (const Piece& piece : pieces) size += piece.prefix.size() + piece.layout->bytes;
    v1::AttendStreamResponse envelope;
    envelope.set_id(*stream_id);
    std::string outer = envelope.SerializeAsString();
    AppendField(v1::AttendStreamResponse::kAttendFieldNumber, size, &outer);
    front = outer + front;
  }
  std::vector<grpc::Slice> slices;
  for (Piece& piece : pieces) {
    front += piece.prefix;
    slices.emplace_back(front);
    front.clear();
    if (piece.layout->bytes > 0) {
      slices.emplace_back(staging + piece.layout->offset, piece.layout->bytes, &Release,
                          new std::shared_ptr<const void>(keep_alive));
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message) {
  grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace attend
