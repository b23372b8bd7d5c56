#include "attend/internal/control_calls.h"

#include <future>
#include <utility>

#include <google/protobuf/unknown_field_set.h>

#include "absl/strings/str_cat.h"
#include "attend/internal/grpc_status.h"
#include "attend/v1/attention.pb.h"

namespace attend::client {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

std::chrono::system_clock::time_point After(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::system_clock::now() + std::min(timeout, kLongest);
}

// One blocking unary call with bytes in and out.
absl::StatusOr<std::string> CallBytes(ChannelPool& channels, const char* method,
                                      const std::string& request,
                                      std::chrono::nanoseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(After(timeout));
  if (absl::Status status = channels.Prepare(&context); !status.ok()) return status;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> done;
  channels.Pick().stub.UnaryCall(&context, method, {}, &message, &reply,
                                 [&done](const grpc::Status& status) { done.set_value(status); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) {
    AttemptError error = ReadError(status, context.GetServerTrailingMetadata());
    error.details.attempts = 1;
    return MakeStatus(error.code, error.message, error.details);
  }
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!reply.Dump(&slices).ok()) return absl::InternalError("the reply cannot be read");
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

ServerInfo FromProto(const v1::GetServerInfoResponse& proto) {
  ServerInfo info;
  info.version = proto.version();
  info.backend = proto.backend();
  for (const v1::Device& device : proto.devices()) {
    info.devices.push_back({device.ordinal(), device.backend(), device.name(),
                            device.architecture(), device.memory_bytes(),
                            device.memory_limit_bytes()});
  }
  const v1::Limits& limits = proto.limits();
  info.limits = {limits.max_receive_message_bytes(), limits.max_in_flight_requests(),
                 limits.max_in_flight_bytes(), limits.client_share(), limits.max_head_dim()};
  for (const int type : proto.data_types()) {
    if (type == v1::DATA_TYPE_FP32) info.data_types.push_back(DataType::kFp32);
    if (type == v1::DATA_TYPE_FP16) info.data_types.push_back(DataType::kFp16);
    if (type == v1::DATA_TYPE_BF16) info.data_types.push_back(DataType::kBf16);
  }
  info.features.assign(proto.features().begin(), proto.features().end());
  return info;
}

}  // namespace

absl::Status WaitConnected(ChannelPool& channels, std::chrono::nanoseconds timeout) {
  if (channels.Pick().channel->WaitForConnected(After(timeout))) return absl::OkStatus();
  return absl::UnavailableError("no connection within the timeout");
}

absl::StatusOr<ServerInfo> CallGetServerInfo(ChannelPool& channels,
                                             std::chrono::nanoseconds timeout) {
  const absl::StatusOr<std::string> bytes =
      CallBytes(channels, "/attend.v1.AttentionService/GetServerInfo", "", timeout);
  if (!bytes.ok()) return bytes.status();
  v1::GetServerInfoResponse response;
  if (!response.ParseFromString(*bytes)) {
    return absl::InternalError("the server's reply does not parse");
  }
  return FromProto(response);
}

// grpc.health.v1, by hand: HealthCheckRequest { string service = 1 }, HealthCheckResponse {
// enum status = 1 }. Generated classes could meet a second copy in the program that links this.
absl::StatusOr<HealthState> CallHealthCheck(ChannelPool& channels, const std::string& service,
                                            std::chrono::nanoseconds timeout) {
  UnknownFieldSet request;
  if (!service.empty()) request.AddLengthDelimited(1, service);
  std::string request_bytes;
  request.SerializeToString(&request_bytes);
  const absl::StatusOr<std::string> bytes =
      CallBytes(channels, "/grpc.health.v1.Health/Check", request_bytes, timeout);
  if (!bytes.ok()) return bytes.status();
  UnknownFieldSet response;
  if (!response.ParseFromString(*bytes)) {
    return absl::InternalError("the server's reply does not parse");
  }
  uint64_t state = 0;
  for (int i = 0; i < response.field_count(); ++i) {
    const UnknownField& field = response.field(i);
    if (field.number() == 1 && field.type() == UnknownField::TYPE_VARINT) state = field.varint();
  }
  switch (state) {
    case 1:
      return HealthState::kServing;
    case 2:
      return HealthState::kNotServing;
    case 3:
      return HealthState::kServiceUnknown;
    default:
      return HealthState::kUnknown;
  }
}

}  // namespace attend::client
