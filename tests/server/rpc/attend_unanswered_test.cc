// Attend when there is no answer: overload, limits, deadlines, clients that give up, devices that
// fail.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "tests/server/rpc/attend_fixture.h"
#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using testing::Answers;
using testing::AttendTest;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using testing::InfoOf;
using testing::MakeRequest;
using testing::MetricOf;
using testing::RequestShape;
using testing::ServerFixture;

TEST_F(AttendTest, OverloadIsRefusedWithAHintAndPasses) {
  ServerOptions options = ServerFixture::Options();
  options.engine.max_in_flight_requests = 2;
  options.engine.client_share = 1;
  Restart(options);
  fixture_->device().Hold();
  const v1::AttendRequest request = Small();
  std::vector<std::future<CallResult>> accepted;
  for (int i = 0; i < 2; ++i) {
    accepted.push_back(std::async(std::launch::async, [&] { return Call(stub_.get(), request); }));
  }
  ASSERT_TRUE(
      Eventually([&] { return fixture_->server().engines().stats().in_flight_requests == 2; }));
  const CallResult refused = Call(stub_.get(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(InfoOf(refused.status).reason, "QUEUE_FULL");
  EXPECT_TRUE(InfoOf(refused.status).retry_seconds.has_value());
  ASSERT_TRUE(refused.pushback.has_value());
  EXPECT_GT(std::stoi(*refused.pushback), 0);
  fixture_->device().Release();
  for (auto& call : accepted) {
    const CallResult result = call.get();
    EXPECT_TRUE(result.status.ok() && Answers(request, result.reply));
  }
  EXPECT_TRUE(BackToWhereItWas());
  EXPECT_TRUE(Call(stub_.get(), request).status.ok());
  EXPECT_EQ(MetricOf(http(), R"(attend_rejected_total{reason="queue_full"})"), 1);
}

TEST_F(AttendTest, RequestThatCanNeverFit) {
  ServerOptions options = ServerFixture::Options();
  options.engine.max_in_flight_bytes = int64_t{1} << 20;
  Restart(options);
  RequestShape shape;
  shape.rows_k = 100000;
  const CallResult result = Call(stub_.get(), MakeRequest(shape, &random_));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(InfoOf(result.status).reason, "TOO_LARGE");
  EXPECT_TRUE(BackToWhereItWas());
}

TEST_F(AttendTest, MessagePastTheReceiveLimit) {
  ServerOptions options = ServerFixture::Options();
  options.grpc.max_receive_message_bytes = 10000;
  Restart(options);
  RequestShape shape;
  shape.rows_k = 1000;
  EXPECT_EQ(Call(stub_.get(), MakeRequest(shape, &random_)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Call(stub_.get(), Small()).status.ok());
}

TEST_F(AttendTest, DeadlineWhileEveryWorkerIsBusy) {
  fixture_->device().Hold();
  const v1::AttendRequest request = Small();
  std::future<CallResult> busy =
      std::async(std::launch::async, [&] { return Call(stub_.get(), request); });
  fixture_->device().AwaitRunning(1);
  const CallResult late = Call(stub_.get(), request, [](grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  });
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // It left the queue while the device was still held, and is never launched.
  ASSERT_TRUE(
      Eventually([&] { return fixture_->server().engines().stats().queued_requests == 0; }));
  ASSERT_TRUE(
      Eventually([&] { return MetricOf(http(), R"(attend_expired_total{stage="queue"})") == 1; }));
  fixture_->device().Release();
  EXPECT_TRUE(busy.get().status.ok());
  EXPECT_EQ(fixture_->device().runs().back().tasks.size(), 1u);
  EXPECT_TRUE(BackToWhereItWas());
  EXPECT_EQ(MetricOf(http(), R"(attend_cancelled_total{stage="queue"})"), 0);
  EXPECT_TRUE(Eventually([&] {
    return MetricOf(http(), R"(attend_requests_total{code="DEADLINE_EXCEEDED",method="Attend"})") ==
           1;
  }));
}

TEST_F(AttendTest, CancelLeavesTheQueueAtOnce) {
  fixture_->device().Hold();
  const v1::AttendRequest request = Small();
  std::future<CallResult> busy =
      std::async(std::launch::async, [&] { return Call(stub_.get(), request); });
  fixture_->device().AwaitRunning(1);
  const size_t launched = fixture_->device().runs().size();
  grpc::ClientContext context;
  std::future<grpc::Status> cancelled = std::async(std::launch::async, [&] {
    v1::AttendResponse reply;
    return stub_->Attend(&context, request, &reply);
  });
  ASSERT_TRUE(
      Eventually([&] { return fixture_->server().engines().stats().queued_requests == 1; }));
  context.TryCancel();
  EXPECT_EQ(cancelled.get().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(
      Eventually([&] { return fixture_->server().engines().stats().queued_requests == 0; }));
  EXPECT_EQ(fixture_->device().runs().size(), launched);
  fixture_->device().Release();
  EXPECT_TRUE(busy.get().status.ok());
  EXPECT_TRUE(BackToWhereItWas());
  EXPECT_EQ(MetricOf(http(), R"(attend_cancelled_total{stage="queue"})"), 1);
}

TEST_F(AttendTest, ClientThatGoesAwayLeavesNothing) {
  fixture_->device().Hold();
  {
    const std::shared_ptr<grpc::Channel> channel = fixture_->Connect();
    auto gone = v1::AttentionService::NewStub(channel);
    const v1::AttendRequest request = Small();
    for (int i = 0; i < 5; ++i) {
      grpc::ClientContext context;
      v1::AttendResponse reply;
      std::atomic<bool> ended{false};
      gone->async()->Attend(&context, &request, &reply, [&](const grpc::Status&) { ended = true; });
      ASSERT_TRUE(Eventually([&] {
        const EngineStats stats = fixture_->server().engines().stats();
        return stats.in_flight_requests >= 1;
      }));
      context.TryCancel();
      ASSERT_TRUE(Eventually([&] { return ended.load(); }));
    }
  }
  fixture_->device().Release();
  EXPECT_TRUE(BackToWhereItWas());
}

TEST_F(AttendTest, DeviceErrorsAreToldAsTheContractSays) {
  const v1::AttendRequest request = Small();
  fixture_->device().FailNext(absl::InternalError("launch failed"));
  CallResult result = Call(stub_.get(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(Call(stub_.get(), request).status.ok());  // the next one is answered

  fixture_->device().SetHealth(absl::UnavailableError("device fell off the bus"));
  fixture_->device().FailNext(absl::InternalError("launch failed"));
  result = Call(stub_.get(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL);
  ASSERT_TRUE(Eventually([&] { return testing::HttpGet(http(), "/readyz").code == 503; }));
  EXPECT_EQ(testing::HttpGet(http(), "/livez").code, 503);
  EXPECT_EQ(Call(stub_.get(), request).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(MetricOf(http(), "attend_ready"), 0);
  EXPECT_EQ(MetricOf(http(), R"(attend_healthy{device="0"})"), 0);
}

}  // namespace
}  // namespace attend
