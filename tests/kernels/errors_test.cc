#include "kernels/errors.h"

#include <gtest/gtest.h>

namespace attend {
namespace {

using std::chrono::milliseconds;

TEST(Errors, InvalidFieldNamesIt) {
  const absl::Status status = InvalidField("q.shape", "rows is -1, below 0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "q.shape: rows is -1, below 0");
  EXPECT_EQ(FieldOf(status), "q.shape");
  EXPECT_EQ(ReasonOf(status), std::nullopt);
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
}

TEST(Errors, UnsupportedOptionNamesIt) {
  const absl::Status status = UnsupportedOption("bias", "not for ragged batches");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "bias: not for ragged batches");
  EXPECT_EQ(FieldOf(status), "bias");
}

TEST(Errors, ExtrasRideOnAnyStatus) {
  absl::Status status = absl::ResourceExhaustedError("queue is full");
  status = WithReason(status, "QUEUE_FULL");
  status = WithRetryAfter(status, milliseconds(1500));
  status = WithField(status, "k");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue is full");
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryAfterOf(status), milliseconds(1500));
  EXPECT_EQ(FieldOf(status), "k");
  status = WithReason(status, "MEMORY");
  EXPECT_EQ(ReasonOf(status), "MEMORY") << "the last one counts";
}

TEST(Errors, NothingSticksToOk) {
  absl::Status status =
      WithRetryAfter(WithReason(WithField(absl::OkStatus(), "f"), "R"), milliseconds(1));
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(FieldOf(status), std::nullopt);
  EXPECT_EQ(ReasonOf(status), std::nullopt);
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
}

TEST(Errors, DelaysOfAnySize) {
  for (const int64_t delay : {int64_t{0}, int64_t{1}, INT64_MAX}) {
    EXPECT_EQ(RetryAfterOf(WithRetryAfter(absl::UnavailableError(""), milliseconds(delay))),
              milliseconds(delay));
  }
}

}  // namespace
}  // namespace attend
