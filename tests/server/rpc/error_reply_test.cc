#include "server/rpc/error_reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "attend/v1/error_details.pb.h"
#include "kernels/errors.h"

namespace attend {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;

// Details by the last part of their type.
std::map<std::string, std::string> Details(const grpc::Status& status) {
  v1::RpcStatus details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  std::map<std::string, std::string> out;
  for (const auto& any : details.details()) {
    const std::string prefix = "type.googleapis.com/google.rpc.";
    EXPECT_EQ(any.type_url().substr(0, prefix.size()), prefix);
    out[any.type_url().substr(prefix.size())] = any.value();
  }
  return out;
}

TEST(ErrorReplyTest, FieldBecomesBadRequest) {
  const grpc::Status status = ToGrpcStatus(InvalidField("q.shape", "3 is not 4"), "id-1");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "q.shape: 3 is not 4");
  auto details = Details(status);
  v1::RpcBadRequest bad_request;
  ASSERT_TRUE(bad_request.ParseFromString(details["BadRequest"]));
  ASSERT_EQ(bad_request.field_violations_size(), 1);
  EXPECT_EQ(bad_request.field_violations(0).field(), "q.shape");
  v1::RpcErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(details["ErrorInfo"]));
  EXPECT_EQ(info.reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(info.domain(), "attend");
  v1::RpcRequestInfo request;
  ASSERT_TRUE(request.ParseFromString(details["RequestInfo"]));
  EXPECT_EQ(request.request_id(), "id-1");
  EXPECT_THAT(details, Not(Contains(Key("RetryInfo"))));
}

TEST(ErrorReplyTest, RetryHintBecomesRetryInfo) {
  const absl::Status full =
      WithRetryAfter(WithReason(absl::ResourceExhaustedError("queue is full"), "QUEUE_FULL"),
                     std::chrono::milliseconds(1250));
  auto details = Details(ToGrpcStatus(full, "id-2"));
  v1::RpcRetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(details["RetryInfo"]));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250000000);
  v1::RpcErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(details["ErrorInfo"]));
  EXPECT_EQ(info.reason(), "QUEUE_FULL");
  EXPECT_THAT(details, Not(Contains(Key("BadRequest"))));
}

TEST(ErrorReplyTest, LongMessagesFitAHeader) {
  const grpc::Status status =
      ToGrpcStatus(InvalidField("q.shape", std::string(100000, 'x')), std::string(128, 'i'));
  EXPECT_LT(status.error_message().size(), 1100u);
  EXPECT_LT(status.error_details().size(), 4096u);
}

TEST(ErrorReplyTest, StreamErrorSaysTheSame) {
  const absl::Status status = UnsupportedOption("bias", "not for ragged batches");
  const v1::StreamError error = ToStreamError(status, "id-3");
  const grpc::Status unary = ToGrpcStatus(status, "id-3");
  EXPECT_EQ(error.code(), unary.error_code());
  EXPECT_EQ(error.message(), unary.error_message());
  EXPECT_EQ(error.details(), unary.error_details());
}

TEST(ErrorReplyTest, EveryCodeHasGrpcsName) {
  EXPECT_EQ(CodeName(absl::StatusCode::kDeadlineExceeded), "DEADLINE_EXCEEDED");
  EXPECT_EQ(CodeName(static_cast<absl::StatusCode>(99)), "UNKNOWN");
}

}  // namespace
}  // namespace attend
