// Shutting down: every accepted request is answered, whatever call carried it.

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using testing::InfoOf;
using testing::MakeRequest;
using testing::Random;
using testing::ServerFixture;

class DrainTest : public ::testing::Test {
 protected:
  EngineStats stats() { return fixture_.server().engines().stats(); }

  Random random_{testing::MixSeed(testing::TestSeed(), "drain")};
  ServerFixture fixture_;
  std::unique_ptr<v1::AttentionService::Stub> stub_ = fixture_.Stub();
  const v1::AttendRequest request_ = MakeRequest({}, &random_);
};

TEST_F(DrainTest, AnswersWhatWasAcceptedAndRefusesTheRest) {
  fixture_.device().Hold();
  std::vector<std::future<CallResult>> calls;
  for (int i = 0; i < 10; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return Call(stub_.get(), request_); }));
  }
  ASSERT_TRUE(Eventually([&] { return stats().in_flight_requests == 10; }));
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return fixture_.server().Drain(); });
  ASSERT_TRUE(Eventually([&] { return stats().draining; }));
  const CallResult refused = Call(stub_.get(), request_);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(InfoOf(refused.status).reason, "DRAINING");
  fixture_.device().Release();
  for (auto& call : calls) {
    const CallResult result = call.get();
    EXPECT_TRUE(result.status.ok() && Answers(request_, result.reply))
        << result.status.error_message();
  }
  EXPECT_TRUE(drained.get().ok());
}

TEST_F(DrainTest, StreamsEndOnceTheirRequestsAreAnswered) {
  fixture_.device().Hold();
  grpc::ClientContext context;
  const auto stream = stub_->AttendStream(&context);
  for (uint64_t id = 0; id < 5; ++id) {
    v1::AttendStreamRequest message;
    message.set_id(id);
    *message.mutable_attend() = request_;
    ASSERT_TRUE(stream->Write(message));
  }
  grpc::ClientContext idle_context;
  const auto idle = stub_->AttendStream(&idle_context);  // nothing in flight on it
  ASSERT_TRUE(Eventually([&] { return stats().in_flight_requests == 5; }));
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return fixture_.server().Drain(); });
  v1::AttendStreamResponse reply;
  EXPECT_FALSE(idle->Read(&reply));
  EXPECT_EQ(idle->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  fixture_.device().Release();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_TRUE(reply.has_attend()) << reply.error().message();
  }
  EXPECT_FALSE(stream->Read(&reply));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(InfoOf(status).reason, "DRAINING");
  EXPECT_TRUE(drained.get().ok());
}

TEST_F(DrainTest, GivingUpAnswersWhatIsQueued) {
  fixture_.device().Hold();
  std::future<CallResult> running =
      std::async(std::launch::async, [&] { return Call(stub_.get(), request_); });
  fixture_.device().AwaitRunning(1);
  std::future<CallResult> queued =
      std::async(std::launch::async, [&] { return Call(stub_.get(), request_); });
  ASSERT_TRUE(Eventually([&] { return stats().queued_requests == 1; }));
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return fixture_.server().Drain(); });
  ASSERT_TRUE(Eventually([&] { return stats().draining; }));
  fixture_.server().Abort();
  EXPECT_EQ(queued.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  fixture_.device().Release();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_EQ(drained.get().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(DrainTest, UnderLoadNothingAcceptedIsLost) {
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      const auto stub = fixture_.Stub();
      while (!stop) {
        const CallResult result = Call(stub.get(), request_);
        if (result.status.ok()) {
          ++answered;
        } else if (result.status.error_code() == grpc::StatusCode::UNAVAILABLE) {
          stop = true;
        } else {
          ADD_FAILURE() << result.status.error_code() << ": " << result.status.error_message();
          stop = true;
        }
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return answered > 200; }));
  EXPECT_TRUE(fixture_.server().Drain().ok());
  stop = true;
  for (std::thread& client : clients) client.join();
  // Every request that the server took is accounted for: as many OKs counted there as arrived here.
  const std::optional<double> ok = testing::MetricOf(
      fixture_.server().http_port(), R"(attend_requests_total{code="OK",method="Attend"})");
  EXPECT_EQ(ok, answered);
}

}  // namespace
}  // namespace attend
