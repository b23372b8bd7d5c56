#include "server/rpc/call_info.h"

#include <gtest/gtest.h>

#include <set>

namespace attend {
namespace {

TEST(CallInfoTest, ClientIsThePeerWithoutItsPort) {
  EXPECT_EQ(HostOf("ipv4:10.1.2.3:4711"), "10.1.2.3");
  EXPECT_EQ(HostOf("ipv6:%5B::1%5D:4711"), "%5B::1%5D");
  EXPECT_EQ(HostOf("unix:/run/attend.sock"), "local");
  EXPECT_EQ(HostOf("unix:"), "local");
  EXPECT_EQ(HostOf("odd"), "odd");
  EXPECT_EQ(HostOf(""), "");
}

TEST(CallInfoTest, RequestIdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 10000; ++i) ids.insert(MakeRequestId());
  EXPECT_EQ(ids.size(), 10000u);
  EXPECT_EQ(ids.begin()->size(), 16u);
}

TEST(CallInfoTest, FieldThenHeaderThenNew) {
  absl::Status status;
  EXPECT_EQ(ResolveRequestId("field", "header", &status), "field");
  EXPECT_EQ(ResolveRequestId("", "header", &status), "header");
  EXPECT_EQ(ResolveRequestId("", std::nullopt, &status).size(), 16u);
  EXPECT_TRUE(status.ok());
}

TEST(CallInfoTest, BadIdsAreReplacedAndReported) {
  absl::Status status;
  EXPECT_EQ(ResolveRequestId("a\tb", std::nullopt, &status).size(), 16u);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ResolveRequestId("", std::string(200, 'x'), &status).size(), 16u);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(CallInfoTest, OnlyNearDeadlinesEndByThemselves) {
  EXPECT_FALSE(EndsByDeadline(std::nullopt));
  EXPECT_FALSE(EndsByDeadline(Clock::now() + std::chrono::minutes(1)));
  EXPECT_TRUE(EndsByDeadline(Clock::now() + std::chrono::milliseconds(1)));
  EXPECT_TRUE(EndsByDeadline(Clock::now() - std::chrono::minutes(1)));
}

}  // namespace
}  // namespace attend
