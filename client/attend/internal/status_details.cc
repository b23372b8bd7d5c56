#include "attend/internal/status_details.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "attend/v1/error_details.pb.h"

namespace attend::client {
namespace {

constexpr char kReason[] = "attend.client/reason";
constexpr char kField[] = "attend.client/field";
constexpr char kRequestId[] = "attend.client/request_id";
constexpr char kRetryAfter[] = "attend.client/retry_after_ms";
constexpr char kAttempts[] = "attend.client/attempts";

// A server's hint longer than this is not a hint.
constexpr int64_t kLongestHintMs = int64_t{24} * 3600 * 1000;

// When a server that gave no hint may have memory again.
constexpr std::chrono::milliseconds kCalmDown{500};

void ReadDetail(const google::protobuf::Any& any, ErrorDetails* details) {
  const auto is = [&any](const char* type) {
    return absl::EndsWith(any.type_url(), absl::StrCat("/google.rpc.", type));
  };
  v1::RpcErrorInfo error;
  v1::RpcRequestInfo request;
  v1::RpcBadRequest bad_request;
  v1::RpcRetryInfo retry;
  if (is("ErrorInfo") && error.ParseFromString(any.value())) {
    details->reason = error.reason();
  } else if (is("RequestInfo") && request.ParseFromString(any.value())) {
    details->request_id = request.request_id();
  } else if (is("BadRequest") && bad_request.ParseFromString(any.value()) &&
             bad_request.field_violations_size() > 0) {
    details->field = bad_request.field_violations(0).field();
  } else if (is("RetryInfo") && retry.ParseFromString(any.value())) {
    const google::protobuf::Duration& delay = retry.retry_delay();
    if (delay.seconds() < 0 || delay.nanos() < 0) return;
    const int64_t milliseconds = std::min(delay.seconds(), kLongestHintMs / 1000) * 1000 +
                                 (delay.nanos() + 999'999LL) / 1'000'000;
    details->retry_after = std::chrono::milliseconds(milliseconds);
  }
}

void ReadDetails(std::string_view bytes, ErrorDetails* details) {
  v1::RpcStatus status;
  if (!status.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  for (const google::protobuf::Any& any : status.details()) ReadDetail(any, details);
}

// gRPC refuses a message past a limit with RESOURCE_EXHAUSTED and words of its own. That is no
// overload: trying again cannot help.
bool IsMessageTooLarge(int code, std::string_view message) {
  return code == static_cast<int>(absl::StatusCode::kResourceExhausted) &&
         absl::StrContains(absl::string_view(message.data(), message.size()), "larger than max");
}

// A server that runs out of memory for messages on their way in resets calls (ENHANCE_YOUR_CALM, 11
// in HTTP/2). Nothing of the request was looked at.
bool IsOutOfReceiveMemory(int code, std::string_view message) {
  return code == static_cast<int>(absl::StatusCode::kResourceExhausted) &&
         absl::StrContains(absl::string_view(message.data(), message.size()),
                           "RST_STREAM with error code 11");
}

std::optional<std::string> Payload(const absl::Status& status, const char* url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace

AttemptError ReadError(int code, std::string_view message, std::string_view details_bytes,
                       std::string_view pushback) {
  AttemptError error;
  // 0 is OK: a stream that ended well while a request was in flight has still failed it.
  error.code =
      code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
  error.message = message;
  if (!details_bytes.empty()) ReadDetails(details_bytes, &error.details);
  int64_t milliseconds = 0;
  if (absl::SimpleAtoi(absl::string_view(pushback.data(), pushback.size()), &milliseconds)) {
    if (milliseconds < 0) {
      error.retry_forbidden = true;
    } else {
      error.details.retry_after = std::chrono::milliseconds(std::min(milliseconds, kLongestHintMs));
    }
  }
  if (details_bytes.empty() && IsMessageTooLarge(code, message)) {
    error.details.reason = "MESSAGE_TOO_LARGE";
    error.retry_forbidden = true;
    error.message =
        absl::StrCat("the message is larger than its receiver takes: ", error.message,
                     ". Send fewer rows, heads or sequences a request, or raise the server's limit "
                     "(max_receive_message_bytes in its server info)");
  }
  if (details_bytes.empty() && IsOutOfReceiveMemory(code, message)) {
    error.details.reason = "RECEIVE_MEMORY";
    if (!error.details.retry_after.has_value()) error.details.retry_after = kCalmDown;
    error.message =
        absl::StrCat("the server had no memory to receive the message: ", error.message);
  }
  return error;
}

absl::Status MakeStatus(absl::StatusCode code, std::string_view message,
                        const ErrorDetails& details) {
  absl::Status status(code, absl::string_view(message.data(), message.size()));
  if (!details.reason.empty()) status.SetPayload(kReason, absl::Cord(details.reason));
  if (!details.field.empty()) status.SetPayload(kField, absl::Cord(details.field));
  if (!details.request_id.empty()) status.SetPayload(kRequestId, absl::Cord(details.request_id));
  if (details.retry_after.has_value()) {
    status.SetPayload(kRetryAfter, absl::Cord(absl::StrCat(details.retry_after->count())));
  }
  if (details.attempts > 0) {
    status.SetPayload(kAttempts, absl::Cord(absl::StrCat(details.attempts)));
  }
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view what) {
  ErrorDetails details;
  details.field = field;
  return MakeStatus(absl::StatusCode::kInvalidArgument,
                    absl::StrCat(std::string(field), ": ", std::string(what)), details);
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  details.reason = Payload(status, kReason).value_or("");
  details.field = Payload(status, kField).value_or("");
  details.request_id = Payload(status, kRequestId).value_or("");
  int64_t number = 0;
  if (const auto text = Payload(status, kRetryAfter); text && absl::SimpleAtoi(*text, &number)) {
    details.retry_after = std::chrono::milliseconds(number);
  }
  if (const auto text = Payload(status, kAttempts); text && absl::SimpleAtoi(*text, &number)) {
    details.attempts = static_cast<int>(number);
  }
  return details;
}

}  // namespace attend::client
