#include "server/rpc/error_reply.h"

#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "attend/v1/error_details.pb.h"
#include "kernels/errors.h"

namespace attend {
namespace {

constexpr char kDomain[] = "attend";

// Details travel in a header, and peers refuse metadata past 8 KiB. Message and violation both hold
// the text, each percent- or base64-encoded.
constexpr size_t kMaxMessageBytes = 1024;

std::string Text(const absl::Status& status) {
  std::string text(status.message());
  if (text.size() > kMaxMessageBytes) {
    text.resize(kMaxMessageBytes);
    text += "...";
  }
  return text;
}

void Pack(const char* google_name, const google::protobuf::Message& message, v1::RpcStatus* out) {
  google::protobuf::Any* any = out->add_details();
  any->set_type_url(absl::StrCat("type.googleapis.com/google.rpc.", google_name));
  message.SerializeToString(any->mutable_value());
}

}  // namespace

std::string_view CodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted:
      return "ABORTED";
    case absl::StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss:
      return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "UNKNOWN";
  }
}

std::string ErrorDetails(const absl::Status& status, std::string_view request_id) {
  v1::RpcStatus out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(Text(status));

  const std::optional<std::string> field = FieldOf(status);
  v1::RpcErrorInfo info;
  info.set_reason(ReasonOf(status).value_or(std::string(CodeName(status.code()))));
  info.set_domain(kDomain);
  if (field) (*info.mutable_metadata())["field"] = *field;
  Pack("ErrorInfo", info, &out);

  if (field) {
    v1::RpcBadRequest bad_request;
    v1::RpcBadRequest::FieldViolation* violation = bad_request.add_field_violations();
    violation->set_field(*field);
    violation->set_description(Text(status));
    Pack("BadRequest", bad_request, &out);
  }
  if (const std::optional<std::chrono::milliseconds> delay = RetryAfterOf(status)) {
    v1::RpcRetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(delay->count() / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay->count() % 1000 * 1000000));
    Pack("RetryInfo", retry, &out);
  }
  v1::RpcRequestInfo request;
  request.set_request_id(std::string(request_id));
  Pack("RequestInfo", request, &out);
  return out.SerializeAsString();
}

grpc::Status ToGrpcStatus(const absl::Status& status, std::string_view request_id) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Text(status),
                      ErrorDetails(status, request_id));
}

void AddRetryPushback(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (const std::optional<std::chrono::milliseconds> delay = RetryAfterOf(status)) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(delay->count()));
  }
}

v1::StreamError ToStreamError(const absl::Status& status, std::string_view request_id) {
  v1::StreamError error;
  error.set_code(static_cast<int>(status.code()));
  error.set_message(Text(status));
  error.set_details(ErrorDetails(status, request_id));
  return error;
}

}  // namespace attend
